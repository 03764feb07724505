"""An embedding as tensors and facts for a file, and back: what of it is saved, under which names.

Version 0.3 wrote the same names, without `unit`, `factor` and `example_dtype`; "probe" is the score of the canary.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from nfk import identity, store
from nfk.identity import Kind
from nfk.model import Model
from nfk.operator.moments import Moments
from nfk.spaces import Space

if TYPE_CHECKING:
    from nfk.embedding import Embedding

REQUIRED = ("trace", "passes", "count", "outputs", "example_shapes", "engine", "probe", "key_impl", "model")


def write(embedding: Embedding, folder: Path) -> Path:
    """Of several processes, the first one writes; all of them wait for it."""
    tensors, facts = pack(embedding)
    embedding.space.processes.by_first(lambda: store.write(folder, tensors, facts))
    return folder


def pack(embedding: Embedding) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(tensors, facts) of an embedding, as `store.write` takes them."""
    moments, key = embedding.moments, embedding.score_key
    tensors = {
        "right": embedding.space.get(embedding.right), "left": embedding.left,
        "singular_values": embedding.singular_values, "residuals": embedding.residuals, "mean": moments.mean,
        "fisher": moments.spread, "scale": moments.scale, "key": np.asarray(jax.random.key_data(key)),
    }  # fmt: skip
    facts = {
        "trace": embedding.trace, "passes": embedding.passes, "count": moments.count, "unit": moments.unit,
        "factor": moments.factor, "outputs": embedding.outputs, "example_shapes": embedding.kind.to_json(),
        "example_dtype": embedding.kind.dtype, "engine": embedding.engine, "probe": embedding.canary,
        "key_impl": str(jax.random.key_impl(key)), "model": identity.describe(embedding.model),
    }  # fmt: skip
    return tensors, facts


def read(folder: Path, model: Model, space: Space) -> dict[str, Any]:
    """The fields of the embedding that was saved, checked to belong to this model."""
    tensors, facts = store.read(folder, REQUIRED)
    identity.check(facts["model"], model, folder)
    kind = Kind.from_json(facts["example_shapes"], facts.get("example_dtype"))
    if kind.dtype is not None:
        identity.check_canary(model, kind.blank(), facts["probe"])
    unit, factor = facts.get("unit", 1.0), facts.get("factor", 1.0)
    return {
        "moments": Moments(tensors["mean"], tensors["fisher"], tensors["scale"], facts["count"], unit, factor),
        "right": space.put(tensors["right"]), "left": tensors["left"], "residuals": tensors["residuals"],
        "singular_values": tensors["singular_values"], "trace": facts["trace"], "passes": facts["passes"],
        "score_key": jax.random.wrap_key_data(jnp.asarray(tensors["key"]), impl=facts["key_impl"]),
        "kind": kind, "outputs": facts["outputs"], "canary": facts["probe"], "engine": facts["engine"],
        "space": space,
    }  # fmt: skip
