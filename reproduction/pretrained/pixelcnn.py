"""mnist-pixelcnn: a gated PixelCNN of two stacks, 256 values a pixel."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

DILATIONS = (1, 2, 1, 4, 1, 2, 1)


class Masked(nn.Module):
    """A convolution of which the mask (in the file) hides what comes later."""

    def __init__(self, inputs: int, outputs: int, size: tuple[int, int], dilation: int = 1) -> None:
        super().__init__()
        padding = (dilation * (size[0] // 2), dilation * (size[1] // 2))
        self.conv = nn.Conv2d(inputs, outputs, size, padding=padding, dilation=dilation)
        self.register_buffer("mask", torch.ones(1, 1, *size))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.conv.weight * self.mask
        return F.conv2d(x, weight, self.conv.bias, padding=self.conv.padding, dilation=self.conv.dilation)


def _gate(x: Tensor) -> Tensor:
    value, gate = x.chunk(2, dim=1)
    return torch.tanh(value) * torch.sigmoid(gate)


class Gated(nn.Module):
    """Both stacks a step further: the rows above, and what stands to the left."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.conv_vert = Masked(channels, 2 * channels, (3, 3), dilation)
        self.conv_horiz = Masked(channels, 2 * channels, (1, 3), dilation)
        self.conv_vert_to_horiz = nn.Conv2d(2 * channels, 2 * channels, 1)
        self.conv_horiz_1x1 = nn.Conv2d(channels, channels, 1)

    def forward(self, above: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.conv_vert(above)
        told = _gate(self.conv_horiz(left) + self.conv_vert_to_horiz(rows))
        return _gate(rows), left + self.conv_horiz_1x1(told)


class PixelCNN(nn.Module):
    """(n, 1, 28, 28) in [-1, 1], of 256 values, to log p in nats, (n,); `logits` (n, 256, 28, 28)."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.conv_vstack, self.conv_hstack = Masked(1, channels, (3, 3)), Masked(1, channels, (1, 3))
        self.conv_layers = nn.ModuleList(Gated(channels, dilation) for dilation in DILATIONS)
        self.conv_out = nn.Conv2d(channels, 256, 1)

    def logits(self, x: Tensor) -> Tensor:
        above, left = self.conv_vstack(x), self.conv_hstack(x)
        for layer in self.conv_layers:
            above, left = layer(above, left)
        return self.conv_out(F.elu(left))

    def forward(self, x: Tensor) -> Tensor:
        values = ((x + 1) * 127.5).round().clamp(0, 255).long()[:, 0]
        return -F.cross_entropy(self.logits(x), values, reduction="none").sum((1, 2))
