"""Per-example gradients of the common layers, written where they stay.

Under vmap every parameter is expanded to one copy for each example (a view, without memory), whose gradient is then
that example's. That is right for any use of a parameter, and slow for convolutions: they become convolutions with as
many groups as there are examples. So the layers below compute with the one weight that all examples share, as a plain
batch does, and put the gradients of their weight straight into their rows.

A convolution's weight gradients are taken as groups where they fit in the cache, else one example after another
(measured on one core, for one of 16 examples: 12.2 and 1.4 ms with 512 channels of 4 x 4, 0.10 and 0.22 ms with 64
channels of 16 x 16; patches and a matrix product take 1.2 and 0.34 ms).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.overrides import TorchFunctionMode

IN_CACHE = 8 * 2**20  # bytes of weight gradients that are computed as one convolution with groups
_backward = torch.ops.aten.convolution_backward
Steps = int | tuple[int, ...]
Places = tuple["Place | None", "Place | None"]  # of a weight and of a bias


class NoFormula(NotImplementedError):
    """A layer that is faster, or only right, when torch differentiates it itself."""


class Place:
    """Where the gradients of one parameter go: (examples, *shape). The first to come is written, others are added."""

    def __init__(self, plain: Tensor, rows: Tensor) -> None:
        self.plain = plain.detach().requires_grad_()
        self.rows = rows.view(len(rows), *plain.shape)
        self.written = False

    def add(self, gradients: Tensor) -> None:
        self.add_each(enumerate(gradients)) if self.written else self.rows.copy_(gradients)
        self.written = True

    def add_each(self, gradients: Iterable[tuple[int, Tensor]]) -> None:
        """Pairs of an example's index and its gradient."""
        for index, gradient in gradients:
            row = self.rows[index]
            row.add_(gradient) if self.written else row.copy_(gradient)
        self.written = True

    def add_products(self, left: Tensor, right: Tensor) -> None:
        """left @ right for every example."""
        if self.written or self.rows.dtype != left.dtype:
            self.add(torch.bmm(left, right))
        else:
            torch.bmm(left, right, out=self.rows)
        self.written = True

    def cleared(self) -> Tensor:
        """The rows, zero where nothing was written."""
        if not self.written:
            self.rows.zero_()
        self.written = True
        return self.rows


