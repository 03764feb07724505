"""The constructors of `nfk` for PyTorch: score(x) = function(module, x), with derivatives by `torch.func`.

    embedding = nfk.fit(nfk.torch.classifier(module.eval()), X, rank=128)

Per-example gradients are taken by vmap(grad) and normalised in torch; JAX reads them where they lie (DLPack, no copy).
`module` is a trained `torch.nn.Module` on the CPU, in eval mode. All its parameters take part, whether or not they
require gradients, unless `parameters=` chooses ("*/weight", say; `fc.weight` has the path `fc/weight`); tied weights
count once; buffers are constants; half precision is read as float32. Nothing is copied but that: a module that is
trained on, or put in training mode, after a model was made of it is found at the next use and is an error.

A function takes ONE example, without a batch axis; floating-point examples come in the precision of the parameters.
"""

from __future__ import annotations

import copy
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from typing import Any, ClassVar, Literal, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from nfk.cost import Cost
from nfk.gradients import Differentiator
from nfk.models import Example, Model, NotAScore, Options, assemble, fingerprint

try:
    import torch
    from torch import Tensor, nn
    from torch.func import functional_call, grad, jacrev, jvp, vjp, vmap
    from torch.utils.flop_counter import FlopCounterMode
except ImportError as error:
    raise ImportError("nfk.torch needs PyTorch: pip install 'nfk[torch]'") from error

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
Function = Callable[..., Tensor]
Sampler = Callable[[int, int], Any]


class TorchOptions(Options, total=False):
    """Those of every constructor, and whether a batch is vectorised (vmap) or taken one example after another."""

    vectorised: bool


def classifier(
    module: nn.Module, apply: Function | None = None, *, sample: Sampler | None = None, **options: Unpack[TorchOptions]
) -> TorchModel:
    """score(x) = logsumexp(logits(x)); `apply(module, example) -> logits`, by default `module(example[None])[0]`.

    Options are those of `nfk.classifier`, and `vectorised=False` for a module that `torch.func` cannot vectorise.
    `sample(seed, n)` takes a seed (an int) and returns n examples, a tensor or an array; here and everywhere below.
    """
    return _build("classifier", module, FreeEnergy(apply or _output), sample, {"centred": True}, options)


def gan(
    module: nn.Module,
    critic: Function | None = None,
    *,
    sample: Sampler | None = None,
    sigmoid: bool = False,
    **options: Unpack[TorchOptions],
) -> TorchModel:
    """score(x) = D(x), the raw critic output, or its sigmoid; z and the Fisher over generated examples.

    `critic(module, example) -> scalar`, by default the one number that the module returns.
    """
    score = Plain(critic or _number, "sigmoid" if sigmoid else "nothing")
    return _build("gan", module, score, sample, {"centred": True, "expectation": "model"}, options)


def energy(
    module: nn.Module,
    energy_function: Function | None = None,
    *,
    sample: Sampler | None = None,
    **options: Unpack[TorchOptions],
) -> TorchModel:
    """score(x) = -E(x); `energy_function(module, example) -> scalar`, by default the one number of the module."""
    return _build("energy", module, Plain(energy_function or _number, "negative"), sample, {"centred": True}, options)


def density(
    module: nn.Module, log_prob: Function, *, sample: Sampler | None = None, **options: Unpack[TorchOptions]
) -> TorchModel:
    """score(x) = log p(x); `log_prob(module, example) -> scalar` in nats."""
    return _build("density", module, Plain(log_prob), sample, {"centred": False}, options)


def vae(
    module: nn.Module,
    elbo: Function,
    *,
    noise: tuple[int, ...],
    sample: Sampler | None = None,
    common_noise: bool = True,
    **options: Unpack[TorchOptions],
) -> TorchModel:
    """score(x) = ELBO(x); `elbo(module, example, noise) -> scalar` in nats.

    `noise` are standard normals of the shape given here, the same for every example or, with `common_noise=False`,
    from the example's bits: as for `nfk.vae`. An example has the same embedding in any batch.
    """
    if not (isinstance(noise, tuple) and all(isinstance(size, int) and size > 0 for size in noise)):
        raise TypeError(f"noise={noise!r} must be the shape of one example's standard normals: noise=(16,), say")
    defaults = {"centred": False, "own_noise": not common_noise}
    return _build("vae", module, Plain(elbo), sample, defaults, options, noise=noise)


