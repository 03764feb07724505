"""Small symmetric matrices: their eigenvectors, the same in every process.

Where eigenvalues lie close together, rounding decides which eigenvectors come out, and rounding differs between
processes even on one machine: it depends on where in memory a matrix stands. Each process would turn its part of a
block in a way of its own. So all of them take those of the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Float

from nfk import distributed


def eigh(matrix: Float[np.ndarray, "n n"], **options: Any) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "n m"]]:
    """Eigenvalues, rising, and eigenvectors, as `scipy.linalg.eigh` gives them; `options` are its own."""
    values, vectors = scipy.linalg.eigh(matrix, **options)
    return distributed.current().of_first((values, vectors))
