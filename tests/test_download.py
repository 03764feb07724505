"""The real download code against a real server: whatever fails, the file appears whole or not at all."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from server import Remote, serving

from reproduction import download
from reproduction.download import DownloadError, fetch

pytestmark = pytest.mark.reproduction
CONTENT = np.random.default_rng(0).bytes(1_000_000)
OTHER = np.random.default_rng(1).bytes(1_000_000)
CHECKSUM = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
SIZE = len(CONTENT)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(download, "WAIT_SECONDS", 0.001)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache" / "file.bin"


def is_whole(path: Path) -> bool:
    """The file, all of it, and nothing else."""
    return path.read_bytes() == CONTENT and [other.name for other in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("checksum", [CHECKSUM, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"])
def test_a_file_is_downloaded_once(path, checksum):
    remote = Remote(CONTENT)
    with serving(file=remote) as base:
        for _ in range(2):
            assert fetch([base + "file"], path, checksum=checksum, size=SIZE) == path
    assert is_whole(path)
    assert len(remote.asked) == 1


def test_a_cut_connection_is_tried_again(path):
    remote = Remote(CONTENT, cuts=[300_000, 700_000])
    with serving(file=remote) as base:
        fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE)
    assert is_whole(path)
    assert len(remote.asked) == 3


@pytest.mark.parametrize("content", [OTHER, CONTENT[:-1], CONTENT * 9], ids=["other", "short", "long"])
def test_wrong_bytes_are_refused_and_not_kept(path, content):
    remote = Remote(content)
    with serving(file=remote) as base, pytest.raises(DownloadError, match=r"(?s)/file: MD5 hash .* does not match"):
        fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE)
    assert not list(path.parent.iterdir())
    assert len(remote.asked) == 1


def test_the_next_mirror_is_asked(path):
    gone, wrong, good = Remote(b"", errors=[404]), Remote(OTHER), Remote(CONTENT)
    with serving(gone=gone, wrong=wrong, good=good) as base:
        fetch([base + name for name in ("gone", "wrong", "good")], path, checksum=CHECKSUM, size=SIZE)
    assert is_whole(path)
    assert [len(remote.asked) for remote in (gone, wrong, good)] == [1, 1, 1]


def test_a_busy_server_is_asked_again_and_a_missing_file_is_not(path):
    busy, missing = Remote(CONTENT, errors=[503, 429]), Remote(CONTENT, errors=[404] * 9)
    with serving(busy=busy, missing=missing) as base:
        with pytest.raises(DownloadError, match=r"(?s)missing: 404 .*or put the file at .*file.bin by hand"):
            fetch([base + "missing"], path, checksum=CHECKSUM, size=SIZE)
        fetch([base + "busy"], path, checksum=CHECKSUM, size=SIZE)
    assert is_whole(path)
    assert (len(busy.asked), len(missing.asked)) == (3, 1)


def test_nobody_answers(path, monkeypatch):
    monkeypatch.setattr(download, "RETRIES", 1)
    with pytest.raises(DownloadError, match=r"(?s)127.0.0.1:9/x: .*refused.*Try again later"):
        fetch(["http://127.0.0.1:9/x"], path, checksum=CHECKSUM)


def test_a_silent_server_is_given_up(path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(download, "RETRIES", 0)
    remote = Remote(CONTENT, held=threading.Event())
    with serving(file=remote) as base:
        try:
            with pytest.raises(DownloadError, match="timed out"):
                fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE)
        finally:
            remote.held.set()
    assert not path.exists()


def test_the_old_file_stays_until_the_new_one_is_verified(path):
    path.parent.mkdir()
    path.write_bytes(b"damaged")
    remote = Remote(CONTENT, held=threading.Event())
    with serving(file=remote) as base, ThreadPoolExecutor() as pool:
        fetched = pool.submit(fetch, [base + "file"], path, checksum=CHECKSUM, size=SIZE)
        try:
            _until(lambda: len(remote.asked) == 1)
            assert path.read_bytes() == b"damaged"
        finally:
            remote.held.set()
        fetched.result(20)
    assert is_whole(path)


def test_a_killed_process_leaves_no_half_file_under_the_name(path):
    remote = Remote(CONTENT, held=threading.Event())
    with serving(file=remote) as base:
        process = _elsewhere(base + "file", path)
        try:
            _until(lambda: len(remote.asked) == 1)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            remote.held.set()
        assert not path.exists()
        fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE)
    assert path.read_bytes() == CONTENT


def test_threads_at_once_all_get_the_whole_file(path):
    with serving(file=Remote(CONTENT)) as base, ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(fetch, [base + "file"], path, checksum=CHECKSUM, size=SIZE) for _ in range(4)]
        assert [job.result(20) for job in jobs] == [path] * 4
    assert is_whole(path)


@pytest.mark.parametrize(("progress", "drawn"), [(True, True), (False, False), (None, False)])
def test_a_bar_is_drawn_on_a_terminal(path, capsys, progress, drawn):
    with serving(file=Remote(CONTENT)) as base:
        fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE, progress=progress)
    written = capsys.readouterr()
    assert ("B/s" in written.err) == drawn
    assert not written.out


def _elsewhere(url: str, path: Path) -> subprocess.Popen:
    """The same call in another process, without the import of jax."""
    code = f"""
import runpy, pathlib
fetch = runpy.run_path({str(download.__file__)!r})["fetch"]
fetch([{url!r}], pathlib.Path({str(path)!r}), checksum={CHECKSUM!r}, size={SIZE})
"""
    return subprocess.Popen([sys.executable, "-c", code])


def _until(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)
