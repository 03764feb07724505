"""Where blocks live changes nothing: every operation of every space against numpy in float64, over many slabs."""

from __future__ import annotations

import tracemalloc

import jax
import numpy as np
import pytest

from nfk.layout import Layout
from nfk.ranges import Ranges
from nfk.spaces import HOST, Halves, Mapped, Mesh, Scratch, host, normals, orthonormalise, project_out
from nfk.spaces.host import DOUBLES
from nfk.spaces.pool import workers
from nfk.spaces.space import SLAB

ROWS = 2 * SLAB + 77  # some slabs and a part of one


MESHES = {"device": (1, 1), "data": (3, 1), "basis": (1, 2), "mesh": (2, 2)}


@pytest.fixture(params=["host", *MESHES, "torch", "torch without float64"])
def space(request, monkeypatch):
    """The host; a device that is not the first; several that share out rows, columns, both; a torch device."""
    if request.param == "host":
        return HOST
    if request.param in MESHES:
        data, basis = MESHES[request.param]
        return Mesh.of(jax.devices()[1 : 1 + data * basis], basis)
    torch = pytest.importorskip("torch", reason="blocks as torch tensors")
    import nfk.torch.space

    if request.param != "torch":
        monkeypatch.setattr(nfk.torch.space, "has_float64", lambda device: False)
    return nfk.torch.space.TorchSpace(torch.device("cpu"))


