"""Convolutions whose weights are differentiated by patches: the same values and gradients, wherever they stand."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import nfk
from nfk.model import compiling, dense
from nfk.model.patches import patch_bytes, with_patches, with_products

in_float64 = pytest.mark.parametrize("dtype", ["float64"], indirect=True)
CHANNELS_LAST, CHANNELS_FIRST = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
FEATURES_THIRD = ("NHWC", "HWOI", "NHWC")
LINES = ("NWC", "WIO", "NWC")

# Window, strides, padding, dilation of the input (a transposed convolution), dilation of the window.
PLANE = {
    "same": ((3, 3), (1, 1), "SAME", (1, 1), (1, 1)),
    "strided": ((4, 4), (2, 2), "SAME", (1, 1), (1, 1)),
    "uneven": ((3, 2), (2, 1), ((0, 2), (1, 0)), (1, 1), (1, 1)),
    "pixel by pixel": ((1, 1), (2, 2), "VALID", (1, 1), (1, 1)),
    "dilated": ((3, 2), (1, 2), "VALID", (1, 1), (2, 3)),
    "cropped": ((3, 3), (1, 1), ((-1, 2), (0, -2)), (1, 1), (1, 1)),
    "transposed": ((4, 4), (1, 1), ((2, 2), (2, 2)), (2, 2), (1, 1)),
    "transposed, dilated": ((3, 3), (1, 1), ((1, 0), (2, -1)), (2, 3), (1, 2)),
    "transposed, strided": ((3, 3), (2, 2), ((1, 1), (1, 1)), (2, 2), (1, 1)),
    "large": ((5, 4), (1, 2), "SAME", (1, 1), (1, 1)),
    "large, dilated": ((3, 7), (2, 1), ((2, 1), (9, 0)), (1, 1), (2, 2)),
    "large, transposed": ((5, 5), (1, 1), ((3, 2), (2, 2)), (2, 3), (1, 1)),
    "part of the input unseen": ((2, 2), (3, 3), "VALID", (1, 1), (1, 1)),
}


def draw(*shape, dtype):
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def assert_same_gradient(function, *arguments):
    """Value and gradient per example under vmap, against JAX's own."""
    both = [jax.value_and_grad(f, argnums=(0, 1)) for f in (function, with_patches(function))]
    expected, found = jax.jit(lambda *given: [jax.vmap(f, in_axes=(0, None))(*given) for f in both])(*arguments)
    assert jax.tree.leaves(found)[0].dtype == arguments[1].dtype  # and not rounded on its way into JAX
    tol = 1e-12 if arguments[1].dtype == np.float64 else 1e-5
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=tol * np.abs(a).max())


def primitives_in(function, *arguments):
    return str(jax.make_jaxpr(function)(*arguments))


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [(CHANNELS_LAST, "float32"), (CHANNELS_FIRST, "float64"), (FEATURES_THIRD, "float64")],
    indirect=["dtype"],
)
@pytest.mark.parametrize("name", PLANE)
@pytest.mark.parametrize("as_products", [False, True])
def test_every_kind_of_convolution_keeps_its_gradient(name, as_products, numbers, dtype, monkeypatch):
    if as_products:
        monkeypatch.setattr(dense, "LARGE", 0)
        monkeypatch.setattr(dense, "FEW", 0)
    window, strides, padding, spread, dilation = PLANE[name]
    x, w = draw(2, 7, 8, 3, dtype=dtype), draw(*window, 3, 5, dtype=dtype)
    if numbers is CHANNELS_FIRST:
        x, w = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)
    if numbers is FEATURES_THIRD:
        w = w.swapaxes(2, 3)

    def score(x, w):
        return jnp.sin(lax.conv_general_dilated(x[None], w, strides, padding, spread, dilation, numbers)).sum()

    program = primitives_in(with_patches(score), x[0], w)
    assert "custom_vjp" in program
    assert ("dot_general" in program) == (as_products and max(spread) == 1)
    assert_same_gradient(score, x, w)


@pytest.mark.parametrize(("window", "dtype", "expected"), [
    (3, np.float32, True), (5, np.float32, True), (7, np.float32, False), (3, jnp.bfloat16, False),
])  # fmt: skip
def test_neither_wide_windows_nor_half_precision(window, dtype, expected):
    """Every offset of a window has operations of its own, and is summed up in the precision of the network."""

    def score(x, w):
        return lax.conv_general_dilated(x[None], w, (window, window), "VALID", dimension_numbers=CHANNELS_LAST).sum()

    x, w = jnp.zeros((2 * window, 2 * window, 512), dtype), jnp.zeros((window, window, 512, 512), dtype)
    assert ("dot_general" in primitives_in(with_products(score), x, w)) == expected


def test_many_weights_at_few_positions_are_products_and_others_are_not():
    """In a batch and for examples written out one after another."""

    def score(x, w):
        return jnp.sin(lax.conv_general_dilated(x[None], w, (1, 1), "SAME", dimension_numbers=CHANNELS_LAST)).sum()

    for pixels, features, channels, expected in ((4, 256, 256, True), (16, 256, 256, False), (4, 256, 16, False)):
        x, w = np.zeros((pixels, pixels, channels), np.float32), np.zeros((3, 3, channels, features), np.float32)
        for rewrite in (with_patches, with_products):
            assert ("dot_general" in primitives_in(rewrite(score), x, w)) == expected
    model = nfk.energy(lambda w, x: score(x, w), draw(3, 3, 256, 256, dtype=np.float32))
    X = draw(3, 4, 4, 256, dtype=np.float32)
    expected = nfk.kernel.gradients(model, X, jax.random.key(0))
    for batching in ("unrolled", "patches"):
        found = model.network.differentiate(jax.random.key(0), 1, batching).gradients(X)[0]
        np.testing.assert_allclose(np.vstack(found), expected, atol=1e-4 * np.abs(expected).max())