class Layer(ABC):
    """A function of (x, weight, bias). An example has several parts (images, tokens), which share its gradient."""

    @abstractmethod
    def own_axes(self, x: Tensor, weight: Tensor) -> int:
        """How many of the last axes of an input belong to one part."""

    @abstractmethod
    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(examples x parts, ...) -> (examples x parts, ...), and no view of anything."""

    @abstractmethod
    def to_input(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """The gradient in x; here and below all are (examples, parts, ...)."""

    @abstractmethod
    def to_weight(self, gradient: Tensor, x: Tensor, place: Place) -> None: ...

    def to_bias(self, gradient: Tensor, place: Place) -> None:
        place.add(gradient.reshape(*gradient.shape[:3], -1).sum(3).sum(1))


@dataclass(frozen=True)
class Linear(Layer):
    def own_axes(self, x: Tensor, weight: Tensor) -> int:
        return 1

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def to_input(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return gradient @ weight

    def to_weight(self, gradient: Tensor, x: Tensor, place: Place) -> None:
        place.add_products(gradient.transpose(1, 2), x)


@dataclass(frozen=True)
class Embedding(Layer):
    """Rows of a table, whose numbers are x. `skipped` has no gradient: the padding_idx of nn.Embedding."""

    skipped: int | None

    def own_axes(self, x: Tensor, weight: Tensor) -> int:
        return 0

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.embedding(x, weight)

    def to_input(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        raise NotImplementedError("numbers of rows have no gradient")

    def to_weight(self, gradient: Tensor, x: Tensor, place: Place) -> None:
        if self.skipped is not None:
            gradient = gradient * (x != self.skipped)[..., None]
        for row, numbers, own in zip(place.cleared(), x, gradient, strict=True):
            row.index_add_(0, numbers, own.to(row.dtype))


@dataclass(frozen=True)
class Convolution(Layer):
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def own_axes(self, x: Tensor, weight: Tensor) -> int:
        return weight.ndim - 1

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        function = (torch.conv1d, torch.conv2d, torch.conv3d)[weight.ndim - 3]
        return function(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def to_input(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return self._backward(gradient.flatten(0, 1), x.flatten(0, 1), weight, self.groups, 0).reshape(x.shape)

    def to_weight(self, gradient: Tensor, x: Tensor, place: Place) -> None:
        weight, count = place.plain.detach(), len(x)
        if self.groups == x.shape[1] == 1 and count * weight.nbytes <= IN_CACHE:
            joined, wide_x = (part.reshape(1, -1, *part.shape[3:]) for part in (gradient, x))
            wide = weight.expand(count, *weight.shape).reshape(-1, *weight.shape[1:])
            place.add(self._backward(joined, wide_x, wide, count, 1).view(count, *weight.shape))
        else:
            own = (self._backward(g, part, weight, self.groups, 1) for g, part in zip(gradient, x, strict=True))
            place.add_each(enumerate(own))

    def _backward(self, gradient: Tensor, x: Tensor, weight: Tensor, groups: int, which: int) -> Tensor:
        """The gradient in the input (which = 0) or in the weight (1)."""
        numbers = (self.stride, self.padding, self.dilation, False, [0] * (weight.ndim - 2), groups)
        return _backward(gradient, x, weight, None, *numbers, (which == 0, which == 1, False))[which]


@dataclass(frozen=True)
class BatchNorm(Layer):
    """(x - mean) / sqrt(variance + eps) * weight + bias, with statistics that are constants."""

    mean: Tensor
    variance: Tensor
    eps: float

    def own_axes(self, x: Tensor, weight: Tensor) -> int:
        return x.ndim - 2

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.batch_norm(x, self.mean, self.variance, weight, bias, eps=self.eps)

    def to_input(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        factors = weight * torch.rsqrt(self.variance + self.eps)
        return gradient * factors.view(-1, *(1 for _ in x.shape[3:]))

    def to_weight(self, gradient: Tensor, x: Tensor, place: Place) -> None:
        gradient, x = (part.reshape(*part.shape[:3], -1) for part in (gradient, x))
        centred = torch.linalg.vecdot(gradient, x) - gradient.sum(3) * self.mean
        place.add((centred * torch.rsqrt(self.variance + self.eps)).sum(1))


class _Seen(torch.autograd.Function):
    """A layer inside vmap: unwrapped there, handed on as a batch. `copies` is an expanded parameter: always batched."""

    @staticmethod
    def forward(copies: Tensor, layer: Layer, x: Tensor, weight: Tensor, bias: Tensor | None, places: Places) -> Tensor:
        raise NoFormula("a derivative inside the score")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: tuple, copies: Tensor, layer: Layer, x: Tensor, weight: Tensor, *rest: Any):
        x = x.expand(info.batch_size, *x.shape) if in_dims[2] is None else x.movedim(in_dims[2], 0)
        shared = x.ndim - layer.own_axes(x, weight)
        y = _Batched.apply(x.reshape(len(x), -1, *x.shape[shared:]), weight, layer, *rest)
        return y.view(*x.shape[:shared], *y.shape[1:]), 0  # a view outside the function, so that it can be overwritten


class _Batched(torch.autograd.Function):
    """A layer outside vmap, as plain autograd sees it; the gradients of its weight and bias go to their places."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, layer: Layer, bias: Tensor | None, places: Places) -> Tensor:
        return layer.forward(x.flatten(0, 1), weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, weight, ctx.layer, _, ctx.places = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        x, weight = ctx.saved_tensors
        of_weight, of_bias = ctx.places
        gradient = gradient.reshape(*x.shape[:2], *gradient.shape[1:])
        if of_weight is not None:
            ctx.layer.to_weight(gradient, x, of_weight)
        if of_bias is not None:
            ctx.layer.to_bias(gradient, of_bias)
        to_input = ctx.layer.to_input(gradient, x, weight) if ctx.needs_input_grad[0] else None
        return to_input, None, None, None, None


class Formulas(TorchFunctionMode):
    """While it is on, a layer whose parameters have a place computes with the shared weight and fills the places.

    `copies` are the expanded parameters as vmap shows them, `constants` the ids of a module's other tensors.
    """

    def __init__(self, copies: Sequence[Tensor], places: Sequence[Place], constants: set[int]) -> None:
        super().__init__()
        self._places = {id(copy): place for copy, place in zip(copies, places, strict=True)}
        self._constants = constants

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        call = READERS[func](*args, **kwargs) if func in READERS else None
        if call is not None and all(self._is_known(tensor) for tensor in call.tensors):
            has_place = any(id(tensor) in self._places for tensor in call.tensors)
            return self._shared(call) if has_place else func(*args, **kwargs)
        if func in NOT_EXPANDED and not self._is_constant(call, args, kwargs):
            raise NoFormula(f"{func.__name__} with a weight that is computed, or with options that have no formula")
        return func(*args, **kwargs)

    def _shared(self, call: _Call) -> Tensor:
        """The layer with the weights that all examples share; its backward pass fills the places."""
        places = tuple(self._places.get(id(tensor)) for tensor in call.tensors)
        pairs = list(zip(call.tensors, places, strict=True))
        copies = next(tensor for tensor, place in pairs if place)
        weight, bias = (place.plain if place else tensor for tensor, place in pairs)
        return _Seen.apply(copies, call.layer, call.x, weight, bias, places)

    def _is_constant(self, call: _Call | None, args: tuple, kwargs: dict) -> bool:
        return id(call.weight if call else [*args, kwargs.get("weight")][1]) in self._constants

    def _is_known(self, tensor: Tensor | None) -> bool:
        return tensor is None or id(tensor) in self._places or id(tensor) in self._constants


@dataclass(frozen=True)
class _Call:
    """What a functional call of torch says of its layer."""

    layer: Layer
    x: Tensor
    weight: Tensor
    bias: Tensor | None

    @property
    def tensors(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, self.bias


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> _Call:
    return _Call(Linear(), input, weight, bias)


def _embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> _Call | None:  # fmt: skip
    if max_norm is not None or scale_grad_by_freq or sparse:
        return None
    return _Call(Embedding(None if padding_idx is None else padding_idx % len(weight)), input, weight, None)


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Steps = 1,
    padding: Steps | str = 0,
    dilation: Steps = 1,
    groups: int = 1,
) -> _Call | None:
    if isinstance(padding, str):
        return None
    axes = weight.ndim - 2
    each = lambda n: tuple(n) if isinstance(n, (tuple, list)) else (n,) * axes  # noqa: E731
    return _Call(Convolution(each(stride), each(padding), each(dilation), groups), input, weight, bias)


def _batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> _Call | None:  # fmt: skip
    if training or running_mean is None or running_var is None or weight is None:
        return None
    return _Call(BatchNorm(running_mean, running_var, eps), input, weight, bias)


CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
# An expanded weight would make a convolution of many groups; torch's own rule for a table forgets its padding_idx.
NOT_EXPANDED = (*CONVOLUTIONS, F.embedding)
READERS: dict[Callable, Callable[..., _Call | None]] = {
    F.linear: _linear,
    F.embedding: _embedding,
    F.batch_norm: _batch_norm,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
}