def gradients(space, rows: np.ndarray):
    """Rows as a network's gradients come: shared out over the ranges, padding and all."""
    store, share = space.store(len(rows), Layout.of(rows[0])), -(-len(rows) // space.parts)
    filled = np.concatenate([rows, np.zeros((space.parts * share - len(rows), rows.shape[1]), rows.dtype)])
    each = share + -share % space.shards
    padded = np.zeros((space.parts, each, rows.shape[1]), rows.dtype)
    padded[:, :share] = filled.reshape(space.parts, share, -1)
    store.write(0, [space.lend(padded.reshape(-1, rows.shape[1]))], share)
    return store.block(slice(0, share)), share


def block(columns: int, seed: int = 0, rows: int = ROWS, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(dtype)


def near(found, expected, tolerance=1e-6):
    expected = np.asarray(expected, np.float64)
    scale = np.abs(expected).max() or 1.0
    np.testing.assert_allclose(np.asarray(found, np.float64) / scale, expected / scale, rtol=0, atol=tolerance)


def test_products_in_float64_copy_a_few_megabytes_at_a_time():
    """The plan counts on it: of a tile and a chunk of gradients that fill the budget, no large parts are copied."""
    A = block(300)
    tracemalloc.start()
    try:
        found = HOST.inner(A, A[:, :200], double=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    near(found, A.T.astype(np.float64) @ A[:, :200], 1e-12)
    assert peak < workers() * 1.5 * DOUBLES + 12 * found.nbytes


def test_operations_are_those_of_numpy(space):
    A, B, small = block(5), block(3, 1), block(3, 2, rows=5)
    put = space.put
    double = [part.astype(np.float64) for part in (A, B, small)]
    near(space.inner(put(A), put(B)), double[0].T @ double[1], 3e-6)
    near(space.norms(put(A)), np.linalg.norm(double[0], axis=0))
    factors = np.array([2.0, -1.0, 0.5])
    near(
        space.norms(put(B), put(A[:, :3].copy()), factors),
        np.linalg.norm(double[1] - double[0][:, :3] * factors, axis=0),
    )
    near(space.product(put(A), small), double[0] @ double[2])
    near(space.add_product(put(B.copy()), put(A), small, -0.5), double[1] - 0.5 * double[0] @ double[2])
    near(space.rotate(put(A.copy()), small[:, :2]), double[0] @ double[2][:, :2])
    near(
        space.combine([put(A), put(B)], np.vstack([small, small[:3]])),
        double[0] @ double[2] + double[1] @ double[2][:3],
    )
    near(space.joined([put(A), put(B)]), np.hstack(double[:2]))
    parts = ((rows, space.part(put(A), rows)) for rows in Ranges.of(ROWS, space.parts).slices(5000))
    near(space.stacked(parts, ROWS, 5, A.dtype), A)
    near(space.between(put(A), slice(7, 108)), A[7:108])
    near(space.sampled(put(A), 1000), A[::1000])
    near(space.scaled(put(A), A[:, 0]), double[0] * double[0][:, :1])
    near(space.columns(put(A), slice(1, 3)), A[:, 1:3])
    near(space.padded(put(A), ROWS, 7), np.pad(A, ((0, 0), (0, 2))))
    scale, mean, sums = block(1, 3)[:, 0], block(1, 4)[:, 0], np.array([1.0, 2.0, 3.0])
    near(space.normalise(put(B.copy()), scale, mean, sums), scale[:, None] * (double[1] - np.outer(mean, sums)))
    near(space.get(space.zeros(4, 2, np.dtype(np.float32))), np.zeros((4, 2)))


def test_rows_of_gradients_meet_blocks(space):
    """20,000 parameters: some slabs of them. Everything that rows are multiplied with, against numpy."""
    G, M, W = block(20_000, rows=11), block(3, 1, rows=20_000), block(4, 2, rows=11)
    V, share = gradients(space, G)
    G, M, W = (part.astype(np.float64) for part in (G, M, W))
    ranges = Ranges.of(11, space.parts)
    whole, there = ranges.places(slice(0, share))
    spread = space.spread(space.put(M.astype(np.float32)))
    near(space.stacked([(slice(0, share), space.product(V, spread))], 11, 3, np.float32), G @ M, 1e-5)
    near(space.images(V, spread)[there, :3], (G @ M)[whole], 3e-6)  # XLA's products over 8,192 parameters
    total = None
    for rows in ranges.slices(share):
        total = space.outer(total, V, space.part(space.put(W.astype(np.float32)), rows))
    near(space.summed(total), G.T @ W)
    near(space.kernel(V, space.everywhere(V))[there][:, there], (G @ G.T)[whole][:, whole])
    near(space.collected([(space.row_squares(V), share)])[: len(G)], np.sum(G**2, axis=1))
    omega = space.normals([3], ranges, slice(0, share), 4, np.dtype(np.float32))
    near(space.sums_of(space.add_sums(None, omega))[:4], normals([3], 0, 11, 4, np.dtype(np.float32)).sum(axis=0))


def test_blocks_are_stored_in_bfloat16_on_the_host(tmp_path):
    for space in (HOST, Mapped(Scratch.of(tmp_path), tall=10)):
        A, B, small = block(5), block(3, 1), block(8, 2, rows=8)
        before = A.copy()
        stored = space.rounded(A)
        assert stored.nbytes == A.nbytes // 2
        np.testing.assert_array_equal(stored.astype(np.float32), A)
        assert 0 < np.abs(A / before - 1).max() <= 2.0**-8
        exact, other = A.astype(np.float64), B.astype(np.float64)
        near(space.inner(stored, B), exact.T @ other, 3e-6)
        near(space.inner(B, stored), other.T @ exact, 3e-6)
        near(space.add_product(B.copy(), stored, small[:5, :3]), other + exact @ small[:5, :3])
        combined = space.combine([stored, B], small, B.dtype)
        assert combined.dtype == np.float32
        near(combined, np.hstack([exact, other]) @ small)


@pytest.mark.parametrize(("data", "basis"), [(1, 1), (2, 2)])
def test_blocks_stay_where_they_are(data, basis):
    devices = jax.devices()[1 : 1 + data * basis]
    space = Mesh.of(devices, basis)
    A = space.put(block(4))
    small = block(4, rows=4)
    for found in (
        space.product(A, small),
        space.rotate(A, small),
        space.combine([A], small),
        space.random([0], 99, 3, A.dtype),
    ):
        assert found.devices() == set(devices)
        assert {shard.data.size * data * basis for shard in found.array.addressable_shards} == {found.array.size}


@pytest.mark.parametrize("offset", [1e3, 3e3])
def test_sums_over_many_slabs_are_as_good_as_float64(space, offset):
    """A million rows with a large mean: a running float32 sum would lose four digits."""
    rows = 1_000_000
    A = (np.random.default_rng(0).standard_normal((rows, 2)) + offset).astype(np.float32)
    double = A.astype(np.float64)
    np.testing.assert_allclose(space.inner(space.put(A), space.put(A)), double.T @ double, rtol=3e-7)
    np.testing.assert_allclose(space.norms(space.put(A)) ** 2, np.sum(double**2, axis=0), rtol=3e-7)
    V, share = gradients(space, A.T.copy())
    squares = space.collected([(space.row_squares(V), share)])[:2]
    np.testing.assert_allclose(squares, np.sum(double**2, axis=0), rtol=3e-7)


def test_sums_over_slabs_lose_nothing(space):
    """Whole numbers, so that a slab's sum is exact in float32 and the total of many is not: what is lost is kept."""
    A = np.random.default_rng(0).integers(0, 31, (100 * SLAB, 2)).astype(np.float32)
    whole = A.astype(np.int64)
    expected = whole.T @ whole
    assert (expected.astype(np.float32) != expected).any()
    np.testing.assert_array_equal(space.inner(space.put(A), space.put(A)), expected)
    V, share = gradients(space, A.T.copy())
    np.testing.assert_array_equal(space.collected([(space.row_squares(V), share)])[:2], np.diag(expected))
    np.testing.assert_allclose(space.norms(space.put(A)), np.sqrt(np.diag(expected)), rtol=1e-15)


def test_a_row_of_random_numbers_does_not_depend_on_who_draws_it(space):
    whole = space.get(space.random([3, 4], 1000, 5, np.dtype(np.float32)))
    assert abs(whole.mean()) < 0.05
    assert abs(whole.std() - 1) < 0.05
    np.testing.assert_array_equal(space.get(space.random([3, 4], 700, 5, np.dtype(np.float32))), whole[:700])
    assert np.abs(space.get(space.random([3, 5], 1000, 5, np.dtype(np.float32))) - whole).max() > 1
    drawn = normals([3, 4], 0, 1000, 5, np.dtype(np.float32))
    parts = [normals([3, 4], a, min(a + 77, 1000), 5, np.dtype(np.float32)) for a in range(0, 1000, 77)]
    np.testing.assert_array_equal(np.concatenate(parts), drawn)


@pytest.mark.parametrize("space", ["host", "device"], indirect=True)
def test_gradients_are_stored_leaf_by_leaf_and_padding_is_dropped(space):
    layout = Layout.of({"a": np.zeros((2, 2), np.float32), "b": np.zeros(3, np.float32)})
    rows = block(7, rows=10)
    store = space.store(10, layout)
    for first, count in ((0, 4), (4, 4), (8, 2)):
        part = np.vstack([rows[first : first + count], np.full((4 - count, 7), 99, np.float32)])
        leaves = [part[:, :4], part[:, 4:]]
        if first == 4:  # one array for every example, as unrolled derivatives come
            leaves = [[leaf[i : i + 1] for i in range(4)] for leaf in leaves]
        store.write(first, jax.tree.map(space.lend, leaves), count)
    near(space.get(store.block(slice(0, 10))), rows)
    near(space.get(store.block(slice(4, 10))), rows[4:])
    mean, scale = block(1, 5, rows=7)[:, 0], block(1, 6, rows=7)[:, 0]
    store.normalise(mean, scale)
    near(space.get(store.block(slice(0, 10))), (rows - mean) * scale)


@pytest.mark.parametrize("kind", ["host", "halves", "device"])
def test_raw_gradients_are_normalised_on_the_way_to_their_place(kind, monkeypatch):
    """Slab by slab, leaf by leaf or one array for every example; padding is dropped."""
    monkeypatch.setattr(host, "CACHE", 0)  # slabs of 64 columns
    layout = Layout.of({"a": np.zeros((20, 10), np.float32), "b": np.zeros(3, np.float32)})
    rows, mean, scale = (block(203, seed, rows=count) for seed, count in ((0, 10), (1, 1), (2, 1)))
    mean, scale = (layout.pieces(vector[0]) for vector in (mean, scale))
    space = Mesh.of(jax.devices()[:1]) if kind == "device" else HOST
    store = Halves(10, layout) if kind == "halves" else space.store(10, layout)
    for first, count in ((0, 4), (4, 4), (8, 2)):
        part = np.vstack([rows[first : first + count], np.full((4 - count, 203), 99, np.float32)])
        leaves = layout.pieces(part)
        if first == 4:
            leaves = [[leaf[i : i + 1] for i in range(4)] for leaf in leaves]
        store.write_normalised(first, jax.tree.map(space.lend, leaves), count, mean, scale)
    near(space.get(store.block(slice(0, 10))), (rows - np.concatenate(mean)) * np.concatenate(scale))


@pytest.mark.parametrize("layout", ["C", "F", "sliced"])
def test_add_product_updates_the_host_in_place_whatever_the_layout(layout, dtype):
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((30, 7)).astype(dtype), rng.standard_normal((7, 5)).astype(dtype)
    total = rng.standard_normal((30, 5)).astype(dtype)
    expected = total + 0.5 * left @ right
    if layout == "F":
        left, right = np.asfortranarray(left), np.asfortranarray(right)
    elif layout == "sliced":
        left, right = np.repeat(left, 2, axis=1)[:, ::2], np.repeat(right, 2, axis=0)[::2]
    result = HOST.add_product(total, left, right, 0.5)
    assert result is total
    np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_orthonormalise_keeps_directions_that_one_gram_matrix_cannot_see(space):
    """Columns of lengths 1 to 1e-5 in float32: their Gram matrix spans ten orders of magnitude."""
    rng = np.random.default_rng(0)
    basis = [space.put(np.linalg.qr(rng.standard_normal((500, 10)))[0].astype(np.float32))]
    directions = np.linalg.qr(rng.standard_normal((500, 6)))[0]
    columns = (directions * 10.0 ** -np.arange(6)).astype(np.float32) @ rng.standard_normal((6, 6)).astype(np.float32)
    found = orthonormalise(space, project_out(space, space.put(columns), basis), basis, 1.0)
    assert found.shape[1] == 6
    np.testing.assert_allclose(space.inner(found, found), np.eye(6), atol=1e-5)
    np.testing.assert_allclose(space.inner(basis[0], found), 0, atol=1e-5)


def test_a_wide_gram_matrix_is_whole_though_half_of_its_tiles_are_computed(space):
    A = block(1100, rows=40)
    put = space.put(A)
    near(space.inner(put, put), A.astype(np.float64).T @ A.astype(np.float64))


def test_a_tally_is_the_mean_and_the_spread_of_all_rows_however_they_come(space):
    layout = Layout.of({"a": np.zeros((7, 3), np.float32), "b": np.zeros((30_000,), np.float32)})
    rows = block(layout.size, rows=11, dtype=np.float64) * 3.0 + 100.0
    ranges = Ranges.of(11, space.parts)
    unit, tally = 0.25, space.tally(layout, ranges)
    for part in ranges.slices(4):
        count, (whole, there) = part.stop - part.start, ranges.places(part)
        batch = np.full((space.parts, 4, layout.size), 9e3, np.float32)  # further rows are padding
        filled = np.full((space.parts * count, layout.size), 9e3)
        filled[there] = rows[whole]
        batch[:, :count] = filled.reshape(space.parts, count, -1)
        leaves = [space.lend(batch.reshape(-1, layout.size)[:, place]) for place in layout.places]
        lengths = space.collected([(tally.add(leaves, count, unit), count)])
        near(lengths[there], ((unit * rows[whole]) ** 2).sum(axis=1))
    mean, squares, count = tally.result()
    assert count == 11
    near(mean, unit * rows.mean(axis=0))
    near(squares, ((unit * (rows - rows.mean(axis=0))) ** 2).sum(axis=0), 1e-4)


def test_rows_that_come_one_by_one_are_tallied_as_one_batch():
    layout = Layout.of({"a": np.zeros((300,), np.float32)})
    rows, (whole, apart) = block(300, rows=4), (HOST.tally(layout, Ranges.of(4)) for _ in range(2))
    whole.add([rows], 4, 1.0)
    apart.add([list(rows[:, None])], 4, 1.0)
    np.testing.assert_array_equal(whole.result()[1], apart.result()[1])
