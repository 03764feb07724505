"""Every family's shipped network: it loads, it is better than untrained, and its kernel is the dense definition's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

pytest.importorskip("flax")

import nfk
from nfk.sampling import Langevin
from reproduction import data, weights
from reproduction.families import FAMILIES
from reproduction.families.trained import SHIPPED_BYTES, trained

pytestmark = pytest.mark.reproduction
DIGITS = [family for family in FAMILIES if family.data == "mnist"]


def each(families):
    """A test for each of them, all tests of a family in one worker."""
    return pytest.mark.parametrize("family", families, ids=lambda family: family.network.replace(" ", "_"))


@cache
def shipped(label: str):
    """The trained network and the facts of its file, once for all families that share it."""
    return trained(next(family for family in FAMILIES if family.label == label))


@pytest.fixture(scope="module")
def digits():
    """Real digits that need no file: (train, test)."""
    return data.digits()


def needs_data(family):
    return pytest.mark.skipif(data.data_folder() is None, reason=f"{family} needs NFK_DATA")


def test_every_family_of_the_table_is_there():
    names = {family.name for family in FAMILIES}
    assert names == {"classifier", "gan", "vae", "flow", "autoregressive", "energy", "diffusion", "language"}
    assert len({(family.name, family.network, family.data) for family in FAMILIES}) == len(FAMILIES)


FILES = {family.label: family for family in FAMILIES if family.label not in ("gan-cifar10", "classifier-cifar10")}


@pytest.mark.parametrize("family", FILES.values(), ids=FILES)
def test_shipped_weights_are_small_and_say_how_they_were_made(family):
    path = weights.shipped(family.label)
    assert path is not None
    assert path.stat().st_size < SHIPPED_BYTES
    _, facts = shipped(family.label)
    assert family.label in facts["command"]
    assert facts["seed"] == 0
    assert facts["seconds_training"] > 0


MEASURED = [family for family in DIGITS if family.name != "gan" and "amples" not in family.network]


@each(MEASURED)
def test_the_trained_network_is_better_than_the_untrained(family, digits):
    test = digits[1].take(slice(100))
    name, value = family.metric(shipped(family.label)[0], test)
    _, before = family.metric(family.build(1), test)
    assert value > before + 0.5 if name == "accuracy" else value < 0.8 * before


# The hierarchical VAE is read as the convolutional one is, and takes more than a minute to compile.
READ = [family for family in DIGITS if family.network != "hierarchical VAE"]


@each(READ)
def test_its_embedding_is_the_dense_definition_s(family, digits):
    X = family.examples(digits[1].take(slice(3)))  # three: a batch is compiled example by example
    model = family.model(shipped(family.label)[0])
    model = replace(model, samples=8) if model.sample is not None else model
    if isinstance(model.sample, Langevin):
        model.sample.steps = 1  # a chain is a chain
    E = nfk.fit(model, X, 3, method="exact").training
    K = nfk.gram(model, X)
    np.testing.assert_allclose(E @ E.T, K, atol=1e-3 * np.abs(K).max())


@needs_data("the language model")
def test_padding_changes_nothing_in_the_embedding_of_a_sentence():
    family = next(family for family in FAMILIES if family.name == "language")
    model = family.model(shipped(family.label)[0])
    X = family.examples(data.sentences("polarity", "test").take(slice(12)))
    embedding = nfk.fit(model, X, 4)
    other = {"tokens": np.where(X["mask"] > 0, X["tokens"], 7), "mask": X["mask"]}
    np.testing.assert_allclose(embedding(other), embedding.training, atol=1e-3 * np.abs(embedding.training).max())


@each([FILES[label] for label in ("gan-mnist", "energy-mnist", "flow-mnist")])
def test_a_training_with_a_step_of_its_own_moves_every_part(family, digits, tmp_path, monkeypatch):
    monkeypatch.setattr(type(family), "steps", 2)
    monkeypatch.setattr("reproduction.families.energy.CHAIN", 2)
    before = family.build(0)
    after = family.train(family.build(0), digits[0].take(slice(256)), 0, tmp_path)
    first, second = (weights.state_of(network) for network in (before, after))
    moved = [
        not np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
        if hasattr(a, "dtype") and np.issubdtype(a.dtype, np.floating)
    ]
    assert np.mean(moved) > 0.6  # the flow has two arrays of its base, which stand still
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(second) if hasattr(leaf, "dtype"))
