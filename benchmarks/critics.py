"""The convolutional discriminators of the benchmarks, in plain JAX: any release of the package can fit them."""

from __future__ import annotations

import jax
import numpy as np

WIDE = (32, 64, 64, 112, 112, 128)  # 530,017 parameters


def critic_params(widths: tuple[int, ...], seed: int = 0) -> list[dict[str, np.ndarray]]:
    """A discriminator on 32 x 32 x 3: 3x3 and strided 4x4 kernels in turn, a linear head."""
    rng = np.random.default_rng(seed)
    layers, channels = [], 3
    for index, width in enumerate(widths):
        size = 3 if index % 2 == 0 else 4
        kernel = rng.standard_normal((size, size, channels, width)) * np.sqrt(2 / (size * size * channels))
        layers.append({"kernel": kernel.astype(np.float32), "bias": np.zeros(width, np.float32)})
        channels = width
    area = (32 // 2 ** (len(widths) // 2)) ** 2
    head = rng.standard_normal((area * channels, 1)) / np.sqrt(area * channels)
    return [*layers, {"kernel": head.astype(np.float32), "bias": np.zeros(1, np.float32)}]


def critic(params: list, image: jax.Array) -> jax.Array:
    strides = (1 + index % 2 for index in range(len(params) - 1))
    return _discriminated(params, image, list(strides))


def dcgan_params() -> list[dict[str, np.ndarray]]:
    """The DCGAN discriminator on 32 x 32 with 16,871 parameters: three strided 4x4 convolutions and a linear head."""
    rng = np.random.default_rng(0)
    shapes = [(4, 4, 1, 10), (4, 4, 10, 20), (4, 4, 20, 40), (640, 1)]
    kernels = [rng.standard_normal(shape, dtype=np.float32) / np.sqrt(np.prod(shape[:-1])) for shape in shapes]
    return [{"kernel": w.astype(np.float32), "bias": np.zeros(w.shape[-1], np.float32)} for w in kernels]


def dcgan(params: list, image: jax.Array) -> jax.Array:
    return _discriminated(params, image, [2] * (len(params) - 1))


def _discriminated(params: list, image: jax.Array, strides: list[int]) -> jax.Array:
    hidden = image[None]
    for layer, stride in zip(params[:-1], strides, strict=True):
        hidden = jax.lax.conv_general_dilated(
            hidden, layer["kernel"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        hidden = jax.nn.leaky_relu(hidden + layer["bias"], 0.2)
    return (hidden.reshape(-1) @ params[-1]["kernel"] + params[-1]["bias"])[0]
