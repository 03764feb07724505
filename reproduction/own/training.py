"""How the two were trained: one function each, resumable, from the seed alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from reproduction.own.networks import ColourVAE, critic, generator
from reproduction.torch_training import one_cycle, rows_of, set_rate, train

Say = Callable[[str], None]


def train_vae(images: Tensor, *, steps: int, seed: int, folder: Path, say: Say, compiled: bool) -> dict[str, nn.Module]:
    """Adam on the one-sample bound, mirrored images, one cycle of the learning rate."""
    torch.manual_seed(seed)
    module = ColourVAE().train()
    bound = torch.compile(module, dynamic=False) if compiled else module
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)

    def step(now: int) -> float:
        set_rate(optimizer, one_cycle(now, steps, 2e-3))
        x = _batch(images, now, 128, seed)
        optimizer.zero_grad()
        loss = -bound(x, torch.randn(len(x), ColourVAE.LATENTS)).mean() / x[0].numel()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    train(step, {"vae": module, "optimizer": optimizer}, steps=steps, seed=seed, folder=folder, say=say)
    return {"cifar10-vae": module}


def train_gan(images: Tensor, *, steps: int, seed: int, folder: Path, say: Say, compiled: bool) -> dict[str, nn.Module]:
    """Hinge loss, every layer of the critic at spectral norm one; the generator's weights are averaged over time.

    The critic comes back with the norms divided out: plain layers.
    """
    torch.manual_seed(seed)
    made, judge = generator().train(), _spectral(critic()).train()
    average = copy.deepcopy(made).eval()
    slow = torch.optim.Adam(made.parameters(), 2e-4, betas=(0.5, 0.999))
    fast = torch.optim.Adam(judge.parameters(), 4e-4, betas=(0.5, 0.999))

    def step(now: int) -> float:
        real = _batch(images, now, 64, seed)
        fake = made(torch.randn(len(real), 100))
        fast.zero_grad()
        loss = F.relu(1 - judge(real)).mean() + F.relu(1 + judge(fake.detach())).mean()
        loss.backward()
        fast.step()
        slow.zero_grad()
        (-judge(fake).mean()).backward()
        slow.step()
        _follow(average, made, 0.999)
        return loss.item()

    parts = {"made": made, "judge": judge, "average": average, "slow": slow, "fast": fast}
    train(step, parts, steps=steps, seed=seed, folder=folder, say=say)
    return {"svhn-dcgan-critic": _plain(judge), "svhn-dcgan-generator": average}


def _batch(images: Tensor, now: int, size: int, seed: int) -> Tensor:
    rows = rows_of(now, len(images), size, seed)
    x = images[torch.as_tensor(rows)]
    mirrored = torch.as_tensor(np.random.default_rng([seed, now, 1]).random(size) < 0.5)
    return torch.where(mirrored[:, None, None, None], x.flip(3), x)


def _spectral(module: nn.Module) -> nn.Module:
    for layer in [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]:
        parametrizations.spectral_norm(layer)
    return module


def _plain(module: nn.Module) -> nn.Module:
    module.eval()
    for layer in [layer for layer in module.modules() if parametrize.is_parametrized(layer)]:
        parametrize.remove_parametrizations(layer, "weight")
    return module


@torch.no_grad()
def _follow(average: nn.Module, module: nn.Module, share: float) -> None:
    """Parameters by an exponential average; statistics of normalisations as they are."""
    for old, new in zip(average.parameters(), module.parameters(), strict=True):
        old.lerp_(new, 1 - share)
    for old, new in zip(average.buffers(), module.buffers(), strict=True):
        old.copy_(new)
