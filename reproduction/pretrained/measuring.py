"""What each network is worth: the figure by which its weights are known, on real images and with an interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from nfk.tasks import Estimate, average, detection, probe, proportion
from reproduction.data import Split, load
from reproduction.pretrained.networks import Pretrained
from reproduction.pretrained.networks import load as load_network

PIXELS = 28 * 28
Figures = dict[str, Estimate]


@dataclass(frozen=True)
class Known:
    """A figure that the weights are known by, how many images it was measured on, and how far rounding may move it."""

    figure: str
    value: float
    images: int = 10_000
    rounding: float = 0.005


ACCURACY, AUROC = "test accuracy", "AUROC, test images over generated ones"
NATS, BITS = "ELBO, nats", "bits for each pixel"
SCORE, PROBE = "classifier score", "probe of the last features"
KNOWN: Mapping[str, tuple[Known, ...]] = {
    "cifar10-wrn-16-2-a": (Known(ACCURACY, 0.9400, rounding=5e-5),),
    "cifar10-wrn-40-1-a": (Known(ACCURACY, 0.9296, 5_000, 5e-5),),
    "cifar10-wrn-16-1-a": (Known(ACCURACY, 0.9112, 5_000, 5e-5),),
    "cifar10-wrn-16-2-b": (Known(ACCURACY, 0.9357, rounding=5e-5),),
    "cifar10-wrn-40-1-b": (Known(ACCURACY, 0.9341, rounding=5e-5),),
    "cifar10-wrn-16-1-b": (Known(ACCURACY, 0.9097, rounding=5e-5),),
    "svhn-wrn-16-2-a": (Known(ACCURACY, 0.9610, 5_000, 5e-5),),
    "cifar10-resnet56": (Known(ACCURACY, 0.9339, rounding=5e-5),),
    "cifar10-resnet20": (Known(ACCURACY, 0.9173, rounding=5e-5),),
    "cifar10-resnet-small": (Known(ACCURACY, 0.906, 1_000, 5e-4),),
    "cifar10-dcgan-critic": (Known(AUROC, 0.869),),
    "cifar10-dcgan-critic-wide": (Known(PROBE, 0.631, 5_000, 0.01),),
    "mnist-wgan-gp-critic": (Known(AUROC, 0.873),),
    "mnist-wgan-gp-generator": (Known(SCORE, 8.83, rounding=0.15),),
    "mnist-gan-critic": (Known(AUROC, 0.870),),
    "mnist-vae": (Known(NATS, -103.1, rounding=0.1),),
    "mnist-lenet5": (Known(ACCURACY, 0.9903, rounding=5e-5),),
    "mnist-energy": (Known("minus the energy of digits", 0.0005, 10_000, 5e-3),
                     Known("of noise", -17.9, rounding=0.3), Known("of inverted digits", -12.7, rounding=0.3)),
    "mnist-flow": (Known(BITS, 1.052, 300),),
    "mnist-pixelcnn": (Known(BITS, 0.807, 200),),
}  # fmt: skip


def measured(found: Pretrained, images: int | None = None, seed: int = 0) -> Figures:
    """The figures of its kind over the first `images` test images, by default as many as they are known from."""
    known = KNOWN.get(found.name, ())
    count = images or max((one.images for one in known), default=10_000)
    return KINDS[found.network.kind](found, load(found.network.data, "test").take(slice(count)), seed)


def _classifier(found: Pretrained, test: Split, seed: int) -> Figures:
    return {ACCURACY: proportion(found.outputs(found.inputs(test.images)).argmax(1) == test.labels)}


def _critic(found: Pretrained, test: Split, seed: int) -> Figures:
    if found.generator is None:
        return {PROBE: _last_features(found, test, seed)}
    real = found.outputs(found.inputs(test.images)).ravel()
    made = found.outputs(found.sample(seed, len(test))).ravel()
    return {AUROC: detection(made, real).auroc}


def _last_features(found: Pretrained, test: Split, seed: int) -> Estimate:
    """A linear probe of what the last layer sees, on as many labelled training images as there are test images."""
    train = load(found.network.data, "train")
    train = train.take(np.random.default_rng(seed).permutation(len(train))[: len(test)])
    a, b = (last_features(found, found.inputs(part.images)) for part in (train, test))
    return probe(a, train.labels, b, test.labels).accuracy


def last_features(found: Pretrained, inputs: np.ndarray, batch: int = 500) -> np.ndarray:
    """The inputs of the last layer that has weights, flat."""
    layers = [layer for layer in found.module.modules() if isinstance(layer, (torch.nn.Linear, torch.nn.Conv2d))]
    seen: list[np.ndarray] = []
    handle = layers[-1].register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(1).numpy()))
    try:
        found.outputs(inputs, batch=batch)
    finally:
        handle.remove()
    return np.concatenate(seen)


def _generator(found: Pretrained, test: Split, seed: int) -> Figures:
    """exp of the mutual information of image and class under a classifier: 1 to 10; and its largest class."""
    judge = load_network({"mnist": "mnist-lenet5", "cifar10": "cifar10-resnet20"}[found.network.data])
    images = {"": found.network.pixels.images(found.sample(seed, len(test))), " of real images": test.images}
    figures: Figures = {}
    for name, given in images.items():
        sure = torch.log_softmax(torch.tensor(judge.outputs(judge.inputs(given))).double(), 1)
        marginal = torch.logsumexp(sure, 0) - math.log(len(sure))
        each = (sure.exp() * (sure - marginal)).sum(1).numpy()
        inside = average(each)
        figures[SCORE + name] = Estimate(*(math.exp(part) for part in (inside.value, inside.low, inside.high)))
        classes = sure.argmax(1).numpy()
        most = int(np.bincount(classes).argmax())
        figures[f"share of its most frequent class{name}"] = proportion(classes == most)
    return figures


def _vae(found: Pretrained, test: Split, seed: int) -> Figures:
    noise = np.random.default_rng(seed).standard_normal((len(test), found.module.LATENTS)).astype(np.float32)
    return {NATS: average(found.outputs(found.inputs(test.images), noise))}


def _energy(found: Pretrained, test: Split, seed: int) -> Figures:
    noise = np.random.default_rng(seed).random(test.images.shape, np.float32)
    given = {"minus the energy of digits": test.images, "of noise": noise, "of inverted digits": 1 - test.images}
    return {name: average(found.outputs(found.inputs(images)).ravel()) for name, images in given.items()}


def _flow(found: Pretrained, test: Split, seed: int) -> Figures:
    inputs = found.inputs(test.images)
    noise = np.random.default_rng(seed).random(inputs.shape, np.float32) * (1 - 1e-6)
    return _bits(found.outputs(inputs.round(), noise.astype(np.float32), batch=50))


def _autoregressive(found: Pretrained, test: Split, seed: int) -> Figures:
    return _bits(found.outputs(found.inputs(test.images), batch=20))


def _bits(log_prob: np.ndarray) -> Figures:
    return {BITS: average(-log_prob.astype(np.float64) / (PIXELS * math.log(2)))}


KINDS: Mapping[str, Callable[[Pretrained, Split, int], Figures]] = {
    "classifier": _classifier, "critic": _critic, "generator": _generator, "vae": _vae, "energy": _energy,
    "flow": _flow, "autoregressive": _autoregressive,
}  # fmt: skip