@in_float64
@pytest.mark.parametrize("as_products", [False, True])
def test_one_and_three_dimensions(dtype, as_products, monkeypatch):
    if as_products:
        monkeypatch.setattr(dense, "LARGE", 0)
        monkeypatch.setattr(dense, "FEW", 0)

    def line(x, w):
        return jnp.sin(lax.conv_general_dilated(x[None], w, (2,), "SAME", (1,), (1,), LINES)).sum()

    assert_same_gradient(line, draw(2, 9, 3, dtype=dtype), draw(3, 3, 4, dtype=dtype))

    def volume(x, w):
        return jnp.sin(lax.conv(x[None], w, (1, 2, 1), "SAME")).sum()

    assert_same_gradient(volume, draw(2, 2, 4, 5, 6, dtype=dtype), draw(3, 2, 2, 3, 3, dtype=dtype))


def conv(x, w):
    return lax.conv_general_dilated(x[None], w, (1, 1), "SAME", dimension_numbers=CHANNELS_LAST)[0]


def scanned(x, w):
    return lax.scan(lambda carry, shift: (jnp.tanh(conv(carry, w) + shift), carry.sum()), x, jnp.arange(3.0))[0]


INSIDE = {
    "jit": jax.jit(conv),
    "checkpoint": jax.checkpoint(lambda x, w: jnp.tanh(conv(jnp.tanh(x), w))),
    "scan": scanned,
    "cond": lambda x, w: lax.cond(x.sum() > 0, conv, lambda x, w: conv(2 * x, w), x, w),
    "cond inside scan inside jit": jax.jit(lambda x, w: scanned(lax.cond(x[0, 0, 0] > 0, conv, conv, x, w), w)),
    "beside a rule of its own": lambda x, w: jax.nn.relu(conv(x, w)) + jax.nn.silu(conv(x, w)),
    "twice with one weight": lambda x, w: conv(jnp.tanh(conv(x, w)), w),
    "a gradient in the input": lambda x, w: jax.grad(lambda x: jnp.tanh(conv(x, w)).sum())(x),
}


@in_float64
@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("as_products", [False, True])
def test_convolutions_inside_other_programs(name, as_products, dtype, monkeypatch):
    if as_products:
        monkeypatch.setattr(dense, "LARGE", 0)
        monkeypatch.setattr(dense, "FEW", 0)
    x, w = draw(2, 5, 5, 3, dtype=dtype), draw(3, 3, 3, 3, dtype=dtype) / 5

    def score(x, w):
        return jnp.sin(INSIDE[name](x, w)).sum()

    assert "custom_vjp" in primitives_in(with_patches(score), x[0], w)
    assert_same_gradient(score, x, w)


@in_float64
def test_a_derivative_rule_of_the_user_stays_in_force(dtype):
    @jax.custom_jvp
    def scaled(x, w):
        return conv(x, w)

    scaled.defjvp(lambda primals, tangents: (scaled(*primals), 7 * conv(primals[0], tangents[1])))

    def score(x, w):
        return jnp.sin(scaled(x, w)).sum()

    x, w = draw(2, 5, 5, 2, dtype=dtype), draw(3, 3, 2, 2, dtype=dtype)
    assert_same_gradient(score, x, w)


@in_float64
def test_convolutions_with_groups_are_left_alone(dtype):
    x, w = draw(2, 5, 5, 4, dtype=dtype), draw(3, 3, 1, 4, dtype=dtype)

    def grouped(x, w):
        return jnp.sin(
            lax.conv_general_dilated(x[None], w, (1, 1), "SAME", dimension_numbers=CHANNELS_LAST, feature_group_count=4)
        ).sum()

    assert "custom_vjp" not in primitives_in(with_patches(grouped), x[0], w)
    assert patch_bytes(jax.make_jaxpr(grouped)(x[0], w).jaxpr) == 0
    assert_same_gradient(grouped, x, w)


def test_patch_bytes_are_those_of_the_largest_layer():
    first, second = draw(3, 3, 3, 8, dtype=np.float32), draw(4, 4, 8, 2, dtype=np.float32)

    def score(x):
        return lax.conv_general_dilated(
            conv(x, first)[None], second, (2, 2), "SAME", dimension_numbers=CHANNELS_LAST
        ).sum()

    program = jax.make_jaxpr(score)(np.zeros((10, 10, 3), np.float32)).jaxpr
    assert patch_bytes(program) == 4 * max(9 * 3 * 100, 16 * 8 * 25)


def test_programs_are_compiled_quickly_where_xla_knows_how():
    for options in (compiling.QUICK, compiling.ONCE):
        assert compiling.accepted(**options) == options  # this version does
    assert compiling.accepted(**compiling.QUICK, xla_has_no_such_option=True) is None


def test_only_vmap_makes_convolutions_with_groups():
    params = {"w": draw(3, 3, 2, 4, dtype="float32")}
    numbers = dict(window_strides=(1, 1), padding="SAME", dimension_numbers=CHANNELS_LAST)
    model = nfk.energy(lambda p, x: lax.conv_general_dilated(x[None], p["w"], **numbers).sum() ** 2, params)
    same = (*model.network._leaves(), jax.random.key(0))
    for way, grouped in (("vmap", True), ("patches", False)):
        program = model.network._functions.gradients[way].lower(1, *same, draw(5, 6, 6, 2, dtype="float32")).as_text()
        groups = {int(count) for count in re.findall(r"_group_count = (\d+)", program)}
        assert (groups > {1}) == grouped, groups
