"""What every benchmark does with its results: the machine beside them, printed as JSON, and written where asked."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any


def environment(seed: int, *packages: str) -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)), "machine": platform.machine(), "python": platform.python_version(),
        "seed": seed, **{name: version(name) for name in packages},
    }  # fmt: skip


def printed(results: dict[str, Any], output: Path | None) -> None:
    text = json.dumps(results, indent=1)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n")
    print(text)
