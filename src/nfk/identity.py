"""Whether a saved basis and a model belong together: fingerprints of the parameters, the function and the examples.

Three things must be the same for a basis to mean the same: the parameters and how they are read (`describe`), the
function that reads them (`canary`), and the shapes of the examples (`Kind`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from nfk.model.keys import seeded

if TYPE_CHECKING:
    from pathlib import Path

    from nfk.model import Model
    from nfk.model.interface import Batch
    from nfk.store import Facts
    from nfk.stream import Examples

Shape = tuple[int, ...]
Shapes = dict[str, Shape]  # by path


def describe(model: Model) -> Facts:
    """The parameters and how they are read, as JSON can hold it: a hash of each array, and the choices of the model."""
    layout = model.layout
    leaves = jax.tree.leaves(model.params)
    return {
        "family": model.family,
        "centred": model.centred,
        "fisher": model.fisher,
        "own_noise": model.network.noise == "own",
        "paths": list(layout.paths),
        "chosen": [path for path, chosen in zip(layout.paths, layout.chosen, strict=True) if chosen],
        "params": {path: _hash_array(leaf) for path, leaf in zip(layout.paths, leaves, strict=True)},
    }


def check(saved: Facts, model: Model, folder: str | Path) -> None:
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


def _check_complete(saved: Any, mine: Facts, folder: str | Path) -> None:
    """Files of version 0.3 have no checksum: a damaged one may describe half a model."""
    whole = isinstance(saved, dict) and saved.keys() >= mine.keys() and isinstance(saved["params"], dict)
    if not whole:
        raise ValueError(
            f"{folder} is damaged (truncated or altered): its description of the model is not whole; save the "
            "embedding again"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def _hash_array(leaf: Any) -> str:
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    content = f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


@dataclass(frozen=True)
class Kind:
    """The shapes of one example: by path for a pytree, under "" for a plain array, whose type is known too.

    (Not in what version 0.3 saved.)
    """

    shapes: Shapes
    dtype: str | None = None

    @classmethod
    def of(cls, examples: Examples) -> Kind:
        flat = jax.tree_util.tree_flatten_with_path(examples.slice(0, 1))[0]
        leaves = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in flat}
        plain = list(leaves) == [""]
        return cls({path: leaf.shape[1:] for path, leaf in leaves.items()}, str(leaves[""].dtype) if plain else None)

    @property
    def plain(self) -> Shape | Shapes:
        """The shape of a plain example, or those of a pytree by path: for people."""
        return self.shapes[""] if list(self.shapes) == [""] else self.shapes

    def to_json(self) -> dict[str, list[int]]:
        return {path: list(shape) for path, shape in self.shapes.items()}

    @classmethod
    def from_json(cls, shapes: Any, dtype: str | None) -> Kind:
        """The inverse of `to_json`; version 0.3 wrote the shape of a plain example without a path."""
        shapes = shapes if isinstance(shapes, dict) else {"": shapes}
        return cls({path: tuple(shape) for path, shape in shapes.items()}, dtype)

    def blank(self) -> np.ndarray | None:
        """An array of one such example, where its type is known."""
        return None if self.dtype is None else np.zeros((1, *self.shapes[""]), jnp.dtype(self.dtype))

    def check(self, examples: Examples) -> None:
        """Nothing where the examples have these shapes; else an error that says how to make them so."""
        found, name = Kind.of(examples), examples.name
        if found.shapes == self.shapes:
            return
        remedy = f"reshape {name} so that its first axis runs over the examples"
        for path, shape in self.shapes.items():
            other = found.shapes.get(path)
            if other is not None and other != shape and len(other) == len(shape):
                axes = [i for i in range(len(shape)) if shape[i] != other[i]]
                sizes = ", ".join(f"axis {i + 1} to {shape[i]}" for i in axes)
                remedy = f"pad or cut {sizes} in {name}{path}"
        raise ValueError(
            f"{name} holds examples of shape {found.plain}, but this embedding was fitted on {self.plain}: {remedy}"
        )


def canary(model: Model, examples: Batch) -> list[float]:
    """The score of a fixed pseudo-random example like the first of `examples`: a fingerprint of the function."""
    rng = np.random.default_rng(0)

    def draw(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)[0]
        if np.issubdtype(leaf.dtype, np.integer) or leaf.dtype == bool:
            return rng.integers(0, 2, leaf.shape).astype(leaf.dtype)  # 0 and 1 are tokens of every vocabulary
        return rng.standard_normal(leaf.shape).astype(leaf.dtype)

    example = jax.tree.map(draw, examples)
    return np.asarray(model.network.evaluate(example, seeded(0)), np.float64).reshape(-1).tolist()


def check_canary(model: Model, examples: Batch, saved: list[float]) -> None:
    """A loaded basis meets the function it was fitted with: equal parameters do not make an equal network."""
    now = canary(model, examples)
    if not np.allclose(now, saved, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ValueError(
            "this embedding was fitted with another network: with the same parameters, the score of a fixed "
            f"example was {saved[0]:.6g} and is {now[0]:.6g} now; pass the function it was fitted with"
        )


def check_samples(samples: Examples, examples: Examples) -> None:
    """The generator's examples look like the data's, or the error says how they differ."""
    drawn, given = samples.slice(0, 2), examples.slice(0, 1)
    if jax.tree.structure(drawn) != jax.tree.structure(given):
        raise ValueError("sample(key, n) returned another kind of pytree than X: return examples like those of X")
    for path, (made, real) in _pairs(drawn, given):
        if np.shape(made)[1:] != np.shape(real)[1:] or len(made) != 2:
            raise ValueError(
                f"sample(key, n) returned examples of shape {np.shape(made)[1:]}{path}, but those of X have shape "
                f"{np.shape(real)[1:]}: make it return n examples shaped like X[0]"
            )


def _pairs(first: Any, second: Any) -> list:
    left = jax.tree_util.tree_flatten_with_path(first)[0]
    return [
        (f" at {jax.tree_util.keystr(path)}" if path else "", (a, b))
        for (path, a), b in zip(left, jax.tree.leaves(second), strict=True)
    ]
