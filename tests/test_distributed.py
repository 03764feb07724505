"""Real processes, connected by gloo: two and four give what one gives; one that dies ends all, and is named."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import nfk
from nfk import distributed
from nfk import launch as launching
from nfk.distributed import processes as connected

# One worker: the processes of two would fight for the cores.
pytestmark = [pytest.mark.around, pytest.mark.xdist_group("processes")]
WORK = Path(__file__).parent / "jax_processes.py"


QUICK = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"}


def command(processes: int, task: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "nfk.launch", "--processes", str(processes), str(WORK), task, str(folder)]


def launch(processes: int, task: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(processes, task, folder), env=QUICK, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Of two processes, then of four, which load what the two have saved."""
    folder = tmp_path_factory.mktemp("runs")
    for processes in (2, 4):
        done = launch(processes, "whole", folder)
        assert done.returncode == 0, done.stderr[-3000:]
    return folder, {n: [json.loads((folder / f"results-{n}-{i}.json").read_text()) for i in range(n)] for n in (2, 4)}


def near(found, expected, tolerance=3e-4):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(np.asarray(found) / scale, np.asarray(expected) / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("processes", [2, 4])
def test_many_processes_give_what_one_gives(results, processes):
    import jax_processes as work

    _, found = results
    X, model = work.examples(), work.model()
    alone = nfk.fit(model, X, 3, method="krylov", side="parameters")
    for process, one in enumerate(found[processes]):
        near(one["values"], alone.singular_values)
        near(one["mean"], alone.moments.mean, 1e-5)
        near(one["scale"], alone.moments.scale, 1e-5)
        for name in ("training", "other", "products"):
            near(one[name], alone.training, 1e-2 if name != "training" else 3e-4)
        near(one["embedded"], alone.training[:7])
        near(one["gram"], alone.gram(X[:4], X), 1e-5)
        for loaded in one["loaded"]:
            near(loaded, alone.training)
        assert f"{processes} (cpu) of {processes} processes: {processes} for the data" in one["devices"]
        each = -(-work.N // processes)
        assert one["own"] == [process * each, min((process + 1) * each, work.N)]


def test_a_saved_fit_of_many_is_loaded_by_one(results):
    import jax_processes as work

    folder, found = results
    embedding = nfk.load(folder / "run-4", work.model())
    near(embedding(work.examples()), found[4][0]["training"])
    saved, alone = (folder / "run-2", embedding.save(folder / "alone"))
    assert len(list(saved.iterdir())) == len(list(alone.iterdir()))  # written once


def test_disagreements_are_told_in_every_process(tmp_path):
    done = launch(2, "errors", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads((tmp_path / f"errors-{i}.json").read_text()) for i in range(2)]
    sentences = (
        "process 1 of 2 does not do what process 0 does: its data: number of examples is 23, this one's is 22",
        "its model: ",
        "its model: damping is 0.001, this one's is 0.1",
        "its options: rank is 3, this one's is 4",
        "X[22] holds NaN or infinity",
        "leaves out process 1 of 2",
        "holds 3 examples, but reads",
        "its options: checkpoint is 'not given', this one's is 'given'",
        "its options: save is 'given', this one's is 'not given'",
        "its options: mesh is '2 (cpu) of 2 processes: 2 for the data",
    )
    for first, second, sentence in zip(*told, sentences, strict=True):
        assert sentence in first
        assert sentence in second
    assert told[0][4].startswith("process 1 of 2 cannot go on: ValueError: X[22]")


def test_a_process_that_dies_ends_the_others_and_is_named(tmp_path):
    done = launch(2, "killed", tmp_path)
    assert time.time() - float((tmp_path / "killed").read_text()) < 15
    assert done.returncode == 1
    assert "nfk.launch: process 1 of 2 was ended by SIGKILL; the others are ended" in done.stderr


def test_the_process_that_is_lost_is_named(monkeypatch):
    """Its connections close before the system says that it has ended. Of other hosts nothing is known."""
    here, asked = socket.gethostname(), []
    monkeypatch.setattr(connected, "_lives", lambda pid: asked.append(pid) or asked.count(pid) < 3 or pid == 11)
    assert connected._ended([(here, os.getpid()), (here, 10), (here, 11)]) == "process 1"
    assert asked == [10, 11] * 3
    monkeypatch.setattr(connected, "ENDING_SECONDS", 0.1)
    assert connected._ended([(here, os.getpid()), (here, 11)]) == "a process"
    assert connected._ended([("a", 1), (here, os.getpid())]) == "process 0 (on a)"
    assert connected._ended([("a", 1), (here, 11), ("b", 10)]) == "process 0 (on a) or process 2 (on b)"


def test_variables_of_mpirun_and_srun_connect_two_processes():
    """As `mpirun` and `srun` set them, by hand: each reads its own rows of one fit."""
    import jax_processes as work

    alone = nfk.fit(work.model(), work.examples(), 3, method="krylov").eigenvalues
    port = os.getpid() % 4000
    starters = [
        ({"OMPI_MCA_orte_hnp_uri": f"{port * 4096}.0;tcp://127.0.0.1:1", "OMPI_COMM_WORLD_SIZE": "2"},
         ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")),
        ({"SLURM_JOB_ID": str(port + 1), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"},
         ("SLURM_PROCID", "SLURM_LOCALID")),
    ]  # fmt: skip
    for common, numbers in starters:
        started = [
            subprocess.Popen(
                [sys.executable, str(WORK), "started"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**QUICK, **common, **dict.fromkeys(numbers, str(number))},
            )
            for number in range(2)
        ]  # fmt: skip
        told = [process.communicate(timeout=300) for process in started]
        for number, (out, err) in enumerate(told):
            assert out, err
            found = json.loads(out.splitlines()[-1])
            assert found["own"] == [[0, 12], [12, work.N]][number]
            near(found["eigenvalues"], alone)


def test_a_launcher_that_is_told_to_end_ends_its_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"import os, time, pathlib\npathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch()\n"
                      "time.sleep(300)\n")  # fmt: skip
    launcher = subprocess.Popen([sys.executable, "-m", "nfk.launch", "--processes", "2", str(script)])
    deadline = time.monotonic() + 60
    while len(children := [path.name for path in tmp_path.iterdir() if path.name.isdigit()]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    launcher.terminate()
    launcher.wait(timeout=30)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(("processes", "shares"), [(2, [{4, 6}, {5}]), (4, [{4, 5, 6}] * 4)])
def test_each_process_has_its_share_of_the_cores_from_the_start(processes, shares, monkeypatch):
    """Of cores 4, 5 and 6; all of them where there are too few."""
    own, found = [{4, 5, 6}], []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: own[0], raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: own.__setitem__(0, set(cores)), raising=False)
    monkeypatch.setattr(subprocess, "Popen", lambda command, env: found.append(own[0]))
    for number in range(processes):
        launching._start([], "here:1", processes, number)
    assert found == shares
    assert own == [{4, 5, 6}]


@pytest.mark.parametrize(
    ("arguments", "variables", "sentence"),
    [
        ({"processes": 2}, {}, "is not told address and process: give address, processes and process"),
        ({"address": "here:1", "processes": 2, "process": 2}, {}, "process=2 must be from 0 to 1"),
        ({}, {"NFK_PROCESSES": "two"}, "NFK_PROCESSES='two' is no number"),
    ],
)
def test_a_start_that_cannot_be(arguments, variables, sentence, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=sentence):
        distributed.initialize(**arguments)


def test_a_process_alone_agrees_with_itself():
    for alone in (distributed.ALONE, distributed.JAX):
        assert alone.everyone({"a": 1}) == [{"a": 1}]
        assert alone.of_first(5) == 5
        assert alone.together(lambda: 3) == 3
    assert distributed.own_rows(5) == slice(0, 5)
    own = distributed.Own(np.arange(5), 5)
    assert (len(own), own[2:4].tolist()) == (5, [2, 3])


def test_sums_of_large_blocks_are_exact(tmp_path):
    """Gloo's reduce-scatter was wrong here now and then: the larger the blocks, the more often."""
    done = launch(2, "sums", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [json.loads((tmp_path / f"sums-2-{i}.json").read_text()) for i in range(2)] == [0, 0]
