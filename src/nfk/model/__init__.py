"""Trained networks read as densities: what their scores mean, and how they are differentiated."""

from nfk.model.interface import Batch, Batching, Cost, Differentiator, Example, Network, NotAScore
from nfk.model.model import Model, require_model, split_key

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
    "split_key",
]
