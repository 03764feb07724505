"""What a page needs to know of one fit: arrays and a few facts, wherever they came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from nfk.embedding import Embedding
from nfk.report.gallery import Gallery, gallery_of
from nfk.runs import Run


@dataclass(frozen=True, eq=False)
class Content:
    """One fit: `rows` is the embedding of its examples, `outputs` rows for each, with what is known about them.

    `outside` is the share of every row's squared length that the components do not hold. A fact that is None is left
    out of the page, and so is a section whose data are missing.
    """

    name: str
    rows: Float[np.ndarray, "rows k"]
    singular_values: Float[np.ndarray, " k"]
    residuals: Float[np.ndarray, " k"]
    trace: float
    outputs: int = 1
    model: str | None = None
    parameters: int | None = None
    passes: int | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    data: str | None = None
    story: str = ""
    layers: dict[str, Float[np.ndarray, " k"]] = field(default_factory=dict)
    outside: Float[np.ndarray, " rows"] | None = None
    labels: np.ndarray | None = None
    gallery: Gallery | None = None

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or not self.rows.shape[0] or self.rows.shape[0] % self.outputs:
            raise ValueError(
                f"{self.name}: the embedding has shape {self.rows.shape}, but a report needs a matrix with "
                f"{self.outputs} row(s) for each example"
            )
        for what, given in (("labels", self.labels), ("X", self.gallery)):
            if given is not None and len(given) != self.examples:
                raise ValueError(
                    f"{what} has length {len(given):,}, but {self.name} was fitted on {self.examples:,} examples: pass "
                    f"the {what} of the same examples, in the same order"
                )

    @property
    def examples(self) -> int:
        return len(self.rows) // self.outputs

    @property
    def rank(self) -> int:
        return len(self.singular_values)

    @property
    def eigenvalues(self) -> Float[np.ndarray, " k"]:
        return self.singular_values.astype(np.float64) ** 2

    @property
    def shares(self) -> Float[np.ndarray, " k"]:
        """Share of the kernel's trace in each component."""
        return self.eigenvalues / self.trace if self.trace > 0 else np.zeros(self.rank)

    @property
    def features(self) -> Float[np.ndarray, "examples width"]:
        """One row for each example: the first component of all its outputs, then the second, and so on."""
        return self.rows.reshape(self.examples, self.outputs, self.rank).swapaxes(1, 2).reshape(self.examples, -1)


def content_of_embedding(
    embedding: Embedding, X: Any = None, labels: Any = None, name: str = "embedding", seconds: float | None = None
) -> Content:
    """What an embedding knows about its fit; `X` is what is shown of the examples of the fit, in their order.

    Args:
        embedding: what `nfk.fit` returned.
        X: what to show of each example of the fit, in their order: images, strings, or other arrays.
        labels: one for each example.
        name: what the fit is called on the page.
        seconds: how long the fit took.
    """
    return Content(
        name=name,
        rows=embedding.training,
        singular_values=embedding.singular_values,
        residuals=embedding.residuals,
        trace=embedding.trace,
        outputs=embedding.outputs,
        model=f"nfk.{embedding.model.family}",
        parameters=embedding.model.layout.size,
        passes=embedding.passes,
        seconds=seconds,
        peak_bytes=None if embedding.plan is None else embedding.plan.peak_bytes,
        story="" if embedding.plan is None else str(embedding.plan),
        layers=embedding.layer_shares(),
        labels=as_labels(labels),
        gallery=None if X is None else gallery_of(X),
    )


def content_of_run(run: Run, name: str) -> Content:
    """What a folder of `nfk fit` knows; its model is not needed.

    Args:
        run: what `nfk.runs.read_run` returned.
        name: what the run is called on the page.
    """
    used = ", ".join(f"{package} {number}" for package, number in run.versions.items() if number)
    story = [run.spec.command and f"$ {run.spec.command}", run.plan, used and f"with {used}"]
    if run.spec.interrupted:
        story.insert(1, "The fit was interrupted: these are the components of the passes that were finished.")
    return Content(
        name=name,
        rows=run.embedding,
        singular_values=run.singular_values,
        residuals=run.residuals,
        trace=run.trace,
        outputs=run.outputs,
        model=run.spec.model or f"nfk.{run.family}",
        parameters=run.parameters,
        passes=run.passes,
        seconds=run.spec.seconds,
        peak_bytes=run.peak_bytes,
        data=run.spec.data or None,
        story="\n\n".join(part for part in story if part),
        layers=run.layer_shares,
        outside=run.outside_share,
        labels=run.labels,
        gallery=None if run.examples is None else gallery_of(run.examples),
    )


def as_labels(labels: Any) -> np.ndarray | None:
    if labels is None:
        return None
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"labels has shape {labels.shape}, but must hold one label per example: a vector")
    return labels
