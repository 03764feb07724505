"""What a student is taught, beside the labels: the losses of distillation, and the teacher's embedding as a target.

Every function takes arrays of one batch and returns a scalar; nothing here knows a network or trains one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from nfk.tasks.checks import as_features, one_of, whole

Target = Literal["scaled", "whitened"]
Distance = Literal["squared", "cosine"]
DISTANCES = ("squared", "cosine")


def embedding_targets(
    embeddings: Any, singular_values: Any, rank: int | None = None, kind: Target = "scaled"
) -> np.ndarray:
    """The first `rank` numbers of the teacher's embedding e(x) as a target whose mean square is one.

    "scaled": e(x) over one number, so that leading components weigh more, as in the kernel. "whitened": every component
    over its own singular value (a row of Q in the paper's words), so that all weigh the same.

    Args:
        embeddings: the teacher's embedding of the student's examples, (n, k).
        singular_values: those of the teacher's fit.
        rank: how many components to teach; all by default.
        kind: "scaled" or "whitened".
    """
    E = as_features("embeddings", embeddings)
    values = np.asarray(singular_values, E.dtype)
    remedy = "the teacher's embedding has no more components; fit it with a larger rank"
    rank = whole("rank", E.shape[1] if rank is None else rank, 1, min(E.shape[1], len(values)), remedy)
    E, values = E[:, :rank], values[:rank]
    if one_of("kind", kind, ("scaled", "whitened")) == "whitened":
        if not (values > 0).all():
            raise ValueError(
                f"singular value {int(np.argmin(values > 0))} is zero: choose a rank below it, or 'scaled'"
            )
        E = E / values
    scale = np.sqrt(np.mean(np.square(E, dtype=np.float64))) or 1.0
    return (E / scale).astype(E.dtype)


def embedding_loss(predicted: jax.Array, target: jax.Array, distance: Distance = "squared") -> jax.Array:
    """NFKD: the squared distance, or 1 - cosine, of the student's k numbers and the teacher's; mean over the batch.

    Args:
        predicted: the student's numbers for a batch, (n, k).
        target: the teacher's for the same examples, (n, k).
        distance: "squared" or "cosine".
    """
    if one_of("distance", distance, DISTANCES) == "squared":
        return jnp.mean(jnp.sum((predicted - target) ** 2, axis=1))
    return jnp.mean(1 - jnp.sum(_unit(predicted, 1) * _unit(target, 1), axis=1))


def _unit(vectors: jax.Array, axis: int) -> jax.Array:
    """At length one along an axis; zero stays zero, with a finite gradient (a ReLU's map may be zero everywhere)."""
    return vectors * jax.lax.rsqrt(jnp.maximum(jnp.sum(vectors**2, axis=axis, keepdims=True), 1e-12))


def softened(student: jax.Array, teacher: jax.Array, temperature: float = 4.0) -> jax.Array:
    """KD: T^2 KL(softmax(teacher / T) || softmax(student / T)), the mean over the batch (Hinton et al., 2015)."""
    log_teacher = jax.nn.log_softmax(teacher / temperature)
    difference = log_teacher - jax.nn.log_softmax(student / temperature)
    return temperature**2 * jnp.mean(jnp.sum(jnp.exp(log_teacher) * difference, axis=-1))


def hint(predicted: jax.Array, teacher: jax.Array) -> jax.Array:
    """FitNet: mean squared error between a map of the teacher and what a regressor makes of the student's."""
    return jnp.mean((predicted - teacher) ** 2)


def attention(student: Sequence[jax.Array], teacher: Sequence[jax.Array]) -> jax.Array:
    """AT: where each group of layers looks, summed over groups (Zagoruyko and Komodakis, 2017).

    a(F) = mean over channels of F^2, flattened, at length one; mean of (a_s - a_t)^2 over the batch and all places.
    """

    def look(maps: jax.Array) -> jax.Array:
        return _unit(jnp.mean(maps**2, axis=-1).reshape(len(maps), -1), 1)

    return sum((jnp.mean((look(s) - look(t)) ** 2) for s, t in zip(student, teacher, strict=True)), jnp.zeros(()))


def selectivity(student: Sequence[jax.Array], teacher: Sequence[jax.Array]) -> jax.Array:
    """NST: MMD between the channels of student and teacher, each map at length one, with the kernel (a . b)^2.

    mean k(t, t) + mean k(s, s) - 2 mean k(s, t), summed over groups (Huang and Wang, 2017).
    """

    def channels(maps: jax.Array) -> jax.Array:
        return _unit(maps.reshape(len(maps), -1, maps.shape[-1]), 1)

    def mean_kernel(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.mean(jnp.einsum("npc,npd->ncd", a, b) ** 2)

    total = jnp.zeros(())
    for s, t in zip(student, teacher, strict=True):
        s, t = channels(s), channels(t)
        total += mean_kernel(t, t) + mean_kernel(s, s) - 2 * mean_kernel(s, t)
    return total


def variational(
    predicted: Sequence[jax.Array], teacher: Sequence[jax.Array], raw_variances: Sequence[jax.Array]
) -> jax.Array:
    """VID: a bound on the information of the teacher's maps in the student's (Ahn et al., 2019), summed over groups.

    mean of ((mu - t)^2 / var + log var) / 2, with a variance softplus(raw) + 1e-5 for every channel.
    """
    total = jnp.zeros(())
    for mu, t, raw in zip(predicted, teacher, raw_variances, strict=True):
        variance = jax.nn.softplus(raw) + 1e-5
        total += jnp.mean((mu - t) ** 2 / variance + jnp.log(variance)) / 2
    return total


def check_same_examples(student: Any, teacher: Any) -> None:
    """The teacher's signals belong to the student's examples: compare what both say of them, row by row."""
    if len(student) != len(teacher):
        raise ValueError(
            f"the student has {len(student):,} examples and the teacher's signals are for {len(teacher):,}: compute "
            "them on the student's examples"
        )
    same = np.asarray(student) == np.asarray(teacher)
    if not same.all():
        raise ValueError(
            f"student and teacher disagree on example {int(np.argmin(same))} (and {int((~same).sum()) - 1} others): "
            "the teacher's signals were computed on other examples, or in another order"
        )
