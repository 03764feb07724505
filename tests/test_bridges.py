"""Modules of flax nnx and equinox: the same kernel as the network written as a plain function."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from registry import mlp, vectors

import nfk

X = vectors(np.float32, 6)


class Convnet(nnx.Module):
    """With batch norm, dropout, and a second method; written for batches."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.heads = nnx.List([nnx.Linear(64, 3, rngs=rngs)])

    def __call__(self, images):
        hidden = self.dropout(nnx.relu(self.norm(self.conv(images))))
        return self.heads[0](hidden.reshape(len(hidden), -1))

    def energy(self, images):
        return jnp.sum(self(images) ** 2, axis=1)


@pytest.fixture(scope="module")
def convnet() -> Convnet:
    """Batch statistics that are not those of a new network."""
    module = Convnet(nnx.Rngs(0))
    module(np.random.default_rng(0).standard_normal((64, 4, 4, 1), dtype=np.float32) * 2 + 1)
    module.eval()
    return module


IMAGES = np.random.default_rng(1).standard_normal((30, 4, 4, 1), dtype=np.float32)


def test_an_nnx_module_is_the_plain_function(convnet):
    apply, params = nfk.from_nnx(convnet)
    model = nfk.classifier(apply, params)
    assert model.layout.paths == (
        "conv/bias", "conv/kernel", "heads/0/bias", "heads/0/kernel", "norm/bias", "norm/scale",
    )  # fmt: skip
    mean, variance = convnet.norm.mean[...], convnet.norm.var[...]

    def plain(p, image):
        hidden = jax.lax.conv_general_dilated(
            image[None], p["conv"]["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        hidden = (hidden + p["conv"]["bias"] - mean) / jnp.sqrt(variance + 1e-5)
        hidden = jax.nn.relu(hidden * p["norm"]["scale"] + p["norm"]["bias"])
        return hidden.reshape(-1) @ p["heads"][0]["kernel"] + p["heads"][0]["bias"]

    ours, theirs = (nfk.fit(m, IMAGES, 6) for m in (model, nfk.classifier(plain, params)))
    np.testing.assert_allclose(ours.eigenvalues, theirs.eigenvalues, rtol=1e-5)
    E, F = ours(IMAGES), theirs(IMAGES)
    np.testing.assert_allclose(E @ E.T, F @ F.T, atol=1e-4 * np.abs(F @ F.T).max())


def test_another_method_by_name_or_as_a_function(convnet):
    named = nfk.energy(*nfk.from_nnx(convnet, method="energy"))
    given = nfk.energy(*nfk.from_nnx(convnet, method=lambda module, x: module.energy(x)))
    alone = nfk.energy(*nfk.from_nnx(convnet, method=lambda module, x: module.energy(x[None])[0], batched=False))
    values = [nfk.fit(model, IMAGES, 3).eigenvalues for model in (named, given, alone)]
    np.testing.assert_allclose(values, values[:1] * 3, rtol=1e-5)


def test_a_module_that_takes_a_pytree_and_a_key():
    class Autoencoder(nnx.Module):
        def __init__(self, rngs):
            self.encoder, self.decoder = nnx.Linear(6, 4, rngs=rngs), nnx.Linear(2, 6, rngs=rngs)

        def elbo(self, example, key):
            mean, log_scale = jnp.split(self.encoder(example["x"]), 2, axis=-1)
            latent = mean + jnp.exp(log_scale) * jax.random.normal(key, mean.shape)
            return -jnp.sum((example["x"] - self.decoder(latent)) ** 2, axis=-1) + jnp.sum(log_scale - mean**2, axis=-1)

    model = nfk.vae(*nfk.from_nnx(Autoencoder(nnx.Rngs(0)), method="elbo"))
    embedding = nfk.fit(model, {"x": X}, 3)
    np.testing.assert_allclose(embedding({"x": X[5:6]}), embedding({"x": X})[5:6], rtol=1e-3, atol=1e-4)


def test_nnx_modules_outside_evaluation_mode_are_told():
    module = Convnet(nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"dropout \(Dropout\) has deterministic=False.*call module.eval\(\)"):
        nfk.from_nnx(module)
    module.dropout.deterministic = True
    with pytest.raises(ValueError, match=r"norm \(BatchNorm\) has use_running_average=False.*call module.eval\(\)"):
        nfk.from_nnx(module)
    module.eval()
    nfk.from_nnx(module)


class Small(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    steps: jax.Array

    def __init__(self) -> None:
        keys = jax.random.split(jax.random.key(0))
        self.first, self.second = eqx.nn.Linear(6, 8, key=keys[0]), eqx.nn.Linear(8, 4, key=keys[1])
        self.dropout, self.steps = eqx.nn.Dropout(0.5), jnp.arange(3)

    def __call__(self, x):
        return self.second(self.dropout(jnp.tanh(self.first(x))))

    def rows(self, batch):
        return jax.vmap(self)(batch)


def test_an_equinox_module_is_the_plain_function():
    module = eqx.nn.inference_mode(Small())
    model = nfk.classifier(*nfk.from_equinox(module))
    assert model.layout.paths == ("first/weight", "first/bias", "second/weight", "second/bias")
    plain = {
        name: {"kernel": layer.weight.T, "bias": layer.bias}
        for name, layer in (("first", module.first), ("second", module.second))
    }
    batched = nfk.classifier(*nfk.from_equinox(module, method="rows", batched=True))
    expected = nfk.fit(nfk.classifier(mlp, plain), X, 5)
    for found in (nfk.fit(model, X, 5), nfk.fit(batched, X, 5)):
        np.testing.assert_allclose(found.eigenvalues, expected.eigenvalues, rtol=1e-5)
        E, F = found(X), expected(X)
        np.testing.assert_allclose(E @ E.T, F @ F.T, atol=1e-4 * np.abs(F @ F.T).max())


def test_equinox_modules_outside_inference_mode_are_told():
    with pytest.raises(ValueError, match=r"dropout \(Dropout\) has inference=False.*eqx.nn.inference_mode\(module\)"):
        nfk.from_equinox(Small())
    norm = eqx.nn.BatchNorm(4, "batch", mode="ema")
    with pytest.raises(ValueError, match=r"module \(BatchNorm\) has inference=False"):
        nfk.from_equinox(norm)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda m: nfk.from_nnx({}), "takes a flax.nnx.Module, not a dict"),
        (nfk.from_equinox, "takes an equinox.Module, not a Convnet"),
        (lambda m: nfk.from_nnx(m, method="logits"), "method='logits' is no method of Convnet: name one"),
        (lambda m: nfk.from_nnx(m, method=3), "method=3 must be a name, or a function"),
    ],
)
def test_mistakes_are_told(convnet, mistake, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mistake(convnet)


@pytest.mark.parametrize(("package", "bridge"), [("flax", nfk.from_nnx), ("equinox", nfk.from_equinox)])
def test_a_missing_package_is_named(monkeypatch, package, bridge):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ImportError, match=f"needs {package}: pip install"):
        bridge(None)
