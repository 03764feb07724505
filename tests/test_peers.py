"""The comparison with other ways: what is compared is the same, and a wrong answer is caught. Nothing is timed here."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import history
from benchmarks.peers import __main__ as harness
from benchmarks.peers import job as jobs
from benchmarks.peers import machine, making, ratios, registry, running, tables
from benchmarks.peers.oracle_cache import Reference, digest
from benchmarks.peers.records import Key, Records

pytestmark = pytest.mark.reproduction
torch = pytest.importorskip("torch", reason="the script is PyTorch's; pip install 'nfk[torch]' to compare")


def job_of(name: str, count: int = 3, **settings) -> jobs.Job:
    """Random examples and, where the weights are trained ones, random weights of the same shapes."""
    from benchmarks.peers import torch_networks

    rng, network = np.random.default_rng(0), making.NETWORKS[name]
    images = {"lenet5": (1, 32, 32)}.get(name, (3, 32, 32))
    examples = rng.standard_normal((count, *images)).astype(np.float32)
    if name == "transformer":
        examples = rng.integers(0, 65, (count, 65)).astype(np.int32)
    module = torch_networks.NETWORKS[name]()
    shapes = {key: leaf.shape for key, leaf in module.state_dict().items() if not key.endswith("tracked")}
    made = {
        key: making.normal(rng, *shape) if len(shape) > 1 else (1 + 0.3 * rng.standard_normal(shape)).astype(np.float32)
        for key, shape in shapes.items()
    }
    tensors = made if name in ("lenet5", "wrn-16-2") else network.weights()
    tensors = {key: np.abs(leaf) + 0.5 if key.endswith("running_var") else leaf for key, leaf in tensors.items()}
    return jobs.Job(
        jobs.Settings(name, network.family, centred=network.centred, **settings),
        weights={key: leaf for key, leaf in tensors.items() if "running" not in key},
        buffers={key: leaf for key, leaf in tensors.items() if "running" in key},
        examples=examples,
        samples=examples[:2] if network.sampled else None,
    )


def tiny_critic(kernel: str = "fisher") -> jobs.Job:
    rng = np.random.default_rng(1)
    images = rng.standard_normal((12, 3, 32, 32)).astype(np.float32)
    settings = jobs.Settings("critic", "gan", kernel, rank=4)
    return jobs.Job(settings, making.critic_weights(), images[:6], samples=images[6:])


@pytest.mark.parametrize("name", list(making.NETWORKS))
def test_the_networks_give_the_same_scores_in_jax_and_in_torch(name):
    from benchmarks.peers import jax_networks, torch_networks

    job = job_of(name)
    module = torch_networks.module(job)
    with torch.no_grad():
        expected = torch_networks.scores(job.settings.family, module(torch_networks.examples(job))).numpy()
    score, params = jax_networks.score(job), jax_networks.params(job)
    found = jax.vmap(lambda x: score(params, x))(jax_networks.examples(job))
    np.testing.assert_allclose(found, expected, rtol=2e-4)
    assert np.ptp(expected) > 1e-3 * np.abs(expected).max(), "scores that do not differ prove nothing"
    assert job.parameters == sum(leaf.numel() for leaf in module.parameters())


def test_the_critic_is_that_of_the_design():
    assert sum(leaf.size for leaf in making.critic_weights().values()) == 613_761


@pytest.mark.parametrize("name", ["critic", "wrn-16-2", "transformer"])
def test_a_job_comes_back_from_its_file(name, tmp_path):
    job = job_of(name, rank=7, tol=0.03)
    jobs.write(job, tmp_path / "job.npz")
    back = jobs.read(tmp_path / "job.npz")
    assert back.settings == job.settings
    assert digest(back) == digest(job)
    assert digest(replace(job, examples=job.examples[::-1])) != digest(job)


@pytest.mark.parametrize("kernel", ["fisher", "plain"])
def test_the_oracle_is_the_dense_definition(kernel):
    """Against `nfk.kernel` on the JAX network: another framework, another code."""
    import nfk
    from benchmarks.peers import jax_networks, oracle

    job = replace(tiny_critic(kernel), samples=None)
    found = oracle.top(oracle.gram(job, torch.float64))
    options = {} if kernel == "fisher" else {"fisher": "identity", "centred": False}
    model = nfk.gan(jax_networks.apply(job), jax_networks.params(job), expectation="data", **options)
    expected = np.linalg.eigvalsh(nfk.gram(model, jax_networks.examples(job)))[::-1]
    np.testing.assert_allclose(found[:4], expected[:4], rtol=1e-4)


@pytest.mark.parametrize("rows", [6, 4])
def test_the_script_agrees_with_the_oracle_kept_and_in_tiles(rows, monkeypatch):
    from benchmarks.peers import oracle
    from benchmarks.peers.contestants import script, script_tiles
    from benchmarks.peers.measure import Stopwatch

    job = tiny_critic()
    monkeypatch.setattr(script, "free_bytes", lambda: 1.5 * 4 * job.parameters * rows + 8)
    monkeypatch.setattr(script, "SMALLEST", 4)
    monkeypatch.setattr(script_tiles, "FEW", 1)
    answer = script.prepare(job)(Stopwatch())
    exact = Reference(oracle.top(oracle.gram(job, torch.float64)))
    assert answer.facts["rows_kept"] == rows
    assert exact.error(answer.eigenvalues) < 1e-3


def test_a_wrong_contestant_is_caught():
    exact = Reference(np.array([4.0, 2.0, 1.0]))
    assert exact.error(np.array([4.0, 2.0, 1.0])) == 0
    assert exact.error(np.array([4.0, 2.0, 0.5])) == pytest.approx(0.5)
    assert exact.error(np.array([4.0, 1.0])) == pytest.approx(0.5), "one that skips an eigenvalue"
    records, key = Records(), Key("critic", 64, "fisher", 3, "idle", "P")
    records.add(key, "nfk", 0, {"status": "done", "seconds": 1.0, "eigenvalues": [4.0, 2.0, 0.5]}, exact, {})
    assert records.rows[0]["worst_relative_error"] == pytest.approx(0.5)
    assert "eigenvalues" not in records.rows[0]


def measurement(
    contestant: str, seconds: float | None, status: str = "done", error: float | None = 1e-6, **more
) -> dict:
    return {
        "network": "critic", "kernel": "fisher", "condition": "idle", "processor": "P", "examples": 1024,
        "rank": 32, "round": 0,
        "parameters": 613_761, "contestant": contestant, "status": status, "seconds": seconds, "peak_bytes": 2e9,
        "worst_relative_error": error, "error_of_float32_gradients": 1e-7, "budget_seconds": 600.0, **more,
    }  # fmt: skip


def results(*rows: dict) -> dict:
    return {"environment": {"processor": "P", "cores": 2, "memory_bytes": 24e9, "seed": 0}, "measurements": list(rows)}


def test_the_table_says_who_was_stopped_who_failed_and_who_was_first():
    floor = {"gradient_seconds": 1e-3, "flop_per_second": 1e12}
    text = tables.summary(
        results(
            *(measurement("script", seconds, round=index) for index, seconds in enumerate((8.0, 9.0, 30.0))),
            measurement("nfk", 4.0),
            measurement("paper", None, "projected", None, projected_seconds=1234.0),
            measurement("curvlinops", None, "over budget", None),
            measurement("matfree", None, "failed", None, reason="out of memory"),
            measurement("floor-torch", 1.0, error=None, facts=floor),
        )
    )
    assert "| 9.0 s, 1e-06, 2.0 GB |" in text, "a median"
    assert "| **4.0 s**, 1e-06, 2.0 GB |" in text
    assert "at least 1,234 s, projected" in text
    assert "over 600 s" in text
    assert "does not run" in text
    work = min(1024**2 * 613_761, 4 * 1024 * 613_761 * (3 * 32 + 16)) / 1e12
    assert f"| *the floor* |  | {1e-3 * (1024 + 256) + work:.1f} s, 2.0 GB |" not in text
    assert f"| *the floor* |  | {1e-3 * (1024 + 256) + work:.1f} s |" in text


def test_the_floor_takes_the_faster_gradient_and_the_faster_product():
    mine, other = {"gradient_seconds": 1e-3, "flop_per_second": 1e11}, {"gradient_seconds": 2e-3}
    floor = lambda **facts: tables.floors(  # noqa: E731
        tables.medians([measurement("floor-torch", 1.0, facts=mine), measurement("floor-jax", 1.0, facts=facts)]),
        results()["environment"],
    )[0]["seconds"]
    work = 4 * 1024 * 613_761 * (3 * 32 + 16)
    assert floor(**other) == pytest.approx(1e-3 * (1024 + 256) + work / 1e11), "of an earlier version: no rate"
    assert floor(**other, flop_per_second=5e11) == pytest.approx(1e-3 * (1024 + 256) + work / 5e11)
    assert floor(gradient_seconds=5e-4, flop_per_second=1e10) == pytest.approx(5e-4 * (1024 + 256) + work / 1e11)


def test_the_short_table_has_every_size_and_the_fastest_library():
    text = tables.short(
        results(
            measurement("nfk", 1.0, examples=512),
            measurement("nfk", 4.0),
            measurement("nfk", 5.0, rank=128),  # without a script beside it
            measurement("script", 9.0),
            measurement("matfree", 20.0),
            measurement("curvlinops", 30.0),
            measurement("nfk", 7.0, condition="busy"),
        )
    )
    assert "| critic, 1,024, 32 | 4.0 s, 1e-06 | 9.0 s, 1e-06 | matfree: 20.0 s, 1e-06 |" in text
    assert "| critic, 512, 32 | 1.0 s, 1e-06 | - | - |" in text
    assert len(text.splitlines()) == 4, "a head and a line for each number of examples"
    stopped = tables.short(results(measurement("nfk", 4.0), measurement("matfree", None, "over budget", None)))
    assert "| critic, 1,024, 32 | 4.0 s, 1e-06 | - | matfree: over 600 s |" in stopped
    assert tables.short({}) == ""


def test_seconds_to_an_error_count_only_what_reached_it():
    loose, tight = measurement("nfk@0.03", 2.0, error=1e-4), measurement("nfk", 5.0, error=1e-8)
    text = tables.times_to_error(results(loose, tight, measurement("script", 1.0, error=0.1)))
    assert "| nfk | 2.0 s / 5.0 s |" in text
    assert "| PyTorch script | not reached / not reached |" in text


def test_busy_over_idle():
    text = tables.busy(results(measurement("nfk", 2.0), measurement("nfk", 5.0, condition="busy")))
    assert "| P | all | 1,024, 32 | nfk | 2.0 s | 5.0 s | 2.5 |" in text
    pinned = measurement("nfk", 3.0, condition="one core idle"), measurement("nfk", 6.0, condition="one core busy")
    text = tables.busy(results(measurement("nfk", 2.0), *pinned))
    assert "| P | one | 1,024, 32 | nfk | 3.0 s | 6.0 s | 2.0 |" in text
    assert text.count("\n") == 3, "what was run on all cores has no busy row"


def test_ratios_to_the_script_the_fastest_library_and_the_floor():
    floor = {"gradient_seconds": 1e-3, "flop_per_second": 1e15}
    rows = [
        measurement("nfk", 4.0), measurement("nfk-torch", 2.0), measurement("script", 9.0),
        measurement("matfree", 20.0), measurement("curvlinops", 11.0), measurement("neural-tangents", None, "failed"),
        measurement("floor-torch", 1.0, error=None, facts=floor), measurement("floor-jax", 1.0, facts=floor),
        measurement("nfk", 100.0, condition="busy"), measurement("nfk", 30.0, processor="Q"),
    ]  # fmt: skip
    text = ratios.table(results(*rows))
    assert text.count("\n") == 3, "a head and one line: where nothing stands beside nfk there is nothing to say"
    assert "| critic, fisher, P, all | 1,024, 32 | 2.2 | 4.5 | 5.5 | 1.6 |" in text
    rows[2] = measurement("script", None, "projected", projected_seconds=40.0)
    rows[3:5] = [measurement("matfree", None, "over budget")]
    assert "| at least 10.0 | at least 20.0 | at least 300.0 | 1.6 |" in ratios.table(results(*rows))
    assert "| 2.2 | - | - | - |" in ratios.table(results(measurement("nfk", 4.0), measurement("script", 9.0)))


def test_processors_are_not_mixed():
    """A median, a ratio or a row of the README over two kinds of processor would say nothing."""
    fast, slow = measurement("nfk", 2.0), measurement("nfk", 6.0, processor="Q")
    assert [cell["seconds"] for cell in tables.medians([fast, slow])] == [2.0, 6.0]
    assert "2.5" not in tables.busy(results(slow, measurement("nfk", 5.0, condition="busy")))
    assert "2.0 s" in tables.short(results(fast, slow))
    assert "6.0 s" not in tables.short(results(fast, slow))
    text = tables.short(results(fast, slow, measurement("matfree", 9.0, processor="Q")))
    assert "| 6.0 s, 1e-06 | - | matfree: 9.0 s, 1e-06 |" in text, "where most was measured"
    pinned = measurement("nfk", 7.0, condition="one core idle"), measurement("script", 8.0, condition="one core idle")
    assert "2.0 s" not in tables.short(results(fast, *pinned)), "one core and all of them are not mixed"
    assert "2.0 s" not in text
    text = tables.summary(results(fast, slow))
    assert text.index("P.**") < text.index("2.0 s") < text.index("Q.**") < text.index("6.0 s")
    records, key = Records(), Key("critic", 64, "fisher", 3, "idle", "P")
    records.add(key, "nfk", 0, {"status": "done", "seconds": 1.0}, None, {})
    assert records.has(key, "nfk", 0)
    assert not records.has(replace(key, processor="Q"), "nfk", 0)


@pytest.mark.parametrize(
    ("flags", "name"), [("fpu avx2 avx512f", "AMD EPYC, AVX-512"), ("avx avx2", "AMD EPYC, AVX2"), ("", "AMD EPYC")]
)
def test_a_processor_is_named_with_the_widest_of_its_vectors(flags, name, monkeypatch):
    facts = {"model name": "AMD EPYC", "flags": flags}
    monkeypatch.setattr(machine, "_entry", lambda path, entry, otherwise: facts[entry])
    assert machine.processor() == name


def test_a_table_without_measurements_says_so():
    for table in (tables.summary, tables.times_to_error, tables.embeddings, tables.busy, ratios.table, history.table):
        assert "Not measured yet" in table({})


def test_records_resume_and_do_not_retry_what_was_over_the_budget(tmp_path):
    records, key, reference = (
        Records(environment={"cores": 2}),
        Key("critic", 64, "fisher", 3, "idle", "P"),
        Reference(np.ones(3)),
    )
    records.add(key, "script", 0, {"status": "over budget"}, reference, {})
    records.add(key, "nfk", 0, {"status": "done", "seconds": 1.0, "eigenvalues": [1, 1, 1]}, reference, {})
    records.write(tmp_path / "peers.json")
    back = Records.read(tmp_path / "peers.json")
    assert back == records
    assert back.has(key, "nfk", 0)
    assert not back.has(key, "nfk", 1)
    assert back.is_over(key, "script")
    assert not back.is_over(key, "nfk")
    assert not back.is_over(replace(key, examples=128), "script")


def test_what_a_larger_job_takes_at_the_least_follows_from_a_smaller_one():
    records, key = Records(), Key("critic", 64, "fisher", 3, "idle", "P")
    facts, larger = {"budget_seconds": 100.0}, replace(key, examples=128, rank=4)
    records.add(key, "script", 0, {"status": "over budget"}, None, facts)
    records.add(key, "paper", 0, {"projected_seconds": 60.0}, None, facts)
    records.add(key, "nfk", 0, {"status": "done", "seconds": 99.0}, None, facts)
    assert records.least(larger, "script", 100.0)["status"] == "over budget"
    assert records.least(larger, "script", 1000.0) is None, "a larger budget was not tried"
    assert records.least(larger, "paper", 100.0)["projected_seconds"] == 120
    assert records.least(larger, "paper", 200.0) is None
    assert records.least(larger, "nfk", 100.0) is None
    for other in (replace(larger, network="lenet5"), replace(key, examples=32), replace(key, rank=2), key):
        assert records.least(other, "script", 100.0) is None


def test_a_contestant_over_its_budget_is_stopped_and_one_that_fails_is_reported(monkeypatch):
    monkeypatch.setattr(running, "python", lambda *_: Path(sys.executable))
    condition, folder = running.Condition(), Path()
    slow = running.run("nfk", ["timeit", "-n1", "-r1", "import time; time.sleep(60)"], 0.5, condition, folder)
    assert slow["status"] == "over budget"
    assert slow["wall_seconds"] < 30
    failed = running.run("nfk", ["benchmarks.peers.no_such_module"], 60, condition, folder)
    assert failed["status"] == "failed"
    assert "no_such_module" in failed["reason"]


def test_only_those_that_know_no_other_kernel_make_the_plain_one_run():
    assert harness.by_kernel(["script", "nfk", "floor-jax"]) == {"fisher": ["script", "nfk", "floor-jax"]}
    both = harness.by_kernel(["script", "nfk", "matfree", "nngeometry"])
    assert both == {"fisher": ["script", "nfk", "matfree"], "plain": ["script", "nfk", "nngeometry"]}


def test_every_contestant_has_a_program_an_environment_and_counted_lines():
    for name, contestant in registry.REGISTRY.items():
        assert contestant.environment in registry.ENVIRONMENTS
        assert (registry.CONTESTANTS / f"{contestant.program}.py").exists()
        assert name.startswith("floor") or name == "paper" or contestant.lines > 0
    assert registry.REGISTRY["nfk"].lines == 3
    source = "a\n# user: begin\nb = 1\n\n# why\nwatch.lap('x')\n# user: end\nc\n# user: begin\nd\n# user: end\n"
    assert registry.lines_of_user(source) == 2


def test_torch_is_never_left_to_another_package():
    for packages in registry.ENVIRONMENTS.values():
        assert not any(package.startswith("torch") for package in packages if package != registry.TORCH)


def test_the_history_names_what_became_slower():
    before = {"version": "1", "processor": "P", "ratios": {"nfk, a": 0.5, "nfk, b": 0.5}}
    between = {"version": "2", "processor": "Q", "ratios": {"nfk, a": 0.1, "nfk, b": 0.1}}
    now = {"version": "3", "processor": "P", "ratios": {"nfk, a": 0.7, "nfk, b": 0.55}}
    assert history.slower([before, between, now]) == ["nfk, a: 0.70 times the script, 0.50 in 1"]
    assert history.slower([between, now]) == []
    assert "| nfk, a | 0.50 | 0.70 |" in history.table([before, now])


def test_the_history_on_disk_is_that_of_the_command():
    if history.HISTORY.exists():
        for entry in json.loads(history.HISTORY.read_text()):
            assert entry.keys() >= {"version", "date", "rounds", "processor", "ratios"}


def test_memory_is_touched_before_a_contestant_where_that_is_asked_for(monkeypatch):
    running.touch(2**20)  # a real process
    asked = []
    monkeypatch.setattr(running.subprocess, "run", lambda command, **_: asked.append(command[-1]))
    running.touch(0)
    running.touch(12_000_000_000)
    assert len(asked) == 1
    assert "12000000000" in asked[0]


def test_the_script_projects_what_is_over_its_budget(monkeypatch):
    from dataclasses import replace

    from benchmarks.peers.contestants import script, script_tiles
    from benchmarks.peers.measure import Stopwatch

    job = tiny_critic()
    monkeypatch.setattr(script, "free_bytes", lambda: 1.5 * 4 * job.parameters * 4 + 8)
    monkeypatch.setattr(script, "SMALLEST", 4)
    monkeypatch.setattr(script_tiles, "FEW", 1)
    answer = script.prepare(replace(job, settings=replace(job.settings, budget_seconds=0.0)))(Stopwatch())
    assert answer.eigenvalues is None
    assert answer.projected_seconds > 0
