"""Room on disk for what does not fit in memory, in files without a name: the system frees them when their process ends,
however it ends, so nothing is left behind and nobody else can come across them."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from nfk.memory import human

DEFAULT_SHARE = 0.5  # of the free space of the system's folder for temporary files
NAMED_SHARE = 0.95  # of that of a folder which the caller names
IN_MEMORY = ("tmpfs", "ramfs")  # file systems that take memory, not disk


@dataclass(frozen=True)
class Scratch:
    """A folder for files without a name."""

    folder: Path
    share: float = NAMED_SHARE

    @classmethod
    def of(cls, folder: str | Path | None) -> Scratch:
        """A folder, or (None) that of the system for temporary files; an error where it cannot be written."""
        if folder is None:
            return cls(Path(tempfile.gettempdir()), DEFAULT_SHARE)
        try:
            with tempfile.TemporaryFile(dir=folder):
                return cls(Path(folder))
        except OSError as error:
            raise OSError(
                f"scratch={str(folder)!r} cannot be written: {error.strerror or error}; name a folder on a disk with "
                "room, or leave scratch out"
            ) from error

    @property
    def in_memory(self) -> str:
        """The kind of its file system, where that is kept in memory: no disk at all."""
        kind = _kind_of(self.folder)
        return kind if kind in IN_MEMORY else ""

    def free_bytes(self) -> int:
        """What may be taken; nothing of a file system that is kept in memory."""
        if self.in_memory:
            return 0
        try:
            return int(self.share * shutil.disk_usage(self.folder).free)
        except OSError:
            return 0

    def file(self, size: int) -> IO[bytes]:
        """A new file of that many zeros. All of it is allocated now: a disk that is full says so here, by an `OSError`,
        and not by a signal in the middle of a product."""
        file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115  (whoever asked for it closes it)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
            else:
                file.truncate(max(size, 1))
        except OSError as error:
            file.close()
            raise OSError(
                error.errno or errno.ENOSPC,
                f"the disk of scratch={str(self.folder)!r} has no room for {human(size)}: make room, or name another "
                "folder",
            ) from error
        return file

    def array(self, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
        """A new array of zeros in a memory map. Its pages belong to the file: the system writes them out and takes them
        back as it needs memory."""
        if 0 in shape:
            return np.zeros(shape, dtype)
        with self.file(int(np.prod(shape)) * np.dtype(dtype).itemsize) as file:
            return np.asarray(np.memmap(file, dtype, "r+", shape=shape))


def _kind_of(folder: Path) -> str:
    """The file system of a folder, as the system calls it; nothing where it does not say."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
        found = [(len(place), kind) for place, kind in mounts if folder.resolve().is_relative_to(place)]
        return max(found)[1]
    except (OSError, ValueError, IndexError):
        return ""
