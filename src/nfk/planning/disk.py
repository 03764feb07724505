"""How fast a disk is: a measurement of a second, made when a plan weighs it, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from dataclasses import replace
from functools import cache

import numpy as np

from nfk.planning.rates import Rates, cached, keep
from nfk.spaces import Scratch

MEASURED_BYTES = 2**28
ROUNDS = 2  # of which the better counts


def with_disk(rates: Rates, scratch: Scratch) -> Rates:
    """With the rates of that disk: from the cache, else measured within a second and put there."""
    if os.environ.get("NFK_RATES") == "typical":
        return rates
    read, write = _disk_rates(scratch)
    return replace(rates, disk_read=read, disk_write=write)


@cache
def _disk_rates(scratch: Scratch) -> tuple[float, float]:
    versions = (MEASURED_BYTES, platform.node(), os.stat(scratch.folder).st_dev)
    place = cached(f"disk-{hashlib.sha256(repr(versions).encode()).hexdigest()[:16]}.json")
    try:
        found = json.loads(place.read_text())
        return float(found["read"]), float(found["write"])
    except (OSError, ValueError, TypeError, KeyError):
        read, write = max(_disk_round(scratch) for _ in range(ROUNDS))
    keep(place, {"read": read, "write": write})
    return read, write


def _disk_round(scratch: Scratch) -> tuple[float, float]:
    """Bytes/s from and to a file, past what the system holds of it in memory."""
    data = np.random.default_rng(0).integers(0, 2**63, MEASURED_BYTES // 8)
    with scratch.file(data.nbytes) as file:
        started = time.perf_counter()
        file.write(data.data)
        os.fsync(file.fileno())
        written = time.perf_counter()
        if not hasattr(os, "posix_fadvise"):
            return data.nbytes / (written - started), data.nbytes / (written - started)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begun = time.perf_counter()
        os.preadv(file.fileno(), [data.data], 0)
        return data.nbytes / (time.perf_counter() - begun), data.nbytes / (written - started)
