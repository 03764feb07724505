"""The laws of the design, over every model of the registry, in both precisions, against the dense definition."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

import nfk
from nfk import kernel
from nfk.fitting import _Fit
from nfk.operator.gradients import GradientOperator
from nfk.operator.halves import HalvedOperator
from nfk.operator.moments import Moments
from nfk.operator.products import ProductOperator
from nfk.operator.stream import GradientStream
from nfk.planning import Options
from nfk.progress import Reporter
from nfk.spaces import HOST, Halves, Mesh, Scratch, Shelf
from nfk.stream import Examples

# Laws whose cause is not in the precision are tested in one: the other would double the time and find nothing new.
in_float32 = pytest.mark.parametrize("dtype", ["float32"], indirect=True)
in_float64 = pytest.mark.parametrize("dtype", ["float64"], indirect=True)


def gradients(case, space=HOST, *, keep=False, batching="vmap", microbatch=7, chunk=14):
    stream = case.stream(microbatch, space, batching)
    kept = space.row_space(stream.outputs).store(stream.rows, stream.layout) if keep else None
    return GradientOperator(stream, case.moments, chunk, kept)


def on_a_shelf(case):
    """Rows from the disk, a chunk at a time; the kernel from tiles of them."""
    stream = case.stream()
    shelf = Shelf(Scratch.of(None), stream.rows, stream.layout)
    return GradientOperator(stream, case.moments, 14, tile=21, shelf=shelf)


def by_tiles(case):
    """The kernel from tiles, which larger chunks meet than meet a block."""
    return GradientOperator(case.stream(), case.moments, 7, tile=14, meeting=21)


def halved(case):
    """Rows in two halves of their bits, in slabs of 64 parameters."""
    stream = case.stream()
    return HalvedOperator(stream, case.moments, 14, Halves(stream.rows, stream.layout), filled=False)


def products(case, space=HOST):
    return ProductOperator(case.stream(7, space), case.moments, batch=7, columns=4)


def third():
    """A device that is not the first: what is put elsewhere by mistake is an error."""
    return Mesh.of([jax.devices()[2]])


ENGINES = {
    "gradients": gradients,
    "gradients unrolled": lambda case: gradients(case, batching="unrolled"),
    "gradients by patches": lambda case: gradients(case, batching="patches"),
    "gradients kept": lambda case: gradients(case, keep=True),
    "gradients by tiles": by_tiles,
    "gradients kept on disk": on_a_shelf,
    "gradients kept in halves": halved,
    "gradients on a device": lambda case: gradients(case, third()),
    "gradients kept on a device": lambda case: gradients(case, third(), keep=True),
    "products": products,
    "products on a device": lambda case: products(case, third()),
}


@pytest.mark.parametrize(
    ("engine", "dtype"),
    [(engine, "float64") for engine in ENGINES if engine != "gradients kept in halves"]
    + [(engine, "float32") for engine in ("gradients", "gradients kept in halves", "products")],
    indirect=["dtype"],
)
def test_every_engine_is_the_dense_definition(case, close, engine):
    V = case.V
    operator = ENGINES[engine](case)
    space = operator.space
    rng = np.random.default_rng(0)
    M = rng.standard_normal((V.shape[1], 6)).astype(operator.dtype)
    W = rng.standard_normal((V.shape[0], 6)).astype(operator.dtype)
    block = space.put(M)
    for _ in range(2):  # the second time, from rows that were kept
        close(operator.matmat(block), V @ M)
        close(operator.rmatmat(W), V.T @ W)
        left, right = operator.fused(block)
        close(left, V @ M)
        close(right, V.T @ (V @ M))
    for found in (operator.matmat(block), operator.rmatmat(W), left, right):
        assert space is HOST or found.devices() == {jax.devices()[2]}
    close(operator.dense(), V)
    close(operator.trace(), np.sum(V**2))
    if "kept" in engine or "tiles" in engine:
        for double in (False, True):
            close(operator.gram(double), V @ V.T)
        close(operator.matmat(block), V @ M)


@in_float64
@pytest.mark.parametrize("engine", [gradients, products])
def test_adjoint(case, close, engine):
    operator = engine(case)
    rng = np.random.default_rng(1)
    M = rng.standard_normal((operator.shape[1], 3)).astype(operator.dtype)
    W = rng.standard_normal((operator.shape[0], 3)).astype(operator.dtype)
    close(np.sum(operator.matmat(M) * W), np.sum(M * operator.rmatmat(W)))


def test_moments_are_the_dense_moments(case, close):
    dense = kernel.moments(case.model, case.X)
    for microbatch, space in ((1, HOST), (7, HOST), (7, third())):  # 7: as compiled for the engines; it divides nothing
        streamed = case.moments_in_batches_of(microbatch, space)
        close(streamed.mean, dense.mean)
        close(streamed.scale, dense.scale, factor=5)


def test_full_rank_gives_the_kernel(case, close):
    E = case.full(case.X)
    close(E @ E.T, case.K)


@in_float64
def test_gram_is_the_kernel_of_two_sets(case, close):
    first, second = (jax.tree.map(lambda leaf, rows=rows: leaf[rows], case.X) for rows in (slice(0, 40), slice(5, 9)))
    close(nfk.gram(case.model, first, second), case.K[:, 5 * case.outputs : 9 * case.outputs])


def test_low_rank_error_is_the_optimal_one(case, close):
    E = case.embedding(case.X)
    close(np.linalg.norm(case.K - E @ E.T, 2) / case.values[0], case.values[4] / case.values[0])


WAYS = {
    "parameters' side": {"side": "parameters"},
    "examples' side": {"side": "examples"},
    "products": {"engine": "products"},
    "gram": {"method": "gram"},
    "power": {"method": "power", "tol": 1e-3},
    "exact": {"method": "exact"},
}


BOTH = ("parameters' side", "examples' side")


@pytest.mark.parametrize(
    ("way", "dtype"), [(way, "float64") for way in WAYS] + [(way, "float32") for way in BOTH], indirect=["dtype"]
)
def test_fit_then_transform_is_fit_transform(case, close, way):
    embedding = nfk.fit(case.model, case.X, 4, **{"tol": case.tol, **WAYS[way]})
    close(embedding.eigenvalues, case.values[:4])
    close(embedding(case.X), embedding.training)
    close(embedding.training.T @ embedding.training, np.diag(embedding.eigenvalues))


@in_float64
def test_what_lies_on_disk_changes_nothing(case, close, monkeypatch):
    """Gradients in a file and every tall block in a memory map; then with a basis in bfloat16, within its residuals."""
    planned = nfk.fitting.plan_fit

    def mapped(*arguments):
        found = planned(*arguments)
        return replace(found, way=replace(found.way, mapped=True), rival=None)

    monkeypatch.setattr("nfk.fitting.plan_fit", mapped)
    options = {"method": "krylov", "side": "parameters", "keep": "disk"}
    there = nfk.fit(case.model, case.X, 4, tol=case.tol, **options)
    close(there.eigenvalues, case.values[:4])
    close(there(case.X), there.training)
    rounded = nfk.fit(case.model, case.X, 4, tol=1e-3, basis="bfloat16", **options)
    assert rounded.residuals.max() <= 1e-3
    bound = rounded.residuals * rounded.eigenvalues + 1e-11 * case.values[0]
    assert (np.abs(rounded.eigenvalues - case.values[:4]) <= bound).all()
    np.testing.assert_allclose(rounded.eigenvalues, case.values[:4], rtol=1e-5)
    close(rounded(case.X), rounded.training)


@in_float32
def test_a_search_in_bfloat16_changes_nothing_beyond_its_residuals(case, close):
    """Nor does it matter whether the moments are over the data, in which case raw gradients are kept at first."""
    coarse = nfk.fit(case.model, case.X, 4, search="bfloat16")
    assert coarse.plan.way.halved
    assert coarse.residuals.max() <= 1e-2
    bound = coarse.residuals * coarse.eigenvalues + 1e-5 * case.values[0]
    assert (np.abs(coarse.eigenvalues - case.values[:4]) <= bound).all()
    np.testing.assert_allclose(coarse.eigenvalues, case.values[:4], rtol=1e-3, atol=1e-5 * case.values[0])
    close(coarse(case.X), coarse.training)
    close(coarse.trace, np.sum(case.V**2))


@in_float64
def test_new_examples_get_the_baseline_embedding(case, close):
    """Against the paper's Algorithm 1, up to the sign of each column."""
    X_new = jax.tree.map(lambda leaf: leaf[::-1][:9], case.X)
    values, expected = kernel.baseline(case.model, case.X, 3, X_new)
    found = case.full(X_new)[:, :3]
    close(case.full.eigenvalues[:3], values)
    close(found @ found.T, expected @ expected.T, factor=5)