def network(
    module: nn.Module, apply: Function | None = None, *, sample: Sampler | None = None, **options: Unpack[TorchOptions]
) -> TorchModel:
    """The empirical neural tangent kernel: a row per output of `apply(module, example)`, Fisher = identity."""
    defaults = {"centred": False, "fisher": "identity", "row_per_output": True}
    return _build("network", module, Plain(apply or _output), sample, defaults, options)


def _build(
    family: str, module: Any, score: Any, sample: Any, defaults: dict, options: Any, noise: tuple[int, ...] = ()
) -> TorchModel:
    name = f"torch.{family}"
    if not isinstance(module, nn.Module):
        raise TypeError(f"nfk.{name} takes a torch.nn.Module first, not a {type(module).__name__}")
    if not callable(score.function):
        raise TypeError(f"nfk.{name} takes a function of (module, example) second: nfk.{name}(module, function)")
    check_module(module)
    return assemble(
        TorchModel, name, defaults, options, TorchOptions, score=score, params=arrays(module), module=module,
        sample=Seeded(sample) if callable(sample) else sample, noise=noise, contents=contents(module),
    )  # fmt: skip


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


@dataclass(frozen=True, eq=False, repr=False)
class TorchModel(Model):
    """`score(module, example, *noise)` for a torch module; `params` are numpy views of its parameters."""

    module: nn.Module = field(kw_only=True)
    contents: tuple[int, ...] = field(kw_only=True)
    noise: tuple[int, ...] = ()
    vectorised: bool = True
    wrapping: ClassVar[str] = "lambda module, x: module(x[None])[0]"
    sampler: ClassVar[str] = "sample(seed, n)"

    @cached_property
    def names(self) -> list[str]:
        """What torch calls the chosen parameters, in the order of the layout."""
        places = jax.tree.leaves(nested({name: name for name, _ in self.module.named_parameters()}))
        return [name for name, chosen in zip(places, self.layout.chosen, strict=True) if chosen]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every parameter and buffer: the module's own memory, but for half precision."""
        return {name: _widened(tensor) for name, tensor in _state(self.module)}

    @property
    def chosen(self) -> list[Tensor]:
        return [self.tensors[name] for name in self.names]

    @cached_property
    def precision(self) -> torch.dtype:
        return reduce(torch.promote_types, (tensor.dtype for tensor in self.chosen))

    @cached_property
    def _caller(self) -> nn.Module:
        return _Caller(self.module, self.score)

    def scores(self, chosen: list[Tensor], example: Example, *noise: Tensor) -> Tensor:
        """The score as a function of the chosen parameters."""
        tensors = {**self.tensors, **dict(zip(self.names, chosen, strict=True))}
        return functional_call(self._caller, {f"module.{name}": t for name, t in tensors.items()}, (example, *noise))

    def batch(self, batch: Example, key: jax.Array) -> tuple:
        """A batch of numpy arrays as tensors, and its noise."""
        tensors = jax.tree.map(self._tensor, batch)
        if not self.noise:
            return (tensors,)
        normals = _normals(key, batch, self.noise, self.layout.dtype, self.own_noise)
        return tensors, borrowed(normals).to(self.precision)

    def example(self, example: Example, key: jax.Array) -> tuple:
        """One example as tensors, and its noise."""
        batch = self.batch(jax.tree.map(lambda leaf: np.asarray(leaf)[None], example), key)
        return jax.tree.map(lambda leaf: leaf[0], batch)

    def _tensor(self, leaf: Any) -> Tensor:
        leaf = np.asarray(leaf)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return torch.tensor(leaf.astype(np.float64 if self.precision == torch.float64 else np.float32))
        return torch.tensor(leaf)

    def check_unchanged(self) -> None:
        """The module is what it was when this model was made of it."""
        check_module(self.module)
        if contents(self.module) != self.contents:
            raise RuntimeError(
                f"the parameters or buffers of the module have changed since nfk.{self.family} was called: a kernel "
                f"belongs to one set of weights; call nfk.{self.family} again, or pass it copy.deepcopy(module)"
            )

    def score_of(self, params: Any, example: Example, key: jax.Array) -> jax.Array:
        raise TypeError(f"nfk.{self.family} is written in torch, and this needs a score that JAX can trace")

    def differentiate(self, key: jax.Array, outputs: int, unrolled: bool = False) -> Differentiator:
        return (Vectorised if self.vectorised and not unrolled else OneByOne)(self, key, outputs)

    def evaluate(self, example: Example, key: jax.Array) -> np.ndarray:
        self.check_unchanged()
        with torch.no_grad():
            return self.scores(self.chosen, *self.example(example, key)).double().numpy()

    def jacobian(self, example: Example, key: jax.Array) -> list:
        """By plain autograd on a copy of the module, one output after another."""
        self.check_unchanged()
        parameters = dict(self._twin.named_parameters())
        leaves = [parameters[name] for name in self.names]
        scores = self.score(self._twin, *self.example(example, key)).reshape(-1)
        rows = [torch.autograd.grad(s, leaves, retain_graph=True, materialize_grads=True) for s in scores]
        return [torch.stack(parts).double().numpy() for parts in zip(*rows, strict=True)]

    @cached_property
    def _twin(self) -> nn.Module:
        twin = copy.deepcopy(self.module).to(self.precision)
        for name, parameter in twin.named_parameters():
            parameter.requires_grad_(name in self.names)
        return twin

    def cost(self, example: Example) -> Cost:
        """FLOPs of one evaluation, and the bytes that autograd keeps of it; torch's vmap is not slower than a loop."""
        kept = []
        leaves = [tensor.detach().requires_grad_() for tensor in self.chosen]
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes), lambda kept: kept)
        with FlopCounterMode(display=False) as counter, hooks:
            self.scores(leaves, *self.example(example, jax.random.key(0)))
        return Cost(float(counter.get_total_flops()), sum(kept), unroll=False)

    def result(self, example: Example) -> jax.ShapeDtypeStruct:
        arguments = self.example(example, jax.random.key(0))
        with torch.no_grad():
            first, second = (self.scores(self.chosen, *arguments) for _ in range(2))
        if not isinstance(first, Tensor):
            raise NotAScore(f"the function of nfk.{self.family} returned a {type(first).__name__}: return one tensor")
        if not torch.allclose(first, second, rtol=1e-3, equal_nan=True):
            raise NotAScore(
                f"the score of nfk.{self.family} is random: one example gave {first.tolist()} and then "
                f"{second.tolist()}. Draw nothing in it; nfk.torch.vae(module, elbo, noise=shape) passes normals"
            )
        return jax.ShapeDtypeStruct(tuple(first.shape), jnp.dtype(str(first.dtype).removeprefix("torch.")))

    def outputs(self, example: Example) -> int:
        """Rows per example, after a trial: the shape of the score and, where it is to be vectorised, its gradient."""
        self.check_unchanged()
        kind = str(jax.tree.map(lambda leaf: (np.shape(leaf), np.asarray(leaf).dtype), example))
        if kind not in self.cache:
            outputs = super().outputs(example)
            if self.vectorised:
                self._try_to_vectorise(example, outputs)
            self.cache[kind] = outputs
        return self.cache[kind]

    def _try_to_vectorise(self, example: Example, outputs: int) -> None:
        two = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), example)
        try:
            Vectorised(self, jax.random.key(0), outputs).gradients(two)
        except Exception as error:
            raise NotVectorised(
                f"torch.func cannot vectorise the gradient of nfk.{self.family}{_place(error, self.module)}: {error}\n"
                "Write a Python condition on a value as torch.where, give transformers attn_implementation='eager', or "
                "pass vectorised=False, which takes examples one after another and works for every module, at several "
                "times the cost"
            ) from error


