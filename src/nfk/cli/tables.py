"""Tables: CSV files, Parquet files and Hugging Face data sets on disk, by columns."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nfk.cli.arrays import as_labels
from nfk.cli.refusal import NoLabels, Refused, needs


@dataclass(frozen=True)
class Table:
    """Columns of equal length by name; a cell is a number, a text, a list of numbers, or an encoded picture."""

    name: str
    columns: dict[str, Sequence[Any]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def column(self, name: str) -> Sequence[Any]:
        if name not in self.columns:
            raise Refused(f"{self.name} has no column {name!r}: it has {', '.join(self.names)}")
        return self.columns[name]

    def labels(self, name: str) -> np.ndarray:
        try:
            return as_labels(list(self.column(name)))
        except Refused as error:
            raise NoLabels(str(error)) from error

    def texts(self, name: str) -> list[str]:
        found = self.column(name)
        if not all(isinstance(text, str) for text in found):
            raise Refused(f"{self.name}: column {name!r} does not hold texts")
        return list(found)

    def only_text(self, label: str | None) -> str | None:
        """The column of texts, where there is exactly one beside the label."""
        found = [name for name, cells in self.columns.items() if name != label and len(cells) and _is_word(cells[0])]
        return found[0] if len(found) == 1 else None

    def has_pictures(self, name: str) -> bool:
        cells = self.column(name)
        return len(cells) > 0 and isinstance(cells[0], dict) and "bytes" in cells[0]

    def pictures(self, name: str) -> list[Path | bytes]:
        return [cell["bytes"] or Path(cell["path"]) for cell in self.column(name)]

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """One column of lists as they are, or several columns of numbers side by side, float32."""
        if not names:
            raise Refused(f"{self.name} has no columns of numbers")
        parts = [self._numeric(name) for name in names]
        if len(parts) == 1 and parts[0].ndim > 1:
            return parts[0]
        if any(part.ndim > 1 for part in parts):
            raise Refused(f"{self.name} has columns of lists beside others: choose with --columns")
        return np.stack(parts, axis=1).astype(np.float32)

    def _numeric(self, name: str) -> np.ndarray:
        cells = self.column(name)
        try:
            found = np.array([_number(cell) for cell in cells])
        except (ValueError, TypeError) as error:
            bad = next((str(cell) for cell in cells if not _is_number(cell)), "")
            hint = "lists of different lengths" if not bad else f"{bad[:40]!r}, which is no number"
            raise Refused(
                f"{self.name}: column {name!r} holds {hint}; name it with --labels or --text, or choose others with "
                "--columns"
            ) from error
        return found.astype(np.float32) if found.dtype.kind == "f" else found


def file(path: Path) -> Table:
    return _parquet(path) if path.suffix == ".parquet" else _csv(path)


def is_data_set(path: Path) -> bool:
    """Whether `datasets` has saved something here."""
    return any((path / name).is_file() for name in ("dataset_info.json", "state.json", "dataset_dict.json"))


def data_set(path: Path) -> Table:
    """A Hugging Face data set that was saved to disk."""
    if (path / "dataset_dict.json").is_file():
        parts = sorted(part.name for part in path.iterdir() if part.is_dir())
        raise Refused(f"{path} holds {', '.join(parts)}: name one of them, such as {path / parts[0]}")
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise needs("datasets", f"{path}, a Hugging Face data set,") from error
    try:
        found = load_from_disk(str(path)).with_format("arrow")[:]
    except Exception as error:
        raise Refused(f"{path} cannot be read as a Hugging Face data set: {error}") from error
    return _from_arrow(str(path), found)


def _parquet(path: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise needs("pyarrow", str(path)) from error
    try:
        return _from_arrow(str(path), pyarrow.parquet.read_table(path))
    except (OSError, pyarrow.ArrowException) as error:
        raise Refused(f"{path} cannot be read as Parquet: {error}") from error


def _from_arrow(name: str, table: Any) -> Table:
    return Table(name, {column: table.column(column).to_pylist() for column in table.column_names})


def _csv(path: Path) -> Table:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.reader(lines, delimiter="\t" if path.suffix == ".tsv" else ",") if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Refused(f"{path} cannot be read: {error}") from error
    if not rows:
        raise Refused(f"{path} is empty")
    header = [str(place) for place in range(len(rows[0]))] if all(map(_is_number, rows[0])) else rows.pop(0)
    for place, row in enumerate(rows):
        if len(row) != len(header):
            raise Refused(f"{path}: row {place + 1} has {len(row)} cells, but there are {len(header)} columns")
    return Table(str(path), {name: [row[place] for row in rows] for place, name in enumerate(header)})


def _number(cell: Any) -> Any:
    """A number, or a list of them; a text is read as one."""
    return float(cell) if isinstance(cell, str) else cell if cell is not None else np.nan


def _is_number(cell: Any) -> bool:
    try:
        np.asarray(_number(cell), np.float64)
    except (ValueError, TypeError):
        return False
    return True


def _is_word(cell: Any) -> bool:
    return isinstance(cell, str) and not _is_number(cell)
