"""One file from the first of several addresses that has it: resumed, verified, and in place only when it is whole."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

TIMEOUT_SECONDS = 30.0
RETRIES = 4
WAIT_SECONDS = 1.0
CHUNK = 1 << 18
RANGE_NOT_SATISFIABLE, TOO_MANY_REQUESTS = 416, 429

Report = Callable[[int], None]


class DownloadError(OSError):
    """No address gave the file; the text says what each of them answered."""


def fetch(
    urls: Sequence[str], path: Path, *, checksum: str, size: int | None = None, progress: bool | None = None
) -> Path:
    """`path`, with the bytes that `checksum` ("md5:..." or "sha256:...") names; downloaded only if they are not there.

    The bytes arrive in `path` + ".part", which an interruption leaves behind and the next call resumes; `path` itself
    appears in one step, after size and checksum have been verified. The checksum also decides whether the remote file
    changed between two halves: a part that was put together and does not match is downloaded once more from nothing,
    and a part may be resumed from another address of the same bytes.
    Processes that ask for files of the same folder wait for each other (not on Windows, where the checksum alone
    guards against a mixture). `progress=None` draws a bar when standard error is a terminal.
    """
    if path.is_file() and not difference(path, checksum, size):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    failures = []
    with _alone(path.parent), _bar(path.name, size, progress) as report:
        if path.is_file() and not difference(path, checksum, size):
            return path
        for url in urls:
            try:
                _from_one(url, part, checksum, size, report)
            except (OSError, HTTPException, ValueError) as error:
                failures.append(f"\n  {url}: {error or type(error).__name__}")
            else:
                os.replace(part, path)
                return path
    raise DownloadError(
        f"{path.name} could not be downloaded:{''.join(failures)}\n"
        f"Try again later (what has arrived is kept and resumed), or put the file at {path} by hand."
    )


def difference(path: Path, checksum: str, size: int | None = None) -> str:
    """What distinguishes a file from the one expected, as text; empty if nothing does. Reads it once, 0.5 GB/s."""
    found = path.stat().st_size
    if size is not None and found != size:
        return f"has {found:,} bytes, expected {size:,}"
    kind, expected = checksum.split(":")
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    return "" if digest == expected else f"has {kind} {digest}, expected {expected}"


def _from_one(url: str, part: Path, checksum: str, size: int | None, report: Report) -> None:
    """The verified part from one address; a part that does not match is deleted."""
    wrong = ""
    for _ in range(2):
        joined = _complete(url, part, size, report)
        wrong = difference(part, checksum, size)
        if not wrong:
            return
        part.unlink()
        if not joined:
            break
    raise ValueError(f"what was sent {wrong}; it was deleted")


def _complete(url: str, part: Path, size: int | None, report: Report) -> bool:
    """Bring the part to its end, with patience while it grows; True if it was joined from more than one answer."""
    joined, furthest, failures = False, _length(part), 0
    while True:
        start = _length(part)
        joined |= start > 0
        if size is not None and start >= size:
            return joined
        try:
            _stream(url, part, size, report)
            return joined
        except HTTPError as error:
            error.close()
            if error.code == RANGE_NOT_SATISFIABLE and start:
                part.unlink()
                continue
            if error.code < 500 and error.code != TOO_MANY_REQUESTS:
                raise
            problem = error
        except (OSError, HTTPException) as error:
            problem = error
        failures = 0 if _length(part) > furthest else failures + 1
        furthest = max(furthest, _length(part))
        if failures > RETRIES:
            raise problem
        time.sleep(WAIT_SECONDS * 2**failures)


def _stream(url: str, part: Path, size: int | None, report: Report) -> None:
    """One answer of the server, appended to the part if the server continues where it ends, else from the start."""
    start = _length(part)
    resume = {"Range": f"bytes={start}-"} if start else {}
    with urlopen(Request(url, headers={"User-Agent": "nfk", **resume}), timeout=TIMEOUT_SECONDS) as response:
        continues = response.status == 206
        if continues and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise ConnectionError(f"the server sent {response.headers.get('Content-Range')}, asked for bytes {start}-")
        with part.open("ab" if continues else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                report(file.tell())
                if size is not None and file.tell() > size:
                    return
        if response.length:
            raise ConnectionError(f"the connection ended {response.length:,} bytes too early")


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Only one process at a time; the system releases the lock of a process that is killed."""
    with (folder / ".lock").open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _bar(name: str, size: int | None, show: bool | None) -> Iterator[Report]:
    console = Console(stderr=True, force_terminal=show or None)
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    hidden = show is False or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(name, total=size)
        yield lambda done: bar.update(task, completed=done)
