"""Training one student by one method: one recipe for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from reproduction.distillation.looking import look, look_at_all
from reproduction.distillation.methods import Method, Weights
from reproduction.pretrained.wide_resnets import WideResNet
from reproduction.torch_training import one_cycle, rows_of, set_rate, train


@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov's momentum, one cycle of the learning rate, mirrored images, the same for every method."""

    epochs: int
    batch: int = 128
    peak: float = 0.1
    momentum: float = 0.9
    decay: float = 5e-4
    bfloat16: bool = True  # the student's convolutions; twice as fast where a processor has instructions for it


@dataclass(frozen=True)
class Lessons:
    """Images as the network takes them, their labels, and what the teacher says of both views, (2, n, ...) each.

    The views are an image and its mirror image. Maps are kept channels last and may be float16 and in a file.
    """

    images: Tensor
    labels: Tensor
    signals: dict[str, Tensor]

    def batch(self, rows: np.ndarray, mirrored: np.ndarray, needs: Sequence[str]) -> Batch:
        """Some rows, each as it is or mirrored, with the signals that are needed; maps come channels first."""
        chosen, views = torch.as_tensor(rows), torch.as_tensor(mirrored)
        images = self.images[chosen]
        images = torch.where(views[:, None, None, None], images.flip(3), images)
        told = {name: self.signals[name][views.long(), chosen].float() for name in needs}
        told = {name: signal.movedim(-1, 1) if signal.ndim == 4 else signal for name, signal in told.items()}
        return Batch(images.contiguous(memory_format=torch.channels_last), self.labels[chosen], told)


class Batch(NamedTuple):
    images: Tensor
    labels: Tensor
    signals: dict[str, Tensor]


def taught(
    method: Method, weights: Weights, lessons: Lessons, recipe: Recipe, seed: int, folder: Path | None = None
) -> WideResNet:  # fmt: skip
    """A WRN-16-1 from new weights; the method's heads are trained with it."""
    torch.manual_seed(seed)
    student = initialised(WideResNet(16, 1)).to(memory_format=torch.channels_last)
    student.train(), method.train()
    parameters = [*student.parameters(), *method.parameters()]
    optimizer = torch.optim.SGD(
        parameters, recipe.peak, recipe.momentum, weight_decay=recipe.decay, nesterov=True, fused=True
    )
    examples = len(lessons.images)
    steps = recipe.epochs * (examples // recipe.batch)

    def step(now: int) -> float:
        rows = rows_of(now, examples, recipe.batch, seed)
        mirrored = np.random.default_rng([seed, now, 1]).random(len(rows)) < 0.5
        images, labels, signals = lessons.batch(rows, mirrored, method.needs)
        set_rate(optimizer, one_cycle(now, steps, recipe.peak))
        optimizer.zero_grad()
        seen = look(student, images, method.maps, recipe.bfloat16)
        loss = weights.labels * F.cross_entropy(seen.logits, labels) + weights.teacher * method(seen, signals)
        loss.backward()
        optimizer.step()
        return loss.item()

    parts = {"student": student, "method": method, "optimizer": optimizer}
    train(step, parts, steps=steps, seed=seed, folder=folder)
    return student


def initialised(network: WideResNet) -> WideResNet:
    """Convolutions by He's rule for their outputs, as the authors of wide residual networks have it."""
    for layer in network.modules():
        if isinstance(layer, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return network


def correct(student: WideResNet, images: Tensor, labels: Tensor) -> np.ndarray:
    """Which images it classifies right."""
    return (look_at_all(student, images)[1].argmax(1) == labels).numpy()
