"""What "score" means for each family of models, for a torch module: the constructors, and the scores they make."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import jax
import numpy as np
import torch
from torch import Tensor, nn

from nfk.model.families import ModelOptions, assemble, check_options
from nfk.model.interface import Example, Noise, NotAScore
from nfk.model.model import Model
from nfk.torch.calling import MASK, TOKENS, logits, output, tokens_and_mask
from nfk.torch.module import Function, TorchNetwork
from nfk.torch.tensors import arrays, check_module, contents, without_tables

Sampler = Callable[[int, int], Any]
WITHOUT_TABLES = ("classifier", "language_model", "encoder")


class TorchOptions(ModelOptions, total=False):
    """Those of every constructor; whether a batch is vectorised (vmap) or taken one example after another; and where
    gradients and blocks stay: `space="torch"` keeps them as tensors on the module's device, also on the CPU. `group`
    are processes of torch.distributed, such as torch.distributed.group.WORLD, that share out the examples."""

    vectorised: bool
    space: Literal["torch"] | None
    group: Any


def classifier(
    module: nn.Module, apply: Function | None = None, *, sample: Sampler | None = None, **options: Unpack[TorchOptions]
) -> Model:
    """score(x) = logsumexp(logits(x)), as for `nfk.classifier`.

    Args:
        module: a trained module in eval mode, on any one device.
        apply: `apply(module, example) -> logits` for one example; by default `module(example[None])[0]`.
        sample: `sample(seed, n) -> n examples`, a tensor or an array; moments are then over them, else over the data.
        options: as for `nfk.classifier`; `vectorised=False` for a module that `torch.func` cannot vectorise;
            `space="torch"` to keep gradients and blocks as tensors on the CPU too, as it is done on other devices;
            `group=torch.distributed.group.WORLD` to share out the examples over several processes.
    """
    return _build("classifier", module, FreeEnergy(apply or logits), sample, {"centred": True}, options)


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


def language_model(module: nn.Module, *, sample: Sampler | None = None, **options: Unpack[TorchOptions]) -> Model:
    """score(x) = log p(x), the sum of log p(token | tokens before it): a causal language model.

    `module` is one of `transformers`, or any module from tokens (1, T) to logits (1, T, words). An example is an array
    of tokens, or the dict of a tokenizer ({"input_ids": ..., "attention_mask": ...}); padding, left or right, changes
    nothing (a module of your own sees the tokens alone, so pad it on the right). Above `LARGE` parameters the tables of
    words take no part: their gradients mostly tell which rare words an example has. `parameters="*"` takes them in.

    Args:
        module: a trained causal language model, in eval mode.
        sample: `sample(seed, n) -> n examples` of the model; without it, moments are over the data.
        options: as for `classifier`.
    """
    return _build("language_model", module, Plain(_log_likelihood), sample, {"centred": False}, options)


def encoder(
    module: nn.Module, pooled: Function | None = None, *, sample: Sampler | None = None, **options: Unpack[TorchOptions]
) -> Model:
    """score(x) = -|h(x)|^2 / 2, for a network without a density or labels: a sentence or image encoder.

    `pooled(module, example) -> h`, a vector; by default the last hidden states, their mean over the tokens that are not
    padding. Its gradient is -J' h, the directions in which the parameters would shorten the embedding. Choose a late
    layer: `parameters="encoder/layer/5/*"`, say, the last of MiniLM. Tables of words as for `language_model`.

    Args:
        module: a trained encoder, in eval mode.
        pooled: `pooled(module, example) -> h`, a vector; by default the mean of the last hidden states.
        sample: `sample(seed, n) -> n examples`; without it, moments are over the data.
        options: as for `classifier`.
    """
    energy_function = _spread if pooled is None else HalfSquare(pooled)
    return _build("encoder", module, Plain(energy_function, "negative"), sample, {"centred": True}, options)


def diffusion(
    module: nn.Module,
    schedule: Any,
    *,
    shape: tuple[int, ...],
    times: int = 8,
    sample: Sampler | None = None,
    common_noise: bool = True,
    **options: Unpack[TorchOptions],
) -> Model:
    """score(x) = minus the denoising bound: -1/2 sum over t of (SNR(t-1)/SNR(t) - 1) |eps - module(x_t, t)|^2.

    `module(x_t, t)` returns the noise that it sees (a tensor, or an object with `.sample` as in `diffusers`), for x_t =
    sqrt(a_t) x + sqrt(1 - a_t) eps; `schedule` is a_1, ..., a_T or a scheduler that has them as `.alphas_cumprod`.
    The sum is that over `times` of the steps, evenly spread, with one draw of noise each, the same draws for every
    example unless `common_noise=False`; `shape` is that of an example. Terms without parameters are left out. A
    gradient costs `times` evaluations.

    Args:
        module: a trained denoiser, in eval mode.
        schedule: a_1, ..., a_T, or a scheduler that has them as `alphas_cumprod`.
        shape: that of one example.
        times: how many steps of the schedule are taken.
        sample: `sample(seed, n) -> n examples` of the model; without it, moments are over the data.
        common_noise: the same noise for all examples, or (False) noise from each example's own bits.
        options: as for `classifier`.
    """
    score = Denoising(module_output, _schedule(schedule), times)
    noise = "common" if common_noise else "own"
    return _build("diffusion", module, score, sample, {"centred": False}, options, (times, *_shape(shape)), noise)


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
    module: nn.Module,
    log_prob: Function | None = None,
    *,
    sample: Sampler | None = None,
    **options: Unpack[TorchOptions],
) -> Model:
    """score(x) = log p(x), as for `nfk.density`. For tokens, see `language_model`.

    Args:
        module: a trained module in eval mode.
        log_prob: `log_prob(module, example) -> scalar` in nats.
        sample: `sample(seed, n) -> n examples` of the model; without it, moments are over the data.
        options: as for `classifier`.
    """
    if log_prob is None:
        raise TypeError(
            "nfk.torch.density takes a function of (module, example) second, that returns log p of one example: "
            "nfk.torch.density(module, log_prob); for a model of tokens nfk.torch.language_model(module) needs none"
        )
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
    return _build("network", module, Plain(apply or logits), sample, defaults, options)


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
    parameters, note, space = options.pop("parameters", None), "", options.pop("space", None)
    if space not in (None, "torch"):
        raise ValueError(f"space={space!r} is unknown: choose 'torch', or None for what suits the module's device")
    if parameters is None and family in WITHOUT_TABLES:
        parameters, note = without_tables(module)
    network = TorchNetwork(
        arrays(module), noise, module=module, score=score, constructor=name, normals=normals, parameters=parameters,
        vectorised=options.pop("vectorised", True), contents=contents(module), note=note, tensors_stay=space == "torch",
        group=options.pop("group", None),
    )  # fmt: skip
    return assemble(name, network, None if sample is None else Seeded(sample), defaults, options)


def _number(module: nn.Module, example: Example) -> Tensor:
    """The one number f(x) of a module for batches."""
    found = logits(module, example).squeeze()
    if found.ndim:
        raise NotAScore(
            f"the module returned an output of shape {tuple(found.shape)} for one example, which is not one number: "
            "pass a function of (module, example) second that returns one; for an encoder there is "
            "nfk.torch.encoder(module)"
        )
    return found


def _spread(module: nn.Module, example: Example) -> Tensor:
    """|mean of the last hidden states over what is not padding|^2 / 2."""
    result = output(module, example)
    states = getattr(result, "last_hidden_state", result)[0]
    if states.ndim != 2:
        return states.square().sum() / 2
    weights = torch.ones_like(states[:, 0])
    if isinstance(example, dict):
        weights = tokens_and_mask(example)[1].to(states.dtype)
    return ((states * weights[:, None]).sum(0) / weights.sum()).square().sum() / 2


def _log_likelihood(module: nn.Module, example: Example) -> Tensor:
    """Sum of log p(token | tokens before it), over tokens that are not padding and follow one that is not."""
    tokens, mask = tokens_and_mask(example)
    named = TOKENS in inspect.signature(module.forward).parameters
    found = logits(module, {TOKENS: tokens, MASK: mask} if named else tokens)
    if found.ndim != 2 or len(found) != len(tokens):
        raise NotAScore(
            f"the module of nfk.torch.language_model returned logits of shape {tuple(found.shape)} for {len(tokens)} "
            "tokens: it must give a row of logits for every token. A model without a head of words is an encoder: "
            "nfk.torch.encoder(module) takes its hidden states; for a density of your own there is nfk.torch.density"
        )
    each = torch.log_softmax(found[:-1], -1).gather(1, tokens[1:, None].long())[:, 0]
    return (each * ((mask[1:] != 0) & (mask[:-1] != 0))).sum()


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
                "for a single logit f the pair torch.stack([-f/2, f/2]); for an encoder without labels there is "
                "nfk.torch.encoder(module)"
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
class HalfSquare:
    """|h(x)|^2 / 2."""

    function: Function

    def __call__(self, module: nn.Module, example: Example) -> Tensor:
        return self.function(module, example).square().sum() / 2


@dataclass(frozen=True)
class Denoising:
    """Minus the part of the denoising bound that depends on the parameters, at evenly spread steps."""

    function: Function
    kept: tuple[float, ...]
    times: int

    def __call__(self, module: nn.Module, example: Tensor, noise: Tensor) -> Tensor:
        steps = np.linspace(1, len(self.kept) - 1, self.times).round().astype(int)  # the first has no step before it
        kept = np.asarray(self.kept)
        ratio = kept / (1 - kept)
        there = lambda numbers: torch.tensor(numbers.tolist(), dtype=noise.dtype, device=noise.device)  # noqa: E731
        column = lambda numbers: there(numbers).view(-1, *(1 for _ in example.shape))  # noqa: E731
        noisy = column(np.sqrt(kept[steps])) * example + column(np.sqrt(1 - kept[steps])) * noise
        found = self.function(module, noisy, torch.tensor(steps.tolist(), device=noise.device))
        weights = there((ratio[steps - 1] - ratio[steps]) / ratio[steps])
        return -((len(self.kept) - 1) / 2) * (weights * (noise - found).flatten(1).square().sum(1)).mean()


def module_output(module: nn.Module, noisy: Tensor, steps: Tensor) -> Tensor:
    found = module(noisy, steps)
    found = getattr(found, "sample", found)
    if not isinstance(found, Tensor) or found.shape != noisy.shape:
        shape = tuple(getattr(found, "shape", ()))
        raise NotAScore(
            f"the module of nfk.torch.diffusion returned a {type(found).__name__} of shape {shape} for x_t of shape "
            f"{tuple(noisy.shape)}: module(x_t, t) must return the noise, shaped like x_t"
        )
    return found


def _schedule(schedule: Any) -> tuple[float, ...]:
    kept = np.asarray(getattr(schedule, "alphas_cumprod", schedule), np.float64)
    if kept.ndim != 1 or len(kept) < 2 or not ((kept > 0) & (kept < 1)).all() or (np.diff(kept) >= 0).any():
        raise ValueError(
            "schedule must be the falling numbers a_1 > ... > a_T between 0 and 1 (alphas_cumprod), or a scheduler "
            f"that has them; this one has shape {kept.shape}"
        )
    return tuple(kept.tolist())


def _shape(shape: Any) -> tuple[int, ...]:
    if not (isinstance(shape, tuple) and all(isinstance(size, int) and size > 0 for size in shape)):
        raise TypeError(f"shape={shape!r} must be the shape of one example: shape=(3, 32, 32), say")
    return shape


@dataclass(frozen=True)
class Seeded:
    """`sample(seed, n)` as the `sample(key, n)` of the core."""

    sample: Sampler

    def __call__(self, key: jax.Array, n: int) -> Any:
        with torch.no_grad():
            drawn = self.sample(int(jax.random.bits(key)), n)
        return jax.tree.map(lambda leaf: leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf, drawn)
