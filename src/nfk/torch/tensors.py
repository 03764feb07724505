"""Tensors and arrays in one memory; what a module holds, and whether it can have a kernel."""

from __future__ import annotations

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

from nfk.model.interface import Example

LARGE = 1_000_000  # parameters from which tables of words take no part unless they are asked for
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def shared(tensor: Tensor) -> jax.Array:
    """The tensor as a jax array in the same memory."""
    return jnp.from_dlpack(tensor.detach().contiguous())


def borrowed(array: jax.Array | Tensor) -> Tensor:
    """A tensor as it is; a jax array as one in the same memory (from an accelerator, a copy). To be read only."""
    if isinstance(array, Tensor):
        return array
    return torch.from_dlpack(jax.device_put(array, jax.devices("cpu")[0]))


def check_module(module: nn.Module) -> None:
    """Eval mode, examples independent of each other, everything on one device; else an error names the layer."""
    if module.training:
        raise ValueError("module is in training mode, in which dropout and batch norm are random: call module.eval()")
    for name, layer in module.named_modules():
        if layer.training:
            raise ValueError(
                f"module.{name} ({type(layer).__name__}) is in training mode, though the module is not: call "
                "module.eval(), which reaches every layer"
            )
        if isinstance(layer, BATCH_NORMS) and layer.running_mean is None:
            raise ValueError(
                f"module.{name} ({type(layer).__name__}, track_running_stats=False) normalises by the statistics of "
                "its batch, also in eval mode, so no example has a score of its own: train with running statistics, "
                "or use nn.GroupNorm"
            )
    first = None
    for name, tensor in state(module):
        first = first or (name, tensor.device)
        if tensor.is_meta:
            raise ValueError(f"module.{name} is on the meta device, which has no numbers: load the weights first")
        if tensor.device != first[1]:
            raise ValueError(
                f"module.{first[0]} is on {first[1]} and module.{name} on {tensor.device}: a kernel is computed on one "
                f"device; call module.to({str(first[1])!r})"
            )


def state(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Every parameter and buffer once, detached."""
    return [(name, t.detach()) for name, t in (*module.named_parameters(), *module.named_buffers())]


def contents(module: nn.Module) -> tuple[int, ...]:
    """A checksum of every parameter and buffer: the sum of its bits as integers, exact in any order."""
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    tensors = [t if not t.is_complex() else torch.view_as_real(t) for _, t in state(module)]
    sums = [t.view(whole[t.itemsize]).sum(dtype=torch.int64) for t in tensors]
    return tuple(torch.stack(sums).tolist()) if sums else ()


def without_tables(module: nn.Module) -> tuple[list[str] | None, str]:
    """The paths of all parameters but tables of words, and a note; all of them where they are fewer than `LARGE`."""
    sizes = {name.replace(".", "/"): parameter.numel() for name, parameter in module.named_parameters()}
    left_out = _tables(module)
    total, kept = sum(sizes.values()), sum(size for path, size in sizes.items() if path not in left_out)
    if total < LARGE or not left_out or not kept:
        return None, ""
    names = ", ".join(left_out)
    note = f"{kept:,} of {total:,} parameters take part: not the tables {names} (parameters='*' takes all)"
    return [path for path in sizes if path not in left_out], note


def _tables(module: nn.Module) -> list[str]:
    """The paths of tables of words: embeddings, and the head of a language model that has them."""
    tables = {id(layer.weight) for layer in module.modules() if isinstance(layer, nn.Embedding)}
    head = getattr(module, "get_output_embeddings", lambda: None)()
    if tables and head is not None:
        tables.add(id(head.weight))
    return [name.replace(".", "/") for name, parameter in module.named_parameters() if id(parameter) in tables]


def arrays(module: nn.Module) -> dict:
    """The parameters as nested dicts of numpy views: {"conv": {"weight": ..., "bias": ...}}.

    Those of a module on another device than the CPU are copied when they are read, as by `numpy.asarray`.

    Args:
        module: any module; its parameters are not copied.
    """
    view = lambda tensor: _view(tensor) if tensor.device.type == "cpu" else Remote(tensor)  # noqa: E731
    return nested({name: view(parameter.detach()) for name, parameter in module.named_parameters()})


class Remote:
    """A parameter that stays on its device, with a shape and a type as numpy has them; a copy when it is read."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self.shape = tensor, tuple(tensor.shape)
        self.dtype = jnp.dtype(str(tensor.dtype).removeprefix("torch."))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return _view(self._tensor.cpu()).astype(dtype or self.dtype, copy=False)


def _view(tensor: Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:  # torch itself has no numpy dtype for it
        return tensor.view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy()


def nested(flat: dict[str, Any]) -> dict:
    """{"a.b": x} as {"a": {"b": x}}."""
    tree: dict = {}
    for name, value in flat.items():
        *folders, last = name.split(".")
        reduce(lambda part, key: part.setdefault(key, {}), folders, tree)[last] = value
    return tree


def widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def length(batch: Example) -> int:
    return len(jax.tree.leaves(batch)[0])
