"""What differs between the devices of torch: their memory, their precision, their random numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from nfk.memory import available_bytes


def free_bytes(device: torch.device) -> int:
    """Memory that a device can still give, with what torch holds of it in reserve; of the machine where torch has no
    word on it."""
    backend = getattr(torch, device.type, None)
    if hasattr(backend, "mem_get_info"):
        reserve = backend.memory_reserved(device) - backend.memory_allocated(device)
        return backend.mem_get_info(device)[0] + reserve
    if hasattr(backend, "recommended_max_memory"):
        return backend.recommended_max_memory() - backend.driver_allocated_memory()
    return available_bytes()


def has_float64(device: torch.device) -> bool:
    return device.type != "mps"


def generator(seed: Sequence[int], device: torch.device) -> torch.Generator:
    """A source of random numbers that depends on all of the seed."""
    word = np.random.SeedSequence(list(seed)).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(word >> np.uint64(1)))


@contextmanager
def full_precision() -> Iterator[None]:
    """Products of float32 matrices in float32, also where the user has allowed TF32 for training."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
