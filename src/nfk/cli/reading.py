"""Data by name: an array, a folder of images, a table, texts, or a data set that comes with the package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from nfk.cli import arrays, pictures, tables, texts
from nfk.cli.refusal import NoLabels, Refused
from nfk.cli.words import option
from nfk.demo.digits import digits
from nfk.model import Model
from nfk.stream import Examples


@dataclass(frozen=True)
class Reading:
    """How DATA is read."""

    labels: Annotated[
        str | None,
        option("A column of a table, a key of an .npz file, or a file (.npy, .txt) with a label for each.", "NAME"),
    ] = None
    columns: Annotated[
        tuple[str, ...], option("The columns of a table that hold the numbers; all others by default.", "NAME ...")
    ] = ()
    text: Annotated[str | None, option("The column of a table that holds texts.", "NAME")] = None
    tokenizer: Annotated[
        str | None,
        option("For texts: a folder of transformers, or FILE.py:FUNCTION from a list of texts to arrays.", "NAME"),
    ] = None
    length: Annotated[int, option("For texts: tokens of each; they are cut or padded to it.", "N")] = 64
    size: Annotated[int | None, option("For images: resize them to so many pixels, square.", "PIXELS")] = None
    channels: Annotated[
        Literal["auto", "last", "first"],
        option("For images: (height, width, channels) or, as PyTorch models take them, (channels, height, width)."),
    ] = "auto"
    limit: Annotated[int | None, option("Take only the first so many examples.", "N")] = None

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as JSON can hold it."""
        standard = asdict(Reading())
        return {name: value for name, value in asdict(self).items() if value != standard[name]}

    @property
    def order(self) -> pictures.Channels:
        return "first" if self.channels == "first" else "last"

    def suited_to(self, model: Model) -> Reading:
        """Images of a PyTorch model have their channels first, unless something else was said."""
        is_torch = model.family.startswith("torch.")
        return replace(self, channels="first") if is_torch and self.channels == "auto" else self

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Reading:
        return cls(**{**given, "columns": tuple(given.get("columns", ()))})


@dataclass(frozen=True)
class Data:
    """What a model takes, the labels, and what to show of each example: pictures, small arrays or texts."""

    examples: Any
    labels: np.ndarray | None = None
    shown: np.ndarray | list[str] | None = None

    def __len__(self) -> int:
        return len(Examples(self.examples))

    def first(self, count: int) -> Data:
        if count < 1:
            raise Refused(f"--limit {count}: take one example at least")
        kept = min(count, len(self))
        examples = Examples(self.examples).slice(0, kept)
        labels = None if self.labels is None else self.labels[:kept]
        return Data(examples, labels, None if self.shown is None else self.shown[:kept])


def _digits(test: bool, reading: Reading) -> Data:
    part = digits()[test]
    return Data(np.moveaxis(part.images, -1, 1) if reading.order == "first" else part.images, part.labels)


DATA_SETS: dict[str, Callable[[Reading], Data]] = {
    "digits": partial(_digits, False),
    "digits-test": partial(_digits, True),
}


def read(name: str, reading: Reading, tokenizer: str | None = None) -> Data:
    """The data that are meant. `tokenizer` is the model's own, where `reading` names none."""
    data = _found(name, reading, reading.tokenizer or tokenizer)
    if not len(data):
        raise Refused(f"{name} holds no examples")
    labels = data.labels
    if reading.labels is not None and Path(reading.labels).is_file():
        labels = arrays.label_file(Path(reading.labels))
    elif reading.labels is not None and labels is None:
        raise NoLabels(f"--labels {reading.labels}: {name} has nothing of that name, and there is no such file")
    if labels is not None and len(labels) != len(data):
        raise Refused(f"{name} has {len(data):,} examples, but there are {len(labels):,} labels: give one for each")
    data = Data(data.examples, labels, data.shown)
    data = data if reading.limit is None else data.first(reading.limit)
    return data if data.shown is not None else Data(data.examples, data.labels, pictures.thumbnails(data.examples))


def _found(name: str, reading: Reading, tokenizer: str | None) -> Data:
    path = Path(name)
    if name in DATA_SETS:
        return DATA_SETS[name](reading)
    if path.suffix == ".npy" and path.is_file():
        return Data(arrays.array(path))
    if path.suffix == ".npz" and path.is_file():
        return Data(*arrays.archive(path, reading.labels))
    if path.suffix in (".csv", ".tsv", ".parquet") and path.is_file():
        return _from_table(tables.file(path), name, reading, tokenizer)
    if path.suffix in (".txt", ".text") and path.is_file():
        lines = texts.lines(path)
        return Data(texts.tokens(lines, tokenizer, reading.length, name), shown=lines)
    if path.is_dir():
        return _from_folder(path, reading, tokenizer)
    raise Refused(f"{name}: {_why_not(path)}; DATA is {KINDS}")


KINDS = (
    "a file (.npy, .npz, .csv, .parquet, .txt), a folder of images, a Hugging Face data set on disk, or one of "
    f"{', '.join(DATA_SETS)}"
)


def _why_not(path: Path) -> str:
    return f"files that end in {path.suffix!r} are not known" if path.is_file() else "there is no such file or data set"


def _from_folder(path: Path, reading: Reading, tokenizer: str | None) -> Data:
    if tables.is_data_set(path):
        return _from_table(tables.data_set(path), str(path), reading, tokenizer)
    images = pictures.folder(path, reading.size, reading.order)
    return Data(images.loaded(), images.labels, images.thumbnails())


def _from_table(table: tables.Table, name: str, reading: Reading, tokenizer: str | None) -> Data:
    label_column = None if reading.labels is None or Path(reading.labels).is_file() else reading.labels
    labels = None if label_column is None else table.labels(label_column)
    text = reading.text or (table.only_text(label_column) if tokenizer and not reading.columns else None)
    if text is not None:
        said = table.texts(text)
        return Data(texts.tokens(said, tokenizer, reading.length, name), labels, said)
    chosen = reading.columns or tuple(column for column in table.names if column != label_column)
    if len(chosen) == 1 and table.has_pictures(chosen[0]):
        images = pictures.Pictures.of(table.pictures(chosen[0]), reading.size, reading.order, labels)
        return Data(images.loaded(), labels, images.thumbnails())
    return Data(table.numbers(chosen), labels)
