"""Fits by several processes that are killed, all of them or one: they go on together, to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import jax_processes as work
import lives
import pytest
from test_distributed import QUICK, command, launch

import nfk

pytestmark = [pytest.mark.around, pytest.mark.xdist_group("processes")]


def by_jax(folder: Path) -> None:
    done = launch(2, "checkpoints", folder)
    assert done.returncode == 0, done.stderr[-3000:]


def by_torch(folder: Path) -> None:
    pytest.importorskip("torch", reason="the PyTorch bridge; pip install 'nfk[torch]' to run it")
    from test_torch_processes import launch

    launch("checkpoints", folder)


@pytest.fixture(scope="module", params=[by_jax, by_torch], ids=["jax", "torch"])
def found(request, tmp_path_factory):
    """What two processes found, in the folder where they did; there one process alone had begun a fit before."""
    folder = tmp_path_factory.mktemp("checkpoints")
    lives.half_done(fit_by_one, folder / "of one")
    request.param(folder)
    return folder, [json.loads((folder / f"checkpoints-{process}.json").read_text()) for process in range(2)]


def fit_by_one(**more) -> nfk.Embedding:
    return nfk.fit(work.model(), work.examples(), 3, **{"tol": 1e-3, **lives.WAYS["kept"], **more})


def test_killed_with_one_process_ahead_all_go_on_to_the_same_bits(found):
    for process in found[1]:
        ways = set(process) & {*lives.WAYS, "columns", "disks"}  # of JAX not all: compiling takes long
        assert {"kept", "tiles"} < ways
        assert {way: process[way] for way in ways} == {way: [2, True] for way in ways}


def test_a_result_that_one_process_has_torn_is_used_by_none(found):
    assert [process["torn"] for process in found[1]] == [[1, True]] * 2


def test_results_of_two_lives_are_not_mixed(found):
    assert [process["mixed"] for process in found[1]] == [[2, True]] * 2


def test_the_full_disk_of_one_stops_all_and_they_can_go_on(found):
    (first, first_same), (last, last_same) = (process["full"] for process in found[1])
    assert "cannot be written: process 1 of 2 cannot go on: OSError: [Errno 28] No space left on device" in first
    assert "cannot be written: No space left on device; 2 finished passes are safe there. Make room" in last
    assert first_same
    assert last_same


def test_two_fits_in_one_folder_are_refused_in_every_process(found):
    first, last = (process["busy"] for process in found[1])
    assert first[0].startswith("BlockingIOError: checkpoint=")
    assert "in use by process" in first[0]
    assert last[0].startswith("OSError: process 0 of 2 cannot go on: BlockingIOError: checkpoint=")
    assert first[1].startswith("OSError: process 1 of 2 cannot go on: BlockingIOError: checkpoint=")
    assert last[1].startswith("BlockingIOError: checkpoint=")
    assert first[2] == last[2] == ""


def test_a_finished_fit_is_read_by_all_and_done_again_where_it_is_damaged(found):
    assert [process["finished"] for process in found[1]] == [[True, True]] * 2


def test_another_number_of_processes_and_another_mesh_are_refused(found):
    folder, (first, last) = found
    refused = "holds a fit by one process, and 2 processes would go on with it: start as many as then, or choose"
    assert refused in first["of one"][0]
    assert last["of one"][0].startswith("RuntimeError: process 0 of 2 cannot go on: ValueError: checkpoint=")
    with pytest.raises(ValueError, match="holds a fit by 2 processes, and one process would go on with it"):
        fit_by_one(checkpoint=folder / "of several")
    for process in (first, last):
        for told in process.get("arrangement", ()):  # processes of torch have no mesh
            assert "holds another fit: its devices is '2 (cpu) of 2 processes: 2 for the data" in told


def test_a_process_of_torch_that_is_really_killed(tmp_path):
    pytest.importorskip("torch", reason="the PyTorch bridge; pip install 'nfk[torch]' to run it")
    from test_torch_processes import launch, run

    (tmp_path / "die").write_text("3")
    codes, printed = run("long", tmp_path)
    assert codes[1] == -signal.SIGKILL
    assert "ProcessLost: process 1 of 2 has ended" in printed[0]
    assert lives.written(tmp_path) == [4, 3]
    (tmp_path / "die").unlink()
    launch("long", tmp_path)
    assert (tmp_path / "end-0").exists()
    assert (tmp_path / "end-1").exists()


def test_processes_that_are_really_killed(tmp_path):
    """One of two by itself in the middle of a pass's end, then all at once in the middle of a pass."""
    (tmp_path / "die").write_text("3")
    assert "process 1 of 2 was ended by SIGKILL" in launch(2, "long", tmp_path).stderr
    (tmp_path / "die").unlink()
    first, last = lives.written(tmp_path)
    assert last == 3
    assert first in (3, 4)
    started = subprocess.Popen(command(2, "long", tmp_path), env=QUICK, start_new_session=True)
    deadline = time.monotonic() + 100
    while min(lives.written(tmp_path)) < 6 and started.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.03)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert 6 <= min(lives.written(tmp_path)) < 20
    done = launch(2, "long", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "end-0").exists()
    assert (tmp_path / "end-1").exists()