@in_float32
@pytest.mark.parametrize("options", [{"microbatch": 1, "chunk": 1}, {"microbatch": 7, "chunk": 35}])
def test_chunk_size_changes_nothing(case, close, options):
    M = np.random.default_rng(2).standard_normal((case.model.layout.size, 3)).astype(case.model.layout.dtype)
    close(gradients(case, **options).matmat(M), gradients(case).matmat(M))


@in_float32
def test_an_example_has_one_embedding_in_any_batch(case, close):
    whole = case.embedding(case.X)
    rows = case.outputs
    for index in (0, 17, 39):
        alone = case.embedding(jax.tree.map(lambda leaf, i=index: leaf[i : i + 1], case.X))
        close(alone, whole[index * rows : (index + 1) * rows])


@in_float32
def test_save_then_load_is_the_identity(case, tmp_path):
    embedding = case.embedding
    again = nfk.load(embedding.save(tmp_path / "run"), case.model)
    np.testing.assert_array_equal(again(case.X), embedding(case.X))
    np.testing.assert_array_equal(again.residuals, embedding.residuals)
    assert (again.trace, again.passes, again.rank) == (embedding.trace, embedding.passes, embedding.rank)


def test_every_residual_bounds_the_true_error(case):
    """An eigenvalue lies within each residual, always; and once they are small it is the one of the same index."""
    rounding = (1e-11 if case.double else 1e-5) * case.values[0]
    for tol in (0.5, 1e-8 if case.double else 1e-3):
        embedding = nfk.fit(case.model, case.X, 6, tol=tol, oversamples=0)
        assert embedding.residuals.max() <= tol
        bound = embedding.residuals * embedding.eigenvalues + rounding
        nearest = np.abs(embedding.eigenvalues[:, None] - case.values).min(axis=1)
        assert (nearest <= bound).all()
    assert (np.abs(embedding.eigenvalues - case.values[:6]) <= bound).all()