@partial(jax.jit, static_argnums=(2, 3, 4))
def _normals(key: jax.Array, batch: Example, shape: tuple[int, ...], dtype: np.dtype, own: bool) -> jax.Array:
    """Standard normals for every example of a batch: from the key and, if it has its `own`, the example's bits."""
    key_of = lambda example: jax.random.fold_in(key, fingerprint(example)) if own else key  # noqa: E731
    return jax.vmap(lambda example: jax.random.normal(key_of(example), shape, dtype))(batch)


class NotVectorised(NotAScore):
    """vmap(grad) fails for this module."""


class _Caller(nn.Module):
    """The score as a module, so that `functional_call` can put other parameters in it."""

    def __init__(self, module: nn.Module, score: Function) -> None:
        super().__init__()
        self.module, self.score = module, score

    def forward(self, example: Example, *noise: Tensor) -> Tensor:
        return self.score(self.module, example, *noise)


class TorchDifferentiator(Differentiator):
    """Rows (g - z) * s made in torch and read by JAX in place: the array keeps the tensor's memory alive."""

    model: TorchModel

    @abstractmethod
    def gradients(self, batch: Example) -> list[Tensor]:
        """g(x) for a batch, leaf by leaf: (rows, size of the leaf)."""

    def rows(self, mean: list, scale: list, batch: Example) -> list:
        moments = zip(map(borrowed, mean), map(borrowed, scale), strict=True)
        leaves = zip(self.gradients(batch), moments, strict=True)
        return [shared((leaf.to(z.dtype) - z).mul_(s)) for leaf, (z, s) in leaves]

    def _flat(self, leaves: Iterable[Tensor], rows: int) -> list[Tensor]:
        return [leaf.reshape(rows, size) for leaf, size in zip(leaves, self.layout.sizes, strict=True)]


