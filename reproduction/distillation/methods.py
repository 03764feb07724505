"""Every method as a loss beside the labels': what it needs of the teacher, its heads, the weights tried."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reproduction.distillation import losses
from reproduction.distillation.looking import Seen

Signals = Mapping[str, Tensor]
STUDENT, TEACHER = (16, 32, 64), (32, 64, 128)  # channels after each group
GROUPS = ("group 1", "group 2", "group 3")


@dataclass(frozen=True)
class Weights:
    """labels * cross-entropy + teacher * the method's loss."""

    labels: float
    teacher: float


HALVES = tuple(Weights(a, 1 - a) for a in (0.1, 0.5, 0.9))


def beside(*weights: float) -> tuple[Weights, ...]:
    return tuple(Weights(1.0, weight) for weight in weights)


class Method(nn.Module):
    """The heads are its parameters, trained with the student and thrown away after; `forward` is its loss.

    `needs`: what it wants to hear of the teacher. `maps`: whether it compares maps. `tried`: weights to choose from.
    """

    needs: tuple[str, ...] = ()
    maps = False
    tried: tuple[Weights, ...] = beside(0.0)

    def forward(self, seen: Seen, signals: Signals) -> Tensor:
        return torch.zeros(())


class Softened(Method):
    needs = ("logits",)
    tried = HALVES

    def forward(self, seen: Seen, signals: Signals) -> Tensor:
        return losses.softened(seen.logits, signals["logits"])


class Target(Method):
    """NFKD: a linear head on the pooled features predicts k numbers that the teacher gives."""

    tried = HALVES

    def __init__(self, signal: str, k: int, distance: str = "squared") -> None:
        super().__init__()
        self.needs, self.distance, self.head = (signal,), distance, nn.Linear(STUDENT[-1], k)

    def forward(self, seen: Seen, signals: Signals) -> Tensor:
        return losses.embedding_loss(self.head(seen.features), signals[self.needs[0]], self.distance)


class Maps(Method):
    """`compared` gives the loss of the groups that it needs, the student's and the teacher's."""

    needs = GROUPS
    maps = True

    def forward(self, seen: Seen, signals: Signals) -> Tensor:
        wanted = [(seen.groups[GROUPS.index(group)], signals[group]) for group in self.needs]
        return self.compared(*map(list, zip(*wanted, strict=True)))

    def compared(self, student: list[Tensor], teacher: list[Tensor]) -> Tensor:
        raise NotImplementedError


class Hint(Maps):
    """FitNet: the end of the second group, through a 1 x 1 convolution that is normalised."""

    needs = GROUPS[1:2]
    tried = beside(1.0, 10.0, 100.0)

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(STUDENT[1], TEACHER[1], 1), nn.BatchNorm2d(TEACHER[1]))

    def compared(self, student: list[Tensor], teacher: list[Tensor]) -> Tensor:
        return losses.hint(self.head(student[0]), teacher[0])


class Attention(Maps):
    tried = beside(10.0, 100.0, 1000.0)

    def compared(self, student: list[Tensor], teacher: list[Tensor]) -> Tensor:
        return losses.attention(student, teacher)


class Selectivity(Maps):
    tried = beside(5.0, 50.0, 500.0)

    def compared(self, student: list[Tensor], teacher: list[Tensor]) -> Tensor:
        return losses.selectivity(student, teacher)


class Variational(Maps):
    """1 x 1 convolutions with rectifiers between, as wide as the teacher; variances start at five."""

    tried = beside(0.1, 1.0, 10.0)

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(_regressor(a, b) for a, b in zip(STUDENT, TEACHER, strict=True))
        start = math.log(math.expm1(5.0 - 1e-5))
        self.raw = nn.ParameterList(nn.Parameter(torch.full((width,), start)) for width in TEACHER)

    def compared(self, student: list[Tensor], teacher: list[Tensor]) -> Tensor:
        predicted = [head(maps) for head, maps in zip(self.heads, student, strict=True)]
        return losses.variational(predicted, teacher, list(self.raw))


def _regressor(inputs: int, outputs: int) -> nn.Sequential:
    widths = itertools.pairwise((inputs, outputs, outputs, outputs))
    layers = [layer for a, b in widths for layer in (nn.Conv2d(a, b, 1, bias=False), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def build(name: str, k: int) -> Method:
    """The method of that name, with new heads; `k` numbers where it teaches an embedding."""
    return METHODS[name](k)


METHODS = {
    "no teacher": lambda k: Method(),
    "NFKD": lambda k: Target("scaled", k),
    "KD": lambda k: Softened(),
    "FitNet": lambda k: Hint(),
    "PCA of the teacher's features": lambda k: Target("pca", k),
    "NFKD, whitened": lambda k: Target("whitened", k),
    "NFKD, cosine": lambda k: Target("scaled", k, "cosine"),
    "AT": lambda k: Attention(),
    "NST": lambda k: Selectivity(),
    "VID": lambda k: Variational(),
}
