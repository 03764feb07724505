"""A ResNet-18 as torchvision has it: embed images, and look at how much of the kernel 16 numbers hold.

    python examples/classifier_torchvision_style.py [--smoke]

With torchvision: `module = torchvision.models.resnet18(weights="DEFAULT")`, and nothing else changes.
"""

import sys

import numpy as np
import torch
from torch import nn

import nfk
import nfk.torch


class Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.relu, self.shortcut = nn.ReLU(inplace=True), nn.Identity()
        if stride > 1 or inputs != width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


def resnet18(width: int = 64, classes: int = 10) -> nn.Module:
    layers, inputs = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)], width
    for factor, stride in ((1, 1), (2, 2), (4, 2), (8, 2)):
        layers += [Block(inputs, factor * width, stride), Block(factor * width, factor * width, 1)]
        inputs = factor * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def main(smoke: bool) -> None:
    torch.manual_seed(0)
    module = resnet18(width=4 if smoke else 64)
    images = np.random.default_rng(0).standard_normal((12 if smoke else 64, 3, 32, 32), dtype=np.float32)

    model = nfk.torch.classifier(module.eval())
    embedding = nfk.fit(model, images, rank=4 if smoke else 16)
    features = embedding(images)

    print(embedding.plan)
    print(
        f"{features.shape[1]} numbers for each image hold {embedding.explained_variance_ratio.sum():.0%} of the kernel"
    )


if __name__ == "__main__":
    main("--smoke" in sys.argv)