class Vectorised(TorchDifferentiator):
    """A batch at once: vmap of grad (of jacrev for several outputs), jvp and vjp."""

    def gradients(self, batch: Example) -> list[Tensor]:
        self.model.check_unchanged()
        arguments = self.model.batch(batch, self.key)
        derivative = grad(self._score) if self.outputs == 1 else jacrev(self._score)
        leaves = vmap(derivative, in_dims=(None, *(0 for _ in arguments)))(self.model.chosen, *arguments)
        return self._flat(leaves, _length(batch) * self.outputs)

    def forward_product(self, columns: list, batch: Example) -> jax.Array:
        scores = self._batch_scores(batch)
        tangents = [borrowed(leaf).to(self.model.precision) for leaf in columns]
        derivative = lambda tangent: jvp(scores, (self.model.chosen,), (tangent,))[1]  # noqa: E731
        try:
            return shared(self._plain(vmap(derivative, out_dims=1)(tangents)))
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(
                f"engine='products' needs forward-mode derivatives, and torch has none here: {error}\n"
                "Pass engine='gradients'"
            ) from error

    def reverse_product(self, weights: jax.Array, batch: Example) -> jax.Array:
        pullback = vjp(self._batch_scores(batch), self.model.chosen)[1]
        leaves = vmap(lambda w: pullback(w)[0], in_dims=1)(borrowed(weights).to(self.model.precision))
        return shared(self._plain(torch.cat(self._flat(leaves, weights.shape[1]), dim=1))).T

    def _score(self, chosen: list[Tensor], *arguments: Any) -> Tensor:
        return self.model.scores(chosen, *arguments).reshape(() if self.outputs == 1 else (self.outputs,))

    def _batch_scores(self, batch: Example) -> Callable[[list[Tensor]], Tensor]:
        self.model.check_unchanged()
        arguments = self.model.batch(batch, self.key)
        scores = vmap(self._score, in_dims=(None, *(0 for _ in arguments)))
        return lambda chosen: scores(chosen, *arguments).reshape(-1)

    def _plain(self, tensor: Tensor) -> Tensor:
        return tensor.to(getattr(torch, str(self.layout.dtype)))


