"""What a wide residual network makes of images, for the losses of distillation."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from reproduction.pretrained.wide_resnets import WideResNet


class Seen(NamedTuple):
    """The outputs of its groups of layers (none where they were not asked for), its pooled features, its logits."""

    groups: list[Tensor]
    features: Tensor
    logits: Tensor


def look(network: WideResNet, images: Tensor, maps: bool = False) -> Seen:
    """Of a batch (n, 3, 32, 32); `maps` gives the three groups' outputs, before the last normalisation, too."""
    groups = [network.block1(network.conv1(images))]
    groups.append(network.block2(groups[-1]))
    groups.append(network.block3(groups[-1]))
    features = F.relu(network.bn1(groups[-1])).mean((2, 3))
    return Seen(groups if maps else [], features, network.fc(features))


def look_at_all(network: WideResNet, images: Tensor, batch: int = 250) -> tuple[Tensor, Tensor]:
    """(features, logits) of all images, in eval mode."""
    network.eval()
    with torch.no_grad():
        parts = [look(network, part) for part in images.split(batch)]
    return torch.cat([seen.features for seen in parts]), torch.cat([seen.logits for seen in parts])
