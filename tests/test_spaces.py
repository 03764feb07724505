"""Where blocks live changes nothing: every operation of every space against numpy in float64, over many slabs."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from nfk.layout import Layout
from nfk.spaces import HOST, Device, normals, orthonormalise, project_out
from nfk.spaces.space import SLAB

ROWS = 2 * SLAB + 77  # some slabs and a part of one


@pytest.fixture(params=["host", "device", "torch", "torch without float64"])
def space(request, monkeypatch):
    if request.param in ("host", "device"):
        return HOST if request.param == "host" else Device(jax.devices()[1])
    torch = pytest.importorskip("torch", reason="blocks as torch tensors")
    import nfk.torch.space

    if request.param != "torch":
        monkeypatch.setattr(nfk.torch.space, "has_float64", lambda device: False)
    return nfk.torch.space.TorchSpace(torch.device("cpu"))


def block(columns: int, seed: int = 0, rows: int = ROWS, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(dtype)


def near(found, expected, tolerance=1e-6):
    expected = np.asarray(expected, np.float64)
    scale = np.abs(expected).max() or 1.0
    np.testing.assert_allclose(np.asarray(found, np.float64) / scale, expected / scale, rtol=0, atol=tolerance)


def test_operations_are_those_of_numpy(space):
    A, B, small = block(5), block(3, 1), block(3, 2, rows=5)
    put = space.put
    double = [part.astype(np.float64) for part in (A, B, small)]
    near(space.inner(put(A), put(B)), double[0].T @ double[1])
    near(space.norms(put(A)), np.linalg.norm(double[0], axis=0))
    factors = np.array([2.0, -1.0, 0.5])
    near(
        space.norms(put(B), put(A[:, :3].copy()), factors),
        np.linalg.norm(double[1] - double[0][:, :3] * factors, axis=0),
    )
    near(space.row_squares(put(A.T.copy())), np.sum(double[0] ** 2, axis=0))
    near(space.product(put(A), small), double[0] @ double[2])
    near(space.add_product(put(B.copy()), put(A), small, -0.5), double[1] - 0.5 * double[0] @ double[2])
    near(space.add_columns(put(A.copy()), slice(1, 4), put(B)), double[0] + np.pad(double[1], ((0, 0), (1, 1))))
    near(space.rotate(put(A.copy()), small[:, :2]), double[0] @ double[2][:, :2])
    near(
        space.combine([put(A), put(B)], np.vstack([small, small[:3]])),
        double[0] @ double[2] + double[1] @ double[2][:3],
    )
    near(space.joined([put(A), put(B)]), np.hstack(double[:2]))
    near(space.stacked(((rows, put(A[rows])) for rows in (slice(0, 100), slice(100, ROWS))), ROWS, 5, A.dtype), A)
    near(space.columns(put(A), slice(1, 3)), A[:, 1:3])
    near(space.padded(put(A), ROWS + 2, 7), np.pad(A, ((0, 2), (0, 2))))
    scale, mean, sums = block(1, 3)[:, 0], block(1, 4)[:, 0], np.array([1.0, 2.0, 3.0])
    near(space.normalise(put(B.copy()), scale, mean, sums), scale[:, None] * (double[1] - np.outer(mean, sums)))
    near(space.get(space.zeros(4, 2, np.dtype(np.float32))), np.zeros((4, 2)))


def test_blocks_stay_where_they_are():
    space = Device(jax.devices()[1])
    A = space.put(block(4))
    small = block(4, rows=4)
    for found in (
        space.product(A, small),
        space.rotate(A, small),
        space.combine([A], small),
        space.random([0], 99, 3, A.dtype),
    ):
        assert found.devices() == {space.device}


@pytest.mark.parametrize("offset", [1e3, 3e3])
def test_sums_over_many_slabs_are_as_good_as_float64(space, offset):
    """A million rows with a large mean: a running float32 sum would lose four digits."""
    rows = 1_000_000
    A = (np.random.default_rng(0).standard_normal((rows, 2)) + offset).astype(np.float32)
    double = A.astype(np.float64)
    np.testing.assert_allclose(space.inner(space.put(A), space.put(A)), double.T @ double, rtol=3e-7)
    np.testing.assert_allclose(space.norms(space.put(A)) ** 2, np.sum(double**2, axis=0), rtol=3e-7)
    np.testing.assert_allclose(space.row_squares(space.put(A.T.copy())), np.sum(double**2, axis=0), rtol=3e-7)


def test_sums_over_slabs_lose_nothing(space):
    """Whole numbers, so that a slab's sum is exact in float32 and the total of many is not: what is lost is kept."""
    A = np.random.default_rng(0).integers(0, 31, (100 * SLAB, 2)).astype(np.float32)
    whole = A.astype(np.int64)
    expected = whole.T @ whole
    assert (expected.astype(np.float32) != expected).any()
    np.testing.assert_array_equal(space.inner(space.put(A), space.put(A)), expected)
    np.testing.assert_array_equal(space.row_squares(space.put(A.T.copy())), np.diag(expected))
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
    near(store.block(slice(0, 10)), rows)
    near(store.block(slice(4, 10)), rows[4:])
    mean, scale = block(1, 5, rows=7)[:, 0], block(1, 6, rows=7)[:, 0]
    store.normalise(mean, scale)
    near(store.block(slice(0, 10)), (rows - mean) * scale)


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
    unit, tally = 0.25, space.tally(layout)
    for begin, end in ((0, 4), (4, 8), (8, 11)):
        batch = np.concatenate([rows[begin:end], np.full((5 - (end - begin), layout.size), 9e3)]).astype(np.float32)
        lengths = tally.add([space.lend(batch[:, place]) for place in layout.places], end - begin, unit)
        near(lengths[: end - begin], ((unit * rows[begin:end]) ** 2).sum(axis=1))
    mean, squares, count = tally.result()
    assert count == 11
    near(mean, unit * rows.mean(axis=0))
    near(squares, ((unit * (rows - rows.mean(axis=0))) ** 2).sum(axis=0), 1e-4)


def test_rows_that_come_one_by_one_are_tallied_as_one_batch():
    layout = Layout.of({"a": np.zeros((300,), np.float32)})
    rows, (whole, apart) = block(300, rows=4), (HOST.tally(layout) for _ in range(2))
    whole.add([rows], 4, 1.0)
    apart.add([list(rows[:, None])], 4, 1.0)
    np.testing.assert_array_equal(whole.result()[1], apart.result()[1])
