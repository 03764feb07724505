"""The jobs: which network, whose weights, which images. Two networks are trained ones; three have fixed random weights.

Trained weights are read from NFK_DATA/pretrained (see its README for who trained them); they are not ours to ship.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load_file

from benchmarks.peers.job import Job, Settings
from reproduction import data

SEED = 0
SAMPLES = 256  # for the critic's moments
NEW = 1000  # labelled examples that no contestant has seen, for the probes
CIFAR_MEAN, CIFAR_DEVIATION = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Network:
    """Facts of a network of the comparison."""

    title: str
    family: str
    centred: bool
    weights: Callable[[], Tensors]
    examples: Callable[[str], tuple[np.ndarray, np.ndarray | None]]  # split -> examples, labels
    sampled: bool = False  # moments over samples instead of the data


def make(name: str, count: int, settings: dict[str, Any], labelled: bool = False) -> tuple[Job, dict[str, np.ndarray]]:
    """A job over the first `count` examples, and the labels where `labelled`, which no contestant sees."""
    network = NETWORKS[name]
    tensors = network.weights()
    examples, labels = network.examples("train")
    if count > len(examples) - SAMPLES:
        raise ValueError(f"{name} has {len(examples) - SAMPLES:,} examples: lower --sizes from {count:,}")
    kept = {key: tensor for key, tensor in tensors.items() if not key.endswith("num_batches_tracked")}
    job = Job(
        Settings(network=name, family=network.family, centred=network.centred, **settings),
        weights={key: tensor for key, tensor in kept.items() if not _is_buffer(key)},
        buffers={key: tensor for key, tensor in kept.items() if _is_buffer(key)},
        examples=examples[:count],
        samples=examples[-SAMPLES:] if network.sampled else None,
        new_examples=network.examples("test")[0][:NEW] if labelled else None,
    )
    if not labelled:
        return job, {}
    return job, {"train": labels[:count], "test": network.examples("test")[1][:NEW]}


def parameters(name: str) -> int:
    """Numbers that are differentiated."""
    return sum(tensor.size for key, tensor in NETWORKS[name].weights().items() if not _is_buffer(key))


def _is_buffer(key: str) -> bool:
    return "running_" in key or "num_batches" in key


# --- weights


def pretrained(name: str) -> Tensors:
    folder = data.data_folder()
    if folder is None or not (folder / "pretrained").exists():
        raise FileNotFoundError(f"the weights {name!r} are read from NFK_DATA/pretrained: set NFK_DATA")
    return load_file(folder / "pretrained" / f"{name}.safetensors")


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """He's initialisation: variance 2 / fan-in."""
    return (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)


