"""Gradients in two halves of their bits: nothing is lost, and who may ask for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import nfk
from nfk.layout import Layout
from nfk.planning import Options, Problem, plan_fit
from nfk.planning.rates import TYPICAL
from nfk.spaces import Halves, Mesh, turned
from nfk.spaces.halves import slab_width
from nfk.spaces.host import pages

RNG = np.random.default_rng(0)
X = RNG.standard_normal((90, 6)).astype(np.float32)
PARAMS = {"w": RNG.standard_normal((6, 30)).astype(np.float32), "v": RNG.standard_normal((30, 3)).astype(np.float32)}
MODEL = nfk.classifier(lambda params, x: jnp.tanh(x @ params["w"]) @ params["v"], PARAMS)
FAST = replace(TYPICAL, coarse_products=(2e12, 3e12, 4e12))
LARGE = Problem(
    examples=4096, outputs=1, parameters=600_000, itemsize=4, forward_flops=1e6, activation_bytes=10**5, patch_bytes=0,
    moment_examples=256, moments_over_data=False, trace_known=False, why_no_products=None,
)  # fmt: skip


def layout_of(size: int) -> Layout:
    return Layout.of({"w": np.zeros(size, np.float32)}, None)


@settings(max_examples=30, deadline=None)
@given(
    rows=arrays.arrays(
        np.float32, st.tuples(st.just(5), st.just(150)), elements=st.floats(width=32, allow_nan=False)
    )
)  # fmt: skip
def test_both_halves_are_the_number(rows):
    halves = Halves(5, layout_of(150))
    for first, count in ((0, 2), (2, 2), (4, 1)):
        padded = np.concatenate([rows[first : first + count], np.ones((2 - count, 150), np.float32)])
        halves.write(first, [padded], count)
    assert np.array_equal(halves.block(slice(0, 5)).view(np.uint32), rows.view(np.uint32))
    assert np.array_equal(halves.block(slice(1, 4)).view(np.uint32), rows[1:4].view(np.uint32))


@pytest.mark.parametrize(("size", "cache", "width"), [
    (1, 2**18, 2**16), (64, 2**18, 2**16), (100, 2**18, 2**16), (700, 2**18, 2**16), (700, 0, 64), (700, 5000, 64),
])  # fmt: skip
def test_slabs_are_the_rows_and_their_first_halves_are_in_bfloat16(size, cache, width, monkeypatch):
    """Whether a slab is all of them, or they are written by one slab at a time, or by two."""
    monkeypatch.setattr("nfk.spaces.halves.CACHE", cache)
    monkeypatch.setattr("nfk.spaces.halves.WIDTHS", (64, width))
    rows = RNG.standard_normal((9, size)).astype(np.float32)
    halves = Halves(9, layout_of(size))
    halves.write(0, [rows], 9)
    W, M = RNG.standard_normal((9, 4)).astype(np.float32), RNG.standard_normal((size, 4)).astype(np.float32)
    rounded = rows.astype(jnp.bfloat16).astype(np.float64)
    assert [slab.place.start for slab in halves.slabs] == list(range(0, size, slab_width(9, size)))
    np.testing.assert_allclose(sum(slab.product(M) for slab in halves.slabs), rows @ M, atol=1e-4)
    exact = np.concatenate([slab.outer(turned(W, np.dtype(np.float32))) for slab in halves.slabs])
    np.testing.assert_allclose(exact, rows.T @ W, atol=1e-4)
    np.testing.assert_allclose(halves.squares, (rows.astype(np.float64) ** 2).sum(axis=1), rtol=1e-6)
    W = W.astype(jnp.bfloat16).astype(np.float32)
    coarse = np.concatenate([slab.coarse_outer(turned(W)) for slab in halves.slabs])
    np.testing.assert_allclose(coarse, rounded.T @ W, atol=1e-4)
    kernel = sum(slab.coarse_kernel(turned(W)) for slab in halves.slabs)
    np.testing.assert_allclose(kernel, rounded @ (rounded.T @ W), atol=2**-7 * np.sqrt(size) * np.abs(coarse).max())


def test_raw_gradients_are_normalised_in_place():
    rows, mean, scale = (RNG.standard_normal(shape).astype(np.float32) for shape in ((9, 700), 700, 700))
    halves = Halves(9, layout_of(700))
    halves.write(0, [rows], 9)
    halves.normalise(mean, scale)
    np.testing.assert_allclose(halves.block(slice(0, 9)), (rows - mean) * scale, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(halves.squares, ((rows - mean) ** 2 * scale**2).sum(axis=1), rtol=1e-5)


def test_a_slab_stays_off_fresh_pages_and_has_few_parameters_where_there_are_few():
    assert slab_width(4096, 613_761) == 1024
    assert slab_width(10**6, 613_761) == 64
    assert slab_width(10, 100) == 128
    assert slab_width(10, 10**7) == 2**16


@pytest.mark.parametrize("options", [{}, {"fisher": "identity", "centred": False}])
def test_a_gradient_that_is_not_finite_is_named(options):
    """Whether a pass of moments sees it first, or none does."""
    params = jax.tree.map(np.abs, PARAMS)
    model = nfk.classifier(lambda params, x: jnp.sqrt(x @ params["w"]) @ params["v"], params, **options)
    bad = np.abs(X)
    bad[80] = 0
    with pytest.raises(ValueError, match=r"the gradient of the score at X\[80\] is NaN or infinite"):
        nfk.fit(model, bad, 5, search="bfloat16")


@pytest.mark.parametrize("options", [{}, {"fisher": "identity", "centred": False}])
def test_a_module_of_torch_writes_into_halves(options):
    """Raw gradients that are normalised in place, or rows at once."""
    torch = pytest.importorskip("torch")
    import nfk.torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 30), torch.nn.Tanh(), torch.nn.Linear(30, 3)).eval()
    model = nfk.torch.classifier(module, **options)
    coarse, full = nfk.fit(model, X, 5, search="bfloat16"), nfk.fit(model, X, 5, method="exact")
    assert coarse.plan.way.halved
    np.testing.assert_allclose(coarse.eigenvalues, full.eigenvalues, rtol=1e-3)
    np.testing.assert_allclose(coarse(X), coarse.training, atol=1e-4 * np.abs(coarse.training).max())


def test_the_plan_takes_it_where_it_is_faster_and_says_so():
    plan = plan_fit(LARGE, 32, Options(memory="16GB"), FAST)
    assert plan.way.halved
    assert "gradients kept in memory, search in bfloat16" in str(plan)
    assert plan.peak_bytes <= plan.budget
    assert "parameters x columns" not in str(dict(list(plan.way.stages())[1]))  # a search holds nothing so long
    assert not plan_fit(LARGE, 32, Options(memory="16GB"), TYPICAL).way.halved
    assert not plan_fit(LARGE, 32, Options(memory="16GB", search="full"), FAST).way.halved
    assert not plan_fit(LARGE, 32, Options(memory="16GB", tol=1e-3), FAST).way.halved
    assert not plan_fit(LARGE, 0.9, Options(memory="16GB"), FAST).way.halved
    assert not plan_fit(replace(LARGE, itemsize=8), 32, Options(memory="32GB"), FAST).way.halved


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"search": "half"}, "search='half' must be 'full' or 'bfloat16'"),
        (
            {"search": "bfloat16", "method": "gram"},
            "with gradients kept in memory, not for method='gram': leave one of",
        ),
        ({"search": "bfloat16", "side": "parameters"}, "not for side='parameters'"),
        ({"search": "bfloat16", "keep": False}, "not for keep=False"),
        ({"search": "bfloat16", "engine": "products"}, "not for engine='products'"),
        ({"search": "bfloat16", "basis": "bfloat16"}, "not for basis='bfloat16'"),
        ({"search": "bfloat16", "space": Mesh.of(jax.devices()[:1])}, "needs blocks on the host of one process"),
    ],
)
def test_a_search_that_cannot_be(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Options(**options)


def test_what_has_no_halves_is_told():
    with pytest.raises(ValueError, match="search='bfloat16' needs a number of components, not a fraction"):
        nfk.plan(MODEL, X, 0.9, search="bfloat16")
    with pytest.raises(ValueError, match="search='bfloat16' needs gradients in float32: leave out search"):
        plan_fit(replace(LARGE, itemsize=8), 32, Options(search="bfloat16"), FAST)


def test_pages_belong_to_their_process():
    """Shared ones cost more to touch, and a fork would write into them."""
    status = Path("/proc/self/status")
    if "RssShmem" not in (status.read_text() if status.exists() else ""):
        pytest.skip("needs /proc of Linux")
    shared = lambda: int(status.read_text().split("RssShmem:")[1].split()[0])  # noqa: E731
    before = shared()
    room = pages((16, 2**20), np.dtype(np.uint8))
    room[:] = 1
    assert shared() - before < 2**12  # kB, of the 16 MB
