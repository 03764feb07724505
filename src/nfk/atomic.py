"""A file that is either the old one or the new one, whole, whatever happens in between."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

PARTIAL = ".partial-"


def write_atomically(path: Path, write: Callable[[Path], None], sync: bool = True) -> None:
    """Replace `path` by what `write(partial)` leaves in a hidden, empty file beside it, once that is on the disk.

    Without `sync` it may reach the disk later, so that a power cut can tear it: for files that carry a checksum.
    If anything fails, Ctrl-C included, the partial file is removed, the old file stays and the error goes on. The mode
    is the one that a plain `open` gives a new file. The partial file ends like `path`: some writers read the suffix.
    """
    partial = path.with_name(f"{PARTIAL}{os.getpid()}-{secrets.token_hex(4)}-{path.name}")
    try:
        mode = _create(partial, path)
        write(partial)
        partial.chmod(mode)  # a writer may have put a file of its own in this place
        if sync:
            _sync(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _create(partial: Path, path: Path) -> int:
    """An empty file, and its mode."""
    try:
        with partial.open("xb") as new:
            return os.fstat(new.fileno()).st_mode & 0o777
    except OSError as error:
        raise type(error)(f"{path} cannot be written ({error.strerror}): choose another place") from error


def _sync(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
