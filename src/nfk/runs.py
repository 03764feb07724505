"""A run: a fit on disk, with what a person needs to look at it later, without the network.

A run folder is the folder of a saved embedding (`nfk.load` reads it with its model) with more in it:

    embedding.json           format, checksum and facts; facts["run"] has the fields of `Spec` and what is listed here
    embedding-....safetensors  right, left, singular_values, residuals, mean, fisher, scale, key (the embedding), and
        run.layer_shares     (layers, k) squared length of every component in each parameter array, names in "layers"
        run.squares          (rows,) |V_x|^2 of the training examples, where they were measured
        run.labels           (examples,) whole numbers, places in the list "classes"
        run.examples         (examples, ...) pictures or other small arrays; texts are in the list "texts" instead

It is written in one step, whole or not at all, and read without executing anything.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from nfk import packing, store
from nfk.embedding import Embedding
from nfk.identity import Kind

FORMAT = 1


@dataclass(frozen=True)
class Spec:
    """How a run came about, in words and numbers: enough to repeat it."""

    model: str = ""  # as it was named: "digits-lenet", "mine.py:model"
    data: str = ""
    rank: int | float | None = None  # as it was asked for: components, or a share of the variance
    key: int = 0
    seconds: float | None = None
    command: str = ""
    interrupted: bool = False
    options: dict[str, Any] = field(default_factory=dict)  # what else was asked for, by name


@dataclass(frozen=True, eq=False)
class Run:
    """What `read_run` gives. n examples, k components; a network with several outputs has n * outputs rows."""

    folder: Path
    spec: Spec
    versions: dict[str, str]  # of nfk, jax, numpy, python when it was fitted
    family: str  # "classifier", "gan", ...
    parameters: int
    examples_shape: Any
    plan: str  # the plan as text, "" where there was none
    passes: int
    outputs: int
    trace: float
    left: np.ndarray
    singular_values: np.ndarray
    residuals: np.ndarray
    layer_shares: dict[str, np.ndarray]
    peak_bytes: int | None = None  # that the plan allowed for
    squares: np.ndarray | None = None
    labels: np.ndarray | None = None
    examples: np.ndarray | list[str] | None = None

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def rank(self) -> int:
        return len(self.singular_values)

    @property
    def count(self) -> int:
        """Examples that were fitted."""
        return len(self.left) // self.outputs

    @property
    def embedding(self) -> np.ndarray:
        """(rows, k): the embedding of the examples that were fitted."""
        return self.left * self.singular_values.astype(self.left.dtype)

    @property
    def features(self) -> np.ndarray:
        """(n, outputs * k): one row for each example; all outputs of the first component, then of the second, ..."""
        return self.as_features(self.embedding)

    def as_features(self, rows: np.ndarray) -> np.ndarray:
        """Rows of the embedding, `outputs` for each example, as one row for each."""
        return rows.reshape(-1, self.outputs, self.rank).swapaxes(1, 2).reshape(-1, self.outputs * self.rank)

    @property
    def eigenvalues(self) -> np.ndarray:
        return self.singular_values**2

    @property
    def explained_variance_ratio(self) -> np.ndarray:
        """Share of the kernel's exact trace in each component."""
        return self.eigenvalues / self.trace if self.trace > 0 else np.zeros(self.rank)

    @property
    def outside_share(self) -> np.ndarray | None:
        """(rows,) the share of |V_x|^2 outside the k components, between 0 and 1: large for unusual examples."""
        if self.squares is None:
            return None
        inside = np.sum(self.embedding.astype(np.float64) ** 2, axis=1)
        share = np.divide(inside, self.squares, out=np.zeros_like(inside), where=self.squares > 0)
        return np.clip(1 - share, 0, 1)


