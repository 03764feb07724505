"""What the caller of a fit may decide, in one record."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Literal

import numpy as np

from nfk.memory import parse_memory
from nfk.spaces import HOST, Scratch, Space, default_space

Engine = Literal["gradients", "products"]
MethodName = Literal["auto", "krylov", "gram", "power", "exact"]
SideName = Literal["parameters", "examples"]
Keep = Literal[True, False, "disk"]
Basis = Literal["full", "bfloat16"]
Search = Literal["full", "bfloat16"]
ScratchFolder = str | Path | Literal[False]


@dataclass(frozen=True)
class Options:
    """How to run. None leaves the choice to the plan; none of these but `tol` and `max_steps` changes the answer.

    `memory` bounds all that is allocated beyond the data, the parameters and the runtime itself: bytes, text such as
    "4GB", or two thirds of what is free in `space`, where tall blocks live. `scratch` is a folder for what does not fit
    there; half of what is free in the system's folder for temporary files by default, False for nothing on disk.
    `basis` is how a Krylov search stores its basis: as it is, or rounded to bfloat16. `search` is how it multiplies
    gradients that are kept: as they are, or rounded to bfloat16.
    """

    method: MethodName = "auto"
    engine: Engine | None = None
    side: SideName | None = None
    keep: Keep | None = None
    memory: int | str | None = None
    oversamples: int = 10
    tol: float = 1e-2
    max_steps: int = 30
    space: Space = field(default_factory=default_space)
    scratch: ScratchFolder | None = None
    basis: Basis | None = None
    search: Search | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tol, (int, float, np.floating)) or not self.tol > 0:
            raise ValueError(f"tol={self.tol!r} must be a positive number: 1e-2 is a good start")
        if not isinstance(self.oversamples, (int, np.integer)) or self.oversamples < 0:
            raise ValueError(f"oversamples={self.oversamples!r} must be a whole number, 0 or more")
        if not isinstance(self.max_steps, (int, np.integer)) or self.max_steps < 1:
            raise ValueError(f"max_steps={self.max_steps!r} must be a whole number, 1 or more")
        if self.method not in ("auto", "krylov", "gram", "power", "exact"):
            raise ValueError(f"method={self.method!r} is unknown: choose 'auto', 'krylov', 'gram', 'power' or 'exact'")
        if self.engine not in (None, "gradients", "products"):
            raise ValueError(
                f"engine={self.engine!r} is unknown: choose 'gradients' or 'products', or None to let it be chosen"
            )
        if self.side not in (None, "parameters", "examples"):
            raise ValueError(
                f"side={self.side!r} is unknown: choose 'parameters' or 'examples', or None to let it be chosen"
            )
        if self.keep not in (None, True, False, "disk"):
            raise ValueError(f"keep={self.keep!r} must be True, False or 'disk', or None to let it be chosen")
        if self.scratch is True or not isinstance(self.scratch, (str, Path, bool, NoneType)) or self.scratch == "":
            # A number would be taken for a file that is open already, and closed: True for standard output.
            raise ValueError(f"scratch={self.scratch!r} must be a folder, False for nothing on disk, or left out")
        if self.keep == "disk" and self.disk is None:
            remedy = "scratch=False" if self.space is HOST else "mesh, or keep"
            raise ValueError(f"keep='disk' needs blocks on the host and a scratch folder: leave out {remedy}")
        if self.keep and self.engine == "products" and self.method != "exact":
            raise ValueError(
                f"keep={self.keep!r} keeps gradients, but engine='products' forms none: leave out one of them"
            )
        self._check_basis()
        self._check_search()
        self.budget  # noqa: B018  (its check belongs to construction)

    def _check_basis(self) -> None:
        if self.basis not in (None, "full", "bfloat16"):
            raise ValueError(f"basis={self.basis!r} must be 'full' or 'bfloat16', or None to let it be chosen")
        if self.basis == "bfloat16" and (self.method not in ("auto", "krylov") or self.side == "examples"):
            raise ValueError(
                f"basis='bfloat16' is for method='krylov' on side='parameters', not for method={self.method!r} and "
                f"side={self.side!r}: leave one of them out"
            )
        if self.basis == "bfloat16" and not self.rounds:
            raise ValueError("basis='bfloat16' needs blocks on the host: leave out mesh, or basis")

    def _check_search(self) -> None:
        if self.search not in (None, "full", "bfloat16"):
            raise ValueError(f"search={self.search!r} must be 'full' or 'bfloat16', or None to let it be chosen")
        if self.search != "bfloat16":
            return
        possible = {"method": ("auto", "krylov"), "engine": (None, "gradients"), "side": (None, "examples")}
        possible |= {"keep": (None, True), "basis": (None, "full")}
        for name, values in possible.items():
            if getattr(self, name) not in values:
                raise ValueError(
                    "search='bfloat16' is for method='krylov' on side='examples' with gradients kept in memory, not "
                    f"for {name}={getattr(self, name)!r}: leave one of them out"
                )
        if not self.halves:
            raise ValueError("search='bfloat16' needs blocks on the host of one process: leave out mesh, or search")

    @property
    def halves(self) -> bool:
        """Whether gradients can be kept in halves."""
        return self.space is HOST and not self.space.processes.several

    @property
    def rounds(self) -> bool:
        """Whether blocks can be stored in bfloat16."""
        return self.space is HOST

    @property
    def methods(self) -> tuple[MethodName, ...]:
        """Those to choose from."""
        if self.method != "auto":
            return (self.method,)
        return ("krylov",) if "bfloat16" in (self.basis, self.search) else ("krylov", "gram")

    @cached_property
    def budget(self) -> int:
        """Bytes."""
        return parse_memory(self.memory, self.space.free_bytes)

    @cached_property
    def disk(self) -> Scratch | None:
        """Where things may lie on disk, if they may: blocks on a device stay there."""
        possible = self.space is HOST and hasattr(os, "preadv")
        return Scratch.of(self.scratch) if possible and self.scratch is not False else None

    @cached_property
    def disk_budget(self) -> int:
        """Bytes."""
        return 0 if self.disk is None else self.disk.free_bytes()
