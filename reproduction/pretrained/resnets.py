"""Residual networks with post-activation for CIFAR-10, of two sources."""

from __future__ import annotations

import itertools

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """conv-BN-ReLU-conv-BN; where the width changes, every second pixel and channels of zeros are the shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.added = outputs - inputs
        stride = 2 if self.added else 1
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        half = self.added // 2
        shortcut = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, half)) if self.added else x
        return F.relu(shortcut + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    """ResNet-20, -56, ...: (n, 3, 32, 32) -> (n, 10) logits; its shortcuts have no parameters."""

    def __init__(self, depth: int, classes: int = 10) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1, self.bn1 = nn.Conv2d(3, WIDTHS[0], 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTHS[0])
        self.layer1 = self._group(WIDTHS[0], WIDTHS[0], blocks)
        self.layer2 = self._group(WIDTHS[0], WIDTHS[1], blocks)
        self.layer3 = self._group(WIDTHS[1], WIDTHS[2], blocks)
        self.linear = nn.Linear(WIDTHS[2], classes)

    @staticmethod
    def _group(inputs: int, outputs: int, blocks: int) -> nn.Sequential:
        return nn.Sequential(Block(inputs, outputs), *(Block(outputs, outputs) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        maps = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(maps.mean((2, 3)))


class SmallBlock(nn.Module):
    """The like, with a 1 x 1 convolution of stride 2 as the shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        wider = inputs != outputs
        self.net = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, 2 if wider else 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.downsample = nn.Conv2d(inputs, outputs, 1, 2) if wider else None

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(shortcut + self.net(x))


class SmallResNet(nn.Module):
    """Nine blocks in three groups; its tensors are below `model` in the file."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        sizes = [WIDTHS[0], *(width for width in WIDTHS for _ in range(3))]
        self.model = nn.ModuleDict({
            "input_net": nn.Sequential(nn.Conv2d(3, WIDTHS[0], 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            "blocks": nn.Sequential(*(SmallBlock(a, b) for a, b in itertools.pairwise(sizes))),
            "output_net": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], classes)),
        })  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        for part in ("input_net", "blocks", "output_net"):
            x = self.model[part](x)
        return x
