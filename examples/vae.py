"""A VAE: the score is its ELBO, with noise that is drawn for it and not inside it.

python examples/vae.py [--smoke]
"""

import sys

import numpy as np
import torch
from torch import nn

import nfk
import nfk.torch


class Autoencoder(nn.Module):
    def __init__(self, pixels: int, hidden: int, latents: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latents))
        self.decoder = nn.Sequential(nn.Linear(latents, hidden), nn.ReLU(), nn.Linear(hidden, pixels))


def elbo(module: Autoencoder, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """log p(x | h) - KL(q(h | x) | N(0, I)) for one image and one draw h."""
    mean, log_scale = module.encoder(x).chunk(2)
    pixels = module.decoder(mean + log_scale.exp() * noise)
    likelihood = -nn.functional.binary_cross_entropy_with_logits(pixels, x, reduction="sum")
    return likelihood - 0.5 * (mean**2 + (2 * log_scale).exp() - 1 - 2 * log_scale).sum()


def main(smoke: bool) -> None:
    torch.manual_seed(0)
    pixels, hidden, latents = (16, 8, 2) if smoke else (784, 400, 20)
    images = np.random.default_rng(0).uniform(0, 1, (24 if smoke else 256, pixels)).astype(np.float32)

    model = nfk.torch.vae(Autoencoder(pixels, hidden, latents).eval(), elbo, noise=(latents,))
    embedding = nfk.fit(model, images, rank=4 if smoke else 32)

    print(embedding)
    for layer, share in embedding.layer_shares().items():
        print(f"{share[0]:6.1%} of the first component lives in {layer}")


if __name__ == "__main__":
    main("--smoke" in sys.argv)
