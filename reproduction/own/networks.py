"""A convolutional VAE, and a critic with its generator, for images of 32 x 32 in three colours in [-1, 1]."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from reproduction.pretrained.gans import Generator, Layers


class ColourVAE(nn.Module):
    """(images, normals) -> the one-sample bound on log p of each: normal pixels about the decoder's means.

    One spread for all pixels, learned; the divergence of the posterior is exact. `encoder` and `decoder` are apart, so
    that `parameters="decoder/*"` chooses the generative half.
    """

    LATENTS = 64

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        deep = 2 * width * 16
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(deep, 2 * self.LATENTS),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(self.LATENTS, deep), nn.ReLU(), nn.Unflatten(1, (2 * width, 4, 4)),
            nn.ConvTranspose2d(2 * width, 2 * width, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )  # fmt: skip
        self.log_spread = nn.Parameter(torch.tensor(-1.0))

    def posterior(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the latents."""
        mean, log_variance = self.encoder(images).chunk(2, 1)
        return mean, log_variance.clamp(-8, 8)

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        mean, log_variance = self.posterior(images)
        made = self.decoder(mean + torch.exp(0.5 * log_variance) * noise)
        error = ((images - made) ** 2).flatten(1).sum(1) * torch.exp(-2 * self.log_spread)
        pixels = images[0].numel() * (2 * self.log_spread + math.log(2 * math.pi))
        divergence = 0.5 * (mean**2 + torch.exp(log_variance) - 1 - log_variance).sum(1)
        return -0.5 * (error + pixels) - divergence


def critic() -> nn.Module:
    """Three convolutions of stride two, and a fourth to one number; no normalisation of any kind."""
    sizes = ((3, 32), (32, 64), (64, 128))
    layers = (layer for a, b in sizes for layer in (nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2)))
    return Layers("layers", *layers, nn.Conv2d(128, 1, 4), flat=True)


def generator() -> nn.Module:
    """100 normals to 4, 8, 16, 32."""
    sizes = ((100, 128, 1, 0), (128, 64, 2, 1), (64, 32, 2, 1))
    layers = [
        layer
        for a, b, stride, pad in sizes
        for layer in (nn.ConvTranspose2d(a, b, 4, stride, pad, bias=False), nn.BatchNorm2d(b), nn.ReLU())
    ]
    return Generator("layers", 100, *layers, nn.ConvTranspose2d(32, 3, 4, 2, 1, bias=False), nn.Tanh())
