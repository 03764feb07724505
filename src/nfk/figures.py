"""Figures by matplotlib: each function draws on axes, yours or new ones, and returns them to be restyled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from nfk.tasks import plane

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, ACCENT, QUIET = "#1b1f3b", "#d1495b", "#5b6476"
# Ten classes, as far apart as ten colours can be on white; the report has the same.
CLASSES = (
    "#1f63d6", "#ee6a12", "#1f7a2e", "#d945b4", "#129fcb", "#979617", "#b30f45", "#6010b0", "#6f4014", "#8a7f86",
)  # fmt: skip


class Fitted(Protocol):
    """What a spectrum needs to know: an embedding and a run both do."""

    @property
    def rank(self) -> int: ...
    @property
    def eigenvalues(self) -> np.ndarray: ...
    @property
    def explained_variance_ratio(self) -> np.ndarray: ...
    @property
    def residuals(self) -> np.ndarray: ...


def spectrum(fitted: Fitted, axes: Sequence[Axes] | None = None) -> tuple[Axes, Axes]:
    """Eigenvalues with their error bounds, and the share of all variance that the first k explain.

    Args:
        fitted: an embedding, or a run.
        axes: two axes to draw on; new ones by default.
    """
    left, right = _pyplot().subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")[1] if axes is None else axes
    k = np.arange(1, fitted.rank + 1)
    left.loglog(k, fitted.eigenvalues, color=INK, lw=1.8)
    left.set(xlabel="component", ylabel="eigenvalue of the kernel matrix", title="Spectrum")
    bound = left.twinx()
    bound.semilogy(k, fitted.residuals, color=ACCENT, lw=1, marker=".", ms=3)
    bound.set_ylabel("bound on its relative error", color=ACCENT)
    bound.tick_params(axis="y", colors=ACCENT)
    share = np.cumsum(fitted.explained_variance_ratio)
    right.plot(k, 100 * share, color=INK, lw=1.8)
    right.fill_between(k, 100 * share, color=INK, alpha=0.08, lw=0)
    right.set(
        xlabel="components", ylabel="% of all variance", title="Explained variance", ylim=(0, 100), xlim=(1, None)
    )
    right.annotate(
        f"{share[-1]:.1%} at k = {fitted.rank}", (k[-1], 100 * share[-1]), xytext=(-4, 8),
        textcoords="offset points", ha="right", color=INK,
    )  # fmt: skip
    return left, right


def embedding_map(E: Any, labels: Any = None, axes: Axes | None = None) -> Axes:
    """The examples of an embedding (n, k) in the plane of `nfk.tasks.plane`, a colour for each label.

    Args:
        E: an embedding, (n, k).
        labels: one for each example.
        axes: to draw on; new ones by default.
    """
    if axes is None:
        axes = cast("Axes", _pyplot().subplots(figsize=(6, 5), layout="constrained")[1])
    found = plane(E)
    x, y = found.positions.T
    size = float(np.clip(20_000 / len(x), 2, 30))
    if labels is None:
        axes.scatter(x, y, s=size, color=CLASSES[0], alpha=0.7, lw=0)
    else:
        labels = np.asarray(labels)
        for place, label in enumerate(np.unique(labels)):
            of = labels == label
            axes.scatter(x[of], y[of], s=size, color=CLASSES[place % len(CLASSES)], alpha=0.7, lw=0, label=str(label))
        axes.legend(frameon=False, fontsize=8, markerscale=2, loc="upper left", bbox_to_anchor=(1, 1))
    axes.set(xticks=[], yticks=[], title=f"{found.share:.0%} of the examples' spread")
    axes.set_aspect("equal", "datalim")
    return axes


def leading_images(
    E: np.ndarray, images: np.ndarray, components: int = 5, shown: int = 12, axes: np.ndarray | None = None
) -> np.ndarray:
    """For each of the first components, the images with the largest and the most negative projections on it.

    `axes` is a grid of (components, 2 shown + 1); the column in the middle stays empty.

    Args:
        E: an embedding, (n, k).
        images: those of its examples, in [0, 1].
        components: how many to show.
        shown: images at each end.
        axes: a grid of (components, 2 shown + 1); new ones by default.
    """
    components = min(components, E.shape[1])
    if axes is None:
        size = (0.62 * (2 * shown + 1.6), 0.72 * components + 0.9)
        made = _pyplot().subplots(components, 2 * shown + 1, squeeze=False, figsize=size, layout="constrained")
        axes = cast(np.ndarray, made[1])
    for row in range(components):
        order = np.argsort(E[:, row])
        chosen = [*order[::-1][:shown], None, *order[:shown]]
        for axis, index in zip(axes[row], chosen, strict=True):
            axis.axis("off")
            if index is not None:
                axis.imshow(images[index].squeeze(), cmap="gray_r", vmin=0, vmax=1)
        name = axes[row][0].text(-0.25, 0.5, f"component {row + 1}", transform=axes[row][0].transAxes, color=QUIET)
        name.set(fontsize=8, ha="right", va="center")
    for axis, words in ((axes[0][0], "largest projections"), (axes[0][shown + 1], "most negative")):
        axis.set_title(words, fontsize=8, loc="left", color=ACCENT).set_in_layout(False)  # wider than an image
    axes[0][shown].set_title(" ", fontsize=8)  # room for the two
    return axes


def _pyplot() -> Any:
    """New axes come from pyplot, so that a notebook shows them."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'nfk[figures]'") from error
    return pyplot
