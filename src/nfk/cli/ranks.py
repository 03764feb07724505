"""How many components: a number, a share of the variance, or what suits the data."""

from __future__ import annotations

from typing import Annotated, Any

from tyro.constructors import PrimitiveConstructorSpec

from nfk.cli.words import option
from nfk.model import Model
from nfk.stream import Examples

STANDARD = 64


def _read(words: list[str]) -> int | float:
    for kind in (int, float):
        try:
            return kind(words[0])
        except ValueError:
            pass
    raise ValueError(f"{words[0]!r} is neither a number of components (64) nor a share of the variance (0.95)")


Rank = Annotated[
    int | float | None,
    PrimitiveConstructorSpec(
        nargs=1, metavar="K", instance_from_str=_read, str_from_instance=lambda rank: [str(rank)],
        is_instance=lambda rank: rank is None or isinstance(rank, (int, float)),
    ),
    option(f"Components, or the share of the variance to explain (0.95); by default {STANDARD}, or all.", "K"),
]  # fmt: skip


def rank_for(asked: int | float | None, model: Model, examples: Any) -> int | float:
    """What was asked for; else the usual number, or as many as so few examples or parameters have."""
    return min(STANDARD, len(Examples(examples)), model.layout.size) if asked is None else asked
