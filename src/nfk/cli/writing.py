"""Embeddings as files for other programs: .npy, .npz, Parquet, or the files of the TensorBoard projector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nfk.atomic import write_atomically
from nfk.cli.refusal import Refused, needs

KINDS = "a file that ends in .npy, .npz or .parquet, or a folder for the TensorBoard projector"


def check(output: Path) -> None:
    """Whether it can be written, asked before the work."""
    if output.suffix not in (".npy", ".npz", ".parquet", ""):
        raise Refused(f"{output}: files that end in {output.suffix!r} are not known; the output is {KINDS}")
    if output.suffix == ".parquet":
        _pyarrow(output)


def write(output: Path, rows: np.ndarray, labels: np.ndarray | None, texts: list[str] | None) -> Path:
    """Write an (n, k) array and what is known of its rows."""
    output.parent.mkdir(parents=True, exist_ok=True)
    named: dict[str, Any] = {} if labels is None else {"labels": labels}
    if output.suffix == ".npy":
        write_atomically(output, lambda partial: np.save(partial, rows))
    elif output.suffix == ".npz":
        write_atomically(output, lambda partial: np.savez(partial, embedding=rows, **named))
    elif output.suffix == ".parquet":
        _parquet(output, rows, labels, texts)
    else:
        _projector(output, rows, labels, texts)
    return output


def _parquet(output: Path, rows: np.ndarray, labels: np.ndarray | None, texts: list[str] | None) -> None:
    """A column "embedding" of lists of k numbers, and "label" and "text" where there are any."""
    pyarrow = _pyarrow(output)
    flat = pyarrow.array(np.ascontiguousarray(rows).reshape(-1))
    columns = {"embedding": pyarrow.FixedSizeListArray.from_arrays(flat, rows.shape[1])}
    columns |= {} if labels is None else {"label": pyarrow.array(labels.tolist())}
    columns |= {} if texts is None else {"text": pyarrow.array(texts)}
    write_atomically(output, lambda partial: pyarrow.parquet.write_table(pyarrow.table(columns), partial))


def _pyarrow(output: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise needs("pyarrow", str(output)) from error
    return pyarrow


def _projector(output: Path, rows: np.ndarray, labels: np.ndarray | None, texts: list[str] | None) -> None:
    """vectors.tsv, metadata.tsv and the configuration that `tensorboard --logdir` looks for."""
    output.mkdir(parents=True, exist_ok=True)
    columns = {"row": [str(place) for place in range(len(rows))]}
    columns |= {} if labels is None else {"label": [str(label) for label in labels]}
    columns |= {} if texts is None else {"text": texts}
    metadata = ["\t".join(columns)] + ["\t".join(map(_cell, row)) for row in zip(*columns.values(), strict=True)]
    if len(columns) == 1:  # a single column has no header there
        metadata = columns["row"]
    entry = 'tensor_name: "nfk" tensor_path: "vectors.tsv" metadata_path: "metadata.tsv"'
    write_atomically(output / "vectors.tsv", lambda partial: np.savetxt(partial, rows, "%.6g", delimiter="\t"))
    write_atomically(output / "metadata.tsv", _text("\n".join(metadata) + "\n"))
    write_atomically(output / "projector_config.pbtxt", _text(f"embeddings {{ {entry} }}\n"))


def _cell(text: str) -> str:
    """One cell of a line: a tab or a new line in it would begin another."""
    return " ".join(text.split())[:200]


def _text(text: str) -> Callable[[Path], None]:
    def write(partial: Path) -> None:
        partial.write_text(text, "utf-8")

    return write
