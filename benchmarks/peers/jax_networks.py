"""The same networks in JAX: plain functions of (params, one example), channels last, as XLA prefers.

Written with what jax 0.4.25 has, since neural-tangents needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.peers.job import Job

Params = dict[str, Any]
LAYOUT = ("NHWC", "HWIO", "NHWC")


def params(job: Job) -> Params:
    """The weights in JAX's layout: kernels (height, width, in, out), matrices (in, out)."""
    return {name: _converted(name, tensor, job.settings.network) for name, tensor in job.weights.items()}


def examples(job: Job, name: str = "examples") -> np.ndarray:
    array = getattr(job, name)
    return array if array.ndim < 4 else np.ascontiguousarray(np.moveaxis(array, 1, -1))


def apply(job: Job) -> Callable[[Params, jax.Array], jax.Array]:
    """(params, example) -> logits, the critic's number or log p(x). Statistics of batch norms are constants."""
    network, buffers = NETWORKS[job.settings.network], job.buffers
    return lambda params, example: network({**params, **buffers}, example)


def score(job: Job) -> Callable[[Params, jax.Array], jax.Array]:
    """(params, example) -> the one number whose gradient makes the kernel."""
    network = apply(job)
    if job.settings.family == "classifier":
        return lambda params, example: jax.nn.logsumexp(network(params, example))
    return network


