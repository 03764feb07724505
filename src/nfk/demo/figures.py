"""Pictures of a fit, as PNG files."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from nfk import figures
from nfk.embedding import Embedding
from nfk.runs import Run

matplotlib.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})


def spectrum(embedding: Embedding | Run, path: Path, title: str) -> Path:
    """Eigenvalues with their error bounds, and the share of all variance that the first k explain."""
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    figures.spectrum(embedding, figure.subplots(1, 2))
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=150)
    return path


def leading_images(
    E: np.ndarray, images: np.ndarray, path: Path, title: str, components: int = 5, shown: int = 12
) -> Path:
    """For each of the first components, the images with the largest projections on it, at either end."""
    components = min(components, E.shape[1])
    figure = Figure(figsize=(0.62 * (2 * shown + 1.6), 0.72 * components + 0.9), layout="constrained")
    axes = figure.subplots(components, 2 * shown + 1, squeeze=False)
    figures.leading_images(E, images, components, shown, axes)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=130)
    return path
