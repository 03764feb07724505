"""What is worth showing of an embedding: a map, neighbours, extremes, strange examples and strange labels."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import numpy as np

from nfk.report.content import Content
from nfk.tasks import nearest, plane, probe_by_rank
from nfk.tasks.probing import held_out_rows

NEIGHBOURS = 12
VOTERS = 10
COMPONENTS = 12
EXTREMES = 10
OUTLIERS = 24
SUSPECTS = 24
CLASSES = 1000  # labels with more values than that are numbers or names
PROBED_CLASSES = 100
PROBED = 6000  # examples of the probe, a third of them for the test


@dataclass(frozen=True)
class Map:
    """A position in the plane for each example, and one sentence on what it is."""

    name: str
    note: str
    positions: np.ndarray


@dataclass(frozen=True)
class Neighbourhood:
    """The nearest other examples of each by cosine, nearest first: (n, count) rows and similarities."""

    rows: np.ndarray
    similarities: np.ndarray

    @property
    def strangeness(self) -> np.ndarray:
        """One minus the mean similarity to the nearest ten: large where an example stands alone."""
        return 1 - self.similarities[:, :VOTERS].mean(axis=1)


@dataclass(frozen=True)
class Suspect:
    """An example whose neighbours vote for another label: `votes` of `voters` for `proposed`."""

    row: int
    label: int
    proposed: int
    votes: int
    voters: int


@dataclass(frozen=True)
class Extremes:
    """Rows with the largest and the smallest projections on one component, outermost first."""

    component: int
    largest: list[int]
    smallest: list[int]


def shown_rows(total: int, most: int) -> np.ndarray:
    """All rows, or `most` of them drawn at random; the same ones for every fit with as many examples."""
    if total <= most:
        return np.arange(total)
    return np.sort(np.random.default_rng(0).choice(total, most, replace=False))


def maps_of(features: np.ndarray) -> list[Map]:
    """PCA, and UMAP where it is installed."""
    found = []
    if len(features) > NEIGHBOURS and (positions := _umap(features)) is not None:
        note = "UMAP keeps neighbours together. How far apart two groups are means little."
        found.append(Map("UMAP", note, positions))
    flat = plane(features)
    share = f"{100 * flat.share:.0f}\u00a0%"
    note = f"PCA: the flat view in which the examples spread most. It holds {share} of their spread."
    return [*found, Map("PCA", note, flat.positions)]


def _umap_is_installed() -> bool:
    try:
        return bool(version("umap-learn"))  # another package is called umap, too
    except PackageNotFoundError:
        return False


def _umap(features: np.ndarray) -> np.ndarray | None:
    """Positions, or None where it is not installed, or its installation is broken."""
    if not _umap_is_installed():
        return None
    try:
        import umap  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        warnings.warn(f"umap-learn is installed but cannot be imported ({error}): the map is PCA's alone", stacklevel=2)
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on its threads and on jax's: nothing that a reader can act on
        return umap.UMAP(metric="cosine", random_state=0).fit_transform(features)


def neighbourhood(features: np.ndarray, count: int = NEIGHBOURS) -> Neighbourhood:
    """n^2 width operations; at most `count` neighbours, fewer where there are fewer examples."""
    n = len(features)
    count = min(count, n - 1)
    if count < 1:
        return Neighbourhood(np.zeros((n, 0), int), np.zeros((n, 0)))
    found = nearest(features, features, count + 1)
    others = found.rows != np.arange(n)[:, None]
    others[others.all(axis=1), -1] = False  # among many copies of an example it need not find itself
    return Neighbourhood(found.rows[others].reshape(n, count), 1 - found.distances[others].reshape(n, count))


def by_example(content: Content) -> np.ndarray:
    """For each example, the largest share of an output's squared length outside the components."""
    assert content.outside is not None
    return content.outside.reshape(content.examples, content.outputs).max(axis=1)


def extremes(content: Content, rows: np.ndarray) -> list[Extremes]:
    """For each of the first components, the examples of `rows` at its two ends, as places in `rows`."""
    chosen = content.rows.reshape(content.examples, content.outputs, content.rank)[rows]
    found = []
    for component in range(min(COMPONENTS, content.rank)):
        values = chosen[:, :, component]
        count = min(EXTREMES, max(len(rows) // 2, 1))
        largest = np.argsort(-values.max(axis=1), kind="stable")[:count]
        smallest = np.argsort(values.min(axis=1), kind="stable")[:count]
        found.append(Extremes(component, largest.tolist(), smallest.tolist()))
    return found


def suspects(codes: np.ndarray, around: Neighbourhood) -> list[Suspect]:
    """Examples most of whose neighbours agree on another label, the clearest first; nearer neighbours decide ties."""
    voters = around.rows[:, :VOTERS]
    if not voters.shape[1]:
        return []
    votes = np.zeros((len(codes), int(codes.max()) + 1), int)
    for place in range(voters.shape[1]):
        np.add.at(votes, (np.arange(len(codes)), codes[voters[:, place]]), 1)
    proposed = np.argmax(votes, axis=1)
    won = votes[np.arange(len(codes)), proposed]
    clear = np.flatnonzero((proposed != codes) & (2 * won > voters.shape[1]))
    nearness = around.similarities[clear, : voters.shape[1]].mean(axis=1)
    order = clear[np.lexsort((-nearness, -won[clear]))]
    return [
        Suspect(int(row), int(codes[row]), int(proposed[row]), int(won[row]), voters.shape[1]) for row in order
    ]  # fmt: skip


@dataclass(frozen=True)
class Labelling:
    """Labels as a list of different values, and the place in it of each example's."""

    kind: Literal["classes", "numbers", "names"]
    values: np.ndarray
    codes: np.ndarray

    @property
    def names(self) -> list[str]:
        return [f"{value:.3g}" if self.values.dtype.kind == "f" else str(value) for value in self.values]


def labelling_of(labels: np.ndarray | None) -> Labelling | None:
    """Few different values are classes; many are numbers, which have an order, or names, which have none."""
    if labels is None:
        return None
    values, codes = np.unique(labels.astype(str) if labels.dtype.kind == "O" else labels, return_inverse=True)
    many = len(values) > (PROBED_CLASSES if labels.dtype.kind == "f" else CLASSES)
    kind = "classes" if not many else "numbers" if labels.dtype.kind in "fiu" else "names"
    return Labelling(kind, values, codes)


def probe_curve(content: Content, codes: np.ndarray) -> list[tuple[int, float, float, float]]:
    """(k, accuracy, low, high) of a linear classifier on the first k components, on a third that it has not seen.

    Empty where there are too many classes, or too few examples of one to hold some out.
    """
    chosen = shown_rows(content.examples, PROBED)
    features, codes = content.features[chosen], codes[chosen]
    counts = np.unique(codes, return_counts=True)[1]
    if not 2 <= len(counts) <= PROBED_CLASSES or counts.min() < 3:
        return []
    train, test = held_out_rows(codes, 1 / 3, seed=0)
    ranks = sorted({*(2**power for power in range(12) if 2**power < content.rank), content.rank})
    columns = [rank * content.outputs for rank in ranks]
    found = probe_by_rank(features[train], codes[train], features[test], codes[test], columns, strengths=(1.0,))
    accuracies = [found[column].accuracy for column in columns]
    return [(k, a.value, a.low, a.high) for k, a in zip(ranks, accuracies, strict=True)]
