"""Wide residual networks with pre-activation, WRN-D-K: tensors named as in the files `-a`."""

from __future__ import annotations

import re

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """BN-ReLU-conv-BN-ReLU-conv; where the width changes, a 1 x 1 convolution of the active input is the shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.convShortcut = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        shortcut = x if self.convShortcut is None else self.convShortcut(active)
        return shortcut + self.conv2(F.relu(self.bn2(self.conv1(active))))


class Group(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, blocks: int) -> None:
        super().__init__()
        first, others = Block(inputs, outputs, stride), (Block(outputs, outputs, 1) for _ in range(blocks - 1))
        self.layer = nn.Sequential(first, *others)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class WideResNet(nn.Module):
    """(n, 3, 32, 32) -> (n, 10) logits; `groups` gives the maps after each group, `pooled` the last ones' means."""

    def __init__(self, depth: int, width: int, classes: int = 10) -> None:
        super().__init__()
        widths, blocks = [size * width for size in WIDTHS], (depth - 4) // 6
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 3, 1, 1, bias=False)
        self.block1 = Group(WIDTHS[0], widths[0], 1, blocks)
        self.block2 = Group(widths[0], widths[1], 2, blocks)
        self.block3 = Group(widths[1], widths[2], 2, blocks)
        self.bn1, self.fc = nn.BatchNorm2d(widths[2]), nn.Linear(widths[2], classes)

    def groups(self, x: Tensor) -> list[Tensor]:
        first = self.block1(self.conv1(x))
        second = self.block2(first)
        return [first, second, F.relu(self.bn1(self.block3(second)))]

    def pooled(self, x: Tensor) -> Tensor:
        return self.groups(x)[-1].mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pooled(x))


OTHER_NAMES = (
    (r"\bnblockLayer\b", "layer"), (r"\bconv_inp\b", "convShortcut"),
    (r"\bbatch_norm(\d)\b", r"bn\1"), (r"\bbatch_norm\b", "bn1"),
)  # fmt: skip


def renamed(name: str) -> str:
    """The name that a tensor of the files `-b` has in those of `-a`."""
    for pattern, replacement in OTHER_NAMES:
        name = re.sub(pattern, replacement, name)
    return name
