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
    monkeypatch.setattr(download, "CHUNK", 1 << 14)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache" / "file.bin"


def part_of(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def is_whole(path: Path) -> bool:
    """The file, all of it, and nothing else but the lock."""
    return path.read_bytes() == CONTENT and {other.name for other in path.parent.iterdir()} == {path.name, ".lock"}


@pytest.mark.parametrize("size", [SIZE, None])
@pytest.mark.parametrize("checksum", [CHECKSUM, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"])
def test_a_file_is_downloaded_once(path, checksum, size):
    remote = Remote(CONTENT)
    with serving(file=remote) as base:
        for _ in range(2):
            assert fetch([base + "file"], path, checksum=checksum, size=size) == path
    assert is_whole(path)
    assert remote.asked == [None]


def test_a_cut_connection_is_resumed(path):
    remote = Remote(CONTENT, cuts=[300_000, 400_000])
    with serving(file=remote) as base:
        fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE)
    assert is_whole(path)
    assert remote.asked == [None, "bytes=300000-", "bytes=700000-"]


def test_a_connection_that_always_ends_is_patient_while_the_part_grows(path):
    remote = Remote(CONTENT, cuts=[90_000] * 11)
    with serving(file=remote) as base:
        fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE)
    assert is_whole(path)
    assert len(remote.asked) == 12


def test_a_failure_leaves_the_part_and_the_next_call_resumes_it(path, monkeypatch):
    monkeypatch.setattr(download, "RETRIES", 0)
    remote = Remote(CONTENT, cuts=[300_000, 0])
    with serving(file=remote) as base:
        with pytest.raises(DownloadError, match=r"(?s)file.bin could not be downloaded.*700,000 bytes too early"):
            fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE)
        assert part_of(path).read_bytes() == CONTENT[:300_000]
        assert not path.exists()
        fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE)
    assert is_whole(path)
    assert remote.asked[-1] == "bytes=300000-"


def test_a_server_that_ignores_ranges_starts_again(path):
    remote = Remote(CONTENT, ranges=False, cuts=[300_000])
    with serving(file=remote) as base:
        fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE)
    assert is_whole(path)
    assert remote.asked == [None, "bytes=300000-"]


def test_a_file_that_changed_between_its_halves_starts_again(path):
    remote = Remote(OTHER, cuts=[300_000], changes_to=CONTENT)
    with serving(file=remote) as base:
        fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE)
    assert is_whole(path)
    assert remote.asked == [None, "bytes=300000-", None]


@pytest.mark.parametrize("length", [SIZE, SIZE + 10])
def test_a_part_as_long_as_the_file_or_longer(path, length):
    """The server answers 416; bytes of unknown origin are not trusted, and neither are they used."""
    path.parent.mkdir()
    part_of(path).write_bytes((OTHER * 2)[:length])
    remote = Remote(CONTENT)
    with serving(file=remote) as base:
        fetch([base + "file"], path, checksum=CHECKSUM)
    assert is_whole(path)
    assert remote.asked == [f"bytes={length}-", None]


def test_a_part_that_is_complete_needs_no_request(path):
    path.parent.mkdir()
    part_of(path).write_bytes(CONTENT)
    fetch(["http://127.0.0.1:9/nobody-is-asked"], path, checksum=CHECKSUM, size=SIZE)
    assert is_whole(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (OTHER, rf"has md5 {hashlib.md5(OTHER).hexdigest()}, expected {CHECKSUM[4:]}; it was deleted"),
        (CONTENT[:-1], r"has 999,999 bytes, expected 1,000,000; it was deleted"),
        (CONTENT * 9, r"has 1,\d\d\d,\d\d\d bytes, expected 1,000,000; it was deleted"),
    ],
    ids=["other", "short", "long"],
)
def test_wrong_bytes_are_refused(path, content, message):
    remote = Remote(content)
    with serving(file=remote) as base, pytest.raises(DownloadError, match=message):
        fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE)
    assert {other.name for other in path.parent.iterdir()} == {".lock"}
    assert remote.asked == [None]


def test_wrong_bytes_in_pieces_end(path):
    remote = Remote(OTHER, cuts=[10_000] * 500)
    with serving(file=remote) as base, pytest.raises(DownloadError, match="has md5"):
        fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE)
    assert not path.exists()


def test_the_next_mirror_is_asked(path):
    gone, wrong, good = Remote(b"", errors=[404]), Remote(OTHER), Remote(CONTENT)
    with serving(gone=gone, wrong=wrong, good=good) as base:
        fetch([base + name for name in ("gone", "wrong", "good")], path, checksum=CHECKSUM, size=SIZE)
    assert is_whole(path)
    assert [len(remote.asked) for remote in (gone, wrong, good)] == [1, 1, 1]


def test_a_part_is_resumed_from_another_mirror(path, monkeypatch):
    monkeypatch.setattr(download, "RETRIES", 0)
    first, second = Remote(CONTENT, cuts=[300_000, 0]), Remote(CONTENT)
    with serving(first=first, second=second) as base:
        fetch([base + "first", base + "second"], path, checksum=CHECKSUM, size=SIZE)
    assert is_whole(path)
    assert second.asked == ["bytes=300000-"]


def test_a_busy_server_is_asked_again_and_a_missing_file_is_not(path):
    busy, missing = Remote(CONTENT, errors=[503, 429]), Remote(CONTENT, errors=[404] * 9)
    with serving(busy=busy, missing=missing) as base:
        with pytest.raises(DownloadError, match=r"(?s)missing: HTTP Error 404.*or put the file at .*file.bin by hand"):
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
            _until(lambda: part_of(path).exists() and part_of(path).stat().st_size > 400_000)
            assert path.read_bytes() == b"damaged"
        finally:
            remote.held.set()
        fetched.result(20)
    assert is_whole(path)


def test_threads_share_one_download(path):
    remote = Remote(CONTENT)
    with serving(file=remote) as base, ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(fetch, [base + "file"], path, checksum=CHECKSUM, size=SIZE) for _ in range(6)]
        assert [job.result(20) for job in jobs] == [path] * 6
    assert is_whole(path)
    assert remote.asked == [None]


def test_a_killed_process_leaves_its_part_and_its_lock_is_free(path):
    remote = Remote(CONTENT, held=threading.Event())
    with serving(file=remote) as base:
        process = _elsewhere(base + "file", path)
        try:
            _until(lambda: part_of(path).exists() and part_of(path).stat().st_size > 200_000)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            remote.held.set()
        arrived = part_of(path).stat().st_size
        assert not path.exists()
        fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE)
    assert is_whole(path)
    assert remote.asked == [None, f"bytes={arrived}-"]


def test_processes_share_one_download(path):
    remote = Remote(CONTENT)
    with serving(file=remote) as base:
        processes = [_elsewhere(base + "file", path) for _ in range(3)]
        assert [process.wait(20) for process in processes] == [0, 0, 0]
    assert is_whole(path)
    assert remote.asked == [None]


@pytest.mark.parametrize(("progress", "drawn"), [(True, True), (False, False), (None, False)])
def test_a_bar_is_drawn_on_a_terminal(path, capsys, progress, drawn):
    with serving(file=Remote(CONTENT)) as base:
        fetch([base + "file"], path, checksum=CHECKSUM, size=SIZE, progress=progress)
    written = capsys.readouterr()
    assert ("file.bin" in written.err) == drawn
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
