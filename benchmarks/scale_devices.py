"""What travels between the devices of a mesh in a pass, and what each of them holds: read off the compiled programs.

Two sections of `benchmarks.scale`. The devices are simulated ones of the CPU; what XLA compiles for them has the same
collectives and the same shapes for each device as on accelerators.
"""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nfk
from nfk.operator.gradients import GradientOperator
from nfk.planning.batches import Batches
from nfk.progress import Reporter
from nfk.solve import Goal, loop
from nfk.solve.krylov import Krylov
from nfk.solve.sides import ParameterSide
from nfk.spaces.mesh import sharding
from nfk.stream import Examples

RECOMPUTED: dict[str, Any] = {"engine": "gradients", "keep": False, "method": "krylov", "side": "parameters"}
MESHES = ((2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (1, 8), (2, 4))
BYTES = {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "pred": 1}
COLLECTIVE = re.compile(
    r"= (\(?[\w\[\],{}\s/*=]+?\)?) (all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all)\("
)
GROUP = re.compile(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])")


def problem(parameters: int, examples: int) -> tuple[nfk.Model, np.ndarray]:
    """A network of one hidden layer with about so many parameters."""
    hidden = parameters // 102
    rng = np.random.default_rng(0)
    params = {"in": rng.standard_normal((100, hidden), dtype=np.float32) / 10, "b": np.zeros(hidden, np.float32),
              "out": rng.standard_normal((hidden, 1), dtype=np.float32) / 10}  # fmt: skip
    score = lambda p, x: (jnp.tanh(x @ p["in"] + p["b"]) @ p["out"])[0]  # noqa: E731
    return nfk.energy(score, params), rng.standard_normal((examples, 100), dtype=np.float32)


def operator_of(fitted: nfk.Embedding, X: np.ndarray, batches: Batches) -> GradientOperator:
    """V of a fit, by gradients that are computed again in each pass."""
    stream = fitted._stream(Examples(X), batches, Reporter(show=False))
    return GradientOperator(stream, fitted.moments, batches.chunk, measure=False)


@contextmanager
def listening(hear: Callable[[str, Any], None]) -> Iterator[None]:
    """`hear(name, compiled)` after every program that runs on a mesh, while its arguments and its result are alive."""
    originals = {name: getattr(sharding, name) for name in ("_each", "_whole")}
    known: dict[Any, Any] = {}

    def heard(make: Callable) -> Callable:
        def program(mesh: Any, function: Callable, *how: Any) -> Callable:
            made = make(mesh, function, *how)

            def run(*arguments: Any) -> Any:
                key = made, *(_kind(leaf) for leaf in jax.tree.leaves(arguments))
                if key not in known:
                    known[key] = made.lower(*arguments).compile()
                result = known[key](*arguments)
                hear(function.__name__, known[key])
                return result

            return run

        return program

    for name, make in originals.items():
        setattr(sharding, name, heard(make))
    try:
        yield
    finally:
        for name, make in originals.items():
            setattr(sharding, name, make)


def _kind(leaf: jax.Array) -> tuple:
    return leaf.shape, str(leaf.dtype), leaf.sharding


# --- what travels


WIDTH = 16


def traffic() -> list[dict]:
    """On every mesh: what the blocks and the gradients of a pass move, and the rest."""
    model, X = problem(40_000, 512)
    return [{"parameters": model.layout.size, "examples": len(X), **travelled(model, X, mesh)} for mesh in MESHES]


def travelled(model: nfk.Model, X: np.ndarray, mesh: tuple[int, int]) -> dict[str, Any]:
    """Bytes that a device receives in a fused pass over gradients that are computed again: counted, and reckoned."""
    fitted = nfk.fit(model, X, WIDTH, mesh=mesh, memory="1GB", **RECOMPUTED)
    way = replace(fitted.plan.way, width=WIDTH)
    operator = operator_of(fitted, X, way.batches())
    block = fitted.space.random([1], fitted.right.shape[0], WIDTH, np.dtype(np.float32))
    parts: dict[str, float] = {}

    def hear(name: str, compiled: Any) -> None:
        parts[name] = parts.get(name, 0) + received(compiled.as_text())

    with listening(hear):
        operator.fused(block)
    counted = sum(parts.values())
    return {"mesh": mesh, "columns": WIDTH, "received": counted, "predicted": way.traffic, "parts": parts}


BETWEEN = ("inner", "add_product", "product", "_joined")


