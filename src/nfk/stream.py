"""Running a per-batch function over a data set: slices, prefetch. Knows nothing of what is computed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from nfk import interrupts
from nfk.checksum import checksum

CHECK_SLAB = 4096
HASHED = 64


class Examples:
    """N examples behind one interface: `len`, and `slice(start, stop)` as a pytree of arrays.

    `source` is an array, a memory map, a pytree (dict, tuple) of arrays with one common length, a list of examples, or
    any object with `__len__` and slices. Nothing is copied that need not be.
    """

    def __init__(self, source: Any, name: str = "X") -> None:
        if isinstance(source, Examples):
            source, name = source.source, source.name
        if isinstance(source, Mapping) and not isinstance(source, dict):  # what a tokenizer returns
            source = {key: leaf if hasattr(leaf, "shape") else np.asarray(leaf) for key, leaf in source.items()}
        source = _stacked(source) if isinstance(source, list) else source
        if isinstance(source, (str, bytes)) or getattr(getattr(source, "dtype", None), "kind", None) in ("U", "S"):
            raise TypeError(
                f"{name} is text: pass numbers, such as an array of token ids with one row per example, or what "
                f"tokenizer({name}, padding=True, return_tensors='np') returns"
            )
        _refuse_foreign(source, name)
        self.source, self.name = source, name
        self.is_tree = isinstance(source, (dict, tuple)) or hasattr(source, "shape")
        self._length = self._measure()
        self._seen = None if self.is_tree else np.zeros(self._length, np.uint64)

    def _measure(self) -> int:
        if not self.is_tree:
            if not (hasattr(self.source, "__len__") and hasattr(self.source, "__getitem__")):
                raise TypeError(
                    f"{self.name} is a {type(self.source).__name__}, which has no length and slices: pass an array, "
                    "a pytree of arrays, or an object with __len__ and __getitem__(slice)"
                )
            return len(self.source)
        lengths = {}
        for path, leaf in jax.tree_util.tree_flatten_with_path(self.source)[0]:
            place = self.name + jax.tree_util.keystr(path)
            if np.ndim(leaf) == 0:
                raise ValueError(f"{place} is a scalar: the first axis must run over the examples")
            lengths[place] = len(leaf)
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the arrays of {self.name} differ in length: {lengths}; give each one row per example")
        return next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._length

    def slice(self, start: int, stop: int) -> Any:
        if self.is_tree:
            return jax.tree.map(lambda leaf: leaf[start:stop], self.source)
        return self.source[start:stop]

    def read(self, start: int, stop: int) -> Any:
        """A slice that is to be computed with: of a source that is not an array, checked and copied."""
        batch = self.slice(start, stop)
        if not self.is_tree:
            batch = _owned(batch, start, stop, self.name)
            self.recognise(start, batch)
        return batch

    def example(self) -> Any:
        """The first example, as numpy arrays."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[0], self.slice(0, 1))

    def check(self, rows: slice | None = None) -> None:
        """At least one example, and every number finite, of all or of some `rows`. One read of the data; sources that
        are not arrays are checked as their batches pass."""
        if len(self) == 0:
            raise ValueError(f"{self.name} holds no examples: pass at least two")
        if self.is_tree:
            begin, end = (0, len(self)) if rows is None else (rows.start, rows.stop)
            for start in range(begin, end, CHECK_SLAB):
                check_finite(self.slice(start, min(start + CHECK_SLAB, end)), start, self.name)

    def recognise(self, start: int, batch: Any) -> None:
        """Nothing where these examples are those that were read at this place before; 8 bytes for each are held."""
        if self._seen is None:
            return
        now = fingerprints(batch)
        before = self._seen[start : start + len(now)]
        other = (before != 0) & (before != now)
        if other.any():
            raise ValueError(
                f"{self.name}[{start + int(np.argmax(other))}] is another example than when it was read before: a fit "
                "reads its data several times, in one order. Use shuffle=False in a loader, and nothing random in what "
                "prepares the examples"
            )
        before[:] = now

    def hash(self, rows: slice) -> str:
        """Tells other examples apart: of all these rows of an array, in one read; of another source's first ones."""
        stop = rows.stop if self.is_tree else min(rows.start + HASHED, rows.stop)
        digest = hashlib.sha256()
        for start in range(rows.start, stop, CHECK_SLAB):
            for leaf in jax.tree.leaves(self.slice(start, min(start + CHECK_SLAB, stop))):
                digest.update(checksum(np.asarray(leaf)).encode())
        return digest.hexdigest()[:32]


