"""`srun` and `mpirun` themselves: a fit by two tasks, of which one is then killed.

Slurm is started for it, on this machine and for this user alone: a controller, a node and their keys live in the test's
folder and end with it. Tests are skipped where Slurm (slurm-wlm and munge of Debian) or Open MPI is not installed.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import nfk

pytestmark = [pytest.mark.around, pytest.mark.xdist_group("processes")]
WORK = Path(__file__).parent / "jax_processes.py"
QUICK = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIGURATION = """
ClusterName=nfk
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
FirstJobId={job}
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
SlurmdSpoolDir={folder}/node
StateSaveLocation={folder}/controller
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/node.log
NodeName=localhost NodeAddr=127.0.0.1 CPUs={cores}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """One node, this machine, with its controller; `conf` is what `srun` must know of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.conf, self.socket = folder, folder / "slurm.conf", folder / "munge.socket"
        self.variables = {**os.environ, "SLURM_CONF": str(self.conf)}

    @contextmanager
    def running(self):
        folder, conf = self.folder, str(self.conf)
        with ExitStack() as running:
            key = folder / "munge.key"
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(128))
            munge = {"socket": self.socket, "key-file": key, "pid-file": folder / "munge.pid",
                     "log-file": folder / "munge.log", "seed-file": folder / "munge.seed"}  # fmt: skip
            self._write()
            self._start(running, "munged", "--foreground", "--force", *(f"--{name}={at}" for name, at in munge.items()))
            self._wait("munge", "--no-input", f"--socket={self.socket}")
            self._start(running, "slurmctld", "-D", "-f", conf)
            self._start(running, "slurmd", "-D", "-f", conf, "-N", "localhost")
            self._wait("sinfo", "--noheader", "--states=idle", "--format=%n", told="localhost")
            yield self

    def _write(self) -> None:
        ports = free_ports(2)
        (self.folder / "controller").mkdir()
        (self.folder / "node").mkdir()
        self.conf.write_text(
            CONFIGURATION.format(
                folder=self.folder, user=getpass.getuser(), host=socket.gethostname().split(".")[0],
                controller=ports[0], node=ports[1], cores=os.cpu_count(), job=1 + os.getpid() % 4000,
            )
        )  # fmt: skip

    def _start(self, running: ExitStack, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("wb") as out:
            daemon = subprocess.Popen(command, stdout=out, stderr=out, env=self.variables)
        running.callback(end, daemon)

    def _wait(self, *command: str, told: str = "") -> None:
        """Until a question is answered."""
        for _ in range(100):
            done = subprocess.run(command, check=False, capture_output=True, text=True, env=self.variables, timeout=30)
            if done.returncode == 0 and told in done.stdout:
                return
            time.sleep(0.1)
        outs = "\n".join(out.read_text()[-500:] for out in self.folder.glob("*.out"))
        raise OSError(f"{command[0]} has no answer: {done.stderr}\n{outs}")


def end(daemon: subprocess.Popen) -> None:
    daemon.terminate()
    try:
        daemon.wait(timeout=10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def srun(tmp_path: Path, stack: ExitStack) -> tuple[list[str], dict[str, str], str]:
    missing = [name for name in (*DAEMONS, "srun", "sinfo", "munge") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs Slurm (slurm-wlm and munge of Debian): {', '.join(missing)} is not installed")
    try:
        slurm = stack.enter_context(Slurm(tmp_path).running())
    except OSError as error:
        pytest.skip(f"Slurm cannot be started here: {error}")
    told = r"srun: error: \S+ task 1: Killed"
    return ["srun", "--ntasks=2", "--overcommit"], {**QUICK, "SLURM_CONF": str(slurm.conf)}, told


def mpirun(tmp_path: Path, stack: ExitStack) -> tuple[list[str], dict[str, str], str]:
    if shutil.which("mpirun") is None:
        pytest.skip("needs Open MPI (openmpi-bin of Debian): mpirun is not installed")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    told = r"process rank 1 with PID \d+ .* exited on signal 9"
    return ["mpirun", *root, "--oversubscribe", "-n", "2"], QUICK, told


@pytest.mark.parametrize("launcher", [srun, mpirun])
def test_two_tasks_give_what_one_gives_and_one_that_is_killed_ends_the_other(launcher, tmp_path):
    import jax_processes as work

    with ExitStack() as stack:
        command, variables, named = launcher(tmp_path, stack)
        program = [*command, sys.executable, "-u", str(WORK), "started-and-killed", str(tmp_path)]
        done = subprocess.run(program, check=False, env=variables, capture_output=True, text=True, timeout=240)
    ended = time.time()
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    alone = nfk.fit(work.model(), work.examples(), 3, method="krylov")
    assert sorted(one["own"] for one in found) == [[0, 12], [12, 23]], done.stderr[-3000:]
    for one in found:
        np.testing.assert_allclose(one["eigenvalues"], alone.eigenvalues, rtol=1e-5)
    assert done.returncode != 0
    assert re.search(named, done.stderr), done.stderr[-3000:]
    if launcher is srun:  # which leaves the others to themselves; mpirun ends them
        assert "ProcessLost: process 1 of 2 has ended" in done.stderr
    assert ended - float((tmp_path / "killed").read_text()) < 30