def _converted(name: str, tensor: np.ndarray, network: str) -> np.ndarray:
    if network == "critic" and name == "head.weight":  # of channels first, flattened
        side = round((tensor.shape[1] // 128) ** 0.5)
        return np.ascontiguousarray(tensor.reshape(-1, side, side).transpose(1, 2, 0).reshape(-1, 1))
    if tensor.ndim == 4:
        return np.ascontiguousarray(tensor.transpose(2, 3, 1, 0))
    if tensor.ndim == 2 and name not in ("token.weight", "place.weight"):
        return np.ascontiguousarray(tensor.T)
    return tensor


def _conv(p: Params, name: str, hidden: jax.Array, stride: int = 1, pad: int = 0) -> jax.Array:
    kernel = p[f"{name}.weight"]
    return lax.conv_general_dilated(
        hidden[None], kernel, (stride, stride), [(pad, pad), (pad, pad)], dimension_numbers=LAYOUT
    )[0] + p.get(f"{name}.bias", 0)


def _dense(p: Params, name: str, hidden: jax.Array) -> jax.Array:
    return hidden @ p[f"{name}.weight"] + p[f"{name}.bias"]


def _batch_norm(p: Params, name: str, hidden: jax.Array) -> jax.Array:
    deviation = np.sqrt(p[f"{name}.running_var"] + 1e-5)
    return (hidden - p[f"{name}.running_mean"]) / deviation * p[f"{name}.weight"] + p[f"{name}.bias"]


def _max_pool(hidden: jax.Array) -> jax.Array:
    return lax.reduce_window(hidden, -jnp.inf, lax.max, (2, 2, 1), (2, 2, 1), "VALID")


def lenet5(p: Params, image: jax.Array) -> jax.Array:
    hidden = _max_pool(jax.nn.relu(_conv(p, "convnet.c1", image)))
    hidden = _max_pool(jax.nn.relu(_conv(p, "convnet.c3", hidden)))
    hidden = jax.nn.relu(_conv(p, "convnet.c5", hidden)).reshape(-1)
    return _dense(p, "fc.f7", jax.nn.relu(_dense(p, "fc.f6", hidden)))


def critic(p: Params, image: jax.Array) -> jax.Array:
    hidden = image
    for index in range(sum(name.startswith("features") for name in p) // 2):
        hidden = jax.nn.leaky_relu(_conv(p, f"features.{2 * index}", hidden, 1 + index % 2, 1), 0.2)
    return _dense(p, "head", hidden.reshape(-1))[0]


def _wide_block(p: Params, name: str, hidden: jax.Array, stride: int) -> jax.Array:
    active = jax.nn.relu(_batch_norm(p, f"{name}.bn1", hidden))
    wider = f"{name}.convShortcut.weight" in p
    shortcut = _conv(p, f"{name}.convShortcut", active, stride) if wider else hidden
    inner = jax.nn.relu(_batch_norm(p, f"{name}.bn2", _conv(p, f"{name}.conv1", active, stride, 1)))
    return shortcut + _conv(p, f"{name}.conv2", inner, 1, 1)


def wide_resnet(p: Params, image: jax.Array) -> jax.Array:
    hidden = _conv(p, "conv1", image, 1, 1)
    for group, stride in ((1, 1), (2, 2), (3, 2)):
        hidden = _wide_block(p, f"block{group}.layer.0", hidden, stride)
        hidden = _wide_block(p, f"block{group}.layer.1", hidden, 1)
    return _dense(p, "fc", jax.nn.relu(_batch_norm(p, "bn1", hidden)).mean((0, 1)))


def _basic_block(p: Params, name: str, hidden: jax.Array, stride: int) -> jax.Array:
    shortcut = hidden
    if f"{name}.downsample.0.weight" in p:
        shortcut = _batch_norm(p, f"{name}.downsample.1", _conv(p, f"{name}.downsample.0", hidden, stride))
    inner = jax.nn.relu(_batch_norm(p, f"{name}.bn1", _conv(p, f"{name}.conv1", hidden, stride, 1)))
    return jax.nn.relu(shortcut + _batch_norm(p, f"{name}.bn2", _conv(p, f"{name}.conv2", inner, 1, 1)))


def resnet18(p: Params, image: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(_batch_norm(p, "bn1", _conv(p, "conv1", image, 1, 1)))
    for group, stride in enumerate((1, 2, 2, 2)):
        hidden = _basic_block(p, f"layers.{group}.0", hidden, stride)
        hidden = _basic_block(p, f"layers.{group}.1", hidden, 1)
    return _dense(p, "fc", hidden.mean((0, 1)))


def _layer_norm(p: Params, name: str, states: jax.Array) -> jax.Array:
    mean, variance = states.mean(-1, keepdims=True), states.var(-1, keepdims=True)
    return (states - mean) / jnp.sqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def _transformer_block(p: Params, name: str, states: jax.Array, heads: int = 4) -> jax.Array:
    length, width = states.shape
    joint = _dense(p, f"{name}.qkv", _layer_norm(p, f"{name}.norm1", states))
    q, k, v = jnp.moveaxis(joint.reshape(length, 3, heads, -1), 0, 2)
    weights = q @ jnp.swapaxes(k, -1, -2) / (width // heads) ** 0.5
    weights = jnp.where(np.triu(np.ones((length, length), bool), 1), -1e9, weights)
    attended = jnp.moveaxis(jax.nn.softmax(weights) @ v, 0, 1).reshape(length, width)
    states = states + _dense(p, f"{name}.out", attended)
    inner = jax.nn.gelu(_dense(p, f"{name}.up", _layer_norm(p, f"{name}.norm2", states)), approximate=True)
    return states + _dense(p, f"{name}.down", inner)


def transformer(p: Params, tokens: jax.Array) -> jax.Array:
    seen, wanted = tokens[:-1], tokens[1:]
    states = jnp.asarray(p["token.weight"])[seen] + p["place.weight"][: len(seen)]
    for layer in range(sum(name.endswith("qkv.weight") for name in p)):
        states = _transformer_block(p, f"blocks.{layer}", states)
    log_probs = jax.nn.log_softmax(_dense(p, "head", _layer_norm(p, "norm", states)))
    return jnp.take_along_axis(log_probs, wanted[:, None], axis=-1).sum()


NETWORKS = {
    "lenet5": lenet5, "critic": critic, "wrn-16-2": wide_resnet, "resnet-18": resnet18, "transformer": transformer,
}  # fmt: skip
