"""Trained networks read as densities: what their scores mean, and how they are differentiated."""

from nfk.model.interface import Batch, Batching, Cost, Differentiator, Example, Network, NotAScore
from nfk.model.keys import seeded, split_key
from nfk.model.model import Model, require_model

__all__ = [
    "Batch",
    "Batching",
    "Cost",
    "Differentiator",
    "Example",
    "Model",
    "Network",
    "NotAScore",
    "require_model",
    "seeded",
    "split_key",
]
