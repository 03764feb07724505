"""mnist-flow: eight affine coupling layers with gated residual networks, on dequantised digits."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

LEVELS, ALPHA = 256, 1e-5


class BothSigns(nn.Module):
    """ELU of x and of -x: twice the channels."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([F.elu(x), F.elu(-x)], dim=1)


class ChannelNorm(nn.Module):
    """Every pixel's channels to mean 0 and variance 1, then a scale and a shift for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(1, keepdim=True), x.var(1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.gamma + self.beta


class Gated(nn.Module):
    """x + value * sigmoid(gate)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            BothSigns(), nn.Conv2d(2 * channels, channels, 3, padding=1),
            BothSigns(), nn.Conv2d(2 * channels, 2 * channels, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.net(x).chunk(2, dim=1)
        return x + value * torch.sigmoid(gate)


class Coupling(nn.Module):
    """z -> (z + t) e^s outside the mask, where s and t are functions of what lies inside."""

    def __init__(self, channels: int = 32, blocks: int = 3) -> None:
        super().__init__()
        inner = (part for _ in range(blocks) for part in (Gated(channels), ChannelNorm(channels)))
        last = nn.Conv2d(2 * channels, 2, 3, padding=1)
        layers = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), *inner, BothSigns(), last)
        self.network = nn.ModuleDict({"nn": layers})
        self.scaling_factor = nn.Parameter(torch.zeros(1))
        self.register_buffer("mask", torch.zeros(1, 1, 28, 28))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The new z, and the logarithm of the determinant for each image."""
        s, t = self.network["nn"](z * self.mask).chunk(2, dim=1)
        factor = self.scaling_factor.exp()
        s = torch.tanh(s / factor) * factor * (1 - self.mask)
        return (z + t * (1 - self.mask)) * s.exp(), s.sum((1, 2, 3))


class Flow(nn.Module):
    """(n, 1, 28, 28) with values 0 to 255, and noise in [0, 1) of that shape, to log p in nats, (n,)."""

    def __init__(self, couplings: int = 8) -> None:
        super().__init__()
        self.flows = nn.ModuleDict({str(place): Coupling() for place in range(1, couplings + 1)})

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        inside = (x + noise) / LEVELS * (1 - ALPHA) + ALPHA / 2
        z = torch.logit(inside)
        found = (math.log(1 - ALPHA) - inside.log() - (1 - inside).log()).sum((1, 2, 3)) - x[0].numel() * math.log(
            LEVELS
        )
        for coupling in self.flows.values():
            z, determinant = coupling(z)
            found = found + determinant
        return found - (z**2 + math.log(2 * math.pi)).sum((1, 2, 3)) / 2
