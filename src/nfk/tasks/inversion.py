"""Inverting a generator: a linear map from the embedding of an image to the latents that would make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from nfk.notebook import Shown
from nfk.tasks.checks import as_features, same_length, same_width
from nfk.tasks.estimates import Estimate
from nfk.tasks.ridge import feature_ridge

DRAWS = 200


@dataclass(frozen=True)
class Inversion(Shown):
    """h(x) = e(x) . weights + intercept. `score` is R^2 on generated examples that were held out."""

    weights: np.ndarray
    intercept: np.ndarray
    ridge: float
    score: Estimate
    scores: np.ndarray  # R^2 of each latent

    def __call__(self, embeddings: Any) -> np.ndarray:
        """The latents of embedded images, (n, latents)."""
        embeddings = as_features("embeddings", embeddings)
        same_width("embeddings", embeddings, "the inversion", len(self.weights))
        return (embeddings @ self.weights + self.intercept).astype(embeddings.dtype)

    def determination(self, embeddings: Any, latents: Any) -> Estimate:
        """R^2 on other examples: the share of the latents' variance (about their own mean) that the map explains."""
        H = as_features("latents", latents).astype(np.float64)
        guess = self(embeddings)
        same_length("latents", H, "embeddings", len(guess))
        errors, spread = (H - guess) ** 2, (H - H.mean(axis=0)) ** 2
        return _determination(errors.sum(axis=1), spread.sum(axis=1))


def invert(embeddings: Any, latents: Any, *, intercept: bool = True, held_out: float = 0.1) -> Inversion:
    """Regress the latents h of generated images G(h) on their embeddings e(G(h)); the ridge by leave-one-out.

    R^2 is that of the last `held_out` share of the examples, by a map fitted on the others; the map that is returned
    uses them all. Real images have a mean of their own: with `intercept=False` the map is linear through zero.

    Args:
        embeddings: those of generated images, (n, k).
        latents: the latents that made them, (n, latents).
        intercept: whether the map has a constant.
        held_out: the share of examples on which R^2 is taken.
    """
    E, H = as_features("embeddings", embeddings), as_features("latents", latents)
    same_length("latents", H, "embeddings", len(E))
    if not 0 < held_out < 1 or not 2 <= round(held_out * len(E)) <= len(E) - 2:
        raise ValueError(f"held_out={held_out} of {len(E)} examples leaves too few on one side: two at least on each")
    E, H = E.astype(np.float64), H.astype(np.float64)
    cut = len(E) - round(held_out * len(E))
    weights, shift, _ = _map(E[:cut], H[:cut], intercept)
    errors = (H[cut:] - E[cut:] @ weights - shift) ** 2
    spread = (H[cut:] - H[:cut].mean(axis=0)) ** 2
    each = 1 - errors.sum(axis=0) / np.where(spread.sum(axis=0) > 0, spread.sum(axis=0), 1)
    return Inversion(*_map(E, H, intercept), _determination(errors.sum(axis=1), spread.sum(axis=1)), each)


def _map(E: np.ndarray, H: np.ndarray, intercept: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """(weights, intercept, ridge); with an intercept, both sides are centred first."""
    centre, middle = (E.mean(axis=0), H.mean(axis=0)) if intercept else (np.zeros(E.shape[1]), np.zeros(H.shape[1]))
    fitted = feature_ridge(E - centre, H - middle)
    return fitted.weights, middle - centre @ fitted.weights, fitted.ridge


def _determination(errors: np.ndarray, spread: np.ndarray) -> Estimate:
    """1 - sum(errors) / sum(spread), with the interval of resampled examples."""

    def share(errors: np.ndarray, spread: np.ndarray, axis: int = -1) -> np.ndarray:
        return 1 - errors.sum(axis=axis) / spread.sum(axis=axis)

    rng = np.random.default_rng(0)
    drawn = bootstrap((errors, spread), share, n_resamples=DRAWS, paired=True, method="percentile", rng=rng)
    interval = drawn.confidence_interval
    return Estimate(float(share(errors, spread)), float(interval.low), float(interval.high))


def sharpness(images: Any, edge: float = 0.05) -> float:
    """The share of pixels within `edge` of black or white (images in [0, 1]): ink is sharp, a blur is grey.

    Args:
        images: pixels in [0, 1].
        edge: how near to black or white.
    """
    images = np.asarray(images)
    return float(np.mean((images < edge) | (images > 1 - edge)))
