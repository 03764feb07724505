"""Embeddings on disk: one safetensors file and one JSON file, written atomically, loaded without executing anything.

The tensors' file is named by its own hash and the JSON that points to it is replaced last, so that a folder always
holds one whole embedding: the old one until the new one is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from nfk.models import Model

FORMAT = 1
FACTS = "embedding.json"


def check_writable(folder: Path) -> None:
    """Create the folder and a file in it, now: not after hours of work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"save={str(folder)!r} cannot be written: {error.strerror or error}; choose another folder"
        ) from error


def write(folder: Path, tensors: dict[str, np.ndarray], facts: dict[str, Any]) -> Path:
    check_writable(folder)
    previous = _previous_tensors(folder)
    partial = folder / f".writing-{os.getpid()}"
    try:
        save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, partial)
        digest = _hash_file(partial)
        target = folder / f"embedding-{digest[:16]}.safetensors"
        os.replace(partial, target)
        partial.write_text(json.dumps({"format": FORMAT, "tensors": target.name, "sha256": digest, **facts}, indent=1))
        os.replace(partial, folder / FACTS)
    finally:
        partial.unlink(missing_ok=True)
    if previous is not None and previous != target:
        previous.unlink(missing_ok=True)
    return folder


def _previous_tensors(folder: Path) -> Path | None:
    """The file that the embedding saved here before points to: the only one that a new save may remove."""
    try:
        return folder / Path(json.loads((folder / FACTS).read_text())["tensors"]).name
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and facts, or an error that says what is wrong with the folder."""
    path = folder / FACTS
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no saved embedding: there is no {FACTS} in it")
    try:
        facts = json.loads(path.read_text())
        tensors_path, expected = folder / Path(facts["tensors"]).name, facts["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged (truncated or altered): save the embedding again") from error
    if facts.get("format") != FORMAT:
        raise ValueError(f"{path} has format {facts.get('format')}, but this version reads format {FORMAT}")
    if not tensors_path.is_file():
        raise FileNotFoundError(f"{tensors_path} is missing, though {FACTS} names it: save the embedding again")
    if _hash_file(tensors_path) != expected:
        raise ValueError(f"{tensors_path} is damaged (truncated or altered): its hash is not the one saved in {FACTS}")
    try:
        return load_file(tensors_path), facts
    except SafetensorError as error:
        raise ValueError(f"{tensors_path} is not a safetensors file: {error}") from error


def _hash_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def describe_model(model: Model) -> dict[str, Any]:
    """What must be the same for a basis to mean the same: the parameters and how they are read."""
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


def _hash_array(leaf: Any) -> str:
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()).hexdigest()[
        :16
    ]


def check_model(saved: dict[str, Any], model: Model, folder: Any) -> None:
    mine = describe_model(model)
    for what in ("family", "centred", "fisher", "own_noise", "paths", "chosen"):
        if saved[what] != mine[what]:
            raise ValueError(
                f"{folder} was fitted with another model: its {what} is {_short(saved[what])}, this one's is "
                f"{_short(mine[what])}; pass the model it was fitted with"
            )
    for path, fingerprint in mine["params"].items():
        if saved["params"][path] != fingerprint:
            raise ValueError(
                f"{folder} was fitted with another network: params[{path!r}] has other values; load the weights it was "
                "fitted with, or fit again"
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."
