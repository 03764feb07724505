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
from nfk.planning import Options, Problem, Target, Way, plan_fit
from nfk.planning.listing import ways
from nfk.planning.rates import TYPICAL
from nfk.progress import Reporter
from nfk.spaces import HOST, Mesh
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


def fitted(model, X, way: str):
    """A fit by the kernel matrix, of gradients or of factors."""
    found = nfk.fit(model, X, 4, method="gram", keep=way == "gradients", progress=False)
    assert found.plan.way.factors == (way == "factors")
    return found


@pytest.mark.parametrize("name", [*UNSCALED, *SHARING])
@in_float64
def test_a_fit_from_factors_is_the_fit_from_gradients(name, dtype, monkeypatch):
    monkeypatch.setattr(Way, "_factor_seconds", -1e6)  # for a small problem the plan would not take them
    if name in SHARING:
        apply, shapes, width, _ = SHARING[name]
        model = nfk.network(apply, {leaf: weights(dtype, *shape) for leaf, shape in shapes.items()})
        X = vectors(dtype, width, count=10)
    else:
        model, X = (case := CASES[name](dtype)).model, case.X
    if not model.network.factored(jax.tree.map(lambda leaf: leaf[0], X)):
        pytest.skip("no layer has factors that pay")
    first, second = fitted(model, X, "gradients"), fitted(model, X, "factors")
    np.testing.assert_allclose(second.eigenvalues, first.eigenvalues, rtol=1e-8)
    np.testing.assert_allclose(second.trace, first.trace, rtol=1e-8)
    np.testing.assert_allclose(second(X), first(X), atol=1e-6 * first.singular_values[0])
    assert second.residuals.max() < 1e-6


def wide_network(build):
    """A layer of 900,000 parameters, whose factors have 6,300 numbers, and 500 examples: what there is to plan."""
    single = np.dtype("float32")
    wide = {"first": weights(single, 300, 3000), "last": weights(single, 3000, 1)}
    model = build(lambda params, x: (jnp.tanh(x @ params["first"]) @ params["last"])[0], wide)
    return Problem.of(model, Examples(vectors(single, 300, count=500)))


def test_the_plan_takes_factors_where_they_are_cheaper():
    plan_of = lambda build, memory: plan_fit(wide_network(build), 16, Options(memory=memory), TYPICAL)  # noqa: E731
    plan = plan_of(nfk.network, "1GB")
    assert plan.way.factors
    assert "from factors of layers" in str(plan)
    assert plan.problem.factor_bytes == 4 * (300 + 3000 + 3000)  # the last layer has its gradient
    assert not plan_of(nfk.network, "8GB").way.factors  # all gradients can be kept
    assert not plan_of(nfk.density, "1GB").way.factors  # its rows have a Fisher scale


def test_the_plan_counts_the_program_that_factors_need(monkeypatch):
    """Their kernel matrix may take a fraction of a second, and so does one more compilation."""
    plan = lambda: plan_fit(wide_network(nfk.network), 16, Options(memory="1GB"), TYPICAL)  # noqa: E731
    assert plan().way.factors
    monkeypatch.setattr("nfk.planning.ways.MORE_PROGRAMS", 1e3)
    assert not plan().way.factors


def test_factors_are_for_blocks_in_the_memory_of_the_host(tmp_path):
    problem = wide_network(nfk.network)

    def listed(**options) -> list[Way]:
        return list(ways(problem, Target.of(128, problem), Options(memory="1GB", **options), TYPICAL))

    found = listed(scratch=tmp_path)
    assert any(way.shelf for way in found)
    assert any(way.mapped for way in found)
    assert [(way.method, way.shelf, way.mapped) for way in found if way.factors] == [("gram", False, False)]
    assert not any(way.factors for way in listed(space=Mesh.of(jax.devices()[:1])))
    assert not any(way.factors for way in listed(keep=True))