def write_run(
    folder: str | Path,
    embedding: Embedding,
    *,
    spec: Spec | None = None,
    labels: Any = None,
    examples: Any = None,
    squares: Any = None,
) -> Path:
    """Write the embedding with its story; an old run in the folder stays until the new one is complete.

    Args:
        folder: made where it is not there.
        embedding: the fit. Its network's weights are not written.
        spec: what was asked for.
        labels: (n,) whole numbers or words, one for each example of the fit.
        examples: (n, height, width[, channels]) pictures, any other (n, ...) arrays, or n texts, to look at.
        squares: (rows,) `embedding.decompose(X).total`, which tells unusual examples.
    """
    tensors, facts = packing.pack(embedding)
    shares = embedding.layer_shares()
    count = len(embedding.left) // embedding.outputs
    extra, lists = _labels(labels, count)
    pictures, texts = _examples(examples, count)
    tensors |= {"run.layer_shares": np.stack(list(shares.values())), **extra, **pictures}
    if squares is not None:
        tensors["run.squares"] = np.asarray(squares, np.float64)
        _one_each("squares", tensors["run.squares"], len(embedding.left))
    run = {
        "format": FORMAT, "versions": _versions(), "parameters": embedding.model.layout.size, "layers": list(shares),
        "plan": "" if embedding.plan is None else str(embedding.plan),
        "peak_bytes": None if embedding.plan is None else embedding.plan.peak_bytes,
        **asdict(spec or Spec()), **lists, **texts,
    }  # fmt: skip
    return store.write(Path(folder), tensors, facts | {"run": run})


def read_run(folder: str | Path) -> Run:
    """The run in a folder; a folder of another kind, of another version or damaged is an error that says so."""
    folder = Path(folder)
    tensors, facts = store.read(folder, packing.REQUIRED)
    run = _checked(facts.get("run"), folder)
    shares = zip(run["layers"], tensors["run.layer_shares"], strict=True)
    labels = tensors.get("run.labels")
    return Run(
        folder=folder, spec=Spec(**{one.name: run[one.name] for one in fields(Spec)}), versions=run["versions"],
        family=facts["model"]["family"], parameters=run["parameters"], plan=run["plan"], passes=facts["passes"],
        outputs=facts["outputs"], trace=facts["trace"], left=tensors["left"], residuals=tensors["residuals"],
        examples_shape=Kind.from_json(facts["example_shapes"], None).plain,
        singular_values=tensors["singular_values"], layer_shares=dict(shares),
        peak_bytes=run.get("peak_bytes"), squares=tensors.get("run.squares"),
        labels=None if labels is None else np.asarray(run["classes"])[labels],
        examples=run.get("texts", tensors.get("run.examples")),
    )  # fmt: skip


def is_run(folder: Path) -> bool:
    """Whether something was saved there: an embedding or a run."""
    return (folder / store.FACTS).exists()


def _checked(run: Any, folder: Path) -> dict[str, Any]:
    if run is None:
        raise ValueError(
            f"{folder} holds an embedding that was saved without its run: write it with nfk.runs.write_run, or with "
            "nfk fit"
        )
    if run.get("format") != FORMAT:
        written = run.get("versions", {}).get("nfk", "another version")
        raise ValueError(
            f"{folder} is a run folder of nfk {written} (format {run.get('format')}), but this version reads format "
            f"{FORMAT}: read it with that nfk, or fit again"
        )
    return run


def _labels(labels: Any, count: int) -> tuple[dict[str, np.ndarray], dict[str, list]]:
    """Places in a list of classes: words and numbers alike, and no pickle."""
    if labels is None:
        return {}, {}
    labels = np.asarray(labels)
    _one_each("labels", labels, count)
    if labels.dtype.kind not in "iubUS":
        raise TypeError(f"labels have dtype {labels.dtype}: give whole numbers or words")
    classes, places = np.unique(labels.astype(str) if labels.dtype.kind == "S" else labels, return_inverse=True)
    return {"run.labels": places.astype(np.int32)}, {"classes": classes.tolist()}


def _examples(examples: Any, count: int) -> tuple[dict[str, np.ndarray], dict[str, list]]:
    if examples is None:
        return {}, {}
    if isinstance(examples, Sequence) and examples and isinstance(examples[0], str):
        _one_each("examples", np.empty(len(examples)), count)
        return {}, {"texts": list(examples)}
    examples = np.asarray(examples)
    if examples.dtype.kind not in "iubf" or examples.ndim < 1 or len(examples) != count:
        raise ValueError(
            f"examples are an array of shape {examples.shape} and dtype {examples.dtype}: give numbers, or a list of "
            f"texts, one for each of the {count} examples of the fit"
        )
    return {"run.examples": examples}, {}


def _one_each(name: str, array: np.ndarray, count: int) -> None:
    if array.shape != (count,):
        raise ValueError(f"{name} have shape {array.shape}: give one for each of the {count} examples of the fit")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("nfk", "jax", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from its source
            found[name] = ""
    return found
