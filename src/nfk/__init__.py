"""Neural Fisher kernels: low-rank embeddings of data from any trained network, certified and fast."""

from nfk.embedding import Embedding, load
from nfk.fitting import fit, plan
from nfk.kernel import gram
from nfk.models import Model, classifier, density, energy, gan, network, vae
from nfk.planning import Plan
from nfk.svd import ConvergenceWarning, Interrupted

__all__ = [
    "ConvergenceWarning", "Embedding", "Interrupted", "Model", "Plan", "classifier", "density", "energy", "fit", "gan",
    "gram", "load", "network", "plan", "vae",
]  # fmt: skip

__version__ = "0.1.0"