def critic_weights(widths: tuple[int, ...] = (32, 64, 64, 128, 128, 128)) -> Tensors:
    """613,761 numbers at the default widths."""
    rng, tensors = np.random.default_rng(SEED), {}
    for index, (inputs, width) in enumerate(zip((3, *widths), widths, strict=False)):
        size = 3 + index % 2
        tensors[f"features.{2 * index}.weight"] = normal(rng, width, inputs, size, size)
        tensors[f"features.{2 * index}.bias"] = np.zeros(width, np.float32)
    area = (32 // 2 ** (len(widths) // 2)) ** 2
    return tensors | {"head.weight": normal(rng, 1, area * widths[-1]), "head.bias": np.zeros(1, np.float32)}


def resnet18_weights() -> Tensors:
    """11,173,962 numbers; batch norms with mean 0, variance 1, and 0.5 as the gain of a block's last."""
    rng = np.random.default_rng(SEED)
    tensors = {"conv1.weight": normal(rng, 64, 3, 3, 3), **_batch_norm("bn1", 64)}
    for group, (inputs, width) in enumerate(((64, 64), (64, 128), (128, 256), (256, 512))):
        for block in (0, 1):
            name, first = f"layers.{group}.{block}", inputs if block == 0 else width
            tensors[f"{name}.conv1.weight"] = normal(rng, width, first, 3, 3)
            tensors[f"{name}.conv2.weight"] = normal(rng, width, width, 3, 3)
            tensors |= _batch_norm(f"{name}.bn1", width) | _batch_norm(f"{name}.bn2", width, 0.5)
            if first != width:
                tensors[f"{name}.downsample.0.weight"] = normal(rng, width, first, 1, 1)
                tensors |= _batch_norm(f"{name}.downsample.1", width)
    return tensors | {"fc.weight": normal(rng, 10, 512), "fc.bias": np.zeros(10, np.float32)}


def _batch_norm(name: str, width: int, gain: float = 1.0) -> Tensors:
    constant = lambda value: np.full(width, value, np.float32)  # noqa: E731
    return {
        f"{name}.weight": constant(gain), f"{name}.bias": constant(0),
        f"{name}.running_mean": constant(0), f"{name}.running_var": constant(1),
    }  # fmt: skip


def transformer_weights(vocabulary: int = 65, length: int = 64, width: int = 128, layers: int = 3) -> Tensors:
    """Three layers of width 128, four heads, over 64 characters."""
    rng = np.random.default_rng(SEED)
    tensors = {"token.weight": _rows(rng, vocabulary, width), "place.weight": _rows(rng, length, width)}
    for layer in range(layers):
        shapes = {
            "qkv": (3 * width, width),
            "out": (width, width),
            "up": (4 * width, width),
            "down": (width, 4 * width),
        }
        for part, (outputs, inputs) in shapes.items():
            tensors |= _dense(rng, f"blocks.{layer}.{part}", outputs, inputs)
        tensors |= _layer_norm(f"blocks.{layer}.norm1", width) | _layer_norm(f"blocks.{layer}.norm2", width)
    return tensors | _layer_norm("norm", width) | _dense(rng, "head", vocabulary, width)


def _rows(rng: np.random.Generator, count: int, width: int) -> np.ndarray:
    return (0.5 * rng.standard_normal((count, width))).astype(np.float32)


def _dense(rng: np.random.Generator, name: str, outputs: int, inputs: int) -> Tensors:
    return {f"{name}.weight": normal(rng, outputs, inputs), f"{name}.bias": np.zeros(outputs, np.float32)}


def _layer_norm(name: str, width: int) -> Tensors:
    return {f"{name}.weight": np.ones(width, np.float32), f"{name}.bias": np.zeros(width, np.float32)}


# --- examples


@cache
def mnist(split: str) -> tuple[np.ndarray, np.ndarray]:
    """28 x 28 resized to 32 x 32 (bilinear), normalised as for the LeNet-5's training."""
    digits = data.mnist(split).take(slice(0, 20_000))
    images = [Image.fromarray(np.uint8(np.round(255 * image[..., 0]))) for image in digits.images]
    resized = np.stack([np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR)) for image in images])
    return ((resized[:, None] / np.float32(255) - np.float32(0.1307)) / np.float32(0.3081)), digits.labels


@cache
def _cifar10(split: str) -> tuple[np.ndarray, np.ndarray]:
    pictures = data.cifar10(split).take(slice(0, 20_000))
    return np.ascontiguousarray(np.moveaxis(pictures.images, -1, 1)), pictures.labels


def cifar10(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Normalised as for the WRN-16-2's training."""
    images, labels = _cifar10(split)
    column = lambda values: np.float32(values)[:, None, None]  # noqa: E731
    return (images - column(CIFAR_MEAN)) / column(CIFAR_DEVIATION), labels


def cifar10_symmetric(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels in [-1, 1]."""
    images, labels = _cifar10(split)
    return 2 * images - 1, labels


@cache
def shakespeare(split: str) -> tuple[np.ndarray, None]:
    """Windows of 65 characters, as tokens; they overlap by 10 where there must be 20,000 of them."""
    text = data.shakespeare()
    alphabet = {character: index for index, character in enumerate(sorted(set(text)))}
    tokens = np.array([alphabet[character] for character in text], np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, 65)[::55]
    return np.random.default_rng(SEED).permutation(windows), None


NETWORKS = {
    "lenet5": Network("LeNet-5, 61,706 trained parameters, MNIST", "classifier", True,
                      lambda: pretrained("mnist-lenet5"), mnist),
    "critic": Network("critic, 613,761 fixed random parameters, CIFAR-10, moments over 256 given samples", "gan", True,
                      critic_weights, cifar10_symmetric, sampled=True),
    "wrn-16-2": Network("WRN-16-2, 691,674 trained parameters, CIFAR-10", "classifier", True,
                        lambda: pretrained("cifar10-wrn-16-2-a"), cifar10),
    "resnet-18": Network("ResNet-18, 11,173,962 fixed random parameters, CIFAR-10", "classifier", True,
                         resnet18_weights, cifar10),
    "transformer": Network("causal transformer over 64 characters, fixed random parameters, Shakespeare", "density",
                           False, transformer_weights, shakespeare),
}  # fmt: skip
