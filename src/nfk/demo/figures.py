"""Pictures of a fit, as PNG files."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from nfk.embedding import Embedding
from nfk.runs import Run

INK, ACCENT, QUIET = "#1b1f3b", "#d1495b", "#8d99ae"
matplotlib.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})


def spectrum(embedding: Embedding | Run, path: Path, title: str) -> Path:
    """Eigenvalues with their error bounds, and the share of all variance that the first k explain."""
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    k = np.arange(1, embedding.rank + 1)
    left.loglog(k, embedding.eigenvalues, color=INK, lw=1.8)
    left.set(xlabel="component", ylabel="eigenvalue of the kernel matrix", title="Spectrum")
    bound = left.twinx()
    bound.semilogy(k, embedding.residuals, color=ACCENT, lw=1, marker=".", ms=3)
    bound.set_ylabel("bound on its relative error", color=ACCENT)
    bound.tick_params(axis="y", colors=ACCENT)
    share = np.cumsum(embedding.explained_variance_ratio)
    right.plot(k, 100 * share, color=INK, lw=1.8)
    right.fill_between(k, 100 * share, color=INK, alpha=0.08, lw=0)
    right.set(
        xlabel="components", ylabel="% of all variance", title="Explained variance", ylim=(0, 100), xlim=(1, None)
    )
    right.annotate(
        f"{share[-1]:.1%} at k = {embedding.rank}", (k[-1], 100 * share[-1]), xytext=(-4, 8),
        textcoords="offset points", ha="right", color=INK,
    )  # fmt: skip
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
    for row in range(components):
        order = np.argsort(E[:, row])
        chosen = [*order[::-1][:shown], None, *order[:shown]]
        for axis, index in zip(axes[row], chosen, strict=True):
            axis.axis("off")
            if index is not None:
                axis.imshow(images[index].squeeze(), cmap="gray_r", vmin=0, vmax=1)
        axes[row][0].set_title(f"component {row + 1}", fontsize=8, loc="left", color=QUIET)
    axes[0][0].set_title("largest projections on component 1", fontsize=8, loc="left", color=ACCENT)
    axes[0][shown + 1].set_title("most negative", fontsize=8, loc="left", color=ACCENT)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=130)
    return path
