"""An experiment without its hours: every fit is constructed and planned at its full size, and run on a few images."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import nfk
from nfk.tasks import kernel_spectrum

FEW, MEMORY = 24, "64GB"


@dataclass(frozen=True)
class Fit:
    """A fit of an experiment: its model, a few of its examples, how many there are in all, and the rank."""

    name: str
    model: nfk.Model
    few: np.ndarray
    count: int
    rank: int


def rehearsed(name: str, preset: str, say: Callable[[str], None]) -> int:
    """Plans of all fits of the experiment at that size; each is fitted on a few examples. Returns how many."""
    module = importlib.import_module(f"reproduction.paper.{name.replace('-', '_')}")
    several = list(module.fits(module.PRESETS[preset]))
    for fit in several:
        everything = np.broadcast_to(fit.few[:1], (fit.count, *fit.few.shape[1:]))  # no memory: a plan asks for shapes
        say(f"{fit.name}\n{nfk.plan(fit.model, everything, fit.rank, memory=MEMORY)}")
        embedding = nfk.fit(fit.model, fit.few[:FEW], 4)
        share = kernel_spectrum(embedding.gram(fit.few[:FEW]), 4).share(4)
        say(
            f"on {FEW} examples: {share:.1%} of the variance in 4 components, residuals {embedding.residuals.max():.0e}"
        )
    return len(several)
