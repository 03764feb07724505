"""The parameters that take part in the kernel, seen as one vector of length P."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

KEY = "random key"
PathFilter = str | Sequence[str] | Callable[[str], bool] | None


@dataclass(frozen=True)
class Layout:
    """Where each chosen parameter array stands in the vector of length `size`.

    The chosen leaves are differentiated; the others enter the score as constants.
    """

    treedef: Any
    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    chosen: tuple[bool, ...]

    @classmethod
    def of(cls, params: Any, parameters: PathFilter = None) -> Layout:
        """Read the layout of `params`; `parameters` keeps the paths that match (a glob, several, or a function)."""
        flat, treedef = jax.tree_util.tree_flatten_with_path(params)
        paths = tuple(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in flat)
        leaves = [leaf for _, leaf in flat]
        keep = _as_predicate(parameters)
        layout = cls(
            treedef=treedef,
            paths=paths,
            shapes=tuple(np.shape(leaf) for leaf in leaves),
            dtypes=tuple(_dtype_of(leaf, path) for leaf, path in zip(leaves, paths, strict=True)),
            chosen=tuple(bool(keep(path)) for path in paths),
        )
        layout._check(parameters)
        return layout

    def _check(self, parameters: PathFilter) -> None:
        if not self.paths:
            raise ValueError("params holds no arrays: pass the pytree of trained parameters")
        if not any(self.chosen):
            raise ValueError(
                f"parameters={parameters!r} matches none of the {len(self.paths)} parameter paths "
                f"({', '.join(self.paths[:5])}, ...): change the pattern"
            )
        for path, dtype, chosen in zip(self.paths, self.dtypes, self.chosen, strict=True):
            if chosen and (dtype == KEY or not jnp.issubdtype(jnp.dtype(dtype), jnp.floating)):
                raise TypeError(
                    f"params[{path!r}] has dtype {dtype}, but a score is differentiated in real floating-point "
                    f"parameters: leave it out with parameters=lambda path: path != {path!r}, or cast it to float"
                )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the chosen leaves, in order."""
        return tuple(int(np.prod(shape)) for shape, chosen in zip(self.shapes, self.chosen, strict=True) if chosen)

    @cached_property
    def size(self) -> int:
        """P, the number of parameters that take part."""
        return sum(self.sizes)

    @cached_property
    def dtype(self) -> np.dtype:
        """The precision of gradients and basis: that of the parameters, float32 at the least."""
        chosen = [dtype for dtype, chosen in zip(self.dtypes, self.chosen, strict=True) if chosen]
        return np.dtype(jnp.result_type(jnp.float32, *(jnp.dtype(dtype) for dtype in chosen)))

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Path of each chosen leaf and its place in the vector."""
        bounds = np.cumsum((0, *self.sizes))
        names = [path for path, chosen in zip(self.paths, self.chosen, strict=True) if chosen]
        return {name: slice(int(a), int(b)) for name, a, b in zip(names, bounds, bounds[1:], strict=False)}

    @property
    def places(self) -> tuple[slice, ...]:
        """The chosen leaves' places in the vector, in order."""
        return tuple(self.slices.values())

    def split(self, params: Any) -> tuple[list, list]:
        """Chosen leaves, and the others."""
        leaves = jax.tree.leaves(params)
        chosen = [leaf for leaf, keep in zip(leaves, self.chosen, strict=True) if keep]
        others = [leaf for leaf, keep in zip(leaves, self.chosen, strict=True) if not keep]
        return chosen, others

    def join(self, chosen: Sequence, others: Sequence) -> Any:
        """The inverse of `split`."""
        first, second = iter(chosen), iter(others)
        return jax.tree.unflatten(self.treedef, [next(first) if keep else next(second) for keep in self.chosen])

    def pieces(self, vector: Any) -> list:
        """The last axis of `vector` (length P) cut into one flat piece per chosen leaf."""
        return [vector[..., place] for place in self.slices.values()]

    def leaves(self, vector: Any) -> list:
        """`pieces` in the shapes of the parameters, as tangents for a JVP; leading axes stay."""
        shapes = [shape for shape, keep in zip(self.shapes, self.chosen, strict=True) if keep]
        return [p.reshape(*p.shape[:-1], *shape) for p, shape in zip(self.pieces(vector), shapes, strict=True)]


def _dtype_of(leaf: Any, path: str) -> str:
    try:
        dtype = jnp.result_type(leaf)
        return KEY if jnp.issubdtype(dtype, jax.dtypes.prng_key) else str(dtype)
    except (TypeError, ValueError) as error:
        if str(getattr(leaf, "dtype", "")) == "object":
            raise TypeError(
                f"params[{path!r}] is an array of Python objects (dtype object), which has no derivative: convert it "
                "to an array of numbers, or take it out of params"
            ) from error
        raise TypeError(
            f"params[{path!r}] is a {type(leaf).__module__}.{type(leaf).__name__}, not an array of numpy or jax: "
            "convert it, or take it out of params; nfk.torch takes a PyTorch module"
        ) from error


def _as_predicate(parameters: PathFilter) -> Callable[[str], bool]:
    if parameters is None:
        return lambda path: True
    if callable(parameters):
        return parameters
    patterns = [parameters] if isinstance(parameters, str) else list(parameters)
    return lambda path: any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def normalised(leaves: Iterable, mean: Iterable, scale: Iterable) -> list:
    """(row - mean) * scale for rows of gradients, leaf by leaf; a leaf is an array (rows, size) or a list of such."""
    triples = zip(leaves, mean, scale, strict=True)
    return [[(part - z) * s for part in leaf] if isinstance(leaf, list) else (leaf - z) * s for leaf, z, s in triples]
