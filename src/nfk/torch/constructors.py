"""What "score" means for each family of models, for a torch module: the constructors, and the scores they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import jax
import torch
from torch import Tensor, nn

from nfk.model.families import ModelOptions, assemble, check_options
from nfk.model.interface import Example, Noise, NotAScore
from nfk.model.model import Model
from nfk.torch.module import Function, TorchNetwork
from nfk.torch.tensors import arrays, check_module, contents

Sampler = Callable[[int, int], Any]


class TorchOptions(ModelOptions, total=False):
    """Those of every constructor, and whether a batch is vectorised (vmap) or taken one example after another."""

    vectorised: bool


def classifier(
    module: nn.Module, apply: Function | None = None, *, sample: Sampler | None = None, **options: Unpack[TorchOptions]
) -> Model:
    """score(x) = logsumexp(logits(x)), as for `nfk.classifier`.

    Args:
        module: a trained module in eval mode, on the CPU.
        apply: `apply(module, example) -> logits` for one example; by default `module(example[None])[0]`.
        sample: `sample(seed, n) -> n examples`, a tensor or an array; moments are then over them, else over the data.
        options: as for `nfk.classifier`, and `vectorised=False` for a module that `torch.func` cannot vectorise.
    """
    return _build("classifier", module, FreeEnergy(apply or _output), sample, {"centred": True}, options)


def gan(
    module: nn.Module,
    critic: Function | None = None,
    *,
    sample: Sampler | None = None,
    sigmoid: bool = False,
    **options: Unpack[TorchOptions],
) -> Model:
    """score(x) = D(x), the raw critic output, or its sigmoid; z and the Fisher over generated examples.

    Args:
        module: the trained critic, in eval mode.
        critic: `critic(module, example) -> scalar`; by default the one number that the module returns.
        sample: `sample(seed, n) -> n generated examples`; needed unless `expectation="data"`.
        sigmoid: take the score after a sigmoid.
        options: as for `classifier`.
    """
    score = Plain(critic or _number, "sigmoid" if sigmoid else "nothing")
    return _build("gan", module, score, sample, {"centred": True, "expectation": "model"}, options)


def energy(
    module: nn.Module,
    energy_function: Function | None = None,
    *,
    sample: Sampler | None = None,
    **options: Unpack[TorchOptions],
) -> Model:
    """score(x) = -E(x), as for `nfk.energy`.

    Args:
        module: a trained module in eval mode.
        energy_function: `energy_function(module, example) -> scalar`; by default the one number of the module.
        sample: `sample(seed, n) -> n examples` of the model; without it, moments are over the data.
        options: as for `classifier`.
    """
    return _build("energy", module, Plain(energy_function or _number, "negative"), sample, {"centred": True}, options)


def density(
    module: nn.Module, log_prob: Function, *, sample: Sampler | None = None, **options: Unpack[TorchOptions]
) -> Model:
    """score(x) = log p(x), as for `nfk.density`.

    Args:
        module: a trained module in eval mode.
        log_prob: `log_prob(module, example) -> scalar` in nats.
        sample: `sample(seed, n) -> n examples` of the model; without it, moments are over the data.
        options: as for `classifier`.
    """
    return _build("density", module, Plain(log_prob), sample, {"centred": False}, options)


def vae(
    module: nn.Module,
    elbo: Function,
    *,
    noise: tuple[int, ...],
    sample: Sampler | None = None,
    common_noise: bool = True,
    **options: Unpack[TorchOptions],
) -> Model:
    """score(x) = ELBO(x), as for `nfk.vae`; an example has the same embedding in any batch.

    Args:
        module: a trained module in eval mode.
        elbo: `elbo(module, example, noise) -> scalar` in nats.
        noise: the shape of one example's standard normals, such as `(16,)`.
        sample: `sample(seed, n) -> n examples` of the model; without it, moments are over the data.
        common_noise: the same noise for all examples, or (False) noise from each example's own bits.
        options: as for `classifier`.
    """
    if not (isinstance(noise, tuple) and all(isinstance(size, int) and size > 0 for size in noise)):
        raise TypeError(f"noise={noise!r} must be the shape of one example's standard normals: noise=(16,), say")
    return _build(
        "vae", module, Plain(elbo), sample, {"centred": False}, options, noise, "common" if common_noise else "own"
    )


def network(
    module: nn.Module, apply: Function | None = None, *, sample: Sampler | None = None, **options: Unpack[TorchOptions]
) -> Model:
    """The empirical neural tangent kernel: a row per output, Fisher = identity, as for `nfk.network`.

    Args:
        module: a trained module in eval mode.
        apply: `apply(module, example)` -> outputs of one example; by default `module(example[None])[0]`.
        sample: used only where `options` ask for moments over the model.
        options: as for `classifier`.
    """
    defaults = {"centred": False, "fisher": "identity", "row_per_output": True}
    return _build("network", module, Plain(apply or _output), sample, defaults, options)


def _build(
    family: str,
    module: Any,
    score: Any,
    sample: Any,
    defaults: dict,
    options: Any,
    normals: tuple[int, ...] = (),
    noise: Noise = "none",
) -> Model:
    name = f"torch.{family}"
    if not isinstance(module, nn.Module):
        raise TypeError(f"nfk.{name} takes a torch.nn.Module first, not a {type(module).__name__}")
    if not callable(score.function):
        raise TypeError(f"nfk.{name} takes a function of (module, example) second: nfk.{name}(module, function)")
    check_options(name, options, TorchOptions, sample, TorchNetwork.sampler)
    check_module(module)
    network = TorchNetwork(
        arrays(module), noise, module=module, score=score, constructor=name, normals=normals,
        parameters=options.pop("parameters", None), vectorised=options.pop("vectorised", True),
        contents=contents(module),
    )  # fmt: skip
    return assemble(name, network, None if sample is None else Seeded(sample), defaults, options)


def _output(module: nn.Module, example: Example) -> Tensor:
    """f(x) of a module for batches; an output of `transformers` is read at its logits."""
    output = module(jax.tree.map(lambda leaf: leaf[None], example))
    return getattr(output, "logits", output)[0]


def _number(module: nn.Module, example: Example) -> Tensor:
    """The one number f(x) of a module for batches."""
    return _output(module, example).squeeze()


@dataclass(frozen=True)
class FreeEnergy:
    """log sum_y exp f_y(x)."""

    function: Function

    def __call__(self, module: nn.Module, example: Example) -> Tensor:
        logits = self.function(module, example)
        shape = tuple(getattr(logits, "shape", ()))
        if len(shape) != 1 or shape[0] < 2:
            raise NotAScore(
                f"apply returned a {type(logits).__name__} of shape {shape} for one example, but nfk.torch.classifier "
                "needs a vector of two or more logits: pass apply=lambda module, x: module(x[None])[0] or the like; "
                "for a single logit f the pair torch.stack([-f/2, f/2])"
            )
        return torch.logsumexp(logits, 0)


@dataclass(frozen=True)
class Plain:
    """The function itself, or its sigmoid or its negative."""

    function: Function
    then: Literal["nothing", "sigmoid", "negative"] = "nothing"

    def __call__(self, module: nn.Module, example: Example, *noise: Tensor) -> Tensor:
        value = self.function(module, example, *noise)
        if self.then == "sigmoid":
            return torch.sigmoid(value)
        return -value if self.then == "negative" else value


@dataclass(frozen=True)
class Seeded:
    """`sample(seed, n)` as the `sample(key, n)` of the core."""

    sample: Sampler

    def __call__(self, key: jax.Array, n: int) -> Any:
        with torch.no_grad():
            drawn = self.sample(int(jax.random.bits(key)), n)
        return jax.tree.map(lambda leaf: leaf.detach().numpy() if isinstance(leaf, Tensor) else leaf, drawn)
