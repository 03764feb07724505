"""A torch module as a network: its score evaluated, checked, and handed to those who differentiate it."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from nfk.layout import Layout, PathFilter
from nfk.model.fingerprint import fingerprint
from nfk.model.in_jax import kind_of
from nfk.model.interface import Batching, Cost, Differentiator, Example, Network, NetworkChanged, NotAScore
from nfk.model.keys import seeded
from nfk.torch.calling import MASK
from nfk.torch.derivatives import ByLayer, OneByOne, Vectorised
from nfk.torch.processes import TorchProcesses
from nfk.torch.space import TorchSpace
from nfk.torch.tensors import borrowed, check_module, contents, nested, state, widened

Function = Callable[..., Tensor]
MICROBATCH = 16  # examples from which the overhead of a call no longer shows in most networks
SMALL_BYTES = 16 * 2**20  # of gradients; of a small network it shows (LeNet-5: 0.38 ms an example by 16, 0.22 by 64)
PADDING = (
    "transformers looks at the values of a padding mask: call the module as nfk.torch.output(module, example), which "
    "gives it a mask of four axes (nfk.torch.encoder, classifier and language_model do so themselves). Else: "
)
AGREEMENT = 1e-2  # relative error beyond which gradients by layer are not those of autograd


@dataclass(frozen=True, eq=False)
class TorchNetwork(Network):
    """`score(module, example, *normals)` for a torch module; `params` are numpy views of its parameters.

    `constructor` is what made it, for error messages; `normals` the shape of the noise that the score takes, if any;
    `tensors_stay` keeps gradients and blocks as tensors, as it is done for a module on any device but the CPU; `group`
    are processes of torch.distributed that share out the examples.
    """

    module: nn.Module = field(kw_only=True)
    score: Function = field(kw_only=True)
    constructor: str = field(kw_only=True)
    parameters: PathFilter = field(default=None, kw_only=True)
    normals: tuple[int, ...] = field(default=(), kw_only=True)
    vectorised: bool = field(default=True, kw_only=True)
    contents: tuple[int, ...] = field(kw_only=True)
    note: str = field(default="", kw_only=True)
    tensors_stay: bool = field(default=False, kw_only=True)
    group: Any = field(default=None, kw_only=True, repr=False)
    wrapping: ClassVar[str] = "lambda module, x: module(x[None])[0]"
    sampler: ClassVar[str] = "sample(seed, n)"

    def __post_init__(self) -> None:
        for name, parameter in self.module.named_parameters():
            if not parameter.detach().isfinite().all():
                path = name.replace(".", "/")
                raise ValueError(f"params[{path!r}] holds NaN or infinity: the network did not train or did not load")

    @cached_property
    def layout(self) -> Layout:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Layout.of(self.params, self.parameters)

    @cached_property
    def _results(self) -> dict[str, Any]:
        """What the score returned for examples of each kind that was tried."""
        return {}

    @cached_property
    def _formulas(self) -> dict[str, bool]:
        return {}

    @cached_property
    def names(self) -> list[str]:
        """What torch calls the chosen parameters, in the order of the layout."""
        places = jax.tree.leaves(nested({name: name for name, _ in self.module.named_parameters()}))
        return [name for name, chosen in zip(places, self.layout.chosen, strict=True) if chosen]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every parameter and buffer: the module's own memory, but for half precision."""
        return {name: widened(tensor) for name, tensor in state(self.module)}

    @property
    def chosen(self) -> list[Tensor]:
        return [self.tensors[name] for name in self.names]

    @cached_property
    def precision(self) -> torch.dtype:
        return reduce(torch.promote_types, (tensor.dtype for tensor in self.chosen))

    @property
    def device(self) -> torch.device:
        return self.chosen[0].device

    @property
    def space(self) -> TorchSpace | None:
        if not (self.tensors_stay or self.group is not None or self.device.type != "cpu"):
            return None
        return TorchSpace(self.device, TorchProcesses.of(self.group))

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
        if not self.normals:
            return (tensors,)
        normals = _normals(key, batch, self.normals, self.layout.dtype, self.noise == "own")
        return tensors, borrowed(normals).to(self.device, self.precision)

    def example(self, example: Example, key: jax.Array) -> tuple:
        """One example as tensors, and its noise."""
        batch = self.batch(jax.tree.map(lambda leaf: np.asarray(leaf)[None], example), key)
        return jax.tree.map(lambda leaf: leaf[0], batch)

    def _tensor(self, leaf: Any) -> Tensor:
        leaf = np.asarray(leaf)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            leaf = leaf.astype(np.float64 if self.precision == torch.float64 else np.float32)
        return torch.tensor(leaf, device=self.device)

    def check_unchanged(self) -> None:
        """The module is what it was when this network was made of it."""
        check_module(self.module)
        if contents(self.module) != self.contents:
            raise NetworkChanged(
                f"the parameters or buffers of the module have changed since nfk.{self.constructor} was called: a "
                f"kernel belongs to one set of weights; call nfk.{self.constructor} again, or pass it "
                "copy.deepcopy(module)"
            )

    def differentiate(
        self, key: jax.Array, outputs: int, batching: Batching = "vmap", device: Any = None
    ) -> Differentiator:
        return (ByLayer if self.vectorised and batching != "unrolled" else OneByOne)(self, key, outputs, device)

    @property
    def has_formulas(self) -> bool:
        """Whether the gradients by layer were those of autograd, for every kind of example that was tried."""
        return bool(self._formulas) and all(self._formulas.values())

    def evaluate(self, example: Example, key: jax.Array) -> np.ndarray:
        self.check_unchanged()
        with torch.no_grad():
            return self.scores(self.chosen, *self.example(example, key)).cpu().double().numpy()

    def jacobian(self, example: Example, key: jax.Array) -> list:
        """By plain autograd on a copy of the module, one output after another."""
        self.check_unchanged()
        parameters = dict(self._twin.named_parameters())
        leaves = [parameters[name] for name in self.names]
        scores = self.score(self._twin, *self.example(example, key)).reshape(-1)
        rows = [torch.autograd.grad(s, leaves, retain_graph=True, materialize_grads=True) for s in scores]
        return [torch.stack(parts).cpu().double().numpy() for parts in zip(*rows, strict=True)]

    @cached_property
    def _twin(self) -> nn.Module:
        twin = copy.deepcopy(self.module).to(self.precision)
        for name, parameter in twin.named_parameters():
            parameter.requires_grad_(name in self.names)
        return twin

    def cost(self, example: Example) -> Cost:
        """FLOPs of one evaluation, and the bytes that autograd keeps of it beside the module's own tensors."""
        kept, own = [], {tensor.untyped_storage().data_ptr() for tensor in self.tensors.values()}

        def count(tensor: Tensor) -> None:
            kept.append(0 if tensor.untyped_storage().data_ptr() in own else tensor.nbytes)

        leaves = [tensor.detach().requires_grad_() for tensor in self.chosen]
        arguments = self.example(example, seeded(0))

        def work() -> None:
            kept.clear()
            with torch.autograd.graph.saved_tensors_hooks(count, lambda kept: kept):
                self.scores(leaves, *arguments)

        flops = _flops(work)
        return Cost(flops, sum(kept), microbatch=MICROBATCH, microbatch_bytes=SMALL_BYTES)

    def result(self, example: Example) -> jax.ShapeDtypeStruct:
        """The shape of the score, after a trial of it and, where it is to be vectorised, of its gradient."""
        self.check_unchanged()
        kind = kind_of(example)
        if kind not in self._results:
            self._results[kind] = self._tried(example, kind)
        return self._results[kind]

    def _tried(self, example: Example, kind: str) -> jax.ShapeDtypeStruct:
        arguments = self.example(example, seeded(0))
        with torch.no_grad():
            first, second = (self.scores(self.chosen, *arguments) for _ in range(2))
        if not isinstance(first, Tensor):
            raise NotAScore(
                f"the function of nfk.{self.constructor} returned a {type(first).__name__}: return one tensor"
            )
        if not torch.allclose(first, second, rtol=1e-3, equal_nan=True):
            raise NotAScore(
                f"the score of nfk.{self.constructor} is random: one example gave {first.tolist()} and then "
                f"{second.tolist()}. Draw nothing in it; nfk.torch.vae(module, elbo, noise=shape) passes normals"
            )
        if self.vectorised and first.dtype.is_floating_point:
            self._formulas[kind] = first.numel() == 1 and self._agrees(example)
            if not self._formulas[kind]:
                self._try_to_vectorise(example, first.numel())
        return jax.ShapeDtypeStruct(tuple(first.shape), jnp.dtype(str(first.dtype).removeprefix("torch.")))

    def _try_to_vectorise(self, example: Example, outputs: int) -> None:
        try:
            Vectorised(self, seeded(0), outputs).gradients(_twice(example))
        except Exception as error:
            place, mask = _place(error, self.module), isinstance(example, dict) and MASK in example
            raise NotVectorised(
                f"torch.func cannot vectorise the gradient of nfk.{self.constructor}{place}: {error}\n"
                f"{PADDING if mask else ''}Write a Python condition on a value as torch.where, give transformers "
                "attn_implementation='eager', or pass vectorised=False, which takes examples one after another and "
                "works for every module, at several times the cost"
            ) from error

    def _agrees(self, example: Example) -> bool:
        """Whether the gradients by layer are those of plain autograd, up to rounding.

        Tried before vmap(grad), whose first call imports a second's worth of torch's compiler.
        """
        two = _twice(example)
        try:
            places = ByLayer(self, seeded(0), 1).gradients_by_layer(two)
        except Exception:  # whatever cannot be done this way can be done by vmap(grad)
            return False
        expected = OneByOne(self, seeded(0), 1).gradients(two)
        pairs = [(a, b) for a, b in zip(places, expected, strict=True) if b.numel()]
        error, size = (max(float(part.abs().max()) for part in parts)
                       for parts in ([a - b for a, b in pairs], [b for _, b in pairs]))  # fmt: skip
        return error <= AGREEMENT * size


