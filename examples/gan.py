"""A GAN: what its critic has learned, with the mean and the Fisher information over images that the generator makes.

python examples/gan.py [--smoke]
"""

import sys

import numpy as np
import torch
from torch import nn

import nfk
import nfk.torch


def main(smoke: bool) -> None:
    torch.manual_seed(0)
    width = 4 if smoke else 32
    critic = nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(width, width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(16 * width, 1),
    )  # fmt: skip
    generator = nn.Sequential(nn.Linear(8, 256), nn.Tanh(), nn.Unflatten(1, (1, 16, 16))).eval()

    def generate(seed: int, count: int) -> torch.Tensor:
        return generator(torch.randn(count, 8, generator=torch.Generator().manual_seed(seed)))

    images = np.random.default_rng(0).uniform(-1, 1, (24 if smoke else 512, 1, 16, 16)).astype(np.float32)

    model = nfk.torch.gan(critic.eval(), sample=generate, samples=32 if smoke else 1024)
    embedding = nfk.fit(model, images, rank=4 if smoke else 32)
    outside = embedding.decompose(images).outside_share

    print(embedding)
    print(f"the image least like the others is number {outside.argmax()}")


if __name__ == "__main__":
    main("--smoke" in sys.argv)
