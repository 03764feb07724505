"""A request that cannot be met: one sentence for the person who made it."""

from __future__ import annotations

from pathlib import Path


class Refused(Exception):
    """Bad input. The text is all that is shown; the exit code is 2."""


def refuse_existing(path: Path, force: bool) -> None:
    """Nothing is overwritten unless it was asked for."""
    if path.exists() and not force and not _is_empty(path):
        raise Refused(f"{path} exists: choose another name, or overwrite it with --force")


def _is_empty(path: Path) -> bool:
    """A folder with nothing in it but hidden files, such as the lock of a fit that came to nothing."""
    return path.is_dir() and all(inside.name.startswith(".") for inside in path.iterdir())


def needs(package: str, what: str, install: str | None = None) -> Refused:
    """An optional package that is not there, with the command that installs it."""
    return Refused(f"{what} needs {package}: pip install {install or package}")
