"""Blocks as torch tensors on the device of a module: its gradients never leave it, only small matrices do.

Sums over slabs are in float64 where the device has it; where it has none (Apple's), they are compensated, each sum with
the rounding error of its additions beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nfk.distributed import ALONE, Processes, Replicas
from nfk.layout import Layout
from nfk.ranges import Ranges
from nfk.spaces.space import SLAB, Block, Leaves, Space, Store
from nfk.spaces.tally import Tally
from nfk.torch.devices import free_bytes, full_precision, generator, has_float64

PART = 512  # rows of a product that are summed in its own precision: few, since some libraries sum one after another
ROWS_AT_ONCE = 64  # of gradients that are normalised together


@dataclass(frozen=True)
class TorchSpace(Space):
    """Blocks in the memory of one torch device; with `processes`, the same in each of them."""

    device: torch.device
    processes: Processes = ALONE
    name = "torch"

    @property
    def processor(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.device.type

    @property
    def exact(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return has_float64(self.device)

    def free_bytes(self) -> int:
        return free_bytes(self.device)

    def zeros(self, rows: int, columns: int, dtype: Any) -> Tensor:
        return torch.zeros(rows, columns, dtype=torch_dtype(dtype), device=self.device)

    def random(self, seed: Sequence[int], rows: int, columns: int, dtype: np.dtype) -> Tensor:
        result = self.zeros(rows, columns, dtype)
        for index, place in enumerate(_slabs(rows)):  # whole slabs, so that a row does not depend on how many there are
            source = generator([*seed, index], self.device)
            drawn = torch.randn(SLAB, columns, dtype=result.dtype, device=self.device, generator=source)
            result[place] = drawn[: place.stop - place.start]
        return result

    def put(self, array: Any, dtype: Any = None) -> Tensor:
        wanted = None if dtype is None else torch_dtype(dtype)
        if isinstance(array, Tensor):
            return array.to(self.device, wanted)
        array = np.ascontiguousarray(array, None if wanted is None else str(wanted).removeprefix("torch."))
        return torch.tensor(array, device=self.device)

    def get(self, block: Tensor) -> np.ndarray:
        return block.detach().cpu().numpy()

    def kept(self, block: Tensor) -> np.ndarray:
        return self.get(block[self.processes.share(len(block))])

    def restored(self, part: np.ndarray, shape: tuple[int, ...]) -> Tensor:
        block = self.put(part)
        return self.processes.stacked(block) if isinstance(self.processes, Replicas) else block

    def own(self, examples: int) -> slice:
        size = self.processes.size
        if examples < size:
            raise ValueError(f"{examples} examples are too few for {size} processes: each needs one; use fewer")
        return self.processes.share(examples)

    def eps(self, block: Tensor) -> float:
        return torch.finfo(block.dtype).eps

    def inner(self, left: Tensor, right: Tensor, double: bool = False) -> np.ndarray:
        def parts(block: Tensor, rows: slice) -> Tensor:
            part = block[rows].double() if double and self.exact else block[rows]
            return part.unflatten(0, (-1, PART)) if len(part) % PART == 0 else part[None]

        def slab(rows: slice) -> Tensor:
            first = parts(left, rows)
            second = first if right is left else parts(right, rows)
            products = torch.bmm(first.transpose(1, 2), second)
            return (products.double() if self.exact else products).sum(0)

        with full_precision():
            return self._sum(len(left), slab)

    def norms(self, block: Tensor, minus: Tensor | None = None, factors: np.ndarray | float = 1.0) -> np.ndarray:
        wide = torch.float64 if self.exact else block.dtype
        scale = self.put(np.atleast_1d(factors), wide)

        def slab(rows: slice) -> Tensor:
            part = block[rows].to(wide)
            return (part if minus is None else part - minus[rows].to(wide) * scale).square().sum(0)

        return np.sqrt(self._sum(len(block), slab))

    def row_squares(self, block: Tensor) -> np.ndarray:
        return self._sum(block.shape[1], lambda columns: block[:, columns].square().sum(1))

    def _sum(self, length: int, slab: Callable[[slice], Tensor]) -> np.ndarray:
        """The sum of `slab(rows)` over all slabs, in float64 or as well as that."""
        first, *rest = _slabs(length)
        total = slab(first).double() if self.exact else slab(first)
        lost = torch.zeros_like(total)
        for rows in rest:
            part = slab(rows)
            if self.exact:
                total += part
                continue
            summed = total + part
            virtual = summed - total
            lost += (total - (summed - virtual)) + (part - virtual)
            total = summed
        return self.get(total).astype(np.float64) + (0 if self.exact else self.get(lost).astype(np.float64))

    def product(self, left: Any, right: Any) -> Tensor:
        dtype = (left if isinstance(left, Tensor) else right).dtype
        with full_precision():
            return self.put(left, dtype) @ self.put(right, dtype)

    def add_product(self, total: Tensor, left: Tensor, right: Any, sign: float = 1.0) -> Tensor:
        with full_precision():
            return total.addmm_(left, self.put(right, total.dtype), alpha=sign)

    def add_columns(self, total: Tensor, place: slice, part: Tensor) -> Tensor:
        total[:, place] += part[:, : place.stop - place.start]
        return total

    def rotate(self, block: Tensor, rotation: np.ndarray) -> Tensor:
        matrix, columns = self.put(rotation, block.dtype), rotation.shape[1]
        with full_precision():
            for rows in _slabs(len(block)):
                block[rows, :columns] = block[rows] @ matrix
        return block if columns == block.shape[1] else block[:, :columns].clone()

    def normalise(self, block: Tensor, scale: np.ndarray, mean: np.ndarray, sums: np.ndarray) -> Tensor:
        factors, shift, totals = (self.put(part, block.dtype) for part in (scale, mean, sums))
        for rows in _slabs(len(block)):
            block[rows].sub_(torch.outer(shift[rows], totals)).mul_(factors[rows, None])
        return block

    def joined(self, blocks: Sequence[Tensor]) -> Tensor:
        return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks), dim=1)

    def stacked(self, blocks: Iterable[tuple[slice, Block]], rows: int, columns: int, dtype: np.dtype) -> Tensor:
        result = torch.empty(rows, columns, dtype=torch_dtype(dtype), device=self.device)
        for place, block in blocks:
            result[place] = block
        return result

    def columns(self, block: Tensor, place: slice) -> Tensor:
        return block[:, place].clone()

    def padded(self, block: Tensor, rows: int, columns: int) -> Tensor:
        missing = rows - block.shape[0], columns - block.shape[1]
        return torch.nn.functional.pad(block, (0, missing[1], 0, missing[0])) if any(missing) else block

    def store(self, rows: int, layout: Layout) -> TorchStore:
        room = torch.empty(rows, layout.size, dtype=torch_dtype(layout.dtype), device=self.device)
        return TorchStore(self, room, layout.places)

    def lend(self, block: Any) -> Tensor:
        return self.put(block)

    def tally(self, layout: Layout, ranges: Ranges) -> TorchTally:
        return TorchTally(self, layout)

    def largest(self, leaves: Leaves) -> float:
        found = [leaf.abs().max() for leaf in map(_whole, leaves) if leaf.numel()]
        return float(torch.stack(found).max()) if found else 0.0


@dataclass(frozen=True)
class TorchStore(Store):
    """One tensor for all rows, each written once, where it stays."""

    space: TorchSpace
    tensor: Tensor
    places: Sequence[slice]

    def write(self, first: int, leaves: Leaves, count: int) -> None:
        for place, leaf in zip(self.places, leaves, strict=True):
            self.tensor[first : first + count, place] = _whole(leaf)[:count]

    def room(self, first: int, count: int) -> Tensor:
        return self.tensor[first : first + count]

    def block(self, rows: slice) -> Tensor:
        return self.tensor[rows]

    def normalise(self, mean: np.ndarray, scale: np.ndarray) -> None:
        z, s = self.space.put(mean), self.space.put(scale)
        for rows in self.tensor.split(ROWS_AT_ONCE):
            rows.sub_(z).mul_(s)

    def clear(self) -> None:
        pass


class TorchTally(Tally):
    """On the device; what leaves it are two vectors of length P, at the end."""

    def __init__(self, space: TorchSpace, layout: Layout) -> None:
        self._space, self._count = space, 0
        self._mean, self._squares = ([space.zeros(1, size, layout.dtype)[0] for size in layout.sizes] for _ in range(2))

    def add(self, leaves: Leaves, count: int, unit: float) -> np.ndarray:
        total = self._count + count
        norms = torch.zeros(count, dtype=self._mean[0].dtype, device=self._space.device)
        for z, squares, leaf in zip(self._mean, self._squares, leaves, strict=True):
            rows = _whole(leaf)[:count] * unit
            norms += rows.square().sum(1)
            part = rows.mean(0)
            shift = part - z
            squares.add_((rows - part).square_().sum(0)).add_(shift.square(), alpha=self._count * (count / total))
            z.add_(shift, alpha=count / total)
        self._count = total
        return self._space.get(norms)

    def result(self) -> tuple[np.ndarray, np.ndarray, int]:
        return self._space.get(torch.cat(self._mean)), self._space.get(torch.cat(self._squares)), self._count


def torch_dtype(dtype: Any) -> torch.dtype:
    return dtype if isinstance(dtype, torch.dtype) else getattr(torch, np.dtype(dtype).name)


def _whole(leaf: Any) -> Tensor:
    """Rows of a leaf, also where each example has a tensor of its own."""
    return torch.cat(list(leaf)) if isinstance(leaf, (list, tuple)) else leaf


def _slabs(length: int) -> list[slice]:
    return [slice(start, min(start + SLAB, length)) for start in range(0, max(length, 1), SLAB)]
