"""A process group of torch.distributed: one GPU for each process, or one core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nfk.distributed import ALONE, Processes, Replicas


@dataclass(frozen=True)
class TorchProcesses(Replicas):
    """Those of a group, by its collectives."""

    group: Any

    @classmethod
    def of(cls, group: Any) -> Processes:
        """The processes of a group; this one alone for a group of one, or for none."""
        if group is None:
            return ALONE
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "group= needs torch.distributed: call torch.distributed.init_process_group first, in every process"
            )
        rank = dist.get_rank(group)
        if rank < 0:
            raise ValueError("this process is not in the process group of group=: call nfk in its members alone")
        return cls(group) if dist.get_world_size(group) > 1 else ALONE

    @property
    def rank(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return dist.get_world_size(self.group)

    def sum(self, block: Tensor) -> Tensor:
        block = block.contiguous()
        dist.all_reduce(block, group=self.group)
        return block

    def stacked(self, rows: Tensor) -> Tensor:
        counts = self.everyone(len(rows))
        most, size = max(counts), len(counts)
        mine = torch.nn.functional.pad(rows, (0, 0, 0, most - len(rows))) if len(rows) < most else rows.contiguous()
        whole = rows.new_empty(size * most, *rows.shape[1:])
        parts = whole.split(most)
        dist.all_gather(list(parts), mine, group=self.group)
        del mine
        place = counts[0]
        for part, count in zip(parts[1:], counts[1:], strict=True):  # closer together, without a second copy of all
            if min(counts) < most:
                whole[place : place + count] = part[:count].clone()
            place += count
        return whole[:place]

    def everyone(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def of_first(self, value: Any) -> Any:
        found = [value]
        dist.broadcast_object_list(found, dist.get_global_rank(self.group, 0), group=self.group)
        return found[0]
