"""A diffusion model: `module(x_t, t)` returns the noise; the score is minus its denoising bound.

    python examples/diffusion.py [--smoke]

With `diffusers`: `nfk.torch.diffusion(pipeline.unet.eval(), pipeline.scheduler, shape=(3, 32, 32))`.
"""

import sys

import numpy as np
import torch
from torch import nn

import nfk
import nfk.torch


class Denoiser(nn.Module):
    """A small convolutional network; the time enters as one more channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.middle = nn.Conv2d(2, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, noisy, steps):
        time = (steps / 1000).to(noisy.dtype)[:, None, None, None].expand_as(noisy)
        hidden = nn.functional.silu(self.first(torch.cat([noisy, time], dim=1)))
        return self.last(nn.functional.silu(self.middle(hidden)))


def main(smoke: bool) -> None:
    torch.manual_seed(0)
    alphas_cumprod = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))
    images = np.random.default_rng(0).standard_normal((16 if smoke else 128, 1, 8, 8)).astype(np.float32)

    module = Denoiser(4 if smoke else 32)
    model = nfk.torch.diffusion(module.eval(), alphas_cumprod, shape=(1, 8, 8), times=4 if smoke else 16)
    embedding = nfk.fit(model, images, rank=4 if smoke else 16)

    print(embedding)
    print(f"the spectrum falls from {embedding.eigenvalues[0]:.3g} to {embedding.eigenvalues[-1]:.3g}")


if __name__ == "__main__":
    main("--smoke" in sys.argv)
