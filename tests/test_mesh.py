"""Several devices give the result of one: every engine, method and family on 1, 2, 4 and 8 simulated devices, with
numbers of examples and parameters that none of them divides."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from registry import CASES, Case

import nfk
from benchmarks import scale_devices
from nfk.spaces import HOST, Mesh
from nfk.spaces.mesh.sharding import TALL
from nfk.stream import Examples

WAYS = {
    "kept": {"side": "parameters", "keep": True},
    "recomputed": {"side": "parameters", "keep": False},
    "examples' side": {"side": "examples", "keep": False},
    "products": {"engine": "products", "side": "parameters"},
    "gram": {"method": "gram", "keep": True},
    "gram in tiles": {"method": "gram", "keep": False, "tol": 1e-2},
    "power": {"method": "power", "tol": 1e-2},
    "exact": {"method": "exact"},
}

# Every model of the registry, every way, every number of devices on either axis; `benchmarks/scale.py` has all pairs.
COVERING = [
    ("gan", "kept", (4, 2)), ("density_sequences", "recomputed", (8, 1)),
    ("network_three_outputs", "recomputed", (2, 4)), ("energy_over_samples", "examples' side", (2, 1)),
    ("network_three_outputs", "products", (2, 2)), ("classifier_identity_centred", "gram", (4, 1)),
    ("classifier_mlp", "gram in tiles", (8, 1)), ("vae", "power", (1, 1)), ("density_gaussian", "exact", (1, 8)),
    ("classifier_cnn", "recomputed", (4, 1)), ("classifier_some_parameters", "kept", (2, 1)),
    ("classifier_undamped", "examples' side", (4, 2)), ("classifier_unnormalised", "products", (8, 1)),
    ("gan_after_a_sigmoid", "gram", (1, 2)), ("energy_over_data", "power", (2, 2)),
    ("network_scalar", "gram in tiles", (2, 1)),
]  # fmt: skip


def test_the_combinations_cover_models_ways_and_devices():
    names, ways, meshes = map(set, zip(*COVERING, strict=True))
    assert names == set(CASES)
    assert ways == set(WAYS)
    for axis in zip(*meshes, strict=True):
        assert set(axis) == {1, 2, 4, 8}
    assert {data * basis for data, basis in meshes} == {1, 2, 4, 8}


def some(case: Case, count: int) -> object:
    return jax.tree.map(lambda leaf: leaf[:count], case.X)


def near(found, expected, tolerance=3e-4):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(np.asarray(found) / scale, np.asarray(expected) / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "way", "mesh"),  # each beside the laws of its model, which have compiled some of it
    [pytest.param(*which, marks=pytest.mark.xdist_group(f"{which[0]} float32")) for which in COVERING],
)
def test_devices_change_nothing(name, way, mesh):
    """37 examples: no number of devices divides them, and eight devices have one without any."""
    case = CASES[name](np.dtype(np.float32))
    X, options = some(case, 37), {"tol": case.tol, "memory": "200MB", **WAYS[way]}
    alone, shared = (nfk.fit(case.model, X, 4, mesh=devices, **options) for devices in (None, mesh))
    assert alone.space is HOST
    assert shared.right.devices() == set(jax.devices()[: mesh[0] * mesh[1]])
    near(shared.eigenvalues, alone.eigenvalues)
    np.testing.assert_allclose(shared.trace, alone.trace, rtol=1e-5)
    near(shared.training @ shared.training.T, alone.training @ alone.training.T)
    near(shared(X), shared.training)
    assert shared.residuals.max() < 1.1 * max(alone.residuals.max(), options["tol"])


@pytest.fixture(scope="module")
def fitted():
    case = CASES["network_three_outputs"](np.dtype(np.float32))
    X = some(case, 13)
    return case, X, nfk.fit(case.model, X, 5), nfk.fit(case.model, X, 5, mesh=(4, 2))


@pytest.mark.xdist_group("sharded basis")
def test_everything_works_from_a_sharded_basis(fitted, tmp_path):
    case, X, alone, shared = fitted
    new = case.X[13:22]
    near(shared(new) @ shared(new).T, alone(new) @ alone(new).T)
    near(shared.gram(new, X), alone.gram(new, X), 1e-5)
    near(shared.gram(new), alone.gram(new), 1e-5)
    near(shared.decompose(new).total, alone.decompose(new).total, 1e-5)
    near(shared.decompose(new).outside, alone.decompose(new).outside)
    near(shared.truncated(3)(new), shared(new)[:, :3])
    shares = [np.array(list(embedding.layer_shares().values())) for embedding in (shared, alone)]
    near(*shares, 1e-3)
    near(nfk.merge(shared, shared).eigenvalues, 2 * alone.eigenvalues)
    folder = shared.save(tmp_path)
    for mesh in (None, 3, (1, 4)):
        again = nfk.load(folder, case.model, mesh=mesh)
        near(again(new), shared(new), 1e-5)


@pytest.mark.xdist_group("sharded basis")
def test_each_device_holds_its_share(fitted):
    """Of the basis at rest: a quarter of its parameters, half of its columns, with their padding (3 columns take 4)."""
    _, _, _, shared = fitted
    assert shared.right.shape[1] == 5
    sizes = {shard.data.shape for shard in shared.right.array.addressable_shards}
    assert sizes == {(-(-shared.right.shape[0] // 4), 4)}


@pytest.fixture(scope="module")
def dense():
    return scale_devices.problem(2_000, 120)


@pytest.mark.xdist_group("dense problem")
def test_memory_for_blocks_falls_with_the_shards_of_the_basis(dense):
    """All through a search that restarts, counted in compiled programs; beside it two chunks of gradients, no more."""
    model, X = dense
    others = jax.live_arrays()  # of other tests
    one, four = (scale_devices.peak(model, X, shards, 16, capacity=32, steps=3, others=others) for shards in (1, 4))
    assert 4 * four["blocks"] < 1.15 * one["blocks"]
    row = 4 * model.layout.size
    assert four["blocks"] > 32 * row / 4
    assert max(one["rest"], four["rest"]) < (2 * scale_devices.CHUNK + 10) * row


@pytest.mark.xdist_group("dense problem")
def test_a_plan_knows_what_travels(dense):
    """As XLA compiled it: blocks and sums along the data axis, gradients along the other."""
    found = scale_devices.travelled(*dense, (2, 4))
    assert found["received"] == pytest.approx(found["predicted"], rel=0.02)


@pytest.mark.xdist_group("dense problem")
def test_a_plan_knows_what_passes_by_between_passes(dense):
    """While a block is made orthogonal; small matrices, which it does not count, are a tenth of it here."""
    counted, reckoned = scale_devices.passed_by(*dense, (2, 4))
    assert 0.95 * reckoned < counted < 1.15 * reckoned


def test_simulated_devices_run_one_program_at_a_time():
    """Else one that waits for the others may hold the thread that they need."""
    grid = Mesh.of(jax.devices(), 8).grid
    slow = grid.each(_slow, (TALL,), TALL, grid.put(np.ones((400, 3200), np.float32), TALL))
    assert slow.is_ready()


def _slow(block):
    return jax.lax.fori_loop(0, 30, lambda i, total: total @ block, block)


class Counting:
    """Examples that note which of them were read."""

    def __init__(self, array):
        self.array, self.read = array, []

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        self.read += range(*rows.indices(len(self.array)))
        return self.array[rows]


@pytest.mark.xdist_group("sharded basis")
def test_a_pass_reads_every_example_once(fitted):
    case, _, _, shared = fitted
    source = Counting(case.X[:15])  # two ranges of four, one of three; four of two for the columns
    examples = Examples(source)
    stream = shared._stream(examples, shared.plan.batches, nfk.progress.Reporter(show=False))
    for _ in stream.batches(lambda batch: batch, 2):
        pass
    assert sorted(set(source.read)) == list(range(15))
    assert len(source.read) <= 15 + 2  # a device without an example of its own reads the last one


def test_a_gradient_that_is_not_finite_is_named_wherever_it_is():
    case = CASES["density_gaussian"](np.dtype(np.float32))
    model = nfk.density(
        lambda params, x: np.float32(1) * params["mean"].sum() / jax.numpy.sqrt(x[0] - 5), case.model.network.params
    )
    X = np.full((11, 5), 6, np.float32) + np.arange(11, dtype=np.float32)[:, None]
    X[9, 0] = 5
    with pytest.raises(ValueError, match=r"X\[9\] is NaN or infinite"):
        nfk.fit(model, X, 2, mesh=4)


def test_a_plan_says_what_each_device_holds():
    model, X = scale_devices.problem(50_000, 2_000)
    alone, shared = (nfk.plan(model, X, 4, mesh=mesh, method="krylov", memory="1GB") for mesh in (1, (4, 2)))
    assert "8 (cpu): 4 for the data, 2 for the basis" in str(shared)
    assert "on each device" in str(shared)
    assert shared.seconds < alone.seconds
    assert shared.peak_bytes < alone.peak_bytes


@pytest.mark.parametrize(
    ("mesh", "sentence"),
    [
        (9, "mesh=9 needs 9 devices, but JAX sees 8"),
        ((4, 4), "needs 16 devices, but JAX sees 8"),
        (0, "mesh=0 is no mesh"),
        (True, "mesh=True is no mesh"),
        ("all", "mesh='all' is no mesh: give a number of devices"),
        ((2, 2, 2), "is no mesh"),
    ],
)
def test_a_mesh_that_is_none(mesh, sentence):
    case = CASES["classifier_mlp"](np.dtype(np.float32))
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        nfk.fit(case.model, case.X, 4, mesh=mesh)


def test_a_mesh_of_ones_own():
    case = CASES["classifier_mlp"](np.dtype(np.float32))
    devices = np.asarray(jax.devices()[2:6])
    turned = jax.sharding.Mesh(devices.reshape(2, 2), ("basis", "data"))
    embedding = nfk.fit(case.model, case.X[:9], 2, mesh=turned, method="gram")
    assert embedding.right.devices() == set(devices)
    near(embedding.eigenvalues, nfk.fit(case.model, case.X[:9], 2, method="gram").eigenvalues)
    plan = nfk.plan(case.model, case.X, 4, mesh=jax.sharding.Mesh(devices, ("data",)))
    assert "4 for the data, 1 for the basis" in str(plan)
    with pytest.raises(ValueError, match=r"mesh= has the axes \('batch', 'model'\): give a number"):
        nfk.fit(case.model, case.X, 4, mesh=jax.sharding.Mesh(devices.reshape(2, 2), ("batch", "model")))


def test_a_torch_module_takes_no_mesh():
    torch = pytest.importorskip("torch")
    model = nfk.torch.classifier(torch.nn.Linear(4, 3).eval())
    with pytest.raises(ValueError, match="mesh=2 needs a network written in JAX"):
        nfk.fit(model, np.zeros((5, 4), np.float32), 2, mesh=2)


def test_random_rows_do_not_depend_on_the_devices():
    whole = HOST.random([1, 2], 777, 5, np.dtype(np.float32))
    for data, basis in ((3, 1), (4, 2)):
        space = Mesh.of(jax.devices()[: data * basis], basis)
        np.testing.assert_array_equal(space.get(space.random([1, 2], 777, 5, np.dtype(np.float32))), whole)
