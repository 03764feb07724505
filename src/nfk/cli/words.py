"""How an option is written in the help: its value's name, its sentence, and its default where that says something."""

from __future__ import annotations

from typing import Any

import tyro


def option(help: str, metavar: str | None = None, **more: Any) -> Any:
    return tyro.conf.arg(metavar=metavar, help=help, help_behavior_hint=_hint, **more)


def _hint(default: str) -> str:
    return "" if default in ("None", "False", "True", "") else f"(default: {default})"
