"""Trained weights as safetensors files, with the command and the seed that made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from nfk.atomic import write_atomically
from reproduction.refusal import Refused

SHIPPED = Path(__file__).parent / "trained"


def state_of(network: Any) -> Any:
    """All arrays of a network but its random keys: a flax nnx module, or any pytree (an equinox module)."""
    if isinstance(network, nnx.Module):
        return nnx.to_pure_dict(nnx.state(network, nnx.Not(nnx.RngState)))
    return network


def _named(tree: Any) -> dict[str, Any]:
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in flat}
    return {name: leaf for name, leaf in named.items() if hasattr(leaf, "dtype")}


def save(path: Path, network: Any, facts: dict[str, Any]) -> Path:
    """Write the weights of `network`; `facts` (command, seed, seconds of training, ...) go into the file's header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(leaf) for name, leaf in _named(state_of(network)).items()}
    write_atomically(path, lambda partial: save_file(tensors, partial, metadata={"facts": json.dumps(facts)}))
    return path


def load(path: Path, network: Any) -> tuple[Any, dict[str, Any]]:
    """`(network with the weights of the file, facts)`; weights of another network are refused by name and shape."""
    try:
        with safe_open(path, framework="numpy") as archive:
            tensors = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
            facts = json.loads((archive.metadata() or {}).get("facts", "{}"))
    except SafetensorError as error:
        raise Refused(f"{path} is damaged or no safetensors file ({error}): train again, or restore it") from error
    _check(tensors, _named(state_of(network)), path)
    return _filled(network, tensors), facts


def _check(found: dict[str, np.ndarray], wanted: dict[str, Any], path: Path) -> None:
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found or name not in wanted:
            place = "not in the file" if name in wanted else "not in this network"
            raise Refused(f"{path} holds the weights of another network: {name!r} is {place}; build the same one")
        if found[name].shape != np.shape(wanted[name]):
            raise Refused(
                f"{path} holds the weights of another network: {name!r} has shape {found[name].shape} in the file and "
                f"{np.shape(wanted[name])} here; build the network with the same sizes"
            )


def _filled(network: Any, tensors: dict[str, np.ndarray]) -> Any:
    flat, structure = jax.tree_util.tree_flatten_with_path(state_of(network))
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in flat]
    pairs = zip(names, flat, strict=True)
    leaves = [jnp.asarray(tensors[name]) if name in tensors else leaf for name, (_, leaf) in pairs]
    filled = jax.tree.unflatten(structure, leaves)
    if not isinstance(network, nnx.Module):
        return filled
    nnx.update(network, filled)
    return network


def shipped(name: str) -> Path | None:
    """The weights of that name that come with the package, where there are such."""
    path = SHIPPED / f"{name}.safetensors"
    return path if path.exists() else None
