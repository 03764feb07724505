"""Training one student by one method: one recipe for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from reproduction.distillation.looking import Seen, look, look_at_all
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
    compiled: bool = True  # by torch.compile, three times as fast; it needs a C++ compiler


@dataclass(frozen=True)
class Lessons:
    """Images as the network takes them, their labels, and what the teacher says of both views, (2, n, ...) each.

    The views are an image and its mirror image.
    """

    images: Tensor
    labels: Tensor
    signals: dict[str, Tensor]

    def take(self, rows: slice) -> Lessons:
        return Lessons(self.images[rows], self.labels[rows], {name: s[:, rows] for name, s in self.signals.items()})

    def batch(self, rows: np.ndarray, mirrored: np.ndarray) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        chosen, views = torch.as_tensor(rows), torch.as_tensor(mirrored)
        images = self.images[chosen]
        images = torch.where(views[:, None, None, None], images.flip(3), images)
        return images, self.labels[chosen], {name: s[views.long(), chosen] for name, s in self.signals.items()}


@dataclass(frozen=True)
class Lookers:
    """`look`, compiled once for the student and once for the teacher, however many students there are."""

    student: Callable[..., Seen]
    teacher: Callable[..., Seen]

    @classmethod
    def of(cls, compiled: bool) -> Lookers:
        return cls(*(torch.compile(look, dynamic=False) if compiled else look for _ in fields(cls)))


def taught(
    method: Method, weights: Weights, lessons: Lessons, teacher: WideResNet, recipe: Recipe, seed: int,
    lookers: Lookers, folder: Path | None = None,
) -> WideResNet:  # fmt: skip
    """A WRN-16-1 from new weights; the method's heads are trained with it."""
    torch.manual_seed(seed)
    student = initialised(WideResNet(16, 1))
    student.train(), method.train(), teacher.eval()
    parameters = [*student.parameters(), *method.parameters()]
    optimizer = torch.optim.SGD(parameters, recipe.peak, recipe.momentum, weight_decay=recipe.decay, nesterov=True)
    examples = len(lessons.images)
    steps = recipe.epochs * (examples // recipe.batch)

    def step(now: int) -> float:
        rows = rows_of(now, examples, recipe.batch, seed)
        images, labels, signals = lessons.batch(rows, np.random.default_rng([seed, now, 1]).random(len(rows)) < 0.5)
        set_rate(optimizer, one_cycle(now, steps, recipe.peak))
        optimizer.zero_grad()
        seen = lookers.student(student, images, method.maps)
        with torch.no_grad():
            shown = lookers.teacher(teacher, images, True) if method.maps else None
        loss = weights.labels * F.cross_entropy(seen.logits, labels) + weights.teacher * method(seen, shown, signals)
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
