"""Kernel matrices from the factors of layers: equal to the dense definition, whatever the weights are used for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from registry import CASES, EXAMPLES, cnn, cnn_params, mlp, vectors, weights

import nfk
from nfk import kernel
from nfk.model import split_key
from nfk.model.factors import layers_of
from nfk.model.program import flat
from nfk.operator.factors import factor_gram
from nfk.operator.stream import GradientStream
from nfk.progress import Reporter
from nfk.spaces import HOST
from nfk.stream import Examples

in_float64 = pytest.mark.parametrize("dtype", ["float64"], indirect=True)


def stream_of(model, X):
    outputs = model.outputs(jax.tree.map(lambda leaf: leaf[0], X))
    differentiator = model.network.differentiate(split_key(0)[2], outputs)
    return GradientStream(differentiator, Examples(X), HOST, 7, Reporter(show=False))


def factored(apply, params, x):
    """The parameters that have factors."""
    leaves = jax.tree.leaves(params)
    program = jax.make_jaxpr(flat(apply))(params, x).jaxpr
    names = nfk.network(apply, params).layout.paths
    return {names[layer.leaf] for layer in layers_of(program, len(leaves))}


def assert_equal_kernels(model, X):
    expected = kernel.gram(model, X)
    tol = 1e-12 if model.layout.dtype == np.float64 else 1e-5
    stream = stream_of(model, X)
    assert stream.layout.dtype == jax.tree.leaves(model.params)[0].dtype  # and not rounded on its way into JAX
    found = factor_gram(stream, centred=model.centred)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tol * np.abs(expected).max())


UNSCALED = [
    "network_three_outputs", "network_scalar", "classifier_unnormalised", "classifier_identity_centred",
]  # fmt: skip


@pytest.mark.parametrize("name", UNSCALED)
def test_models_without_a_scale(name, dtype):
    case = CASES[name](dtype)
    assert_equal_kernels(case.model, case.X)


def tied(params, x):
    return jnp.tanh(jnp.tanh(x @ params["twice"]) @ params["twice"].T) @ params["last"]


def looped(params, x):
    step = lambda hidden, _: (jnp.tanh(hidden @ params["loop"]), None)  # noqa: E731
    return lax.scan(step, x, None, length=3)[0] @ params["last"]


def sequence(params, x):
    """Two positions share the weights of a wide layer; the right operand is the input in the last product."""
    hidden = jnp.tanh(x.reshape(2, 6) @ params["wide"])
    return jax.jit(lambda w, h: w @ h)(params["last"], hidden.reshape(-1))


def upsampled(params, x):
    """A transposed convolution and one over few positions and many channels."""
    hidden = lax.conv_transpose(x.reshape(1, 1, 2, 6), params["up"], (1, 2), "SAME")
    return jnp.tanh(lax.conv(hidden.transpose(0, 3, 1, 2), params["down"], (1, 4), "VALID")).reshape(-1)


SHARING = {
    "tied": (tied, {"twice": (6, 40), "last": (6, 3)}, 6, {"last"}),
    "looped": (looped, {"loop": (9, 9), "last": (9, 3)}, 9, {"last"}),
    "sequence": (sequence, {"wide": (6, 20), "last": (3, 40)}, 12, {"last", "wide"}),
    "upsampled": (upsampled, {"up": (1, 4, 6, 12), "down": (30, 12, 1, 4)}, 12, {"up", "down"}),
}


@pytest.mark.parametrize("name", SHARING)
def test_weights_used_once_have_factors_and_others_their_gradient(name, dtype):
    apply, shapes, width, expected = SHARING[name]
    params = {leaf: weights(dtype, *shape) for leaf, shape in shapes.items()}
    X = vectors(dtype, width, count=10)
    assert factored(apply, params, X[0]) == expected
    assert_equal_kernels(nfk.network(apply, params), X)


@in_float64
def test_shared_convolutions(dtype):
    X = vectors(dtype, 64, count=8).reshape(-1, 8, 8, 1)
    params = cnn_params(dtype)
    assert factored(cnn, params, X[0]) == {"head"}
    assert_equal_kernels(nfk.network(cnn, params), X)


@in_float64
def test_tiles_and_units_change_nothing(dtype, monkeypatch):
    case = CASES["network_three_outputs"](dtype)
    whole = factor_gram(case.stream())
    monkeypatch.setattr("nfk.operator.factors.MOST_POSITIONS", 3 * EXAMPLES // 6)
    np.testing.assert_allclose(factor_gram(case.stream(), unit=0.25), whole / 16, rtol=1e-9, atol=1e-14)
    assert factored(mlp, case.model.params, case.X[0]) == {"first/kernel", "second/kernel"}
