"""Two hosts, each with an address, a name and a network of its own: namespaces of this machine, joined by a cable.

They need a Linux machine whose user may make network namespaces (root may), and are skipped elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import nfk

pytestmark = [pytest.mark.around, pytest.mark.xdist_group("processes")]
WORK = Path(__file__).parent / "jax_processes.py"
PORT = 7766


class Hosts:
    """The first and the second host, and the cable between them. Each finds the other's name in its own /etc/hosts."""

    def __init__(self) -> None:
        self.names = [f"nfk{os.getpid()}{letter}" for letter in "ab"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]
        self.files = [Path("/etc/netns") / name for name in self.names]

    def make(self) -> None:
        known = "".join(f"{address} {name}\n" for address, name in zip(self.addresses, self.names, strict=True))
        for name, folder in zip(self.names, self.files, strict=True):
            ip("netns", "add", name)
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        first, second = self.names
        ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second)
        for name, address in zip(self.names, self.addresses, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for link in ("lo", "cable"):
                ip("-n", name, "link", "set", link, "up")

    def remove(self) -> None:
        for name, folder in zip(self.names, self.files, strict=True):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
            shutil.rmtree(folder, ignore_errors=True)

    def cut(self) -> None:
        ip("-n", self.names[1], "link", "set", "cable", "down")

    def start(self, *arguments: str) -> list[subprocess.Popen]:
        """The same program on both hosts, told by variables where the first one is."""
        quick = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
        given = {**os.environ, **quick, "NFK_ADDRESS": f"{self.addresses[0]}:{PORT}", "NFK_PROCESSES": "2"}
        program = [sys.executable, str(WORK), *arguments]
        return [
            subprocess.Popen(
                [*within(name), "sh", "-c", 'hostname "$0" && exec "$@"', name, *program],
                env={**given, "NFK_PROCESS": str(process)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for process, name in enumerate(self.names)
        ]  # fmt: skip


def within(host: str) -> list[str]:
    """What stands before a command that runs on a host, with a host name of its own."""
    return ["ip", "netns", "exec", host, "unshare", "--uts"]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def hosts():
    made = Hosts()
    try:
        made.make()
        subprocess.run([*within(made.names[0]), "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        made.remove()
        pytest.skip(f"needs to make network namespaces (Linux, root, iproute2): {error}")
    yield made
    made.remove()


def test_two_hosts_give_what_one_gives(hosts):
    import jax_processes as work

    started = hosts.start("started")
    found = [json.loads(process.communicate(timeout=240)[0].splitlines()[-1]) for process in started]
    alone = nfk.fit(work.model(), work.examples(), 3, method="krylov")
    assert [one["own"] for one in found] == [[0, 12], [12, 23]]
    for one in found:
        np.testing.assert_allclose(one["eigenvalues"], alone.eigenvalues, rtol=1e-5)


def test_a_host_that_is_cut_off_ends_the_fit_on_both(hosts, tmp_path):
    """Nobody closes a connection here: silence is all that there is to notice."""
    started = hosts.start("cut", str(tmp_path))
    waited = time.monotonic()
    while not (tmp_path / "begun").exists():
        assert time.monotonic() - waited < 240
        assert all(process.poll() is None for process in started), [p.communicate()[1][-3000:] for p in started]
        time.sleep(0.1)
    hosts.cut()
    told = [process.communicate(timeout=90)[1] for process in started]  # and not after the 120 s that it would wait
    assert all(process.returncode != 0 for process in started)
    assert re.search(r"stopped sending heartbeats\):\n1\n", told[0]), told[0][-3000:]  # process 1, by its number
