"""The weights of networks that others trained: found in NFK_DATA or the cache, or fetched at one commit; verified.

Tensors alone are read, by safetensors or by torch's reader that executes nothing; none of them is part of this project.
"""

from __future__ import annotations

import pickle
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from reproduction.download import difference, fetch
from reproduction.refusal import Refused
from reproduction.sources import cache_folder, data_folder

Tensors = dict[str, torch.Tensor]


class WeightsError(Refused):
    """Weights that are damaged, or those of another network: one sentence for the person who asked."""


@dataclass(frozen=True)
class Origin:
    """A file of a repository at one commit, by the sum of its bytes; and that of its tensors as safetensors."""

    repository: str
    commit: str
    path: str
    sha256: str
    safetensors: str
    licence: str

    @property
    def url(self) -> str:
        return f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{quote(self.path)}"


ORIGINS: Mapping[str, Origin] = {
    name: Origin(**facts) for name, facts in tomllib.loads((Path(__file__).parent / "sources.toml").read_text()).items()
}


def find(name: str, *, download: bool = False) -> Path:
    """The file of these weights: in NFK_DATA/pretrained, else in the cache, else downloaded into it; not verified."""
    given = data_folder()
    compact = given / "pretrained" / f"{name}.safetensors" if given else None
    if compact is not None and compact.is_file():
        return compact
    origin = ORIGINS[name]
    original = cache_folder() / "pretrained" / (name + Path(origin.path).suffix)
    if download:
        return fetch([origin.url], original, checksum=f"sha256:{origin.sha256}")
    if not original.is_file():
        lacks = f"NFK_DATA={given} lacks pretrained/{name}.safetensors" if given else "NFK_DATA is not set"
        raise FileNotFoundError(
            f"the weights {name} were not found: {lacks}, and the cache has no {original}; pass download=True to fetch "
            f"{origin.url}, or set NFK_DATA to a folder that holds pretrained/{name}.safetensors"
        )
    return original


def read(name: str, *, download: bool = False) -> Tensors:
    """The tensors of these weights by name, after their file has been verified."""
    path, origin = find(name, download=download), ORIGINS[name]
    compact = path.suffix == ".safetensors"
    if wrong := difference(path, f"sha256:{origin.safetensors if compact else origin.sha256}"):
        raise _damaged(path, wrong)
    try:
        return load_file(path) if compact else _original(path)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError) as error:
        raise _damaged(path, f"cannot be read: {error}") from error


def _original(path: Path) -> Tensors:
    """A state dict alone or inside a checkpoint; the prefix of a network that was trained on several devices is cut."""
    stored = torch.load(path, map_location="cpu", weights_only=True)
    stored = stored.get("state_dict", stored)
    return {name.removeprefix("module."): value for name, value in stored.items()}


def fill(module: torch.nn.Module, tensors: Tensors, name: str) -> None:
    """The tensors into the module of the same architecture; another one is refused by a tensor's name and shape."""
    wanted = module.state_dict()
    for key in sorted(wanted.keys() | tensors.keys()):
        if key.endswith("num_batches_tracked"):
            continue
        there, here = (tuple(found[key].shape) if key in found else None for found in (tensors, wanted))
        if there != here:
            said = [f"has shape {shape}" if shape is not None else "is missing" for shape in (there, here)]
            raise WeightsError(
                f"{name} holds the weights of another architecture than {type(module).__name__}: {key!r} {said[0]} in "
                f"the file and {said[1]} in the network; build it as reproduction.pretrained.NETWORKS[{name!r}] does"
            )
    module.load_state_dict({key: tensors.get(key, value) for key, value in wanted.items()})


def _damaged(path: Path, wrong: str) -> WeightsError:
    return WeightsError(f"{path} is damaged: it {wrong}; delete it and load again with download=True")
