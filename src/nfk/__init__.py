"""Neural Fisher kernels: low-rank embeddings of data from any trained network, certified and fast."""

import importlib
from typing import Any

from nfk import distributed
from nfk.bounds import importance_weighted
from nfk.bridges import from_equinox, from_nnx
from nfk.dataset import DatasetVector, dataset_vector
from nfk.doctor import Diagnosis, Finding, doctor
from nfk.embedding import Embedding, load
from nfk.fitting import fit, plan
from nfk.kernel import gram
from nfk.merging import merge
from nfk.model import Model
from nfk.model.families import classifier, density, energy, gan, network, vae
from nfk.planning import Plan
from nfk.sampling import ChainWarning, langevin
from nfk.solve import ConvergenceWarning, Interrupted
from nfk.sources import from_dataset, from_loader, from_npy_shards, from_parquet

__all__ = [
    "ChainWarning", "ConvergenceWarning", "DatasetVector", "Diagnosis", "Embedding", "Finding", "Interrupted", "Model",
    "Plan", "classifier", "dataset_vector", "density", "distributed", "doctor", "energy", "fit", "from_dataset",
    "from_equinox", "from_loader", "from_nnx", "from_npy_shards", "from_parquet", "gan", "gram", "importance_weighted",
    "langevin", "load", "merge", "network", "plan", "vae",
]  # fmt: skip

__version__ = "0.7.0"

LATER = ("figures", "report", "sklearn", "tasks", "torch")


def __getattr__(name: str) -> Any:
    """Modules that need more than the core, or are needed less often, are imported when they are first used."""
    if name in LATER:
        return importlib.import_module(f"nfk.{name}")
    raise AttributeError(f"module 'nfk' has no attribute {name!r}")