class OneByOne(TorchDifferentiator):
    """One example after another by plain autograd: for what vmap does not take. Products go through the gradients."""

    def gradients(self, batch: Example) -> list[Tensor]:
        self.model.check_unchanged()
        arguments = self.model.batch(batch, self.key)
        leaves = [tensor.detach().requires_grad_() for tensor in self.model.chosen]
        rows = []
        for index in range(_length(batch)):
            one = jax.tree.map(lambda leaf, i=index: leaf[i], arguments)
            scores = self.model.scores(leaves, *one).reshape(self.outputs)
            rows += [torch.autograd.grad(s, leaves, retain_graph=True, materialize_grads=True) for s in scores]
        return self._flat([torch.stack(parts) for parts in zip(*rows, strict=True)], len(rows))

    def forward_product(self, columns: list, batch: Example) -> jax.Array:
        tangents = [borrowed(leaf).reshape(len(leaf), -1) for leaf in columns]
        leaves = zip(self.gradients(batch), tangents, strict=True)
        return shared(torch.stack([leaf @ t.to(leaf.dtype).T for leaf, t in leaves]).sum(0))

    def reverse_product(self, weights: jax.Array, batch: Example) -> jax.Array:
        W = borrowed(weights)
        return shared(torch.cat([leaf.T.to(W.dtype) @ W for leaf in self.gradients(batch)]))


def shared(tensor: Tensor) -> jax.Array:
    """The tensor as a jax array in the same memory (on an accelerator, a copy there)."""
    array = jnp.from_dlpack(tensor.detach().contiguous())
    return array if jax.default_backend() == "cpu" else jax.device_put(array, jax.local_devices()[0])


def borrowed(array: jax.Array) -> Tensor:
    """The jax array as a tensor in the same memory (from an accelerator, a copy): to be read only."""
    on_cpu = jax.default_backend() == "cpu"
    return torch.from_dlpack(array if on_cpu else jax.device_put(array, jax.devices("cpu")[0]))


def check_module(module: nn.Module) -> None:
    """Eval mode, examples independent of each other, parameters on the CPU; else an error names the layer."""
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
    for name, tensor in _state(module):
        if tensor.device.type != "cpu":
            raise ValueError(f"module.{name} is on {tensor.device}: nfk.torch computes on the CPU; call module.cpu()")


def _state(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Every parameter and buffer once, detached."""
    return [(name, t.detach()) for name, t in (*module.named_parameters(), *module.named_buffers())]


def contents(module: nn.Module) -> tuple[int, ...]:
    """A checksum of every parameter and buffer: the sum of its bits as integers, exact in any order."""
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    tensors = [t if not t.is_complex() else torch.view_as_real(t) for _, t in _state(module)]
    sums = [t.view(whole[t.itemsize]).sum(dtype=torch.int64) for t in tensors]
    return tuple(torch.stack(sums).tolist()) if sums else ()


def arrays(module: nn.Module) -> dict:
    """The parameters as nested dicts of numpy views: {"conv": {"weight": ..., "bias": ...}}."""
    return nested({name: _view(parameter.detach()) for name, parameter in module.named_parameters()})


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


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _length(batch: Example) -> int:
    return len(jax.tree.leaves(batch)[0])


def _place(error: BaseException, module: nn.Module) -> str:
    """The innermost layer that was running when the error was raised."""
    names = {id(layer): name for name, layer in module.named_modules()}
    frames = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [layer for layer in frames if id(layer) in names and layer is not module]
    return f" at module.{names[id(inside[-1])]} ({type(inside[-1]).__name__})" if inside else ""
