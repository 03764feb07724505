"""A process group of torch.distributed: one GPU for each process, or one core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class TorchProcesses:
    """`nfk.spaces.processes.Processes`, by the collectives of a group."""

    group: Any

    @classmethod
    def of(cls, group: Any) -> TorchProcesses | None:
        """The processes of a group; None for a group of one, or for none."""
        if group is None:
            return None
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "group= needs torch.distributed: call torch.distributed.init_process_group first, in every process"
            )
        rank = dist.get_rank(group)
        if rank < 0:
            raise ValueError("this process is not in the process group of group=: call nfk in its members alone")
        return cls(group) if dist.get_world_size(group) > 1 else None

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)

    def sum(self, block: Tensor) -> Tensor:
        block = block.contiguous()
        dist.all_reduce(block, group=self.group)
        return block

    def stacked(self, rows: Tensor) -> Tensor:
        counts = self.everyone(len(rows))
        mine = torch.zeros(max(counts), *rows.shape[1:], dtype=rows.dtype, device=rows.device)
        mine[: len(rows)] = rows
        parts = [torch.empty_like(mine) for _ in counts]
        dist.all_gather(parts, mine, group=self.group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def everyone(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found
