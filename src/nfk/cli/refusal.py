"""A request that cannot be met: one sentence for the person who made it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nfk.store import LOCK, check_writable


class Refused(Exception):
    """Bad input. The text is all that is shown; the exit code is 2."""


class NoLabels(Refused):
    """The data have no labels of the name that was given."""


def refuse_existing(path: Path, force: bool) -> None:
    """Nothing is overwritten unless it was asked for, and what cannot be written is said before the work."""
    if path.exists() and not force and not _is_empty(path):
        raise Refused(f"{path} exists: choose another name, or overwrite it with --force")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        why = "you may not write there" if above.is_dir() else "that is a file"
        raise Refused(f"{path} cannot be written inside {above.name or above} ({why}): choose another place")


def _is_empty(path: Path) -> bool:
    """A folder with nothing in it but hidden files, such as the lock of a fit that came to nothing."""
    return path.is_dir() and all(inside.name.startswith(".") for inside in path.iterdir())


@contextmanager
def place_for(folder: Path) -> Iterator[None]:
    """A folder that can be written to, made before the work; if nothing comes of it, it is taken away again."""
    existed = folder.exists()
    try:
        check_writable(folder)
    except OSError as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        raise Refused(f"--output {folder} cannot be written ({reason}): choose another folder") from error
    try:
        yield
    finally:
        if not existed and _is_empty(folder):
            (folder / LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.rmdir()


def needs(package: str, what: str, install: str | None = None) -> Refused:
    """An optional package that is not there, with the command that installs it."""
    return Refused(f"{what} needs {package}: pip install {install or package}")
