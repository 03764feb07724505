"""Sizes of memory: as text, and what the machine can still give."""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def parse_memory(memory: int | str | None, free_bytes: Callable[[], int]) -> int:
    """Bytes; from a number, from text such as "4GB", or two thirds of what is free."""
    if memory is None:
        return 2 * free_bytes() // 3
    if isinstance(memory, (int, float)) and not isinstance(memory, bool) and memory > 0:
        return int(memory)
    match = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?)i?B?\s*", str(memory), re.IGNORECASE)
    if not match or float(match[1]) <= 0:
        raise ValueError(f"memory={memory!r} is not a size: use bytes, or text such as '4GB' or '500MB'")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def available_bytes() -> int:
    """Memory the machine can still give, within a container's limit where there is one."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        stat = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        reclaimable = int(stat.get("inactive_file", 0))
        return free if limit == "max" else max(min(free, int(limit) - used + reclaimable), 0)
    except (OSError, ValueError):
        return free


def human(size: float) -> str:
    """1536 -> '1.5 kB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def at_least(size: float) -> str:
    """`human`, rounded up: a budget that is given as this text suffices."""
    exponent = min(max(int(math.log2(max(size, 1))) // 10, 0), 4)
    step = 1 if exponent == 0 else 0.1 * 1024**exponent
    return human(math.ceil(size / step) * step)


def give_back() -> None:
    """Memory that was freed goes back to the system, where the C library can be asked for it: it keeps what networks
    have freed for the next ones, gigabytes of it, even where none comes (measured)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
