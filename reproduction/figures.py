"""Pictures of a fit, as PNG files."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from nfk.demo.figures import leading_images, spectrum
from nfk.figures import ACCENT, INK, QUIET

__all__ = ["bars", "curves", "grid", "heat", "layers", "leading_images", "pairs", "spectra", "spectrum", "strips"]
COLORS = (INK, ACCENT, "#2a9d8f", "#e9a23b", QUIET, "#6d597a", "#457b9d", "#9c6644")


def grid(images: np.ndarray, path: Path, title: str, columns: int = 8) -> Path:
    """Images side by side, dark on light where they are grey."""
    rows = -(-len(images) // columns)
    height, width, channels = images.shape[1:]
    canvas = np.ones((rows * (height + 1), columns * (width + 1), channels), np.float32)
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        top, left = row * (height + 1), column * (width + 1)
        canvas[top : top + height, left : left + width] = 1 - image if channels == 1 else image
    figure = Figure(figsize=(5, 5 * rows / columns + 0.4), layout="constrained")
    axis = figure.subplots()
    axis.axis("off")
    axis.imshow(canvas.squeeze(), cmap="gray", vmin=0, vmax=1)
    axis.set_title(title, fontsize=9)
    figure.savefig(path, dpi=130)
    return path


def curves(
    lines: dict[str, tuple],
    path: Path,
    title: str,
    x: str,
    y: str,
    levels: dict[str, float] | None = None,
    logarithmic: bool = False,
    logarithmic_y: bool = False,
) -> Path:
    """Lines (x, y) or (x, y, spread) by name, and dashed levels to compare them with.

    Where each of several lines has its own level, in the same order, both have one colour.
    """
    levels = levels or {}
    many = len(lines) + len(levels) > 8 or len(lines) > 6  # so many names would hide lines
    figure = Figure(figsize=(9.4 if many else 6.4, 3.8), layout="constrained")
    axis = figure.subplots()
    for color, (name, (across, up, *spread)) in zip(_colors(len(lines)), lines.items(), strict=True):
        axis.plot(across, up, color=color, lw=1.8, marker="o", ms=3.5, label=name)
        if spread:
            low, high = np.subtract(up, spread[0]), np.add(up, spread[0])
            axis.fill_between(across, low, high, color=color, alpha=0.15, lw=0)
    own = len(levels) == len(lines) > 1
    styles = itertools.cycle(zip(COLORS if own else COLORS[1:], itertools.cycle(("--", ":", "-.")), strict=False))
    for (color, style), (name, level) in zip(styles, levels.items(), strict=False):
        axis.axhline(level, color=color, lw=1.3, ls=style, label=f"{name}: {level:.1f}")
    if logarithmic:
        ticks = list(next(iter(lines.values()))[0])
        axis.set_xscale("log")
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
    axis.set(xlabel=x, ylabel=y, yscale="log" if logarithmic_y else "linear")
    axis.set_title(title, fontsize=11)
    beside = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if many else {}
    axis.legend(frameon=False, fontsize=8, **beside)
    figure.savefig(path, dpi=150)
    return path


def _colors(count: int) -> list[str]:
    return list(itertools.islice(itertools.cycle(COLORS), count))


def spectra(lines: dict[str, tuple], path: Path, title: str) -> Path:
    """Explained variance against k, several networks: full lines trained, dashed untrained."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axis = figure.subplots()
    names = list(dict.fromkeys(name.rsplit(", ", 1)[0] for name in lines))
    colors = dict(zip(names, _colors(len(names)), strict=True))
    for name, (across, up) in lines.items():
        network, state = name.rsplit(", ", 1)
        axis.plot(across, up, color=colors[network], lw=1.8, ls="-" if state == "trained" else "--", label=name)
    axis.set(xlabel="components k", ylabel="% of all variance", ylim=(0, 100), xscale="log", xlim=(1, None))
    axis.set_title(title, fontsize=11)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    return path


