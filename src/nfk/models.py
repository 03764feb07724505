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
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from nfk.cost import Cost, cost_of
from nfk.gradients import Compiled, Differentiator
from nfk.layout import Layout, PathFilter

Params = Any
Example = Any
Sampler = Callable[[jax.Array, int], Any]


@dataclass(frozen=True, eq=False)
class Model:
    """A trained network read as a density: `score(params, example, key)` and how its moments are taken.

    The score is written in JAX. A subclass for another framework says how one is evaluated and differentiated there:
    `differentiate`, `evaluate`, `jacobian`, `cost` and `result` are all that the rest of the package asks.
    """

    family: str
    score: Callable[..., Any]
    params: Params
    sample: Sampler | None = None
    centred: bool = True
    fisher: Literal["diagonal", "identity"] = "diagonal"
    expectation: Literal["model", "data"] = "data"
    samples: int = 4096
    damping: float = 1e-4
    parameters: PathFilter = None
    own_noise: bool = False
    row_per_output: bool = False
    wrapping: ClassVar[str] = "lambda params, x: network(params, x[None])[0]"
    sampler: ClassVar[str] = "sample(key, n)"

    def __post_init__(self) -> None:
        if self.fisher not in ("diagonal", "identity"):
            raise ValueError(f"fisher={self.fisher!r} is unknown: choose 'diagonal' or 'identity'")
        if self.expectation not in ("model", "data"):
            raise ValueError(f"expectation={self.expectation!r} is unknown: choose 'model' or 'data'")
        if not isinstance(self.centred, bool):
            raise TypeError(f"centred={self.centred!r} must be True or False")
        if self.expectation == "model" and self.sample is None:
            raise ValueError(
                f"expectation='model' needs samples of the model: pass a function {self.sampler} -> n examples as "
                "sample=, or choose expectation='data'"
            )
        if not isinstance(self.samples, (int, np.integer)) or self.samples < 2:
            raise ValueError(f"samples={self.samples!r} must be a number of samples, at least 2 for a variance")
        if not isinstance(self.damping, (int, float, np.floating)) or not self.damping >= 0:
            raise ValueError(f"damping={self.damping!r} must be a number, 0 or more")
        self.layout  # noqa: B018  (its checks belong to construction)
        for path, leaf in jax.tree_util.tree_flatten_with_path(self.params)[0]:
            if _is_float(leaf) and not np.isfinite(np.asarray(leaf).astype(np.float64)).all():
                place = jax.tree_util.keystr(path, simple=True, separator="/")
                raise ValueError(f"params[{place!r}] holds NaN or infinity: the network did not train or did not load")

    def __getstate__(self) -> dict:
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}  # not what can be made again

    def __deepcopy__(self, memo: dict) -> Model:
        return self  # nothing in it changes, so a copy (scikit-learn's clone makes one) may share it

    def __repr__(self) -> str:
        return (
            f"nfk.{self.family}({self.layout.size:,} parameters, centred={self.centred}, "
            f"fisher={self.fisher!r}, expectation={self.expectation!r})"
        )

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.params, self.parameters)

    @cached_property
    def cache(self) -> dict:
        """A place for what is expensive to make again for this model, such as compiled functions."""
        return {}

    @property
    def needs_moments(self) -> bool:
        return self.centred or self.fisher == "diagonal"

    def score_of(self, params: Params, example: Example, key: jax.Array) -> jax.Array:
        """The score, with randomness from `key` (and from the example, if it has noise of its own)."""
        if self.own_noise:
            key = jax.random.fold_in(key, fingerprint(example))
        return self.score(params, example, key)

    def differentiate(self, key: jax.Array, outputs: int, unrolled: bool = False) -> Differentiator:
        """The derivatives of the score, for one key of its randomness."""
        return Compiled(self, key, outputs, unrolled)

    def evaluate(self, example: Example, key: jax.Array) -> Any:
        """The score of one example."""
        return self.cache.setdefault("score", jax.jit(self.score_of))(self.params, example, key)

    def jacobian(self, example: Example, key: jax.Array) -> list:
        """d score / d params for one example, leaf by leaf: the definition, which shares nothing with the fast path."""

        def jacobian(chosen: list, others: list, example: Example, key: jax.Array) -> list:
            return jax.jacrev(lambda leaves: self.score_of(self.layout.join(leaves, others), example, key))(chosen)

        return self.cache.setdefault("jacobian", jax.jit(jacobian))(*self.layout.split(self.params), example, key)

    def cost(self, example: Example) -> Cost:
        """What one evaluation of the score costs."""
        return cost_of(self.score_of, self.params, example, jax.random.key(0))

    def result(self, example: Example) -> Any:
        """What the score returns for one example, as an abstract array."""
        return jax.eval_shape(self.score_of, self.params, example, jax.random.key(0))

    def outputs(self, example: Example) -> int:
        """Rows per example (1 for a scalar score), after a trial evaluation of shapes on one example."""
        try:
            result = self.result(example)
        except NotAScore:
            raise
        except Exception as error:
            shapes = jax.tree.map(np.shape, example)
            raise ValueError(
                f"nfk.{self.family} could not be evaluated on one example of shape {shapes}: {error}\n"
                "The function takes ONE example without a batch axis, and X[0] must be what it expects; wrap a network "
                f"for batches as {self.wrapping}"
            ) from error
        if not hasattr(result, "shape"):
            raise NotAScore(f"the function of nfk.{self.family} returned a {type(result).__name__}: return one array")
        if not jnp.issubdtype(result.dtype, jnp.floating):
            raise NotAScore(
                f"the score of nfk.{self.family} has dtype {result.dtype}: return floats, to have a gradient"
            )
        if self.row_per_output and len(result.shape) <= 1:
            return int(np.prod(result.shape))
        if self.row_per_output:
            raise NotAScore(f"apply returned shape {result.shape} for one example: return a vector of outputs")
        if result.shape != ():
            raise NotAScore(
                f"the score of nfk.{self.family} has shape {result.shape} for one example, but must be a scalar: "
                "index it ([0] for a batch or channel axis of one), sum it, or use nfk.network for one row per output"
            )
        return 1


