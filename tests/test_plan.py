"""The plan: what it chooses, and whether the budget is kept."""

from __future__ import annotations

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from registry import cnn, cnn_params, mlp, mlp_params, vectors

import nfk
from nfk.fitting import _Fit
from nfk.memory import parse_memory
from nfk.planning import MICROBATCH_BYTES, make_plan
from nfk.progress import Reporter
from nfk.stream import Examples

MODEL = nfk.classifier(mlp, mlp_params(np.float32, 6, 8, 4))
X = vectors(np.float32, 6, count=400)


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


def test_columns_are_grouped_when_a_block_does_not_fit():
    wide = nfk.classifier(mlp, mlp_params(np.float32, 6, 2000, 4))
    rows = vectors(np.float32, 6, count=60)
    options = {"side": "examples", "keep": False, "engine": "gradients"}
    plans = [plan for plan in _possible(wide, rows, 8, **options) if plan.columns is not None]
    assert plans
    budget = plans[0].peak_bytes
    assert nfk.plan(wide, rows, 8, **options).peak_bytes > budget
    fitted = nfk.fit(wide, rows, 8, memory=budget, **options)
    np.testing.assert_allclose(fitted.eigenvalues, nfk.fit(wide, rows, 8, method="exact").eigenvalues, rtol=1e-4)


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


def test_convolutions_want_gradients_and_many_outputs_want_products():
    images = vectors(np.float32, 64).reshape(-1, 8, 8, 1)
    assert nfk.plan(nfk.classifier(cnn, cnn_params(np.float32)), images, 8).engine == "gradients"
    many = nfk.network(mlp, mlp_params(np.float32, 6, 50, 200))
    assert nfk.plan(many, X, 4).engine == "products"


def test_engines_that_are_close_are_timed_and_the_faster_is_used(monkeypatch):
    """Whichever is chosen, the answer is the same."""
    monkeypatch.setattr("nfk.planning.WORTH_TIMING_SECONDS", 0.0)
    monkeypatch.setattr("nfk.planning.CLOSE", 1e9)
    plan = make_plan(MODEL, Examples(X), 4)
    assert plan.rival.engine != plan.engine
    assert "both will be timed" in str(plan)
    fit = _Fit(MODEL, Examples(X), plan, 0, 1e-3, 30, Reporter(False))
    embedding = fit.run()
    assert fit.plan.rival is None
    np.testing.assert_allclose(embedding.eigenvalues, nfk.fit(MODEL, X, 4, engine="gradients").eigenvalues, rtol=1e-4)


def test_a_microbatch_of_gradients_stays_small():
    wide = nfk.classifier(mlp, mlp_params(np.float32, 6, 2000, 4))
    plan = nfk.plan(wide, X, 8)
    assert plan.microbatch * wide.layout.size * 4 <= MICROBATCH_BYTES


@pytest.mark.parametrize(("text", "size"), [("4GB", 4 * 2**30), ("1.5 MiB", 3 * 2**19), ("512", 512), (2**20, 2**20)])
def test_sizes_are_read(text, size):
    assert parse_memory(text) == size


SCRIPT = """
import json, sys, threading, numpy as np, jax, jax.numpy as jnp, nfk
from pathlib import Path
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096
rng = np.random.default_rng(0)
draw = lambda *shape: rng.standard_normal(shape, dtype=np.float32) / shape[0] ** 0.5
params = {"a": draw(200, 1500), "b": draw(1500, 10)}
apply = lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"]
model, X = nfk.classifier(apply, params), rng.standard_normal((800, 200), dtype=np.float32)
nfk.fit(model, X[:64], 4, memory="100MB", max_steps=1)  # the runtime and the compiler have their own memory by now
start, peak, stop = resident(), [resident()], threading.Event()
def watch():
    while not stop.wait(0.002):
        peak[0] = max(peak[0], resident())
thread = threading.Thread(target=watch); thread.start()
fitted = nfk.fit(model, X, 20, memory=int(sys.argv[1]), max_steps=3)
stop.set(); thread.join()
print(json.dumps({"used": peak[0] - start, "planned": fitted.plan.peak_bytes, "keep": fitted.plan.keep}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads resident memory from /proc")
@pytest.mark.parametrize("megabytes", [200, 400])
def test_the_budget_is_kept(megabytes):
    """All 800 gradients would take 1 GB. The runtime's own growth (compiled code) may add a little."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(megabytes * 2**20)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert not report["keep"]
    assert report["planned"] <= megabytes * 2**20
    assert report["used"] <= megabytes * 2**20 + 60 * 2**20


PRODUCTS = SCRIPT.replace(
    "fitted = nfk.fit(model, X, 20,",
    'model = nfk.network(apply, params)\nfitted = nfk.fit(model, X[:64], 4, engine="products",',
)


@pytest.mark.skipif(sys.platform != "linux", reason="reads resident memory from /proc")
def test_the_budget_is_kept_by_products_too():
    """Ten outputs of 315,000 parameters: a batch of 32 examples' gradients would take 400 MB."""
    command = [sys.executable, "-W", "ignore", "-c", PRODUCTS, str(300 * 2**20)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert report["used"] <= 360 * 2**20


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
