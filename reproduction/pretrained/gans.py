"""Critics and generators of GANs. Images in [-1, 1]; a critic gives the number before any sigmoid, (n, 1)."""

from __future__ import annotations

from torch import Tensor, nn


class Layers(nn.Module):
    """Layers one after the other, below the name that they have in the file; some end in maps of 1 x 1."""

    def __init__(self, name: str, *layers: nn.Module, flat: bool = False) -> None:
        super().__init__()
        self.name, self.flat = name, flat
        self.add_module(name, nn.Sequential(*layers))

    def forward(self, x: Tensor) -> Tensor:
        found = self.get_submodule(self.name)(x)
        return found.flatten(1) if self.flat else found


def _down(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 4, 2, 1)


def _halving(inputs: int, outputs: int, normalised: bool = True) -> list[nn.Module]:
    return [_down(inputs, outputs), *([nn.BatchNorm2d(outputs)] if normalised else []), nn.LeakyReLU(0.2)]


def colour_critic() -> nn.Module:
    """cifar10-dcgan-critic: four convolutions, 1,024 numbers, one."""
    return Layers(
        "model", *_halving(3, 32, normalised=False), *_halving(32, 64), *_halving(64, 128), *_halving(128, 256),
        nn.Flatten(), nn.Linear(1024, 1),
    )  # fmt: skip


def wide_colour_critic() -> nn.Module:
    """cifar10-dcgan-critic-wide: three convolutions, and a fourth to one number."""
    down = [*_halving(3, 64, normalised=False), *_halving(64, 128), *_halving(128, 256)]
    return Layers("disc", *down, nn.Conv2d(256, 1, 4), flat=True)


def _up(inputs: int, outputs: int, kernel: int, stride: int, padding: int, bias: bool) -> list[nn.Module]:
    made = nn.ConvTranspose2d(inputs, outputs, kernel, stride, padding, bias=bias)
    return [made, nn.BatchNorm2d(outputs), nn.ReLU()]


class Generator(nn.Module):
    """Latents (n, latents), standard normals, to images; the first layer sees them as maps of 1 x 1 where it must."""

    def __init__(self, name: str, latents: int, *layers: nn.Module, as_maps: bool = True) -> None:
        super().__init__()
        self.name, self.latents, self.as_maps = name, latents, as_maps
        self.add_module(name, nn.Sequential(*layers))

    def forward(self, z: Tensor) -> Tensor:
        return self.get_submodule(self.name)(z[:, :, None, None] if self.as_maps else z)


def colour_generator() -> nn.Module:
    layers = [*_up(100, 128, 4, 1, 0, False), *_up(128, 64, 4, 2, 1, False), *_up(64, 32, 4, 2, 1, False)]
    return Generator("model", 100, *layers, nn.ConvTranspose2d(32, 3, 4, 2, 1, bias=False), nn.Tanh())


def wasserstein_critic() -> nn.Module:
    """mnist-wgan-gp-critic: 28 - 13 - 5 - 1, without padding."""

    def part(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 4, 2), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2))

    return Layers("crit", part(1, 64), part(64, 128), nn.Sequential(nn.Conv2d(128, 1, 4, 2)), flat=True)


def wasserstein_generator() -> nn.Module:
    """1 - 3 - 6 - 13 - 28."""
    sizes = ((64, 256, 3, 2), (256, 128, 4, 1), (128, 64, 3, 2))
    parts = (nn.Sequential(*_up(*size, 0, True)) for size in sizes)
    return Generator("gen", 64, *parts, nn.Sequential(nn.ConvTranspose2d(64, 1, 4, 2), nn.Tanh()))


def digit_critic() -> nn.Module:
    """mnist-gan-critic: no normalisation."""
    sizes = ((1, 32), (32, 64), (64, 128))
    layers = (layer for size in sizes for layer in (_down(*size), nn.LeakyReLU(0.1)))
    return Layers("disc", *layers, nn.Flatten(), nn.Linear(1152, 1))


def digit_generator() -> nn.Module:
    return Generator(
        "model", 100, nn.Linear(100, 6272), nn.Sequential(nn.ReLU(), nn.Unflatten(1, (128, 7, 7))), nn.Identity(),
        nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 1, 4, 2, 1), nn.Tanh(), as_maps=False,
    )  # fmt: skip
