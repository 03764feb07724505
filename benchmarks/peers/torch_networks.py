"""The networks in PyTorch, in eval mode, with the tensors of a job; and their scores."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from benchmarks.peers.job import Job


class LeNet5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convnet = nn.Sequential(OrderedDict(
            c1=nn.Conv2d(1, 6, 5), r1=nn.ReLU(), s2=nn.MaxPool2d(2),
            c3=nn.Conv2d(6, 16, 5), r3=nn.ReLU(), s4=nn.MaxPool2d(2),
            c5=nn.Conv2d(16, 120, 5), r5=nn.ReLU(), flat=nn.Flatten(),
        ))  # fmt: skip
        self.fc = nn.Sequential(OrderedDict(f6=nn.Linear(120, 84), r6=nn.ReLU(), f7=nn.Linear(84, 10)))

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.convnet(images))


class Critic(nn.Module):
    """3x3 convolutions of stride 1 and 4x4 ones of stride 2 in turn, LeakyReLU, a linear head."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 64, 128, 128, 128)) -> None:
        super().__init__()
        channels = zip((3, *widths), widths, strict=False)
        layers = [nn.Conv2d(a, b, 3 + i % 2, stride=1 + i % 2, padding=1) for i, (a, b) in enumerate(channels)]
        self.features = nn.Sequential(*(part for conv in layers for part in (conv, nn.LeakyReLU(0.2))))
        self.flatten = nn.Flatten()
        self.head = nn.Linear(widths[-1] * (32 // 2 ** (len(widths) // 2)) ** 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.flatten(self.features(images)))


class WideBlock(nn.Module):
    """BN-ReLU-conv-BN-ReLU-conv; where the width changes, a 1x1 convolution of the activated input is the shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.convShortcut = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        active = functional.relu(self.bn1(images))
        shortcut = images if self.convShortcut is None else self.convShortcut(active)
        return shortcut + self.conv2(functional.relu(self.bn2(self.conv1(active))))


class WideGroup(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(WideBlock(inputs, outputs, stride), WideBlock(outputs, outputs, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images)


class WideResNet(nn.Module):
    """WRN-16-2."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.block1, self.block2, self.block3 = WideGroup(16, 32, 1), WideGroup(32, 64, 2), WideGroup(64, 128, 2)
        self.bn1, self.fc = nn.BatchNorm2d(128), nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        states = self.block3(self.block2(self.block1(self.conv1(images))))
        return self.fc(functional.relu(self.bn1(states)).mean((2, 3)))


class BasicBlock(nn.Module):
    """conv-BN-ReLU-conv-BN, added to the input or its 1x1 convolution, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = None
        if inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        shortcut = images if self.downsample is None else self.downsample(images)
        return functional.relu(shortcut + self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(images))))))


class ResNet18(nn.Module):
    """ResNet-18 for 32 x 32 images: a 3x3 stem without pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        groups = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.layers = nn.Sequential(*(
            nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1))
            for inputs, outputs, stride in groups
        ))  # fmt: skip
        self.fc = nn.Linear(512, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.layers(functional.relu(self.bn1(self.conv1(images)))).mean((2, 3)))


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, states: Tensor) -> Tensor:
        n, length, width = states.shape
        q, k, v = self.qkv(self.norm1(states)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        later = torch.ones(length, length, dtype=torch.bool, device=states.device).triu(1)
        attended = torch.softmax(weights.masked_fill(later, -1e9), -1) @ v
        states = states + self.out(attended.transpose(1, 2).reshape(n, length, width))
        return states + self.down(functional.gelu(self.up(self.norm2(states)), approximate="tanh"))


class Transformer(nn.Module):
    """log p(x_1 ... x_T | x_0) of a causal transformer over characters."""

    def __init__(self, vocabulary: int = 65, length: int = 64, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, 4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        seen = tokens[:, :-1]
        states = self.token(seen) + self.place.weight[: seen.shape[1]]
        log_probs = torch.log_softmax(self.head(self.norm(self.blocks(states))), -1)
        return log_probs.gather(-1, tokens[:, 1:, None])[..., 0].sum(-1)


NETWORKS = {
    "lenet5": LeNet5, "critic": Critic, "wrn-16-2": WideResNet, "resnet-18": ResNet18, "transformer": Transformer,
}  # fmt: skip


def module(job: Job) -> nn.Module:
    """The network with the weights of the job, in eval mode."""
    network = NETWORKS[job.settings.network]()
    state = {name: torch.from_numpy(np.array(tensor)) for name, tensor in (job.weights | job.buffers).items()}
    missing, unexpected = network.load_state_dict(state, strict=False)
    wrong = [name for name in missing if not name.endswith("num_batches_tracked")] + unexpected
    if wrong:
        raise ValueError(f"the job's tensors are not those of {job.settings.network}: {wrong[0]!r} does not fit")
    return network.eval()


def examples(job: Job, name: str = "examples") -> Tensor:
    array = getattr(job, name)
    return torch.from_numpy(array if array.dtype == np.float32 else array.astype(np.int64))


def scores(family: str, outputs: Tensor) -> Tensor:
    """One number an example from what the network returned for a batch."""
    if family == "classifier":
        return outputs.logsumexp(-1)
    return outputs.squeeze(-1) if family == "gan" else outputs


def single_score(network: nn.Module, family: str) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """(params, example) -> score of one example, for `torch.func`."""
    buffers = dict(network.named_buffers())

    def score(params: dict[str, Tensor], example: Tensor) -> Tensor:
        outputs: Any = functional_call(network, (params, buffers), (example[None],))
        return scores(family, outputs)[0]

    return score
