"""Do two networks see the same data alike? The alignment (CKA) of their kernels.

CKA = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)), with the unbiased estimator of HSIC (Song et al., 2012): the plain one
is near one for any two kernels once features outnumber examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nfk.tasks.checks import as_features, same_length
from nfk.tasks.estimates import NORMAL, Estimate

BLOCKS = 20


def alignment(first: Any, second: Any) -> Estimate:
    """CKA of two embeddings of the same examples, (n, k_1) and (n, k_2); 1 for equal kernels, 0 for unrelated ones.

    Blind to rotation and scale. The interval is the jackknife's over 20 groups of examples. 20 n k_1 k_2 operations;
    kernels are never formed. For a kernel matrix K, pass `kernel_features(K)[0]`.

    Args:
        first: an embedding of n examples, (n, k_1).
        second: another embedding of the same examples, (n, k_2).
    """
    A, B = (as_features(name, part).astype(np.float64) for name, part in (("first", first), ("second", second)))
    same_length("second", B, "first", len(A))
    if len(A) < 2 * BLOCKS:
        raise ValueError(f"first holds {len(A)} examples: an alignment with an interval needs {2 * BLOCKS} at least")
    value = _cka(A, B)
    group = np.random.default_rng(0).permutation(len(A)) % BLOCKS
    without = np.array([_cka(A[group != g], B[group != g]) for g in range(BLOCKS)])
    half = NORMAL * float(np.sqrt((BLOCKS - 1) * without.var()))
    return Estimate(value, value - half, value + half)


def _cka(A: np.ndarray, B: np.ndarray) -> float:
    scale = _hsic(A, A) * _hsic(B, B)
    return float(_hsic(A, B) / np.sqrt(scale)) if scale > 0 else 0.0


def _hsic(A: np.ndarray, B: np.ndarray) -> float:
    """With K = A A' and L = B B' without their diagonals, n = rows:

    [tr(K L) + (1'K1)(1'L1) / ((n-1)(n-2)) - 2 (1'K L1) / (n-2)] / (n (n-3))
    """
    n = len(A)
    a, b = np.sum(A**2, axis=1), np.sum(B**2, axis=1)
    K1, L1 = A @ A.sum(axis=0) - a, B @ B.sum(axis=0) - b
    trace = np.sum((A.T @ B) ** 2) - a @ b
    return float((trace + K1.sum() * L1.sum() / ((n - 1) * (n - 2)) - 2 * (K1 @ L1) / (n - 2)) / (n * (n - 3)))
