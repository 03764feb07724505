"""What a wide residual network makes of images, for the losses of distillation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from reproduction.pretrained.wide_resnets import WideResNet


class Seen(NamedTuple):
    """The outputs of its groups of layers (none where they were not asked for), its pooled features, its logits."""

    groups: list[Tensor]
    features: Tensor
    logits: Tensor


def look(network: WideResNet, images: Tensor, maps: bool = False, bfloat16: bool = False) -> Seen:
    """What it makes of a batch (n, 3, 32, 32), in float32.

    Args:
        network: a wide residual network.
        images: the batch; channels last is faster.
        maps: give the three groups' outputs, before the last normalisation, too.
        bfloat16: compute the groups in it. Weights, pooled features, logits and losses stay float32.
    """
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        groups = [network.block1(network.conv1(images))]
        groups.append(network.block2(groups[-1]))
        groups.append(network.block3(groups[-1]))
        active = F.relu(network.bn1(groups[-1]))
    features = active.float().mean((2, 3))
    return Seen([group.float() for group in groups] if maps else [], features, network.fc(features))


def look_at_all(
    network: WideResNet, images: Tensor, batch: int = 250, into: Sequence[np.ndarray] = ()
) -> tuple[Tensor, Tensor]:
    """(features, logits) of all images, in eval mode; the groups' outputs are written `into` arrays, channels last.

    Args:
        network: a wide residual network.
        images: (n, 3, 32, 32).
        batch: how many at a time.
        into: nothing, or an array (n, height, width, channels) for each of the three groups.
    """
    network.eval()
    parts = []
    with torch.no_grad():
        for first in range(0, len(images), batch):
            part = images[first : first + batch].contiguous(memory_format=torch.channels_last)
            seen = look(network, part, bool(into))
            for array, maps in zip(into, seen.groups, strict=True):
                array[first : first + batch] = maps.movedim(1, -1).numpy()
            parts.append((seen.features, seen.logits))
    features, logits = zip(*parts, strict=True)
    return torch.cat(features), torch.cat(logits)
