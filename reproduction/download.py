"""One file from the first of several addresses that has it, by pooch: verified, and in place only when it is whole."""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pooch
import requests

TIMEOUT_SECONDS = 30.0
RETRIES = 4
WAIT_SECONDS = 1.0
TOO_MANY_REQUESTS = 429

pooch.get_logger().setLevel(logging.WARNING)  # it tells every download; the bar is enough


class DownloadError(OSError):
    """No address gave the file; the text says what each of them answered."""


def fetch(
    urls: Sequence[str], path: Path, *, checksum: str, size: int | None = None, progress: bool | None = None
) -> Path:
    """`path`, with the bytes that `checksum` ("md5:..." or "sha256:...") names; downloaded only if they are not there.

    The bytes arrive in a file of another name; `path` appears in one step, after they have been verified. A busy server
    and a connection that ends are tried again, from the start; then the next address is asked. `progress=None` draws a
    bar when standard error is a terminal.
    """
    if path.is_file() and not difference(path, checksum, size):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = sys.stderr.isatty() if progress is None else progress
    failures = []
    for url in urls:
        try:
            _from_one(url, path, checksum, shown)
        except (OSError, ValueError) as error:
            failures.append(f"\n  {url}: {error}")
        else:
            return path
    raise DownloadError(
        f"{path.name} could not be downloaded:{''.join(failures)}\nTry again later, or put the file at {path} by hand."
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


def _from_one(url: str, path: Path, checksum: str, shown: bool) -> None:
    """From one address, with patience for what may pass."""
    get = pooch.HTTPDownloader(progressbar=shown, timeout=TIMEOUT_SECONDS)
    for attempt in range(RETRIES + 1):
        try:
            pooch.retrieve(url, checksum, fname=path.name, path=path.parent, downloader=get)
            return
        except requests.RequestException as error:
            code = error.response.status_code if error.response is not None else None
            if attempt == RETRIES or (code is not None and code < 500 and code != TOO_MANY_REQUESTS):
                raise
            time.sleep(WAIT_SECONDS * 2**attempt)
