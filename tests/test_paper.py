"""The experiments of the paper, small and from end to end: what they write, and that a second call goes on."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import nfk
from nfk import kernel
from reproduction import __main__ as entry
from reproduction import data
from reproduction.experiments import PAPER, PLANNED
from reproduction.paper import lowrank
from reproduction.paper.rehearsal import FEW, rehearsed
from reproduction.paper.runner import run_experiment

pytestmark = pytest.mark.reproduction
HERE = data.data_folder() is not None and (data.data_folder() / "pretrained").is_dir()
needs_weights = pytest.mark.skipif(not HERE, reason="needs NFK_DATA with pretrained/")


@needs_weights
@pytest.mark.parametrize("name", PAPER)
def test_a_smoke_run_writes_its_rows_and_a_figure_away_from_the_results(name, tmp_path, capsys):
    path = run_experiment(name, "smoke", tmp_path / "results", tmp_path / "runs")
    assert path == tmp_path / "runs" / "smoke" / f"{name}.json"
    assert not (tmp_path / "results").exists()
    found = json.loads(path.read_text())
    assert found["command"] == f"python -m reproduction {name} --preset smoke"
    assert {"jax", "torch", "nfk"} <= found["versions"].keys()
    assert found["settings"]
    assert found["rows"]
    for row in found["rows"]:
        assert {"method", "metric"} <= row.keys()
        assert row["low"] <= row["value"] <= row["high"] if "value" in row else row["seeds"] == len(row["values"])
    assert all(picture.stat().st_size > 5_000 for picture in path.with_suffix("").glob("*.png"))
    assert any(path.with_suffix("").glob("*.png"))
    capsys.readouterr()
    again = run_experiment(name, "smoke", tmp_path / "results", tmp_path / "runs")
    assert json.loads(again.read_text())["rows"] == found["rows"]
    assert not capsys.readouterr().out  # nothing was measured again


@needs_weights
def test_the_size_of_the_paper_is_planned_in_full_and_run_on_a_few_images(capsys):
    """One of them: the others differ in their networks alone."""
    said = []
    assert rehearsed("semi-supervised", "paper", said.append) == 3
    assert "Plan: 50,000 examples, 50,000 rows, 692,065 parameters, rank 512" in said[0]
    assert all("of the variance in 4 components" in text for text in said[1::2])


@needs_weights
@pytest.mark.parametrize("name", PLANNED)
def test_every_planned_experiment_names_fits_of_its_own_size(name):
    module = importlib.import_module(f"reproduction.paper.{name.replace('-', '_')}")
    settings = module.PRESETS["paper"]
    first = next(iter(module.fits(settings)))
    assert len(first.few) >= FEW
    assert first.count in asdict(settings).values() or name == "pretrained"  # which needs no fit, and shows one
    assert 1 <= first.rank <= first.count
    assert first.model.layout.size > 50_000


def test_an_experiment_that_cannot_be_planned_says_so(capsys):
    assert entry.main(("families",), preset="cpu", plan=True) == 2
    assert "families cannot be planned without being run; leave --plan out" in capsys.readouterr().err


@needs_weights
def test_what_lowrank_varies_reaches_the_model():
    """Its own critic is left out of the smoke run, which would compile it eight times."""
    sizes = {"rows": 6, "state": "untrained", "seed": 0}
    plain, X = lowrank.Own(8).prepared(**sizes, varied={})
    assert (plain.expectation, plain.samples, X.shape) == ("model", 8, (6, 28, 28, 1))
    generated = lowrank.Own(8).prepared(**sizes, varied={"rows": "generated"})[1]
    assert generated.shape == X.shape
    assert not np.allclose(generated, X)
    assert lowrank.Own(8).prepared(**sizes, varied={"moments": "data"})[0].expectation == "data"
    assert lowrank.Others("cifar10-dcgan-critic-wide", 8).conditions == ("moments over the data",)


def test_shares_are_those_of_the_dense_kernel():
    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((3, 4)).astype("float32"), "v": rng.standard_normal(4).astype("float32")}
    model = nfk.energy(lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], params, expectation="data")
    X = rng.standard_normal((12, 3)).astype("float32")
    found = lowrank.shares(model, X, (1, 2, 5), 0)
    values = np.sort(np.linalg.eigvalsh(np.float64(kernel.gram(model, X))))[::-1]
    ks = np.array([0, 1, 4])
    np.testing.assert_allclose(found["shift in, variance"], np.cumsum(values)[ks] / values.sum(), rtol=1e-4)
    np.testing.assert_allclose(found["shift in, squares"], np.cumsum(values**2)[ks] / np.sum(values**2), rtol=1e-4)
    assert abs(found["shift"]) < 1e-5  # the mean is that of the rows
    np.testing.assert_allclose(found["shift out, variance"], found["shift in, variance"], rtol=1e-4)


def test_ctrl_c_writes_the_rows_so_far_and_says_that_there_are_more(tmp_path, monkeypatch, capsys):
    from reproduction.paper import pretrained

    def run(*_):
        yield {"method": "a", "metric": "m"}
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrained, "run", run)
    with pytest.raises(KeyboardInterrupt):
        run_experiment("pretrained", "smoke", tmp_path, tmp_path)
    found = json.loads((tmp_path / "smoke" / "pretrained.json").read_text())
    assert found["unfinished"]
    assert found["rows"] == [{"method": "a", "metric": "m"}]
    assert "has 1 rows, and the same command goes on" in " ".join(capsys.readouterr().out.split())


@needs_weights
@pytest.mark.parametrize("name", ["cifar10-dcgan-critic", "cifar10-dcgan-critic-wide"])
def test_the_gradient_in_the_last_weights_is_what_the_last_layer_sees(name):
    """What the steps from the last layer to the embedding rest on: the same numbers in the same order."""
    from reproduction.paper.critics import activations, last_weights
    from reproduction.pretrained import load

    network = load(name)
    images = data.load("cifar10", "test").images[:2]
    weights = dict(network.module.named_parameters())[last_weights(network).replace("/", ".")]
    seen = activations(network, images)["last layer, in full"]
    for row, image in zip(seen, network.inputs(images), strict=True):
        weights.grad = None
        network.module.eval()(torch.as_tensor(image)[None]).sum().backward()
        np.testing.assert_allclose(weights.grad.flatten(), row, rtol=1e-5, atol=1e-6)
