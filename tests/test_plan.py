"""The plan: what it chooses, and whether the budget is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from dataclasses import asdict, replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import cnn, cnn_params, mlp, mlp_params, vectors

import nfk
from nfk.assembly import Assembly, faster
from nfk.memory import available_bytes, parse_memory
from nfk.model import Cost, split_key
from nfk.model.in_jax import Compiled
from nfk.planning import Batches, Options, Problem, Target, plan_fit
from nfk.planning.batches import network_bytes, suitable_batching
from nfk.planning.footprint import RUNTIME
from nfk.planning.listing import ways
from nfk.planning.planner import _best
from nfk.planning.rates import TYPICAL, _place, keep, known, rising
from nfk.progress import Reporter
from nfk.spaces import HOST, Mesh
from nfk.stream import Examples

MODEL = nfk.classifier(mlp, mlp_params(np.float32, 6, 8, 4))
X = vectors(np.float32, 6, count=400)
WIDE = nfk.classifier(mlp, mlp_params(np.float32, 6, 2000, 4))


def test_a_plan_reads_well():
    text = str(nfk.plan(MODEL, X, 16))
    for word in ("400 examples", "rank 16", "engine", "gradients", "passes", "budget", "kept in memory"):
        assert word in text


def test_a_smaller_budget_gives_leaner_plans_until_none_fits():
    budgets = [2**20 * size for size in (64, 4, 1)] + [450_000, 300_000, 220_000]
    peaks = []
    for budget in budgets:
        try:
            plan = nfk.plan(MODEL, X, 8, memory=budget)
        except MemoryError:
            break
        assert plan.peak_bytes <= budget
        peaks.append(plan.peak_bytes)
    assert len(peaks) >= 3
    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.parametrize("memory", [None, "1MB", "700kB"])
def test_every_plan_gives_the_same_eigenvalues(memory):
    exact = nfk.fit(MODEL, X, 8, method="exact").eigenvalues
    fitted = nfk.fit(MODEL, X, 8, memory=memory)
    np.testing.assert_allclose(fitted.eigenvalues, exact, rtol=1e-4)
    assert fitted.residuals.max() <= 1e-3


@pytest.mark.parametrize("method", ["krylov", "gram"])
def test_narrow_blocks_and_small_tiles_serve_where_memory_is_short(method):
    rows = vectors(np.float32, 6, count=60)
    options = {"method": method, "keep": False, "engine": "gradients"}
    plans = list(_possible(WIDE, rows, 8, **options))
    leanest = plans[-1]
    assert leanest.way.tile < 30 if method == "gram" else leanest.width < 8
    assert leanest.passes > plans[0].passes
    fitted = nfk.fit(WIDE, rows, 8, memory=leanest.peak_bytes, **options)
    np.testing.assert_allclose(fitted.eigenvalues, nfk.fit(WIDE, rows, 8, method="exact").eigenvalues, rtol=1e-4)


def _possible(model, rows, rank, **options):
    """Plans under ever smaller budgets, until none fits."""
    budget = nfk.plan(model, rows, rank, **options).peak_bytes
    while True:
        try:
            plan = nfk.plan(model, rows, rank, memory=budget, **options)
        except MemoryError:
            return
        yield plan
        budget = int(plan.peak_bytes * 0.97)


def test_few_examples_want_the_kernel_matrix_and_many_want_krylov():
    assert nfk.plan(WIDE, X[:200], 64).way.method == "gram"
    assert nfk.plan(WIDE, np.resize(X, (5000, 6)), 64).way.method == "krylov"
    assert "gram, the 200 x 200 kernel matrix" in str(nfk.plan(WIDE, X[:200], 64))
    for choice, method in (({"side": "parameters"}, "krylov"), ({"engine": "products"}, "krylov"), ({}, "gram")):
        assert nfk.plan(WIDE, X[:200], 64, **choice).way.method == method


def test_what_else_was_weighed_is_printed_with_its_time():
    plan = nfk.plan(WIDE, X[:200], 64)
    kinds = {(way.method, way.engine, way.keep) for way in plan.others}
    assert {("krylov", "gradients", True), ("krylov", "gradients", False), ("krylov", "products", False)} <= kinds
    assert all(way.seconds >= plan.seconds for way in plan.others)
    assert "or" in str(plan)


def test_blocks_are_narrow_where_gradients_are_kept_and_wide_where_they_are_computed_again():
    """A pass over rows that are kept costs nothing; a pass of gradients costs more than the products."""
    many = np.resize(X, (20_000, 6))
    kept, again = (nfk.plan(WIDE, many, 32, method="krylov", engine="gradients", keep=keep) for keep in (True, False))
    assert kept.width <= 32 < again.width


def test_convolutions_want_gradients_and_many_outputs_want_products():
    images = vectors(np.float32, 64).reshape(-1, 8, 8, 1)
    assert nfk.plan(nfk.classifier(cnn, cnn_params(np.float32)), images, 8).engine == "gradients"
    many = nfk.network(mlp, mlp_params(np.float32, 6, 50, 200))
    assert nfk.plan(many, X, 4).engine == "products"


@pytest.mark.parametrize("winner", ["gradients", "products"])
def test_engines_that_are_close_are_timed_and_the_faster_is_used(monkeypatch, winner):
    """Whichever is chosen, the answer is the same."""
    monkeypatch.setattr("nfk.planning.planner.WORTH_TIMING_SECONDS", 0.0)
    monkeypatch.setattr("nfk.planning.planner.CLOSE", 1e9)
    plan = nfk.plan(MODEL, X, 4)
    assert plan.rival.engine != plan.engine
    assert "both will be timed" in str(plan)
    trials = []
    monkeypatch.setattr(Assembly, "trial", lambda self: trials.append(self.plan.engine) or (self.plan.engine != winner))
    embedding = nfk.fit(MODEL, X, 4)
    assert sorted(trials) == ["gradients", "products"]
    assert embedding.engine == embedding.plan.engine == winner
    assert embedding.plan.rival is None
    np.testing.assert_allclose(embedding.eigenvalues, nfk.fit(MODEL, X, 4, engine="gradients").eigenvalues, rtol=1e-4)


def test_a_trial_takes_the_time_of_its_own_engine(monkeypatch):
    """The clock stands still but while an engine works: each trial measures the engine of its plan."""
    from nfk import assembly
    from nfk.operator.gradients import GradientOperator
    from nfk.operator.products import ProductOperator

    now = [0.0]
    monkeypatch.setattr(assembly.time, "perf_counter", lambda: now[0])
    for kind, seconds in ((GradientOperator, 0.5), (ProductOperator, 2.0)):
        monkeypatch.setattr(kind, "fused", lambda self, block, s=seconds: now.__setitem__(0, now[0] + s))
    plans = [nfk.plan(MODEL, X, 4, engine=engine) for engine in ("gradients", "products")]
    keys = split_key(0)[1:]
    tried = [Assembly(MODEL, Examples(X), plan, Options(), [0], *keys, Reporter(show=False)) for plan in plans]
    assert [one.trial() * min(400, one.plan.batches.chunk) * one.plan.width for one in tried] == pytest.approx(
        [0.5, 2.0]
    )
    assert faster(*tried).engine == faster(*tried[::-1]).engine == "gradients"  # per example


def test_a_microbatch_of_gradients_stays_small():
    wide = nfk.classifier(mlp, mlp_params(np.float32, 6, 2000, 4))
    plan = nfk.plan(wide, X, 8)
    assert plan.batches.gradients * wide.layout.size * 4 <= Cost.microbatch_bytes


def test_more_examples_of_a_small_network_at_once_where_a_call_costs_more():
    problem = Problem.of(MODEL, Examples(X))
    size = lambda **facts: suitable_batching(replace(problem, **facts), HOST)[1]  # noqa: E731
    costly = {"microbatch": 16, "microbatch_bytes": 16 * 2**20}
    assert size(parameters=61_706) == 16
    assert size(parameters=61_706, **costly) == 64
    assert size(parameters=613_761, **costly) == 16


REFUSED = {
    "default": {}, "one side": {"side": "parameters"}, "products": {"engine": "products"}, "kept": {"keep": True},
    "power": {"method": "power"}, "exact": {"method": "exact"}, "variance": {"rank": 0.9},
    "examples": {"side": "examples"},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_the_leanest_way_of_a_refusal_is_a_true_minimum(name):
    """It does not depend on the budget that was refused; given, it suffices; and nothing much below it does."""
    options = {"rank": 16, **REFUSED[name]}
    said = set()
    for budget in (1000, 50_000, 400_000):
        with pytest.raises(MemoryError, match="leanest way needs") as refused:
            nfk.plan(WIDE, X, memory=budget, **options)
        said.add(str(refused.value).split("leanest way needs ")[1].split(",")[0])
    assert len(said) == 1
    least = parse_memory(said.pop(), available_bytes)
    plan = nfk.plan(WIDE, X, memory=least, **options)
    assert plan.peak_bytes <= least
    with pytest.raises(MemoryError):
        nfk.plan(WIDE, X, memory=int(least * 0.8), **options)


def test_a_small_network_pays_one_column_for_the_runtime_and_nothing_for_its_program():
    problem = Problem.of(MODEL, Examples(X))
    assert 5 < problem.operations < 256
    assert problem.runtime_bytes == problem.column_bytes
    assert nfk.plan(MODEL, X, 8).parts[RUNTIME] == problem.column_bytes


def test_a_large_program_is_counted():
    """64 kB for each operation beyond the first 256, and 64 MB that the C library holds back."""
    large = replace(Problem.of(MODEL, Examples(X)), parameters=40 * 2**20, operations=9172)
    assert large.runtime_bytes == (64 + (9172 - 256) / 16) * MEGABYTE
    assert Problem.of(nfk.energy(lambda p, x: jnp.sum(p["w"] * x), {"w": X[0]}), Examples(X)).operations < 10
    plan = plan_fit(large, 4, Options(memory="30GB", scratch=False))
    assert plan.parts[RUNTIME] == large.runtime_bytes
    assert plan.peak_bytes <= 30 * 2**30


def test_examples_that_are_written_out_have_a_program_each():
    problem = replace(Problem.of(MODEL, Examples(X)), operations=1000)
    one, four = (sum(network_bytes(problem, Batches(count, count, "unrolled")).values()) for count in (1, 4))
    assert four - 4 * one == 3 * 1000 * 64 * 2**10
    mapped = sum(network_bytes(problem, Batches(4, 4, "vmap")).values())
    assert mapped == 4 * one


def test_the_network_has_copies_of_its_own_of_mean_and_scale_and_parameters():
    found = nfk.plan(MODEL, X, 8).parts["mean, Fisher and scale, and the network's own"]
    assert found == 6 * 4 * MODEL.layout.size


def test_a_kernel_matrix_by_tiles_takes_no_more_of_them_than_fit():
    """The fewest are among those that are weighed, and none is larger than the room."""
    options = Options(method="gram", keep=False, memory="200MB", scratch=False)
    problem = Problem.of(WIDE, Examples(X))
    large = replace(problem, parameters=500_000, factored=())
    tiles = {way.tile for way in ways(large, Target.of(8, large), options, TYPICAL) if way.tile}
    assert len(tiles) > 1
    assert max(tiles) * large.row_bytes <= options.budget
    assert -(-400 // max(tiles)) < -(-400 // min(tiles))


def test_what_meets_a_tile_takes_the_room_that_right_vectors_have_later():
    """With chunks of the size that is left beside them, a tile would be turned into float64 for every example."""
    large = replace(Problem.of(WIDE, Examples(X)), examples=64, parameters=40_000_000, factored=(), moment_examples=64)
    plan = plan_fit(large, 16, Options(method="gram", keep=False, memory="4GB", scratch=False))
    tile, b = plan.way.tile, plan.batches
    assert b.meeting >= 2 * b.chunk
    assert f"{b.chunk} against the basis, {b.meeting} against a tile" in str(plan)
    _, search, finish = plan.way.stages()
    for stage, batches in ((search, b.at_tiles), (finish, b)):
        assert sum((stage | plan.way.batch_bytes(batches)).values()) <= plan.peak_bytes <= plan.budget
    assert tile * large.row_bytes > 2**30


def test_what_meets_a_tile_on_several_devices_is_a_chunk():
    """There it is put together from all of them, which takes the room."""
    large = replace(Problem.of(WIDE, Examples(X)), examples=64, parameters=4_000_000, factored=(), moment_examples=64)
    options = Options(method="gram", keep=False, memory="500MB", scratch=False)
    alone, together = (plan_fit(large, 16, replace(options, space=Mesh.of(jax.devices()[:count]))) for count in (1, 2))
    assert plan_fit(large, 16, options).batches.meeting > 0
    assert alone.way.tile
    assert together.way.tile
    assert alone.batches.meeting == together.batches.meeting == 0


def test_of_ways_about_as_fast_the_one_with_the_fewest_passes():
    """But only where gradients are computed again in each, and of ways of one kind."""
    kind = dict(method="gram", engine="gradients", side="examples", mapped=False, rounded=False, factors=False)
    way = lambda seconds, passes, **facts: SimpleNamespace(  # noqa: E731
        **{**kind, "keep": False, "shelf": False, "halved": False, **facts}, seconds=seconds, passes=passes
    )
    fastest, near, far, other = way(10, 9), way(10.9, 6), way(11.1, 3), way(10.5, 2, method="krylov")
    assert _best([far, near, fastest, other]) is near
    kept = way(10, 9, keep=True)
    assert _best([kept, way(10.5, 5, keep=True)]) is kept


def test_tiles_end_where_microbatches_do():
    """So that the rounding of a gradient, which may depend on who is in its microbatch, is the same each time."""
    large = replace(Problem.of(WIDE, Examples(X)), parameters=500_000, factored=(), microbatch=3)
    seen = set()
    for megabytes in range(150, 400, 7):
        plan = plan_fit(large, 8, Options(method="gram", keep=False, memory=f"{megabytes}MB", scratch=False))
        tile, size = plan.way.tile, plan.batches.gradients
        assert tile >= size
        assert tile % size == 0 or tile == large.examples
        seen.add((tile, size))
    assert len(seen) > 3
    assert max(size for _, size in seen) > 1


def test_one_disturbed_measurement_does_not_make_wide_blocks_look_slow():
    assert rising([20e9, 22e9, 75e9, 24e9, 170e9]) == (20e9, 22e9, 75e9, 75e9, 170e9)


def test_a_short_fit_does_not_wait_for_the_rates_but_uses_those_that_are_known(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NFK_RATES")
    monkeypatch.setattr("nfk.planning.rates.measure", lambda: pytest.fail("nobody waits for a short fit"))
    short, options = Problem.of(MODEL, Examples(X)), Options(memory="1GB")
    before = plan_fit(short, 4, options)
    assert known() is None
    assert before.seconds == plan_fit(short, 4, options, TYPICAL).seconds < 1
    keep(_place(), asdict(replace(TYPICAL, network=TYPICAL.network / 1000)))
    assert known() == replace(TYPICAL, network=TYPICAL.network / 1000)
    assert plan_fit(short, 4, options).seconds > before.seconds


def test_a_plan_tells_its_time():
    assert "time      about" in str(nfk.plan(MODEL, X, 16))
    assert nfk.plan(WIDE, X, 64).seconds > nfk.plan(WIDE, X[:100], 64).seconds


@pytest.mark.parametrize(("text", "size"), [("4GB", 4 * 2**30), ("1.5 MiB", 3 * 2**19), ("512", 512), (2**20, 2**20)])
def test_sizes_are_read(text, size):
    assert parse_memory(text, available_bytes) == size


BUDGETS = [
    ("call", 60), ("data-set vector", 60), ("gram", 120), ("gram of two", 200), ("fit", 200), ("products", 300),
    ("call", 300), ("fit", 400), ("gram", 500),
]  # fmt: skip
MEMORY_SCRIPT = """
import ctypes, gc, json, sys, threading, numpy as np, jax, jax.numpy as jnp, nfk
from pathlib import Path
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096
rng = np.random.default_rng(0)
draw = lambda *shape: rng.standard_normal(shape, dtype=np.float32) / shape[0] ** 0.5
params = {"a": draw(200, 1500), "b": draw(1500, 10)}
apply = lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"]
model, X = nfk.classifier(apply, params), rng.standard_normal((500, 200), dtype=np.float32)
tangent = nfk.network(apply, params)
small = nfk.fit(model, X[:64], 4, memory="100MB", max_steps=1)
small(X[:64]), small.gram(X[:8])  # the runtime and the compiler have their own memory by now
work = {
    "fit": lambda memory: nfk.fit(model, X, 20, memory=memory, max_steps=3),
    "products": lambda memory: nfk.fit(tangent, X[:32], 4, engine="products", memory=memory, max_steps=2),
    "call": lambda memory: small(X, memory=memory),
    "gram": lambda memory: small.gram(X[:300], memory=memory),
    "gram of two": lambda memory: small.gram(X[:200], X, memory=memory),
    "data-set vector": lambda memory: nfk.dataset_vector(model, X, memory=memory),
}
def measured(name, megabytes):
    work[name](megabytes * 2**20)  # compiles what it needs, measures the machine's rates
    gc.collect(), ctypes.CDLL(None).malloc_trim(0)  # what an earlier one gave back is no room for this one
    start, peak, stop = resident(), [resident()], threading.Event()
    def watch():
        while not stop.wait(0.002):
            peak[0] = max(peak[0], resident())
    thread = threading.Thread(target=watch); thread.start()
    result = work[name](megabytes * 2**20)
    stop.set(); thread.join()
    return {"used": peak[0] - start, "keep": getattr(getattr(result, "plan", None), "keep", False)}