def pairs(lines: dict[tuple[str, bool], tuple], path: Path, title: str, x: str, y: str) -> Path:
    """(x, y, spread) by name and whether it is trained: one colour a name, full lines trained, dashed untrained."""
    figure = Figure(figsize=(8.2, 3.8), layout="constrained")
    axis = figure.subplots()
    names = list(dict.fromkeys(name for name, _ in lines))
    colors = dict(zip(names, _colors(len(names)), strict=True))
    for (name, trained), (across, up, spread) in lines.items():
        style = {"color": colors[name], "lw": 1.8, "ls": "-" if trained else "--", "capsize": 2}
        axis.errorbar(across, up, spread, label=name if trained else f"{name}, untrained", **style)
    ticks = list(next(iter(lines.values()))[0])
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set(xlabel=x, ylabel=y)
    figure.suptitle(title, fontsize=11)
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=150)
    return path


def layers(shares: dict[str, np.ndarray], path: Path, title: str, shown: int = 40) -> Path:
    """How the squared length of each component divides among the layers."""
    figure = Figure(figsize=(7.4, 3.6), layout="constrained")
    axis = figure.subplots()
    rows = np.array([np.asarray(share)[:shown] for share in shares.values()])
    names = list(shares)
    if len(names) > 8:
        large = np.sort(np.argsort(rows.sum(axis=1))[::-1][:7])
        others = rows.sum(axis=0) - rows[large].sum(axis=0)
        rows, names = np.concatenate([rows[large], others[None]]), [*(names[i] for i in large), "others"]
    axis.stackplot(np.arange(1, rows.shape[1] + 1), 100 * rows, labels=names, colors=_colors(len(names)), lw=0)
    axis.set(xlabel="component", ylabel="% of its squared length", ylim=(0, 100), xlim=(1, rows.shape[1]))
    axis.set_title(title, fontsize=11)
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=150)
    return path


def bars(values: dict[str, float], path: Path, title: str, chance: float = 0.5) -> Path:
    """Numbers between 0 and 1 by name, Fisher's in the accent colour."""
    figure = Figure(figsize=(7.4, 0.27 * len(values) + 0.9), layout="constrained")
    axis = figure.subplots()
    names = list(values)[::-1]
    colors = [ACCENT if "outside the top" in name else QUIET for name in names]
    axis.barh(names, [values[name] for name in names], color=colors, height=0.7)
    for place, name in enumerate(names):
        axis.text(values[name] + 0.01, place, f"{values[name]:.3f}", va="center", fontsize=8, color=INK)
    axis.axvline(chance, color=INK, lw=0.8, ls=":")
    axis.set(xlim=(0, 1.08))
    axis.tick_params(axis="y", labelsize=8)
    axis.set_title(title, fontsize=11)
    figure.savefig(path, dpi=150)
    return path


def strips(rows: dict[str, np.ndarray], path: Path, title: str) -> Path:
    """A row of images under each name, dark on light where they are grey."""
    count = len(next(iter(rows.values())))
    figure = Figure(figsize=(2.6 + 0.62 * count, 0.66 * len(rows) + 0.5), layout="constrained")
    axes = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
    for axis, (name, images) in zip(axes, rows.items(), strict=True):
        strip = np.concatenate([np.pad(image, ((1, 1), (1, 1), (0, 0))) for image in images], axis=1)
        axis.imshow(strip.squeeze(), cmap="gray_r", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        axis.set_ylabel("\n".join(textwrap.wrap(name, 24)), rotation=0, ha="right", va="center", fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)
    return path


def heat(lines: dict[str, list[float]], columns: list[str], path: Path, title: str) -> Path:
    """A table of numbers with shades: a line for each name, a column for each variant."""
    values = np.array(list(lines.values()))
    figure = Figure(figsize=(2.6 + 0.85 * len(columns), 1.6 + 0.32 * len(lines)), layout="constrained")
    axis = figure.subplots()
    axis.imshow(values, cmap="YlGnBu", aspect="auto")
    middle = (values.max() + values.min()) / 2
    for (line, column), value in np.ndenumerate(values):
        color = "white" if value > middle else INK
        axis.text(column, line, f"{value:.1f}", ha="center", va="center", fontsize=8, color=color)
    axis.set_xticks(range(len(columns)), ["\n".join(textwrap.wrap(name, 14)) for name in columns], fontsize=7)
    axis.set_yticks(range(len(lines)), list(lines), fontsize=8)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    axis.set_title(title, fontsize=10)
    figure.savefig(path, dpi=150)
    return path
