"""Results in the order in which they were computed, on disk: whenever its process is killed, a whole beginning is left.

    folder/journal.json        what the journal is about, written first
    folder/entry-0003-0.npy    the arrays of an entry, each with a checksum
    folder/entry-0003.json     its name, its facts and those checksums, written last: the entry counts from then on

A lock, which the system frees when its holder dies, keeps a second writer out. Arrays are written as they are, without
a copy, and are not forced to the disk: what a power cut tears has another checksum, and the entries before it are used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from nfk.atomic import PARTIAL, write_atomically
from nfk.checksum import checksum

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

FORMAT = 1
ABOUT, LOCK = "journal.json", ".journal.lock"
FILES, UNFINISHED = r"entry-(\d{4})(-\d)?\.(json|npy)", re.escape(PARTIAL) + r".*-(entry-\d{4}|journal).*"
LARGE = 64 * 2**20
BUSY = (errno.EAGAIN, errno.EACCES)


@dataclass(frozen=True)
class Entry:
    """One result: what it is called, what JSON can hold of it, and its arrays."""

    name: str
    facts: dict[str, Any]
    arrays: tuple[np.ndarray, ...] = field(repr=False)


class Journal:
    """A folder that one process writes at a time; `count` entries are whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = _locked(folder)
        self.count = 0
        while self._document(self.count) is not None:
            self.count += 1
        self.forget(self.count)

    def close(self) -> None:
        self._lock.close()

    @property
    def about(self) -> dict[str, Any] | None:
        """What the journal was begun with; None for a new one."""
        path = self.folder / ABOUT
        if not path.is_file():
            return None
        document = _read(path)
        if document is None or document.get("format") != FORMAT:
            raise ValueError(
                f"{path} is damaged, or of another version of nfk: delete {self.folder} to begin anew, or choose "
                "another folder"
            )
        return document["content"]

    def begin(self, about: dict[str, Any]) -> None:
        """An empty journal."""
        self.forget(0)
        _write(self.folder / ABOUT, about)

    def finish(self) -> None:
        """What the journal is about, with the mark that it is finished; its entries are removed."""
        _write(self.folder / ABOUT, {**(self.about or {}), "finished": True})
        self.forget(0)

    def append(self, name: str, facts: dict[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
        """One entry more. An `OSError` where it cannot be written; the entries before it stay."""
        described = [self._save(place, np.ascontiguousarray(array)) for place, array in enumerate(arrays)]
        _write(self.folder / f"entry-{self.count:04}.json", {"name": name, "facts": facts, "arrays": described})
        self.count += 1

    def _save(self, place: int, array: np.ndarray) -> dict[str, str]:
        path = self.folder / f"entry-{self.count:04}-{place}.npy"
        write_atomically(path, lambda partial: np.save(partial, array, allow_pickle=False), sync=False)
        return {"checksum": checksum(array)}

    def read(self, index: int) -> Entry | None:
        """Entry `index`, None where it is torn: then it and all after it are forgotten."""
        document = self._document(index)
        arrays = None if document is None else self._arrays(index, document["arrays"])
        if document is None or arrays is None:
            self.forget(index)
            return None
        return Entry(document["name"], document["facts"], arrays)

    def forget(self, index: int) -> None:
        """Entry `index` and all after it, the last one first: at any moment a whole beginning is left."""
        self._remove(lambda number: number is None or number >= index)
        self.count = min(self.count, index)

    def _document(self, index: int) -> dict[str, Any] | None:
        document = _read(self.folder / f"entry-{index:04}.json")
        return None if document is None else document["content"]

    def _arrays(self, index: int, described: Sequence[dict[str, str]]) -> tuple[np.ndarray, ...] | None:
        arrays = []
        for place, facts in enumerate(described):
            try:
                path = self.folder / f"entry-{index:04}-{place}.npy"
                mode = "c" if path.stat().st_size >= LARGE else None  # large ones stay in the file
                array = np.load(path, mode, allow_pickle=False)
            except (OSError, ValueError, EOFError):
                return None
            if checksum(array) != facts["checksum"]:
                return None
            arrays.append(array)
        return tuple(arrays)

    def _remove(self, chosen: Callable[[int | None], bool]) -> None:
        """Files of chosen entries, and (None) unfinished ones; of an entry the JSON before its arrays."""
        for path in sorted(self.folder.iterdir(), reverse=True):
            found = re.fullmatch(f"{FILES}|{UNFINISHED}", path.name)
            if found and chosen(int(found[1]) if found[1] else None):
                path.unlink(missing_ok=True)


def _write(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps({"format": FORMAT, "content": content, "checksum": _hash(content)}, indent=1)

    def write(partial: Path) -> None:
        partial.write_text(text, "utf-8")

    write_atomically(path, write)


def _read(path: Path) -> dict[str, Any] | None:
    """A document as it was written; None where there is none, or one that is damaged."""
    try:
        document = json.loads(path.read_text("utf-8"))
        return document if document["checksum"] == _hash(document["content"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _locked(folder: Path) -> IO[str]:
    """The folder's lock, held until the file is closed or the process dies; no lock where the system has none."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / LOCK).open("a+")
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        owner = file.read().strip()
        file.close()
        if error.errno in BUSY:
            raise BlockingIOError(error.errno, f"in use by process {owner}") from None
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        return (folder / LOCK).open("a+")
    with suppress(OSError):  # for people alone: on a full disk the lock holds all the same
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
    return file
