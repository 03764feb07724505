"""How values look in a notebook: a small table, everything escaped, no script, in the colours of the page around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import singledispatch
from html import escape
from typing import Any

import numpy as np

LETTERS = 120
WIDTH, HEIGHT = 220, 40


class Shown:
    """A dataclass that a notebook shows as a card; `_facts` says what stands on it, all fields by default."""

    def _facts(self) -> dict[str, Any]:
        named: Any = self
        return {field.name.replace("_", " "): getattr(self, field.name) for field in fields(named) if field.repr}

    def _curve(self) -> Sequence[float]:
        """Shares between 0 and 1 to draw under the facts; none by default."""
        return ()

    def _repr_html_(self) -> str:
        return card(type(self).__name__, self._facts(), self._curve())


def card(title: str, facts: Mapping[str, Any], curve: Sequence[float] = ()) -> str:
    """A title, a row for each fact, and a curve of shares where there is one."""
    cell = "text-align:left;vertical-align:top;padding:.15em 1.2em .15em 0;border:0;background:none"
    rows = "".join(
        f'<tr><th scope="row" style="{cell};font-weight:400;opacity:.7">{escape(str(name))}</th>'
        f'<td style="{cell};font-variant-numeric:tabular-nums">{escape(described(value))}</td></tr>'
        for name, value in facts.items()
    )
    return (
        '<div style="display:inline-block;border:1px solid rgba(128,128,128,.35);border-radius:8px;padding:.7em 1em">'
        f'<div style="font-weight:600;margin-bottom:.3em">{escape(title)}</div>'
        f'<table style="border-collapse:collapse;margin:0">{rows}</table>{_drawn(curve)}</div>'
    )


@singledispatch
def described(value: Any) -> str:
    """A value in a few words: numbers short, arrays by their shape, the rest by its own text."""
    if getattr(value, "shape", ()):
        return f"{value.dtype} array, {' by '.join(f'{size:,}' for size in value.shape)}"
    return _cut(str(value))


@described.register(int)
@described.register(np.integer)
def _(value: Any) -> str:
    return str(value) if isinstance(value, bool) else f"{value:,}"


@described.register(float)
@described.register(np.floating)
def _(value: Any) -> str:
    return f"{value:.4g}"


@described.register(list)
@described.register(tuple)
def _(value: Any) -> str:
    return _cut(", ".join(described(one) for one in value))


@described.register(Mapping)
def _(value: Any) -> str:
    return _cut(", ".join(f"{described(name)}: {described(one)}" for name, one in value.items()))


@described.register(Shown)
def _(value: Any) -> str:
    """Its own words where it has any, else its facts."""
    if type(value).__str__ is not object.__str__:
        return _cut(str(value))
    return _cut(", ".join(f"{name} {described(one)}" for name, one in value._facts().items()))


def _cut(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


def _drawn(curve: Sequence[float]) -> str:
    """A curve from the left to the right, 0 at the bottom and 1 at the top."""
    if len(curve) < 2:
        return ""
    across = np.linspace(0, WIDTH, len(curve))
    points = " ".join(f"{x:.1f},{HEIGHT - HEIGHT * y:.1f}" for x, y in zip(across, np.clip(curve, 0, 1), strict=True))
    box = f'viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}" width="{WIDTH + 4}" height="{HEIGHT + 4}"'
    floor = f'<line x1="0" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}" stroke="currentColor" opacity=".3"/>'
    line = f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.6"/>'
    label = 'role="img" aria-label="variance explained by the first components"'
    return f'<svg {box} {label} style="display:block;margin-top:.5em">{floor}{line}</svg>'
