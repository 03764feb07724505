"""Embeddings on disk: one safetensors file and one JSON file, loaded without executing anything.

The tensors' file is named by its own hash and the JSON that names it is replaced last, so a folder always holds one
whole embedding: the old one until the new one is complete.

Everything unfinished stays in a hidden folder, and a writer holds the lock for as long as it has one. The system frees
the lock when its holder dies. So whoever holds the lock knows that any other such folder belongs to a dead writer, and
that a tensors' file which the JSON does not name belongs to nobody. Those are removed; nothing else ever is.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from nfk import tensors
from nfk.atomic import write_atomically

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

Facts = dict[str, Any]  # what JSON can hold
Tensors = dict[str, np.ndarray]

FORMAT = 2
FACTS = "embedding.json"
LOCK = ".embedding.lock"
TENSORS = re.compile(r"embedding-[0-9a-f]{16}\.safetensors")
PARTIAL = re.compile(r"\.embedding-partial-\w{8}")
TRIES, PAUSE = 20, 0.02
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def check_writable(folder: Path) -> None:
    """Create the folder and a file in it, now: not after hours of work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder), (folder / LOCK).open("a"):
            pass
    except OSError as error:
        raise OSError(
            f"save={str(folder)!r} cannot be written: {error.strerror or error}; choose another folder"
        ) from error


def write(folder: Path, arrays: Tensors, facts: Facts) -> Path:
    """Replace the embedding in `folder`; every failure to write is an OSError, and the old embedding is still there.

    `facts` is what JSON can hold. Waits while another process writes here. Needs room for the old and the new one.
    """
    plain = json.loads(json.dumps(facts))
    check_writable(folder)
    try:
        with _locked(folder) as locked:
            if locked:
                _remove_partials(folder)
            name = _replace(folder, arrays, plain)
            if locked:
                _remove_tensors_but(folder, name)
    except OSError as error:
        raise OSError(
            f"saving the embedding in {folder} failed: {error}; make room there or choose another folder"
        ) from error
    return folder


def read(folder: Path, required: Collection[str] = ()) -> tuple[Tensors, Facts]:
    """Tensors and facts as they were written, or an error that says what is wrong with the folder.

    Facts that lack a name of `required` are an error of the file, too: format 1, of version 0.3, has no checksum.
    """
    for _ in range(TRIES):
        saved = _read_facts(folder, required)
        if saved.tensors.is_file():
            with suppress(FileNotFoundError):
                return _read_tensors(saved), saved.facts
        time.sleep(PAUSE)  # a writer may have put another embedding here since the JSON was read
    raise FileNotFoundError(f"{saved.tensors} is missing, though {FACTS} names it: save the embedding again")


@dataclass(frozen=True)
class _Saved:
    """What the JSON says: the tensors' file, its hash, and the facts."""

    tensors: Path
    sha256: str
    facts: Facts


def _read_facts(folder: Path, required: Collection[str]) -> _Saved:
    path = folder / FACTS
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no saved embedding: there is no {FACTS} in it")
    document = _read_json(path)
    try:
        saved = _Saved(folder / Path(document["tensors"]).name, document["sha256"], _facts(document))
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path) from error
    missing = sorted(set(required) - set(saved.facts))
    if missing:
        raise _damaged(path, f"it lacks {', '.join(missing)}; ")
    return saved


def _read_json(path: Path) -> Facts:
    """A document of a format that this version reads."""
    try:
        document = json.loads(path.read_text("utf-8"))
        number = document["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path) from error
    if number not in (1, FORMAT):
        raise ValueError(
            f"{path} has format {number}, but this version reads format 1 and {FORMAT}: install a newer nfk, or save "
            "the embedding again if the file is damaged"
        )
    return document


def _facts(document: Facts) -> Facts:
    """The facts of either format: 1 has them beside its own three fields, 2 apart and with a checksum."""
    if document["format"] == 1:
        return {name: fact for name, fact in document.items() if name not in ("format", "tensors", "sha256")}
    if document["checksum"] != _checksum(document["facts"]):
        raise ValueError("the checksum is not that of the facts")
    return document["facts"]


def _checksum(facts: Facts) -> str:
    """One hash for all the ways in which JSON can spell the same facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _damaged(path: Path, why: str = "") -> ValueError:
    return ValueError(f"{path} is damaged (truncated or altered): {why}save the embedding again")


def _read_tensors(saved: _Saved) -> Tensors:
    if _hash_file(saved.tensors) != saved.sha256:
        raise ValueError(f"{saved.tensors} is damaged (truncated or altered): its hash is not the one saved in {FACTS}")
    try:
        return tensors.read(saved.tensors)
    except ValueError as error:
        raise ValueError(f"{saved.tensors} is not a safetensors file: {error}") from error


def _hash_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _replace(folder: Path, arrays: Tensors, facts: Facts) -> str:
    """Write both files in a hidden folder, then move them into place, the JSON last; the name of the tensors' file."""
    with tempfile.TemporaryDirectory(prefix=".embedding-partial-", dir=folder, ignore_cleanup_errors=True) as hidden:
        new_tensors, new_facts = Path(hidden, "tensors"), Path(hidden, "facts")
        arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        write_atomically(new_tensors, lambda partial: tensors.write(partial, arrays))
        digest = _hash_file(new_tensors)
        name = f"embedding-{digest[:16]}.safetensors"
        document = {
            "format": FORMAT, "tensors": name, "sha256": digest, "checksum": _checksum(facts), "facts": facts,
        }  # fmt: skip
        write_atomically(new_facts, lambda partial: _write_text(partial, json.dumps(document, indent=1)))
        os.replace(new_tensors, folder / name)
        os.replace(new_facts, folder / FACTS)
    return name


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")


def _remove_partials(folder: Path) -> None:
    """Remove what dead writers left unfinished. Only for the holder of the lock, which has not begun to write."""
    with suppress(OSError):
        for path in folder.iterdir():
            if PARTIAL.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)


def _remove_tensors_but(folder: Path, named: str) -> None:
    """Remove the tensors that the JSON does not name. Only for the holder of the lock, which has replaced the JSON."""
    with suppress(OSError):
        for path in folder.iterdir():
            if TENSORS.fullmatch(path.name) and path.name != named:
                path.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the folder's lock; False where the system has none, and nothing is removed."""
    with (folder / LOCK).open("a") as file:
        yield _lock(file)


def _lock(file: IO[str]) -> bool:
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno in NO_LOCKS:
            return False
        raise
    return True
