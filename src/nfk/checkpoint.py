"""A fit that survives being killed: every pass is written down when it is finished, and not computed again.

What takes time in a fit are passes over the data: the moments, and each application of the operator V. A journal keeps
their results. A fit that is begun again with the same arguments runs through the same steps, is given the results of
the passes that were finished, and computes the others: so it does not matter to the solver, nor to this module how it
works. Where rounding differs now (another machine, another BLAS), the solver asks for the product with another block
than it did then: that is seen, and from there on everything is computed.

Of several processes each has a journal and keeps its own part of every result. A result counts where all have it, whole
and from one life of the fit: they ask one another before they use it, so all go on from the same pass.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from jaxtyping import Float

from nfk.distributed import ALONE, Processes
from nfk.identity import Kind, describe
from nfk.journal import Entry, Journal
from nfk.model import Model
from nfk.operator.moments import Moments
from nfk.planning import Batches, Options, Plan
from nfk.solve.operator import Operator
from nfk.spaces import Block, Space
from nfk.stream import Examples

SAMPLED_ROWS = 64  # of a block, by which it is known again
SAME = 1e2  # in units of the precision's eps: blocks that differ by less are the same block
PLAIN = (bool, int, float, str, type(None))
Result = tuple[Block, ...]
Found = TypeVar("Found")


class Checkpoint:
    """The state of a fit in a folder, or (None) nowhere: then nothing is kept and everything computed.

    The journal of the first process, or of one alone, is the folder itself; others have `process-1` in it, and so on.
    """

    def __init__(self, folder: str | Path | None, processes: Processes = ALONE) -> None:
        if folder is not None and (not isinstance(folder, (str, Path)) or folder == ""):
            raise ValueError(f"checkpoint={folder!r} must be the name of a folder, or None to keep nothing")
        self.folder = None if folder is None else Path(folder)
        self._processes = processes
        self._journal: Journal | None = None
        self._place = 0
        self._paused = False
        self._life = ""  # what is written in one life of a fit belongs together

    @contextmanager
    def held(self) -> Iterator[Checkpoint]:
        """The folder belongs to this fit alone; an `OSError` says why it cannot be used."""
        if self.folder is None:
            yield self
            return
        self._life = self._processes.of_first(secrets.token_hex(8))
        try:
            self._processes.first_then_others(self._take)  # so that of two fits one has all journals
            yield self
        finally:
            if self._journal is not None:
                self._journal.close()

    def _take(self) -> None:
        assert self.folder is not None
        with self._explained():
            rank = self._processes.rank
            self._journal = Journal(self.folder / f"process-{rank}" if rank else self.folder)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        name = f"checkpoint={str(self.folder)!r}"
        try:
            yield
        except BlockingIOError as error:
            text = f"{name} is {error.strerror}, which runs a fit there: wait for it, or choose another folder"
            raise BlockingIOError(text) from None
        except OSError as error:
            done = "nothing was finished yet" if not self.passes else f"{self.passes} finished passes are safe there"
            raise OSError(
                f"{name} cannot be written: {error.strerror or error}; {done}. Make room and call fit again with the "
                "same arguments to go on, or choose another folder"
            ) from error

    @property
    def passes(self) -> int:
        """Results that are on disk."""
        return 0 if self._journal is None else self._journal.count

    # --- the fit

    def open(self, facts: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The decisions of the fit that was begun here, None where none was; an error where it was another fit."""
        if self._journal is None:
            return None
        about = self._processes.together(lambda: self._checked(facts))
        begun = all(self._processes.everyone(about is not None))
        return self._processes.of_first(about["decisions"]) if begun and about is not None else None

    def _checked(self, facts: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """What the journal of this process is about, None for a new one."""
        assert self._journal is not None
        about = self._journal.about
        if about is None:
            return None
        name, wrote, now = f"checkpoint={str(self.folder)!r}", about.get("processes", 1), self._processes.size
        if wrote != now:
            raise ValueError(
                f"{name} holds a fit by {_counted(wrote)}, and {_counted(now)} would go on with it: start as many as "
                "then, or choose another folder"
            )
        difference = first_difference(about["facts"], facts())
        if difference is not None:
            raise ValueError(
                f"{name} holds another fit: {difference}; pass the same arguments to go on with it, or choose another "
                "folder"
            )
        return about

    def begin(self, facts: Callable[[], dict[str, Any]], plan: Plan) -> None:
        journal, size = self._journal, self._processes.size
        if journal is None:
            return
        about = lambda: {"facts": facts(), "decisions": decisions_of(plan), "processes": size}  # noqa: E731
        with self._explained():
            self._processes.together(lambda: journal.begin(about()))

    def finished(self, load: Callable[[Path], Found]) -> Found | None:
        """The result of a fit that has come to its end; None where it has not, or where its files are damaged."""
        about = None if self._journal is None else self._journal.about
        if about is None or not self._processes.of_first(about.get("finished")):
            return None
        try:
            found = load(self._result)
        except (OSError, ValueError):
            found = None
        if not all(self._processes.everyone(found is not None)):
            return None
        if self.passes:  # killed when the first process had finished, and this one had not
            self._journal.finish()
        return found

    def finish(self, save: Callable[[Path], Any]) -> None:
        """Keep the result in place of what led to it."""
        if self._journal is not None:
            with self._explained():
                save(self._result)
                self._processes.first_then_others(self._journal.finish)  # its word counts: none forgets before it

    @property
    def _result(self) -> Path:
        assert self.folder is not None
        return self.folder / "finished"

    def pause(self) -> None:
        """The fit was interrupted: what is computed from now on is not of its way."""
        self._paused = True

    def how_to_go_on(self) -> str:
        if not self.passes:
            return ""
        return f"; call fit again with the same arguments to go on from checkpoint={str(self.folder)!r}"

    # --- results

    @property
    def hosts(self) -> OnHosts:
        """Where arrays are whole in every process."""
        return OnHosts(self._processes)

    def recall(self, name: str, matches: Callable[[Entry], bool] = lambda entry: True) -> Entry | None:
        """The next result of the journal, where it is the one asked for: of several processes, in all of them."""
        if self._journal is None or self._paused:
            return None
        entry = self._journal.read(self._place) if self._place < self.passes else None
        known = entry is not None and entry.name == name and matches(entry)
        lives = self._processes.everyone(entry.facts.get("life") if entry is not None and known else False)
        if False in lives or len(set(lives)) > 1:
            if self._place < self.passes:
                self._journal.forget(self._place)
            return None
        self._place += 1
        return entry

    def keep(self, name: str, facts: dict[str, Any], result: Sequence[Block], places: Sequence[Place]) -> None:
        journal = self._journal
        if journal is None or self._paused:
            return
        facts = {**facts, "shapes": [list(block.shape) for block in result], "life": self._life}
        kept = lambda: [place.kept(block) for block, place in zip(result, places, strict=True)]  # noqa: E731
        with self._explained():
            self._processes.together(lambda: journal.append(name, facts, kept()))
        self._place += 1

    def restored(self, entry: Entry, places: Sequence[Place]) -> Result:
        """The result of an entry, where it was."""
        shapes = entry.facts.get("shapes") or [part.shape for part in entry.arrays]  # none were kept by version 0.4
        parts = zip(entry.arrays, shapes, places, strict=True)
        return tuple(place.restored(part, tuple(shape)) for part, shape, place in parts)

    def moments(self, space: Space) -> tuple[Moments, Block | None] | None:
        """The moments and, where their pass made one, the start of the search; None where they are to be taken."""
        entry = self.recall("moments")
        if entry is None:
            return None
        places = [self.hosts] * 3 + [space] * (len(entry.arrays) - 3)
        mean, spread, scale, *start = self.restored(entry, places)
        numbers = {name: entry.facts[name] for name in ("count", "unit", "factor")}
        return Moments(mean, spread, scale, **numbers), start[0] if start else None

    def keep_moments(self, moments: Moments, start: Block | None, space: Space) -> None:
        facts = {"count": moments.count, "unit": moments.unit, "factor": moments.factor}
        vectors, starts = [moments.mean, moments.spread, moments.scale], [] if start is None else [start]
        self.keep("moments", facts, vectors + starts, [self.hosts] * 3 + [space] * len(starts))

    def recorded(self, operator: Operator) -> Operator:
        return operator if self._journal is None else Recorded(operator, self)


class Place(Protocol):
    """Where the parts of a result are: a space, or the hosts."""

    def kept(self, block: Any) -> np.ndarray: ...
    def restored(self, part: np.ndarray, shape: tuple[int, ...]) -> Any: ...


@dataclass(frozen=True)
class OnHosts:
    """For arrays that every process has whole: each keeps a share of the rows."""

    processes: Processes

    def kept(self, block: np.ndarray) -> np.ndarray:
        return block[self.processes.share(len(block))]

    def restored(self, part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return np.concatenate(self.processes.everyone(part)) if self.processes.several else part


class Recorded:
    """An operator whose results are kept, and given again in their order: it costs what it costs once."""

    def __init__(self, operator: Operator, checkpoint: Checkpoint) -> None:
        self.operator: Any = operator  # one with coarse products, where the solver asks for them
        self.checkpoint = checkpoint
        self.shape, self.dtype = operator.shape, operator.dtype
        self.space, self.row_space = operator.space, operator.row_space
        self.passes, self._hosts = operator.passes, checkpoint.hosts
        self._trace: float | None = None

    def matmat(self, block: Float[Block, "P U"]) -> Float[Block, "rows U"]:
        return self._result("matmat", block, lambda: (self.operator.matmat(block),), self.space, self.row_space)[0]

    def rmatmat(self, weights: Float[Block, "rows U"]) -> Float[Block, "P U"]:
        return self._result("rmatmat", weights, lambda: (self.operator.rmatmat(weights),), self.row_space, self.space)[
            0
        ]

    def fused(self, block: Float[Block, "P U"]) -> tuple[Float[Block, "rows U"], Float[Block, "P U"]]:
        compute = lambda: self.operator.fused(block)  # noqa: E731
        first, second = self._result("fused", block, compute, self.space, self.row_space, self.space)
        return first, second

    def coarse_kernel(self, weights: Float[np.ndarray, "rows U"]) -> Float[np.ndarray, "rows U"]:
        compute = lambda: (self.operator.coarse_kernel(weights),)  # noqa: E731
        return self._result("coarse_kernel", weights, compute, self.row_space, self.row_space)[0]

    def coarse_rmatmat(self, weights: Float[np.ndarray, "rows U"]) -> Float[Block, "P U"]:
        compute = lambda: (self.operator.coarse_rmatmat(weights),)  # noqa: E731
        return self._result("coarse_rmatmat", weights, compute, self.row_space, self.space)[0]

    def coarse_size(self) -> float:
        compute = lambda: (np.array([self.operator.coarse_size()]),)  # noqa: E731
        return float(self._result("coarse_size", None, compute, None, self._hosts)[0][0])

    def images(self, block: Float[Block, "P U"]) -> Float[np.ndarray, "rows U"]:
        return self._result("images", block, lambda: (self.operator.images(block),), self.space, self._hosts)[0]

    def gram(self, double: bool = False) -> Float[np.ndarray, "rows rows"]:
        return self._result("gram", None, lambda: (self.operator.gram(double),), None, self._hosts)[0]

    def dense(self) -> Float[np.ndarray, "rows P"]:
        return self._result("dense", None, lambda: (self.operator.dense(),), None, self._hosts)[0]

    def trace(self) -> float:
        if self._trace is None:
            self._result("trace", None, self._take_trace, None)
        assert self._trace is not None
        return self._trace

    def _take_trace(self) -> Result:
        self._trace = self.operator.trace()
        return ()

    def _result(
        self, name: str, block: Block | None, compute: Callable[[], Result], home: Space | None, *places: Place
    ) -> Result:
        """Blocks in `places`, made of one in `home`: from the journal, or computed and kept there."""
        shown = None if home is None else _sample(block, home)
        entry = self.checkpoint.recall(name, lambda entry: self._is_same(shown, entry.facts["block"]))
        if entry is not None:
            self.passes = self.operator.passes = entry.facts["passes"]
            self._trace = entry.facts["trace"]
            return self.checkpoint.restored(entry, places)
        result = compute()
        if self._trace is None and getattr(self.operator, "row_squares", None) is not None:
            self._take_trace()  # no pass: the rows were measured as they passed
        self.passes = self.operator.passes
        facts = {"block": shown, "passes": self.passes, "trace": self._trace}
        self.checkpoint.keep(name, facts, result, places)
        return result

    def _is_same(self, shown: list[float] | None, then: list[float] | None) -> bool:
        if shown is None or then is None:
            return shown == then
        now, before = np.asarray(shown), np.asarray(then)
        near = SAME * float(np.finfo(self.dtype).eps) * np.abs(before).max(initial=0)
        return now.shape == before.shape and bool(np.abs(now - before).max(initial=0) <= near)


def _sample(block: Float[Block, "n U"], space: Space) -> list[float]:
    """One number for each column, from a few rows: enough to know a block again."""
    step = max(block.shape[0] // SAMPLED_ROWS, 1)
    rows = space.sampled(block, step).astype(np.float64)
    return (np.cos(np.arange(len(rows))) @ rows).tolist()


def facts_of(
    model: Model,
    examples: Examples,
    canary: list[float],
    rank: int | float,
    key: jax.Array,
    options: Options,
    rows: slice,
) -> dict[str, Any]:
    """What makes a fit this one and no other, as JSON can hold it. Reads these rows of the data once, if they are
    arrays, and the first of them if not."""
    return {
        "model": {
            **describe(model), "expectation": model.expectation, "samples": int(model.samples),
            "damping": float(model.damping), "score of a fixed example": canary,
        },
        "data": {
            "number of examples": len(examples), "shape": Kind.of(examples).to_json(),
            "hash of the numbers": examples.hash(rows),
        },
        "options": options_of(rank, options),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
    }  # fmt: skip


def options_of(rank: int | float, options: Options) -> dict[str, Any]:
    choices = {entry.name: getattr(options, entry.name) for entry in fields(options)}
    kept = {name: _plain(value) for name, value in choices.items() if name not in ("memory", "scratch", "space")}
    return {"rank": _plain(rank), **kept}


def _plain(value: Any) -> Any:
    """As JSON can hold it: numpy's numbers are not."""
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, PLAIN) else repr(value)


def decisions_of(plan: Plan) -> dict[str, Any]:
    """What a plan has decided, as JSON can hold it: free memory and timings may decide otherwise next time."""
    way = {entry.name: getattr(plan.way, entry.name) for entry in fields(plan.way)}
    return {
        "way": {name: value for name, value in way.items() if isinstance(value, PLAIN)},
        "batches": asdict(plan.batches),
    }


def decided(plan: Plan, decisions: dict[str, Any]) -> Plan:
    """The plan with these decisions in place of its own."""
    try:
        way, batches = replace(plan.way, **decisions["way"]), Batches(**decisions["batches"])
    except TypeError as error:
        raise ValueError(
            "the fit of this checkpoint was begun by another version of nfk, which decided on other things: go on with "
            f"that version, or begin anew in another folder ({error})"
        ) from error
    return replace(plan, way=way, batches=batches, rival=None)


def first_difference(then: dict[str, Any], now: dict[str, Any], place: str = "") -> str | None:
    """Where two descriptions of a fit differ, in words; numbers may differ by what rounding makes of them."""
    for name in {**then, **now}:
        before, after, path = then.get(name), now.get(name), f"{place}{name}"
        if isinstance(before, dict) and isinstance(after, dict):
            found = first_difference(before, after, f"{path}: ")
            if found is not None:
                return found
        elif not _alike(before, after):
            return f"its {path} is {_short(before)}, this one's is {_short(after)}"
    return None


def _alike(before: Any, after: Any) -> bool:
    if before == after:
        return True
    numbers = isinstance(before, list) and isinstance(after, list) and len(before) == len(after) > 0
    if not numbers or not all(isinstance(value, float) for value in (*before, *after)):
        return False
    return bool(np.allclose(before, after, rtol=1e-3, atol=1e-5, equal_nan=True))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


def _counted(processes: int) -> str:
    return "one process" if processes == 1 else f"{processes} processes"
