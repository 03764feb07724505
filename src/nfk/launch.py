"""`python -m nfk.launch --processes 2 script.py ...`: a script in several processes on this machine, connected.

Each gets its share of the cores. When one ends with an error, the others are ended, and the one is named.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nfk import distributed

GRACE_SECONDS = 2.0  # between asking a process to end and ending it
CHILD = "NFK_LAUNCHED"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nfk.launch", description=__doc__)
    parser.add_argument("--processes", type=int, required=True, help="how many")
    parser.add_argument("--address", help="host:port of process 0; a free port of this machine by default")
    parser.add_argument("script", help="a Python file, the same for all")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    told = parser.parse_args(arguments)
    if told.processes < 1:
        parser.error(f"--processes {told.processes} must be 1 or more")
    address = told.address or f"127.0.0.1:{_free_port()}"
    command = [sys.executable, "-m", "nfk.launch", "--processes", "1", told.script, *told.arguments]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the children are ended, too
    children = [_start(command, address, told.processes, number) for number in range(told.processes)]
    try:
        return _watch(children)
    finally:
        _end(children)


def _start(command: list[str], address: str, processes: int, number: int) -> subprocess.Popen:
    places = {distributed.ADDRESS: address, distributed.PROCESSES: str(processes), distributed.PROCESS: str(number)}
    with _cores(number, processes):
        return subprocess.Popen(command, env={**os.environ, **places, CHILD: str(processes)})


@contextmanager
def _cores(number: int, processes: int) -> Iterator[None]:
    """What starts here has its share of the cores, where there are enough: more threads than cores wait for one
    another. It has it from its first moment, since BLAS counts the cores when numpy is imported."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= processes:
        os.sched_setaffinity(0, cores[number::processes])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _watch(children: list[subprocess.Popen]) -> int:
    """Until all have ended well, or one has not."""
    while True:
        codes = [child.poll() for child in children]
        for number, code in enumerate(codes):
            if code:
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                print(f"nfk.launch: process {number} of {len(codes)} {how}; the others are ended", file=sys.stderr)
                return 1 if code < 0 else code
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.1)


def _end(children: list[subprocess.Popen]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        living = [child for child in children if child.poll() is None]
        for child in living:
            child.send_signal(sign)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(child.poll() is None for child in living) and time.monotonic() < deadline:
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _run(script: str, arguments: list[str]) -> None:
    """The script in this process, which is one of several."""
    os.environ.pop(CHILD)
    distributed.initialize()
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    if CHILD in os.environ:
        _run(sys.argv[3], sys.argv[4:])  # after `--processes 1`
    else:
        sys.exit(main())