def passed_by(model: nfk.Model, X: np.ndarray, mesh: tuple[int, int]) -> tuple[float, float]:
    """Bytes that a device receives in the third step of a search, without its pass: counted, and reckoned."""
    fitted = nfk.fit(model, X, WIDTH, mesh=mesh, memory="1GB", **RECOMPUTED)
    way = replace(fitted.plan.way, width=WIDTH)
    operator = operator_of(fitted, X, way.batches())
    goal = Goal(WIDTH, None, 1e-6, operator.trace, WIDTH)
    search = Krylov(ParameterSide(operator), goal, [0], WIDTH, 4 * WIDTH, WIDTH)
    state = search.step(search.step(search.init()))
    counted = [0.0]

    def hear(name: str, compiled: Any) -> None:
        counted[0] += received(compiled.as_text()) if name in BETWEEN else 0

    with listening(hear):
        search.step(state)
    return counted[0], way.passing(2 * WIDTH)


def received(text: str) -> float:
    """Bytes that a device receives in the collectives of a compiled program."""
    total = 0.0
    for line in text.splitlines():
        match = COLLECTIVE.search(line)
        if not match:
            continue
        size = sum(_bytes(kind, dims) for kind, dims in re.findall(r"(\w+)\[([\d,]*)\]", match[1]))
        if match[2] == "collective-permute":
            total += size
            continue
        group = GROUP.search(line)
        if group is None:
            raise ValueError(f"no group of devices is named in {line!r}: read what XLA writes now, and mend GROUP")
        members = int(group[2] or len(group[1].split(",")))
        share = {"all-gather": (members - 1) / members, "all-reduce": 2 * (members - 1) / members,
                 "reduce-scatter": members - 1, "all-to-all": (members - 1) / members}  # fmt: skip
        total += size * share[match[2]]
    return total


def _bytes(kind: str, dims: str) -> int:
    return BYTES[kind] * int(np.prod([int(d) for d in dims.split(",") if d] or [1]))


# --- what each device holds


MICROBATCH, CHUNK = 8, 32


def memory() -> list[dict]:
    """By basis shards: the same search, which fills its basis and restarts once."""
    model, X = problem(100_000, 512)
    facts = {"parameters": model.layout.size, "examples": len(X), "columns": 32, "capacity": 320, "chunk": CHUNK}
    return [{"shards": shards, **facts, **peak(model, X, shards, 32, 320, 11)} for shards in (1, 2, 4, 8)]


def peak(
    model: nfk.Model, X: np.ndarray, shards: int, columns: int, capacity: int, steps: int, others: Sequence = ()
) -> dict[str, int]:
    """The most bytes that a device holds at a time in a search with blocks of so many columns: what is alive after
    every program, without `others`, and what the program itself has needed."""
    fitted = nfk.fit(model, X[:64], 4, mesh=(1, shards), memory="2GB", **RECOMPUTED)
    operator = operator_of(fitted, X, replace(fitted.plan.batches, gradients=MICROBATCH, chunk=CHUNK))
    del fitted
    gc.collect()
    most = dict.fromkeys(("blocks", "images", "work", "rest", "all"), 0)

    def hear(name: str, compiled: Any) -> None:
        now = _held(operator, others)
        now["work"] = compiled.memory_analysis().temp_size_in_bytes
        now["all"] = sum(now.values())
        most.update({kind: max(size, now[kind]) for kind, size in most.items()})

    goal = Goal(columns, None, 1e-6, operator.trace, columns)
    search = Krylov(ParameterSide(operator), goal, [0], columns, capacity, columns, most_steps=steps)
    with listening(hear), warnings.catch_warnings():
        warnings.simplefilter("ignore", nfk.ConvergenceWarning)  # it need not converge to show what is held
        loop(search, Quiet())
    return most


def _held(operator: Any, others: Sequence) -> dict[str, int]:
    """Bytes of all arrays on the first device, by what they are."""
    found = dict.fromkeys(("blocks", "images", "rest"), 0)
    rows, parameters = operator.shape
    known = set(map(id, others))
    for array in jax.live_arrays():
        if not array.is_deleted() and id(array) not in known:
            name = "blocks" if parameters in array.shape[:-1] else "images" if rows in array.shape[:-1] else "rest"
            found[name] += _on_first(array)
    return found


def _on_first(array: jax.Array) -> int:
    """Read off the sharding. `array.addressable_shards` would make arrays of its own, alive as long as `array` is: they
    would be counted again, and keep the memory of blocks that are given up."""
    if jax.devices()[0] not in array.sharding.device_set:
        return 0
    return int(np.prod(array.sharding.shard_shape(array.shape))) * array.dtype.itemsize


class Quiet:
    def stage(self, label: str) -> None: ...
    def finished(self, state: object, note: str) -> None: ...