def _flops(work: Callable[[], Any]) -> float:
    """Of the operations that `work` does, by torch's own counter where there are operations of higher order."""
    try:
        with _Flops() as counted:
            work()
        return float(counted.total)
    except NotImplementedError:
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            work()
        return float(counter.get_total_flops())


class _Flops(TorchDispatchMode):
    """Counts operations by torch's own formulas. Its FlopCounterMode imports a second's worth of torch's compiler."""

    total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import it here as well

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        self.total += formula(*args, **(kwargs or {}), out_val=found) if formula else 0
        return found


@partial(jax.jit, static_argnums=(2, 3, 4))
def _normals(key: jax.Array, batch: Example, shape: tuple[int, ...], dtype: np.dtype, own: bool) -> jax.Array:
    """Standard normals for every example of a batch: from the key and, if it has its `own`, the example's bits."""
    key_of = lambda example: jax.random.fold_in(key, fingerprint(example)) if own else key  # noqa: E731
    return jax.vmap(lambda example: jax.random.normal(key_of(example), shape, dtype))(batch)


def _twice(example: Example) -> Example:
    return jax.tree.map(lambda leaf: np.stack([leaf, leaf]), example)


class NotVectorised(NotAScore):
    """vmap(grad) fails for this module."""


class _Caller(nn.Module):
    """The score as a module, so that `functional_call` can put other parameters in it."""

    def __init__(self, module: nn.Module, score: Function) -> None:
        super().__init__()
        self.module, self.score = module, score

    def forward(self, example: Example, *noise: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention have no rule for vmap
            return self.score(self.module, example, *noise)


def _place(error: BaseException, module: nn.Module) -> str:
    """The innermost layer that was running when the error was raised."""
    names = {id(layer): name for name, layer in module.named_modules()}
    frames = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [layer for layer in frames if id(layer) in names]
    if not inside:
        return ""
    name, kind = names[id(inside[-1])], type(inside[-1]).__name__
    return f" at module.{name} ({kind})" if name else f" in the forward function of the module ({kind})"