@in_float64
def test_a_fraction_of_variance_is_explained_by_the_fewest(case):
    share = np.cumsum(case.values) / case.values.sum()
    embedding = nfk.fit(case.model, case.X, 0.9)
    expected = int(np.argmax(share >= 0.9)) + 1
    assert embedding.explained_variance_ratio.sum() >= 0.9 - 1e-6
    assert abs(embedding.rank - expected) <= (share[embedding.rank - 1] < 0.9 + 1e-5)


ON_A_DEVICE = {
    "parameters' side": {"side": "parameters"},
    "recomputed": {"side": "parameters", "keep": False},
    "examples' side": {"side": "examples"},
    "products": {"engine": "products"},
    "gram": {"method": "gram"},
    "exact": {"method": "exact"},
}


@pytest.mark.xdist_group("slabs")
@pytest.mark.parametrize("way", ON_A_DEVICE)
def test_a_column_of_many_slabs_on_a_device(way):
    """P = 20,000 parameters: two slabs and a part of one. V is X itself, of whole numbers: exact in float32."""
    data = np.random.default_rng(0).integers(-9, 10, (12, 20_000)).astype(np.float32)
    model = nfk.network(lambda w, x: w @ x, np.ones(20_000, np.float32))
    embedding = _Fit(model, 5, 0, Options(space=third(), **ON_A_DEVICE[way]))(Examples(data))
    values = np.linalg.eigvalsh(data.astype(np.float64) @ data.T.astype(np.float64))[::-1]
    np.testing.assert_allclose(embedding.eigenvalues, values[:5], rtol=1e-5)
    np.testing.assert_allclose(embedding.trace, values.sum(), rtol=1e-6)
    np.testing.assert_allclose(embedding(data), embedding.training, atol=1e-3 * np.sqrt(values[0]))


@pytest.mark.parametrize("space", [HOST, Mesh.of([jax.devices()[1]])], ids=["host", "device"])
def test_the_kernel_matrix_is_summed_in_float64(space):
    """Sums of whole numbers beyond 2^24, over a hundred slabs of parameters: exact, though each product is float32."""
    size = 100 * 8192
    data = np.random.default_rng(0).integers(0, 31, (3, size)).astype(np.float32)
    model = nfk.network(lambda w, x: w @ x, np.ones(size, np.float32))
    differentiator = model.network.differentiate(jax.random.key(0), 1, device=space.device)
    stream = GradientStream(differentiator, Examples(data), space, 1, Reporter(show=False))
    operator = GradientOperator(stream, Moments.trivial(model), 2, space.store(3, model.layout))
    whole = data.astype(np.int64)
    np.testing.assert_array_equal(operator.gram(), whole @ whole.T)


@in_float32
def test_the_device_changes_nothing(case):
    with jax.default_device(jax.devices()[3]):
        elsewhere = nfk.fit(case.model, case.X, 4, tol=case.tol)
    np.testing.assert_allclose(elsewhere.eigenvalues, case.embedding.eigenvalues, rtol=1e-5)


@in_float32
def test_runs_are_reproducible(case):
    again = nfk.fit(case.model, case.X, 4, tol=case.tol)
    np.testing.assert_array_equal(again.training, case.embedding.training)
