"""LeNet-5 as a plain JAX function, with weights from 4,000 digits: 61,706 parameters, no other package."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from safetensors.numpy import load_file

from nfk.model import Model
from nfk.model.families import classifier

WEIGHTS = Path(__file__).parent / "digits-lenet.safetensors"
Params = dict[str, jax.Array]


def logits(params: Params, images: Float[Array, "n 28 28 1"]) -> Float[Array, "n 10"]:
    hidden = _pool(jnp.tanh(_convolve(images, params, "conv1", "SAME")))
    hidden = _pool(jnp.tanh(_convolve(hidden, params, "conv2", "VALID")))
    hidden = jnp.tanh(_dense(hidden.reshape(len(hidden), -1), params, "dense1"))
    hidden = jnp.tanh(_dense(hidden, params, "dense2"))
    return _dense(hidden, params, "dense3")


def params() -> Params:
    """Weights after 12 epochs over the training digits of seed 0: `python -m reproduction.digits_lenet`."""
    return {name: jnp.asarray(weight) for name, weight in load_file(WEIGHTS).items()}


def digits_lenet() -> Model:
    """The trained LeNet-5 as a classifier: its Fisher kernel is that of `logsumexp` of the logits."""
    return classifier(_of_one, params())


def _of_one(params: Params, image: Float[Array, "28 28 1"]) -> Float[Array, " 10"]:
    return logits(params, image[None])[0]


def _convolve(images: jax.Array, params: Params, layer: str, padding: str) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    kernel = params[f"{layer}/kernel"]
    return (
        jax.lax.conv_general_dilated(images, kernel, (1, 1), padding, dimension_numbers=numbers)
        + params[f"{layer}/bias"]
    )


def _dense(rows: jax.Array, params: Params, layer: str) -> jax.Array:
    return rows @ params[f"{layer}/kernel"] + params[f"{layer}/bias"]


def _pool(images: jax.Array) -> jax.Array:
    """Means of 2 x 2 squares."""
    count, height, width, channels = images.shape
    return images.reshape(count, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))