class NotAScore(ValueError):
    """The function of a model does not return what its family needs."""


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def fingerprint(example: Example) -> jax.Array:
    """A 32-bit hash of the example's bits, the same wherever it stands: exact integer arithmetic throughout."""
    total = jnp.uint32(2166136261)
    for leaf in jax.tree.leaves(example):
        leaf = jnp.asarray(leaf).reshape(-1)
        bits = (
            leaf.astype(jnp.uint32)
            if leaf.dtype == bool
            else jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * leaf.dtype.itemsize}"))
        )
        words = bits.astype(jnp.uint32)
        if leaf.dtype.itemsize == 8:
            words = words ^ (bits >> 32).astype(jnp.uint32)
        place = jnp.arange(words.size, dtype=jnp.uint32)
        mixed = (words ^ (place * jnp.uint32(2654435761))) * jnp.uint32(2246822519)
        mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(3266489917)
        total = (total ^ jnp.sum(mixed ^ (mixed >> 13), dtype=jnp.uint32)) * jnp.uint32(16777619)
    return total


def split_key(key: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A seed or a key, split once by purpose: the start of the SVD, the model samples, the randomness of the score."""
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        key = jax.random.key(int(key))
    if not isinstance(key, jax.Array):
        raise TypeError(f"key={key!r} must be a whole number (a seed) or a jax key: key=0, say")
    start, sample, score = jax.random.split(key, 3)
    return start, sample, score


class Options(TypedDict, total=False):
    """What every constructor takes besides its function, its parameters and `sample`."""

    centred: bool
    fisher: Literal["diagonal", "identity"]
    expectation: Literal["model", "data"]
    samples: int
    damping: float
    parameters: PathFilter


@dataclass(frozen=True)
class FreeEnergy:
    """log sum_y exp f_y(x)."""

    apply: Callable

    def __call__(self, params: Params, example: Example, key: jax.Array) -> jax.Array:
        logits = self.apply(params, example)
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


def classifier(apply: Callable, params: Params, *, sample: Sampler | None = None, **options: Unpack[Options]) -> Model:
    """score(x) = logsumexp(logits(x)): its gradient is the paper's sum over y of p(y|x) grad f_y(x).

    `apply(params, example) -> logits`. Moments are taken over the data, as in the paper, or over `sample` where given.

    Options, common to all constructors: `centred`, `fisher` ("diagonal" or "identity"), `expectation` ("model" or
    "data"), `samples` (how many model samples the expectations use), `damping` (relative to the mean Fisher),
    `parameters` (which take part: a glob on paths such as "dense/*", several, or a function of the path).
    """
    return _build("classifier", FreeEnergy(apply), params, sample, {"centred": True}, options)


def gan(
    critic: Callable,
    params: Params,
    *,
    sample: Sampler | None = None,
    sigmoid: bool = False,
    **options: Unpack[Options],
) -> Model:
    """score(x) = D(x), the raw critic output; z and the Fisher over generated examples.

    `critic(params, example) -> scalar`; `sample(key, n) -> n generated examples`. `sigmoid=True` takes the score after
    a sigmoid, as Adversarial Fisher Vectors did. Options as for `classifier`.
    """
    score = Plain(critic, "sigmoid" if sigmoid else "nothing")
    return _build("gan", score, params, sample, {"centred": True, "expectation": "model"}, options)


def energy(
    energy_function: Callable, params: Params, *, sample: Sampler | None = None, **options: Unpack[Options]
) -> Model:
    """score(x) = -E(x); expectations over `sample` where given, else over the data.

    `energy_function(params, example) -> scalar`. Options as for `classifier`.
    """
    return _build("energy", Plain(energy_function, "negative"), params, sample, {"centred": True}, options)


def vae(
    elbo: Callable,
    params: Params,
    *,
    sample: Sampler | None = None,
    common_noise: bool = True,
    **options: Unpack[Options],
) -> Model:
    """score(x) = ELBO(x) or another bound; not centred, since E[grad log p] = 0 for a likelihood.

    `elbo(params, example, key) -> scalar` in nats. Every example gets the same key, so that two examples differ by what
    they are and not by their noise; an example has the same embedding in any batch. With `common_noise=False` the key
    depends on the example (and on it alone): entries of the kernel between two examples are then unbiased, but
    independent noise drowns them where the ELBO of a single draw is noisy. Options as for `classifier`.
    """
    return _build("vae", elbo, params, sample, {"centred": False, "own_noise": not common_noise}, options)


def density(log_prob: Callable, params: Params, *, sample: Sampler | None = None, **options: Unpack[Options]) -> Model:
    """score(x) = log p(x) for a flow, an autoregressive model or any exact density.

    `log_prob(params, example) -> scalar` in nats. Options as for `classifier`.
    """
    return _build("density", Plain(log_prob), params, sample, {"centred": False}, options)


def network(apply: Callable, params: Params, *, sample: Sampler | None = None, **options: Unpack[Options]) -> Model:
    """The empirical neural tangent kernel: one row per output, no mean, Fisher = identity.

    `apply(params, example) -> vector of outputs` (or a scalar). Rows run output by output within an example, so a fit
    costs `outputs` gradients per example. Options as for `classifier`.
    """
    defaults = {"centred": False, "fisher": "identity", "row_per_output": True}
    return _build("network", Plain(apply), params, sample, defaults, options)


def _build(family: str, score: Callable, params: Params, sample: Sampler | None, defaults: dict, options: Any) -> Model:
    function = getattr(score, "function", getattr(score, "apply", score))
    if not callable(function) or any(leaf is params and callable(leaf) for leaf in jax.tree.leaves(params)):
        raise TypeError(
            f"nfk.{family} takes a function first and its parameters second: nfk.{family}(function, params)"
        )
    return assemble(Model, family, defaults, options, Options, score=score, params=params, sample=sample)


def assemble(
    kind: type[Model], family: str, defaults: dict, options: Any, allowed: Any, *, sample: Any, **parts: Any
) -> Any:
    """A model of one kind, from a constructor's defaults and its caller's options, which take precedence."""
    unknown = set(options) - set(allowed.__annotations__)
    if unknown:
        names = ", ".join(allowed.__annotations__)
        raise TypeError(f"nfk.{family} has no option {sorted(unknown)[0]!r}: the options are {names}")
    if sample is not None and not (callable(sample) and _takes_two(sample)):
        raise TypeError(f"sample must be a function of two arguments: {kind.sampler} -> n examples")
    expectation = {"expectation": "data" if sample is None else "model"}
    return kind(family=family, sample=sample, **parts, **{**expectation, **defaults, **options})


def _takes_two(function: Callable) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True
