"""Data larger than memory: files, data sets and loaders of other libraries as sources of examples.

A source has a length and slices, each slice a pytree of arrays; it holds what was read last, never all. What it is made
of must give the same examples in the same order whenever it is read: a fit reads them several times.
"""

from __future__ import annotations

import glob
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

Paths = str | Path | Sequence[str | Path]
Transform = Callable[[Any], Any] | None


class Source(ABC):
    """`length` examples, read slice by slice. `sequential` says that going back means to begin anew."""

    sequential = False

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rows: slice) -> Any:
        start, stop, step = rows.indices(self._length)
        if step != 1:
            raise ValueError(f"a source is read in its own order: ask for a slice with step 1, not {step}")
        return self.read(start, max(stop, start))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._length:,} examples)"

    @abstractmethod
    def read(self, start: int, stop: int) -> Any:
        """Examples start:stop as a pytree of arrays."""


def from_npy_shards(paths: Paths) -> Source:
    """The rows of several `.npy` files, one after another: a list of paths, a pattern such as "data/*.npy", a folder.

    A slice is read from the disk when it is asked for; nothing else is held.

    Args:
        paths: a list of files, a pattern such as "data/*.npy", or a folder; those found are sorted by name.
    """
    return NpyShards(_files(paths, "npy"))


def from_parquet(paths: Paths, columns: str | Sequence[str] | None = None) -> Source:
    """Rows of Parquet files: the numbers of one column, or a dict of arrays for several (None: all columns).

    A cell is a number, or a list of as many numbers in every row. Holds one row group. Needs pyarrow.

    Args:
        paths: a list of files, a pattern, or a folder.
        columns: one name (the examples are its numbers), several (a dict of arrays), or None for all.
    """
    return Parquet(_files(paths, "parquet"), columns)


def from_dataset(dataset: Any, transform: Transform = None) -> Source:
    """A data set with a length and single items: of PyTorch, of Hugging Face `datasets`, a grain `MapDataset`.

    `transform(item)` gives the example, such as `lambda item: item["image"] / 255`; without one it is the item itself.

    Args:
        dataset: anything with `len` and single items.
        transform: `transform(item)` gives the example, an array or a pytree of them; None takes the item itself.
    """
    return Items(dataset, transform)


def from_loader(loader: Iterable, length: int | None = None, transform: Transform = None) -> Source:
    """Batches that are iterated anew in each pass: of a PyTorch `DataLoader`, a grain `IterDataset`, any iterable.

    `length` is the number of examples; without it they are counted, in one read where the loader does not say.
    `transform(batch)` gives the examples of a batch, such as `lambda batch: batch[0]`. Holds two batches.

    Args:
        loader: an iterable of batches that gives the same ones whenever it is iterated: `shuffle=False`.
        length: the number of examples; None asks the loader, or counts in one read.
        transform: `transform(batch)` gives the examples of a batch; None takes the batch itself.
    """
    return Batches(loader, length, transform)


def _files(paths: Paths, ending: str) -> list[Path]:
    if isinstance(paths, (str, Path)):
        folder = Path(paths)
        found = folder.glob(f"*.{ending}") if folder.is_dir() else map(Path, glob.glob(str(paths)))
        files = sorted(found)
    else:
        files = [Path(path) for path in paths]
    if not files:
        raise FileNotFoundError(f"paths={str(paths)!r} names no file: pass a list of paths, a pattern, or a folder")
    missing = [path for path in files if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"{missing[0]} does not exist: {len(missing)} of {len(files)} paths name no file")
    return files


class Parted(Source):
    """Parts one after another, of known lengths."""

    def __init__(self, lengths: Sequence[int]) -> None:
        super().__init__(sum(lengths))
        self._bounds = np.cumsum([0, *lengths])

    def read(self, start: int, stop: int) -> Any:
        first = int(np.searchsorted(self._bounds, start, side="right")) - 1
        last = max(int(np.searchsorted(self._bounds, stop, side="left")), first + 1)
        pieces = []
        for part in range(min(first, len(self._bounds) - 2), min(last, len(self._bounds) - 1)):
            begin, end = self._bounds[part], self._bounds[part + 1]
            pieces.append(self.piece(part, max(start - begin, 0), min(stop, end) - begin))
        return pieces[0] if len(pieces) == 1 else jax.tree.map(lambda *leaves: np.concatenate(leaves), *pieces)

    @abstractmethod
    def piece(self, part: int, start: int, stop: int) -> Any:
        """Rows start:stop of one part."""


