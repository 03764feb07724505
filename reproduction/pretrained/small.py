"""Smaller networks of digits: LeNet-5, a variational autoencoder, an energy model."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class LeNet5(nn.Module):
    """(n, 1, 32, 32) -> (n, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.convnet = nn.Sequential(OrderedDict(
            c1=nn.Conv2d(1, 6, 5), r1=nn.ReLU(), s2=nn.MaxPool2d(2),
            c3=nn.Conv2d(6, 16, 5), r3=nn.ReLU(), s4=nn.MaxPool2d(2),
            c5=nn.Conv2d(16, 120, 5), r5=nn.ReLU(), flat=nn.Flatten(),
        ))  # fmt: skip
        self.fc = nn.Sequential(OrderedDict(f6=nn.Linear(120, 84), r6=nn.ReLU(), f7=nn.Linear(84, 10)))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.convnet(x))


class VAE(nn.Module):
    """784-400-(20, 20)-400-784; pixels in [0, 1] as probabilities of a Bernoulli variable."""

    LATENTS = 20

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.fc3, self.fc4 = nn.Linear(20, 400), nn.Linear(400, 784)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the latents."""
        hidden = F.relu(self.fc1(x.flatten(1)))
        return self.fc21(hidden), self.fc22(hidden)

    def decode(self, z: Tensor) -> Tensor:
        """Logits of the pixels."""
        return self.fc4(F.relu(self.fc3(z)))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        """The ELBO of every image in nats, (n,), by one draw of its latents; noise (n, 20) standard normals."""
        mean, log_variance = self.encode(x)
        logits = self.decode(mean + torch.exp(log_variance / 2) * noise)
        found = -F.binary_cross_entropy_with_logits(logits, x.flatten(1), reduction="none").sum(1)
        return found - (mean**2 + log_variance.exp() - log_variance - 1).sum(1) / 2


class EnergyModel(nn.Module):
    """(n, 1, 28, 28) in [-1, 1] -> (n, 1), minus the energy."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((1, 16, 5, 2, 4), (16, 32, 3, 2, 1), (32, 64, 3, 2, 1), (64, 64, 3, 2, 1))
        convolutions = (layer for size in sizes for layer in (nn.Conv2d(*size), nn.SiLU()))
        layers = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(256, 64), nn.SiLU(), nn.Linear(64, 1))
        self.cnn = nn.ModuleDict({"cnn_layers": layers})

    def forward(self, x: Tensor) -> Tensor:
        return self.cnn["cnn_layers"](x)