print(json.dumps([measured(*one) for one in json.loads(sys.argv[1])]))
"""
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def measured():
    """One process for all budgets, its programs compiled with every optimisation."""
    command = [sys.executable, "-W", "ignore", "-c", MEMORY_SCRIPT, json.dumps(BUDGETS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | {"XLA_FLAGS": ""})
    return dict(zip(BUDGETS, json.loads(done.stdout), strict=True))


@pytest.mark.around
@pytest.mark.xdist_group("measured memory")  # one process for one worker
@pytest.mark.skipif(sys.platform != "linux", reason="reads resident memory from /proc")
@pytest.mark.parametrize(("work", "megabytes"), BUDGETS)
def test_the_budget_is_kept(measured, work, megabytes):
    """All 500 gradients would take 630 MB. Everything is compiled; the runtime's own growth may add a little."""
    report = measured[work, megabytes]
    assert not report["keep"]
    assert report["used"] <= (megabytes + 24) * MEGABYTE


@pytest.mark.parametrize("work", ["kept", "recomputed", "call", "parts", "kernel", "kernel of two", "data-set vector"])
def test_no_more_than_two_microbatches_are_alive(monkeypatch, work):
    """The plan counts two and what one needs while it is computed: when the next begins, one of the old is left."""
    embedding = nfk.fit(MODEL, X[:50], 3)
    begun, alive = [], []
    gradients = Compiled.gradients

    def watched(self, batch):
        alive.append(sum(made() is not None for made in begun))
        leaves = gradients(self, batch)
        begun.append(weakref.ref(leaves[0]))
        return leaves

    monkeypatch.setattr(Compiled, "gradients", watched)
    monkeypatch.setattr("nfk.planning.batches.MOST_MICROBATCH", 8)
    monkeypatch.setattr("nfk.planning.planner.CALL_CHUNK_BYTES", 20 * 4 * MODEL.layout.size)
    {
        "kept": lambda: nfk.fit(MODEL, X, 3, method="krylov", keep=True, side="parameters"),
        "recomputed": lambda: nfk.fit(MODEL, X, 3, keep=False, side="parameters"),
        "call": lambda: embedding(X),
        "parts": lambda: embedding.decompose(X),
        "kernel": lambda: embedding.gram(X, memory="1MB"),
        "kernel of two": lambda: embedding.gram(X[:50], X, memory="200kB"),
        "data-set vector": lambda: nfk.dataset_vector(MODEL, X),
    }[work]()
    assert len(alive) > 10
    assert max(alive) <= 1


def test_flops_grow_with_the_rank_and_the_data():
    small, large = nfk.plan(MODEL, X[:100], 8), nfk.plan(MODEL, X, 16)
    assert large.flops > 2 * small.flops
    assert "FLOP" in str(small)


def test_the_network_may_be_any_pure_function():
    """Scan, control flow, scalars among the parameters: the plan and both engines take them."""

    def score(params, x):
        body = lambda carry, _: (jnp.tanh(params["w"] @ carry) * params["gain"], None)  # noqa: E731
        import jax

        return jnp.sum(jax.lax.scan(body, x, None, length=3)[0])

    params = {"w": np.eye(6, dtype=np.float32), "gain": np.float32(1.1)}
    model = nfk.energy(score, params)
    first, second = (nfk.fit(model, X, 5, engine=engine).eigenvalues for engine in ("gradients", "products"))
    np.testing.assert_allclose(first, second, rtol=1e-3)
