"""A picture of an embedding: the plane in which its examples spread most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from nfk.notebook import Shown
from nfk.tasks.checks import as_features


@dataclass(frozen=True)
class Plane(Shown):
    """A position for each example, (n, 2), and the share of their spread that the plane holds."""

    positions: np.ndarray
    share: float


def plane(features: Any) -> Plane:
    """PCA of the rows, each scaled to length one: what the cosine between two examples sees, in two dimensions.

    Args:
        features: (n, d).
    """
    features = as_features("features", features).astype(np.float64)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    directions = features / np.where(lengths > 0, lengths, 1)
    width = min(2, *features.shape)
    reduced = PCA(width, random_state=0)
    with np.errstate(invalid="ignore"):  # one example, or copies of one, spread nowhere
        positions = reduced.fit_transform(directions)
    share = float(np.nan_to_num(reduced.explained_variance_ratio_).sum())
    return Plane(np.pad(positions, ((0, 0), (0, 2 - width))), share)
