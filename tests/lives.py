"""Fits of several processes that die and are begun again: what each process does, whoever connects them."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from unittest import mock

import numpy as np

import nfk
from nfk.distributed import Processes
from nfk.journal import Journal

WAYS = {
    "kept": {"method": "krylov", "keep": True, "side": "parameters"},
    "examples": {"method": "krylov", "side": "examples"},
    "tiles": {"method": "gram", "keep": False},
    "exact": {"method": "exact"},
}
Fit = Callable[..., nfk.Embedding]


class Killed(BaseException):
    """Nothing of the package catches it."""


@contextmanager
def dying(entry: int, after: bool) -> Iterator[None]:
    """A fit dies at this entry of its journal: before it is written, or when it just is."""
    append = Journal.append

    def deadly(self, *arguments):
        if self.count == entry and not after:
            raise Killed
        append(self, *arguments)
        if self.count == entry + 1:
            raise Killed

    with mock.patch.object(Journal, "append", deadly):
        yield


def own(folder: Path, processes: Processes) -> Path:
    """The journal of this process."""
    return folder / f"process-{processes.rank}" if processes.rank else folder


def entries(folder: Path, processes: Processes) -> int:
    return len(list(own(folder, processes).glob("entry-*.json")))


def same(one: nfk.Embedding, other: nfk.Embedding) -> bool:
    """To the last bit, and with as many passes."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("left", "singular_values", "residuals")]
    pairs.append((one.space.get(one.right), other.space.get(other.right)))
    return all(np.array_equal(*pair) for pair in pairs) and (one.trace, one.passes) == (other.trace, other.passes)


def told(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def outlived(fit: Fit, folder: Path, processes: Processes) -> list:
    """How often it died, with one process a result ahead of the others; and whether the end was the same."""
    whole = fit()
    for lives, entry in enumerate((1, 2, 10**9)):
        ahead = processes.rank == entry % processes.size
        try:
            with dying(entry, after=ahead):
                found = fit(checkpoint=folder)
            return [lives, same(found, whole)]
        except Killed:
            assert entries(folder, processes) == entry + ahead
    raise AssertionError("the last life is without an end")


def half_done(fit: Fit, folder: Path, entry: int = 3) -> None:
    with suppress(Killed), dying(entry, after=False):
        fit(checkpoint=folder)


def torn(fit: Fit, folder: Path, processes: Processes) -> list:
    """An entry of the last process alone is damaged: where all go on, and whether the end was the same."""
    half_done(fit, folder)
    if processes.rank == processes.size - 1:
        path = own(folder, processes) / "entry-0001-0.npy"
        path.write_bytes(path.read_bytes()[:-8])
    processes.everyone(None)  # before another process reads it
    append, written = Journal.append, []
    with mock.patch.object(Journal, "append", lambda self, *a: written.append(self.count) or append(self, *a)):
        found = fit(checkpoint=folder)
    return [written[0], same(found, fit())]


def mixed(fit: Fit, folder: Path, processes: Processes) -> list:
    """The first process has a result of another life than the others: where all go on, and the end."""
    half_done(fit, folder)
    half_done(fit, folder.with_name("other"))
    if processes.is_first:
        for path in folder.with_name("other").glob("entry-0002*"):
            (folder / path.name).write_bytes(path.read_bytes())
    processes.everyone(None)
    append, written = Journal.append, []
    with mock.patch.object(Journal, "append", lambda self, *a: written.append(self.count) or append(self, *a)):
        found = fit(checkpoint=folder)
    return [written[0], same(found, fit())]


def full(fit: Fit, folder: Path, processes: Processes) -> list:
    """The disk of the last process is full: what each is told, and whether it can go on."""
    save = np.save

    def limited(path, array, **options):
        if "entry-0002" in str(path) and processes.rank == processes.size - 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(path, array, **options)

    with mock.patch.object(np, "save", limited):
        text = told(lambda: fit(checkpoint=folder))
    return [text, same(fit(checkpoint=folder), fit())]


def busy(fit: Fit, folder: Path, processes: Processes) -> list[str]:
    """What is told where the journal of each process in turn is in use; and, at the end, where none is."""
    half_done(fit, folder)
    sentences = []
    for number in range(processes.size):
        place = folder / f"process-{number}" if number else folder
        holder = processes.rank == (number + 1) % processes.size
        processes.everyone(None)  # nobody holds any
        with closing(Journal(place)) if holder else nullcontext():
            processes.everyone(None)
            sentences.append(told(lambda: fit(checkpoint=folder)))
    return [*sentences, told(lambda: fit(checkpoint=folder))]


def finished(fit: Fit, folder: Path, processes: Processes) -> list:
    """A fit that is at its end, which the last process did not live to note, is read; then its files are damaged."""
    half_done(fit, folder)
    last, journal = processes.rank == processes.size - 1, own(folder, processes)
    if last:
        shutil.copytree(journal, folder.with_name("before"))
    first = fit(checkpoint=folder)
    if last:
        shutil.rmtree(journal)
        shutil.move(folder.with_name("before"), journal)
    with mock.patch("nfk.fitting.loop", None):
        again = same(fit(checkpoint=folder), first) and entries(folder, processes) == 0
    if processes.is_first:
        next((folder / "finished").glob("*.safetensors")).write_bytes(b"torn")
    processes.everyone(None)
    return [again, same(fit(checkpoint=folder), first)]


def all_of_it(fit: Fit, folder: Path, processes: Processes, ways: Sequence[str]) -> dict[str, list]:
    """Every check; `fit` takes what is to be said besides, and a folder."""
    found: dict[str, list] = {}
    for way in ways:
        found[way] = outlived(lambda way=way, **more: fit(**WAYS[way], **more), folder / way, processes)
    plain = lambda **more: fit(**WAYS["kept"], **more)  # noqa: E731
    for check in (torn, mixed, full, busy, finished):
        found[check.__name__] = check(plain, folder / check.__name__, processes)
    half_done(plain, folder / "of several")
    found["of one"] = [told(lambda: plain(checkpoint=folder / "of one"))]
    return found


class Slow:
    """Examples that take a while, so that a fit can be killed in the middle of a pass."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: slice) -> np.ndarray:
        time.sleep(0.02)
        return self.array[rows]


def long(model: nfk.Model, X: np.ndarray, folder: Path, processes: Processes) -> None:
    """A fit with a checkpoint. Where `die` names an entry, the last process kills itself when it is to write it."""
    append, die = Journal.append, folder / "die"

    def deadly(self: Journal, *arguments) -> None:
        if die.exists() and processes.rank == 1 and self.count == int(die.read_text()):
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, *arguments)

    options = {"method": "power", "keep": False, "tol": 1.0}
    with mock.patch.object(Journal, "append", deadly):
        found = nfk.fit(model, Slow(X), 3, **options, checkpoint=folder / "run")
    assert same(found, nfk.fit(model, Slow(X), 3, **options))
    (folder / f"end-{processes.rank}").touch()


def written(folder: Path) -> list[int]:
    """Results that each of two processes has of a `long` fit."""
    return [len(list(place.glob("entry-*.json"))) for place in (folder / "run", folder / "run" / "process-1")]
