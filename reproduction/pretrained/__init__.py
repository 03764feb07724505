"""Networks that others trained, rebuilt in PyTorch; their weights are found or fetched, and never part of this project.

from reproduction.pretrained import load
critic = load("cifar10-dcgan-critic")
embedding = nfk.fit(critic.model(), critic.inputs(images), rank=64)
"""

from reproduction.pretrained.files import WeightsError
from reproduction.pretrained.networks import NETWORKS, Network, Pretrained, load, untrained

__all__ = ["NETWORKS", "Network", "Pretrained", "WeightsError", "load", "untrained"]
