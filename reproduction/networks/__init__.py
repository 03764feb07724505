"""Networks in flax nnx, one file a family. All take batches of images (n, height, width, channels)."""

from reproduction.networks.classifiers import MLP, LeNet5
from reproduction.networks.wide_resnet import WideResNet

__all__ = ["MLP", "LeNet5", "WideResNet"]