class NpyShards(Parted):
    """Memory maps that live as long as a slice is copied: what is read does not stay in this process's memory."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        shapes = [self._opened(part).shape for part in range(len(files))]
        kinds = [(shape[1:], self._opened(part).dtype) for part, shape in enumerate(shapes)]
        for path, kind in zip(files, kinds, strict=True):
            if kind != kinds[0]:
                raise ValueError(
                    f"{path} has rows of shape {kind[0]} and type {kind[1]}, but {files[0]} of {kinds[0][0]} and "
                    f"{kinds[0][1]}: make all shards alike"
                )
        super().__init__([shape[0] for shape in shapes])

    def _opened(self, part: int) -> np.ndarray:
        try:
            array = np.load(self._files[part], mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise ValueError(f"{self._files[part]} is no array of numbers in a .npy file: {error}") from error
        if array.ndim == 0:
            raise ValueError(f"{self._files[part]} holds a scalar: its first axis must run over the examples")
        return array

    def piece(self, part: int, start: int, stop: int) -> np.ndarray:
        return np.array(self._opened(part)[start:stop])


class Parquet(Parted):
    """Row groups as parts; the last one is held, since the next slice is likely to be of it."""

    def __init__(self, files: Sequence[Path], columns: str | Sequence[str] | None) -> None:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise ImportError("nfk.from_parquet needs pyarrow: pip install pyarrow") from error
        self._open = pyarrow.parquet.ParquetFile
        self._single = isinstance(columns, str)
        self._columns = [columns] if isinstance(columns, str) else columns
        self._groups, lengths = [], []
        for path in files:
            with self._open(path) as file:
                self._check(path, file.schema_arrow.names)
                count = file.metadata.num_row_groups
                self._groups += [(path, group) for group in range(count)]
                lengths += [file.metadata.row_group(group).num_rows for group in range(count)]
        self._last: tuple[int, Any] | None = None
        super().__init__(lengths)

    def _check(self, path: Path, names: Sequence[str]) -> None:
        missing = [name for name in self._columns or () if name not in names]
        if missing:
            raise ValueError(f"{path} has no column {missing[0]!r}: it has {', '.join(names)}")

    def piece(self, part: int, start: int, stop: int) -> Any:
        if self._last is None or self._last[0] != part:
            path, group = self._groups[part]
            self._last = None  # before the next one is read: one row group is held, not two
            with self._open(path) as file:
                table = file.read_row_group(group, columns=self._columns)
            columns = {name: _numbers(table[name], f"{path}, column {name!r}") for name in table.column_names}
            self._last = part, columns[table.column_names[0]] if self._single else columns
        return jax.tree.map(lambda leaf: leaf[start:stop], self._last[1])


def _numbers(column: Any, place: str) -> np.ndarray:
    """A column of numbers, or of lists of equally many numbers, to any depth."""
    values, shape = column.combine_chunks(), [len(column)]
    if values.null_count:
        raise ValueError(f"{place} has empty cells: fill or remove those rows")
    while hasattr(values.type, "value_type"):
        flat = values.flatten()
        if len(flat) % max(len(values), 1) or len({*map(len, values.to_numpy(zero_copy_only=False))}) > 1:
            raise ValueError(f"{place} has lists of different lengths: pad or cut them to one length")
        shape.append(len(flat) // max(len(values), 1))
        values = flat
    return _plain(values.to_numpy(zero_copy_only=False), place).reshape(shape)


class Items(Source):
    """One item after another, stacked."""

    def __init__(self, dataset: Any, transform: Transform) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise TypeError(
                f"dataset is a {type(dataset).__name__}, which has no length and items: use nfk.from_loader for what "
                "can only be iterated"
            )
        self._dataset = dataset.with_format("numpy") if hasattr(dataset, "with_format") else dataset
        self._transform = transform
        super().__init__(len(dataset))

    def read(self, start: int, stop: int) -> Any:
        first = min(start, len(self) - 1)  # nothing at all has a shape too: that of an item
        items = [self._dataset[index] for index in range(first, max(stop, first + 1))]
        examples = items if self._transform is None else [self._transform(item) for item in items]
        arrays = [jax.tree.map(lambda leaf: _plain(leaf, "an item of the data set"), one) for one in examples]
        try:
            whole = jax.tree.map(lambda *leaves: np.stack(leaves), *arrays)
        except ValueError as error:
            raise ValueError(
                f"items {start} to {stop - 1} of the data set differ in shape or structure: give transform= a function "
                f"that makes them alike ({error})"
            ) from error
        return jax.tree.map(lambda leaf: leaf[: stop - start], whole)


class Batches(Source):
    """Batches as they come; whoever asks for what has passed makes it begin anew."""

    sequential = True

    def __init__(self, loader: Iterable, length: int | None, transform: Transform) -> None:
        if isinstance(loader, Iterator):
            raise TypeError(
                f"loader is a {type(loader).__name__}, which can be read only once: pass what it was made of, so that "
                "each pass can begin anew"
            )
        self._loader, self._transform = loader, transform
        self._batches: Iterator | None = None
        self._first: Any = None
        self._held: list[Any] = []  # examples begin:end
        self._begin = self._end = 0
        super().__init__(_length_of(loader, self._examples) if length is None else length)

    def _examples(self) -> Iterator[Any]:
        for batch in self._loader:
            chosen = batch if self._transform is None else self._transform(batch)
            yield jax.tree.map(lambda leaf: _plain(leaf, "a batch of the loader"), chosen)

    def read(self, start: int, stop: int) -> Any:
        if self._first is None:
            self._first = self._next_of(self._examples(), 0)
        if stop <= _count(self._first):  # the first examples are asked for more often than the others
            return jax.tree.map(lambda leaf: leaf[start:stop], self._first)
        if self._batches is None or start < self._begin:
            self._batches, self._begin, self._end, self._held = self._examples(), 0, 0, []
        while self._end < stop:
            self._held.append(self._next_of(self._batches, self._end))
            self._end += _count(self._held[-1])
            while start >= self._begin + _count(self._held[0]) and len(self._held) > 1:
                self._begin += _count(self._held.pop(0))
        return self._cut(start, stop)

    def _cut(self, start: int, stop: int) -> Any:
        """A slice of the batches that are held."""
        parts, begin = [], self._begin
        for batch in self._held:
            end = begin + _count(batch)
            if not parts or (begin < stop and end > start):
                part = slice(max(start - begin, 0), max(stop - begin, 0))
                parts.append(jax.tree.map(lambda leaf, part=part: leaf[part], batch))
            begin = end
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    def _next_of(self, batches: Iterator, reached: int) -> Any:
        try:
            return next(batches)
        except StopIteration:
            raise ValueError(
                f"the loader ended after {reached:,} of {len(self):,} examples: pass length={reached}, and for a "
                "DataLoader drop_last=False"
            ) from None


def _count(batch: Any) -> int:
    return len(jax.tree.leaves(batch)[0])


def _length_of(loader: Any, examples: Callable[[], Iterator]) -> int:
    """What a DataLoader says of itself; else what one read counts."""
    try:
        count = len(loader.sampler)
        return count // loader.batch_size * loader.batch_size if loader.drop_last else count
    except (AttributeError, TypeError):
        return sum(_count(batch) for batch in examples())


def _plain(leaf: Any, place: str) -> np.ndarray:
    """Numbers as numpy has them."""
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufcV":
        raise TypeError(
            f"{place} holds {array.dtype} (such as {str(array.reshape(-1)[0])[:40]!r}), not numbers: choose the "
            "numbers with transform=, or columns="
        )
    return array
