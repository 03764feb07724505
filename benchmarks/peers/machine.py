"""Facts of the machine, from /proc where there is one. Needs nothing but Python."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def free_bytes() -> int:
    """Memory that a new allocation may use."""
    return 1024 * int(_entry("/proc/meminfo", "MemAvailable", "4000000").split()[0])


def facts() -> dict[str, str | int]:
    return {
        "processor": _entry("/proc/cpuinfo", "model name", platform.processor()),
        "cores": os.cpu_count() or 1,
        "memory_bytes": 1024 * int(_entry("/proc/meminfo", "MemTotal", "0").split()[0]),
        "machine": platform.machine(),
        "system": platform.system(),
    }


def _entry(path: str, name: str, otherwise: str) -> str:
    """The text after `name :` in a file of /proc."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return otherwise
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), otherwise)
