"""One training loop for PyTorch: step t depends on the seed and on t alone, so that it can be resumed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nfk.atomic import write_atomically

CHECKPOINT_SECONDS = 60
Step = Callable[[int], float]


def train(
    step: Step,
    parts: Mapping[str, Any],
    *,
    steps: int,
    seed: int,
    folder: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Call `step(t)`, which changes the parts (modules, optimisers) in place and gives its loss, for every t.

    With a `folder`, a checkpoint of the parts is there every minute and at the end; the same call goes on from it.
    """
    path = folder / f"seed-{seed}.pt" if folder else None
    first = _restore(path, parts)
    saved, losses = time.monotonic(), []
    for now in range(first, steps):
        torch.manual_seed(seed * 1_000_003 + now)
        losses.append(step(now))
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(f"the loss of step {now} is {losses[-1]}: lower the learning rate or the weight")
        if say and (now + 1) % 100 == 0:
            say(f"step {now + 1} of {steps}: loss {np.mean(losses[-100:]):.4f}")
        if path and (time.monotonic() - saved > CHECKPOINT_SECONDS or now + 1 == steps):
            _save(path, parts, now + 1)
            saved = time.monotonic()


def _save(path: Path, parts: Mapping[str, Any], done: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    states = {name: part.state_dict() for name, part in parts.items()}
    write_atomically(path, lambda partial: torch.save({"done": done, **states}, os.fspath(partial)))


def _restore(path: Path | None, parts: Mapping[str, Any]) -> int:
    if path is None or not path.exists():
        return 0
    stored = torch.load(path, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(stored[name])
    return stored["done"]


def one_cycle(now: int, steps: int, peak: float, warm: float = 0.25) -> float:
    """The learning rate of step `now`: up to `peak` over the first quarter, down to nearly nothing by a cosine."""
    turn = warm * steps
    if now < turn:
        return peak * (0.1 + 0.9 * now / turn)
    return peak * 0.5 * (1 + math.cos(math.pi * (now - turn) / (steps - turn)))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def rows_of(now: int, examples: int, batch: int, seed: int) -> np.ndarray:
    """The examples of batch `now`: shuffled epochs, each of whole batches; by the seed and `now` alone."""
    epoch, place = divmod(now, examples // batch)
    order = np.random.default_rng([seed, epoch]).permutation(examples)
    return order[place * batch : (place + 1) * batch]
