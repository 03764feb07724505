"""Whether a saved basis and a model belong together: fingerprints of the parameters, the function and the examples.

Three things must be the same for a basis to mean the same: the parameters and how they are read (`describe`), the
function that reads them (`canary`), and the shapes of the examples (`example_shapes`).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from nfk.models import Model
    from nfk.stream import Examples

Shape = tuple[int, ...]
Shapes = Shape | dict[str, Shape]


def describe(model: Model) -> dict[str, Any]:
    """The parameters and how they are read, as JSON can hold it: a hash of each array, and the choices of the model."""
    layout = model.layout
    leaves = jax.tree.leaves(model.params)
    return {
        "family": model.family,
        "centred": model.centred,
        "fisher": model.fisher,
        "own_noise": model.own_noise,
        "paths": list(layout.paths),
        "chosen": [path for path, chosen in zip(layout.paths, layout.chosen, strict=True) if chosen],
        "params": {path: _hash_array(leaf) for path, leaf in zip(layout.paths, leaves, strict=True)},
    }


def check(saved: dict[str, Any], model: Model, folder: str | Path) -> None:
    """Nothing where `saved`, from `folder`, describes this model; else an error that names the first difference."""
    mine = describe(model)
    _check_complete(saved, mine, folder)
    for what in ("family", "centred", "fisher", "own_noise", "paths", "chosen"):
        if saved[what] != mine[what]:
            raise ValueError(
                f"{folder} was fitted with another model: its {what} is {_short(saved[what])}, this one's is "
                f"{_short(mine[what])}; pass the model it was fitted with"
            )
    for path, fingerprint in mine["params"].items():
        if saved["params"].get(path) != fingerprint:
            raise ValueError(
                f"{folder} was fitted with another network: params[{path!r}] has other values; load the weights it was "
                "fitted with, or fit again"
            )


def _check_complete(saved: Any, mine: dict[str, Any], folder: str | Path) -> None:
    """Files of version 0.3 have no checksum: a damaged one may describe half a model."""
    whole = isinstance(saved, dict) and saved.keys() >= mine.keys() and isinstance(saved["params"], dict)
    if not whole:
        raise ValueError(
            f"{folder} is damaged (truncated or altered): its description of the model is not whole; save the "
            "embedding again"
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def _hash_array(leaf: Any) -> str:
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    content = f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


def canary(model: Model, examples: Examples) -> list[float]:
    """The score of a fixed pseudo-random example: a fingerprint of the function beside that of its parameters."""
    rng = np.random.default_rng(0)

    def draw(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)[0]
        if np.issubdtype(leaf.dtype, np.integer) or leaf.dtype == bool:
            return rng.integers(0, 2, leaf.shape).astype(leaf.dtype)  # 0 and 1 are tokens of every vocabulary
        return rng.standard_normal(leaf.shape).astype(leaf.dtype)

    example = jax.tree.map(draw, examples.slice(0, 1))
    return np.asarray(model.evaluate(example, jax.random.key(0)), np.float64).reshape(-1).tolist()


def example_shapes(examples: Examples) -> Shapes:
    """The shape of one example, as a tuple, or a dict from path to tuple for a pytree."""
    flat = jax.tree_util.tree_flatten_with_path(examples.slice(0, 1))[0]
    shapes = {jax.tree_util.keystr(path): tuple(np.shape(leaf)[1:]) for path, leaf in flat}
    return shapes[""] if list(shapes) == [""] else shapes


def shapes_to_json(shapes: Shapes) -> list[int] | dict[str, list[int]]:
    return {key: list(shape) for key, shape in shapes.items()} if isinstance(shapes, dict) else list(shapes)


def shapes_from_json(shapes: list[int] | dict[str, list[int]]) -> Shapes:
    """The inverse of `shapes_to_json`."""
    return {key: tuple(shape) for key, shape in shapes.items()} if isinstance(shapes, dict) else tuple(shapes)
