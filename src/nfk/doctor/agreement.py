"""Computations that should agree: the same batch twice, an example among other neighbours, the two engines."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Float

from nfk.doctor.diagnosis import Finding
from nfk.doctor.patient import Patient, squares_of
from nfk.model import split_key
from nfk.spaces import normals

ROUNDING, WRONG = 1e3, 1e5  # relative differences in units of the precision's eps: rounding below, an error above


def _judged(patient: Patient, name: str, worst: float, well: str, ill: str, remedy: str) -> Finding:
    """A finding from the largest relative difference between two computations that should agree."""
    if worst <= ROUNDING * patient.eps:
        return Finding(
            name, "ok", f"{well} ({'to the last bit' if worst == 0 else f'relative difference {worst:.0e}'})"
        )
    return Finding(name, "error" if not worst <= WRONG * patient.eps else "warning", f"{ill} by {worst:.1%}", remedy)


def determinism(patient: Patient) -> Finding:
    """The same batch twice."""
    group = patient.groups[0]
    first, second = patient.rows(group), patient.rows(group)
    finite = np.isfinite(first).all(axis=(1, 2)) & np.isfinite(second).all(axis=(1, 2))
    worst = float(difference(first[finite], second[finite]).max(initial=0))
    return _judged(
        patient, "determinism", worst, "the same batch gave the same gradients twice",
        "the same batch gave other gradients the second time, apart",
        "the score draws random numbers or keeps a state: switch dropout off, and take noise from the key alone "
        "(nfk.vae passes one) or make it a constant",
    )  # fmt: skip


def batch_independence(patient: Patient) -> Finding:
    """Each example of a batch at another place, and among other neighbours; and the first one alone with itself."""
    group, count = patient.groups[0], len(patient.sample)
    here = patient.rows(group)
    moved = patient.rows(group[::-1])[::-1]
    others = [group[0], *((index + count // 2) % count for index in group[1:])]
    worst = max(
        difference(here, moved).max(),
        difference(here[:1], patient.rows(others)[:1]).max(),
        difference(here[:1], patient.rows([group[0]] * len(group))[-1:]).max(),
    )
    return _judged(
        patient, "batch independence", float(worst),
        "an example's gradient is the same at any place, with any neighbours",
        "the gradient of an example changes with its place or its neighbours,",
        "an example must have a score of its own: use running statistics in batch norm (eval mode), no callback that "
        "sees the whole batch, no state from call to call",
    )  # fmt: skip


def engine_agreement(patient: Patient) -> Finding:
    """Two examples: gradients of a batch, the Jacobian of each alone, JVPs and VJPs."""
    rows = patient.rows(patient.groups[0])[:2].reshape(2 * patient.outputs, -1)
    definition = np.concatenate([_jacobian(patient, index) for index in range(2)])
    worst = {"the Jacobian of one example alone": float(difference(definition, rows).max())}
    remedy = (
        "the score is not one function of (params, example): look for random numbers drawn while it is traced, "
        "for derivatives that are written by hand (custom_jvp, autograd.Function), and for custom batching rules"
    )
    try:
        worst |= _products(patient, rows.astype(np.float64))
    except Exception as error:  # a network without a forward mode raises what it likes
        if max(worst.values()) <= ROUNDING * patient.eps:
            first = str(error).strip().splitlines()[0]
            return Finding(
                "engine agreement", "warning", f"products are not possible here: {first}",
                "nothing to mend for the gradients engine: pass engine='gradients' to fit",
            )  # fmt: skip
    against = max(worst, key=lambda name: worst[name])
    return _judged(
        patient, "engine agreement", worst[against], f"{', '.join(worst)}: as the gradients of a batch",
        f"gradients of a batch and {against} differ", remedy,
    )  # fmt: skip


def _jacobian(patient: Patient, index: int) -> Float[np.ndarray, "outputs P"]:
    example = jax.tree.map(lambda leaf: leaf[index], patient.sample.batch)
    leaves = patient.model.network.jacobian(example, split_key(patient.key)[2])
    return np.concatenate([np.asarray(leaf).reshape(patient.outputs, -1) for leaf in leaves], axis=1)


def _products(patient: Patient, rows: Float[np.ndarray, "rows P"]) -> dict[str, float]:
    """J M against JVPs for two random columns, and J'W against VJPs."""
    example = jax.tree.map(lambda leaf: leaf[0], patient.sample.batch)
    if patient.model.network.why_no_products(example):
        return {}
    layout, batch = patient.model.layout, patient.sample.taken(range(2)).batch
    columns, weights = normals([1], 0, 2, layout.size, layout.dtype), normals([2], 0, len(rows), 2, layout.dtype)
    forward = patient.differentiator.forward_product(layout.leaves(patient.space.lend(columns)), batch)
    reverse = patient.differentiator.reverse_product(patient.space.lend(weights), batch)
    # Relative to lengths, not to the products, which may cancel.
    scale = np.linalg.norm(rows) * np.linalg.norm(columns) / np.sqrt(layout.size) or 1.0
    apart = np.linalg.norm(patient.space.get(forward) - rows @ columns.T.astype(np.float64)) / scale
    back = patient.space.get(reverse).astype(np.float64).T
    return {"JVPs": float(apart), "VJPs": float(difference((rows.T @ weights).T, back).max())}


def difference(first: np.ndarray, second: np.ndarray) -> Float[np.ndarray, " n"]:
    """|a - b| / |a| for every example, 0 where both are zero."""
    apart, length = np.sqrt(squares_of(first - second)), np.sqrt(squares_of(first))
    return np.divide(apart, length, out=np.where(apart > 0, np.inf, 0.0), where=length > 0)
