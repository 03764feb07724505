"""Facts of the machine, from /proc where there is one. Needs nothing but Python."""

from __future__ import annotations

import os
import platform
from pathlib import Path

VECTORS = {"amx_bf16": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}  # flags of Linux, the widest first


def free_bytes() -> int:
    """Memory that a new allocation may use."""
    return 1024 * int(_entry("/proc/meminfo", "MemAvailable", "4000000").split()[0])


def facts() -> dict[str, str | int]:
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": 1024 * int(_entry("/proc/meminfo", "MemTotal", "0").split()[0]),
        "machine": platform.machine(),
        "system": platform.system(),
    }


def processor() -> str:
    """Its name and the widest of its vectors: the same name may stand for processors three times apart."""
    flags = _entry("/proc/cpuinfo", "flags", "").split()
    widest = next((title for flag, title in VECTORS.items() if flag in flags), "")
    return ", ".join(filter(None, [_entry("/proc/cpuinfo", "model name", platform.processor()), widest]))


def _entry(path: str, name: str, otherwise: str) -> str:
    """The text after `name :` in a file of /proc."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return otherwise
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), otherwise)