def fingerprints(batch: Any) -> np.ndarray:
    """A number of 64 bits for each example, never zero: a sum of its words, each with a weight of its own."""
    leaves = jax.tree.leaves(batch)
    total = np.zeros(len(leaves[0]), np.uint64)
    for leaf in leaves:
        rows = np.ascontiguousarray(leaf).reshape(len(leaf), -1).view(np.uint8)
        words = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8))).view(np.uint64)
        weights = np.arange(1, 2 * words.shape[1], 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
        total = total * np.uint64(3) + (words ^ (words >> np.uint64(29))) @ weights
    return total | np.uint64(1)


FOREIGN = {
    "torch.utils.data.dataloader": "from_loader", "torch.utils.data": "from_dataset",
    "datasets.iterable": "from_loader", "datasets.": "from_dataset", "grain": "from_dataset",
}  # fmt: skip


def _refuse_foreign(source: Any, name: str) -> None:
    """Data sets of other libraries have lengths and slices of their own kind; tensors may be out of reach."""
    for leaf in jax.tree.leaves(source) if isinstance(source, (dict, tuple)) else [source]:
        place = getattr(getattr(leaf, "device", None), "type", "cpu")  # of a tensor; other arrays have no type there
        if type(leaf).__module__.startswith("torch") and place != "cpu":
            raise TypeError(
                f"{name} is a tensor on {leaf.device}: examples are read by the host, a batch at a time; pass "
                f"{name}.cpu()"
            )
    for base in type(source).__mro__:
        for module, adapter in FOREIGN.items():
            if base.__module__.startswith(module):
                raise TypeError(
                    f"{name} is a {type(source).__name__} of {base.__module__.split('.')[0]}: wrap it, as in "
                    f"nfk.{adapter}({name}, transform=lambda item: item[0])"
                )


def _stacked(examples: list) -> Any:
    """A list of examples as arrays with a leading axis."""
    if not examples or isinstance(examples[0], (list, int, float)):
        return np.asarray(examples)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *examples)


def check_finite(batch: Any, start: int, name: str) -> None:
    for leaf in jax.tree.leaves(batch):
        leaf = np.asarray(leaf)
        if not np.issubdtype(leaf.dtype, np.floating) or np.isfinite(leaf).all():
            continue
        bad = start + int(np.argmin(np.isfinite(leaf.reshape(len(leaf), -1)).all(axis=1)))
        raise ValueError(f"{name}[{bad}] holds NaN or infinity: remove or repair that example")


def run(
    function: Callable[[Any], Any],
    read: Callable[[int, int], Any],
    start: int,
    stop: int,
    size: int,
    advance: Callable[[int], None],
) -> Iterator[tuple[int, int, Any]]:
    """Yield `(begin, end, function(read(begin, end)))` from `start` to `stop`, `size` examples at a time.

    The next batch is dispatched before this one is handed out, so the device works while the host reads.
    """

    def dispatch(begin: int) -> tuple[int, int, Any]:
        end = min(begin + size, stop)
        return begin, end, function(read(begin, end))

    ahead = dispatch(start)
    while ahead is not None:
        interrupts.check()
        begin, end, _ = now = ahead
        ahead = dispatch(end) if end < stop else None
        yield now
        advance(end - begin)


def _owned(batch: Any, begin: int, end: int, name: str) -> Any:
    """A batch of a source that is not an array: checked, and copied, since the source may use its memory again."""
    batch = jax.tree.map(np.array, batch)
    for leaf in jax.tree.leaves(batch):
        if np.ndim(leaf) == 0 or len(leaf) != end - begin:
            raise ValueError(
                f"{name}[{begin}:{end}] has an array of shape {np.shape(leaf)}: a slice must return as many examples "
                f"as were asked for, {end - begin}"
            )
    check_finite(batch, begin, name)
    return batch


class Generated:
    """`count` examples drawn from `sample(key, n)`, made again whenever they are read and never stored.

    Drawn in blocks of one fixed size with a key per block, so the examples do not depend on how they are batched.
    """

    BLOCK = 256

    def __init__(self, sample: Any, key: jax.Array, count: int) -> None:
        self._sample, self._key, self._count = sample, key, count
        self._last: tuple[int, Any] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: slice) -> Any:
        start, stop, _ = rows.indices(self._count)
        blocks = []
        for index in range(start // self.BLOCK, -(-stop // self.BLOCK)):
            first = index * self.BLOCK
            begin, end = max(start - first, 0), min(stop - first, self.BLOCK)
            blocks.append(jax.tree.map(lambda leaf, b=begin, e=end: leaf[b:e], self._block(index)))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *blocks)

    def _block(self, index: int) -> Any:
        if self._last is None or self._last[0] != index:
            self._last = (index, self._draw(jax.random.fold_in(self._key, index)))
        return self._last[1]

    def _draw(self, key: jax.Array) -> Any:
        try:
            drawn = jax.tree.map(np.asarray, self._sample(key, self.BLOCK))
        except Exception as error:
            raise ValueError(
                f"sample(key, n) failed for n={self.BLOCK}: {error}\nIt takes a jax key first (for nfk.torch a "
                "seed) and the number of examples second, and returns that many examples"
            ) from error
        for leaf in jax.tree.leaves(drawn):
            if np.ndim(leaf) == 0 or len(leaf) != self.BLOCK:
                raise ValueError(
                    f"sample(key, n) returned an array of shape {np.shape(leaf)} for n={self.BLOCK}: return n "
                    "examples, the first axis running over them"
                )
        return drawn
