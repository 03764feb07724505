"""What an embedding is good for. Arrays in, a named result with its uncertainty out; where features came from, no
function here knows, so every baseline goes through the same code."""

from nfk.tasks.cka import alignment
from nfk.tasks.distillation_losses import embedding_loss, embedding_targets
from nfk.tasks.estimates import Estimate, Repeated, average, proportion, repeated
from nfk.tasks.inversion import Inversion, invert, sharpness
from nfk.tasks.labelling import FewLabels, few_labels
from nfk.tasks.linear import LinearClassifier, fit_linear
from nfk.tasks.neighbours import Neighbours, Retrieval, nearest, retrieval
from nfk.tasks.outliers import Detection, detection
from nfk.tasks.planes import Plane, plane
from nfk.tasks.probing import Probe, kernel_features, probe, probe_by_rank
from nfk.tasks.ridge import Ridge, feature_ridge, kernel_ridge, one_hot
from nfk.tasks.spectra import Spectrum, by_layer, kernel_spectrum, mean_share, spectrum

__all__ = [
    "Detection", "Estimate", "FewLabels", "Inversion", "LinearClassifier", "Neighbours", "Plane", "Probe", "Repeated",
    "Retrieval", "Ridge", "Spectrum", "alignment", "average", "by_layer", "detection", "embedding_loss",
    "embedding_targets", "feature_ridge", "few_labels", "fit_linear", "invert", "kernel_features", "kernel_ridge",
    "kernel_spectrum", "mean_share", "nearest", "one_hot", "plane", "probe", "probe_by_rank", "proportion", "repeated",
    "retrieval", "sharpness", "spectrum",
]  # fmt: skip
