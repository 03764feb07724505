"""What "score" means for each family of models: one scalar per example, a log-density up to a constant.

=====================  ========================  ======================  =======
constructor            score                     expectation over        centred
=====================  ========================  ======================  =======
`energy`               -E(x)                     samples, else the data  yes
`gan`                  D(x), raw critic output   samples G(h)            yes
`vae`                  ELBO(x)                   samples, else the data  no
`density`              log p(x)                  samples, else the data  no
`classifier`           logsumexp(logits(x))      the data, or samples    yes
`network`              each output, a row each   none: the NTK           no
=====================  ========================  ======================  =======
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

import jax

from nfk.layout import PathFilter
from nfk.model.in_jax import JaxNetwork
from nfk.model.interface import Example, Network, Noise, NotAScore, Params
from nfk.model.model import Expectation, Fisher, Model, Sampler


class ModelOptions(TypedDict, total=False):
    """What every constructor takes besides its function, its parameters and `sample`."""

    centred: bool
    fisher: Fisher
    expectation: Expectation
    samples: int
    damping: float
    parameters: PathFilter


@dataclass(frozen=True)
class FreeEnergy:
    """log sum_y exp f_y(x)."""

    function: Callable

    def __call__(self, params: Params, example: Example, key: jax.Array) -> jax.Array:
        logits = self.function(params, example)
        shape = getattr(logits, "shape", None)
        if shape is None:
            raise NotAScore(f"apply returned a {type(logits).__name__}: return the logits alone")
        if len(shape) != 1 or shape[0] < 2:
            raise NotAScore(
                f"apply returned shape {shape} for one example, but nfk.classifier needs a vector of two or more "
                "logits: for a batched network use lambda params, x: apply(params, x[None])[0], for a single "
                "logit f use the pair (-f/2, f/2)"
            )
        return jax.nn.logsumexp(logits)


@dataclass(frozen=True)
class Plain:
    """The function itself, or its sigmoid or its negative, without a key."""

    function: Callable
    then: Literal["nothing", "sigmoid", "negative"] = "nothing"

    def __call__(self, params: Params, example: Example, key: jax.Array) -> jax.Array:
        value = self.function(params, example)
        if self.then == "sigmoid":
            return jax.nn.sigmoid(value)
        return -value if self.then == "negative" else value


def classifier(
    apply: Callable, params: Params = None, *, sample: Sampler | None = None, **options: Unpack[ModelOptions]
) -> Model:
    """score(x) = logsumexp(logits(x)): its gradient is the paper's sum over y of p(y|x) grad f_y(x).

    Moments are taken over the data, as in the paper, or over `sample` where given. For a single logit f, give the pair
    (-f/2, f/2).

    Args:
        apply: `apply(params, example) -> logits`, for one example without a batch axis.
        params: the trained parameters, a pytree of arrays.
        sample: `sample(key, n) -> n examples` of the model; moments are then over them, else over the data.
        options: those of every constructor:

            - `centred`: subtract the mean gradient.
            - `fisher`: "diagonal", or "identity" for the kernel without normalisation.
            - `expectation`: moments over samples of the "model" or over the "data".
            - `samples`: how many model samples the expectations use (4096).
            - `damping`: added to the Fisher information, relative to its mean (1e-4).
            - `parameters`: which take part: a glob on paths such as "dense/*", several, or a function of the path.
    """
    return _build("classifier", FreeEnergy(apply), params, sample, {"centred": True}, options)


def gan(
    critic: Callable,
    params: Params = None,
    *,
    sample: Sampler | None = None,
    sigmoid: bool = False,
    **options: Unpack[ModelOptions],
) -> Model:
    """score(x) = D(x), the raw critic output; z and the Fisher over generated examples.

    Args:
        critic: `critic(params, example) -> scalar`.
        params: the critic's parameters, a pytree of arrays.
        sample: `sample(key, n) -> n generated examples`; needed unless `expectation="data"`.
        sigmoid: take the score after a sigmoid, as Adversarial Fisher Vectors did.
        options: as for `classifier`.
    """
    score = Plain(critic, "sigmoid" if sigmoid else "nothing")
    return _build("gan", score, params, sample, {"centred": True, "expectation": "model"}, options)


def energy(
    energy_function: Callable, params: Params = None, *, sample: Sampler | None = None, **options: Unpack[ModelOptions]
) -> Model:
    """score(x) = -E(x); expectations over `sample` where given, else over the data.

    Args:
        energy_function: `energy_function(params, example) -> scalar`, E(x).
        params: its parameters, a pytree of arrays.
        sample: `sample(key, n) -> n examples` of the model, such as `nfk.langevin`; without it, the data.
        options: as for `classifier`.
    """
    return _build("energy", Plain(energy_function, "negative"), params, sample, {"centred": True}, options)


def vae(
    elbo: Callable,
    params: Params = None,
    *,
    sample: Sampler | None = None,
    common_noise: bool = True,
    **options: Unpack[ModelOptions],
) -> Model:
    """score(x) = ELBO(x) or another bound; not centred, since E[grad log p] = 0 for a likelihood.

    Every example gets the same key, so that two examples differ by what they are and not by their noise; an example has
    the same embedding in any batch. With `common_noise=False` the key depends on the example (and on it alone): entries
    of the kernel between two examples are then unbiased, but independent noise drowns them where the ELBO of a single
    draw is noisy.

    Args:
        elbo: `elbo(params, example, key) -> scalar` in nats: the ELBO, or `nfk.importance_weighted`.
        params: its parameters, a pytree of arrays.
        sample: `sample(key, n) -> n examples` of the model; without it, moments are over the data.
        common_noise: one key for all examples, or (False) a key from each example's own bits.
        options: as for `classifier`.
    """
    noise = "common" if common_noise else "own"
    return _build("vae", elbo, params, sample, {"centred": False}, options, noise)


def density(
    log_prob: Callable, params: Params = None, *, sample: Sampler | None = None, **options: Unpack[ModelOptions]
) -> Model:
    """score(x) = log p(x) for a flow, an autoregressive model or any exact density.

    Args:
        log_prob: `log_prob(params, example) -> scalar` in nats.
        params: its parameters, a pytree of arrays.
        sample: `sample(key, n) -> n examples` of the model; without it, moments are over the data.
        options: as for `classifier`.
    """
    return _build("density", Plain(log_prob), params, sample, {"centred": False}, options)


def network(
    apply: Callable, params: Params = None, *, sample: Sampler | None = None, **options: Unpack[ModelOptions]
) -> Model:
    """The empirical neural tangent kernel: one row per output, no mean, Fisher = identity.

    Rows run output by output within an example, so a fit costs `outputs` gradients per example.

    Args:
        apply: `apply(params, example)` -> a vector of outputs, or a scalar.
        params: its parameters, a pytree of arrays.
        sample: used only where `options` ask for moments over the model.
        options: as for `classifier`.
    """
    defaults = {"centred": False, "fisher": "identity", "row_per_output": True}
    return _build("network", Plain(apply), params, sample, defaults, options)


def _build(
    family: str,
    score: Callable,
    params: Params,
    sample: Sampler | None,
    defaults: dict,
    options: Any,
    noise: Noise = "none",
) -> Model:
    function = getattr(score, "function", score)
    if any(base.__module__.split(".")[0] == "torch" for base in type(function).__mro__):
        raise TypeError(
            f"nfk.{family} takes a function of JAX and its parameters; for a PyTorch module there is nfk.torch: "
            f"import nfk.torch, then nfk.torch.{family}(module.eval(), ...)"
        )
    swapped = any(leaf is params and callable(leaf) for leaf in jax.tree.leaves(params))
    if not callable(function) or params is None or swapped:
        raise TypeError(
            f"nfk.{family} takes a function first and its parameters second: nfk.{family}(function, params)"
        )
    check_options(family, options, ModelOptions, sample, JaxNetwork.sampler)
    network = JaxNetwork(params, noise, score=score, parameters=options.pop("parameters", None))
    return assemble(family, network, sample, defaults, options)


def check_options(family: str, options: dict, allowed: type, sample: object, sampler: str) -> None:
    """No option that the constructor does not have, and a sampler of two arguments."""
    names = allowed.__annotations__
    unknown = set(options) - set(names)
    if unknown:
        raise TypeError(f"nfk.{family} has no option {sorted(unknown)[0]!r}: the options are {', '.join(names)}")
    if sample is not None and not (callable(sample) and _takes_two(sample)):
        raise TypeError(f"sample must be a function of two arguments: {sampler} -> n examples")


def assemble(family: str, network: Network, sample: Sampler | None, defaults: dict, options: dict) -> Model:
    """A model from a constructor's defaults and its caller's options, which take precedence."""
    expectation = {"expectation": "data" if sample is None else "model"}
    return Model(family, network, sample, **{**expectation, **defaults, **options})


def _takes_two(function: Callable) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True
