"""Derivatives of a torch score in its parameters: a batch at once by `torch.func`, or one example after another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch
from torch import Tensor
from torch.func import grad, jacrev, jvp, vjp, vmap

from nfk.layout import Layout
from nfk.model.interface import Differentiator, Example
from nfk.torch.layers import Formulas, Place
from nfk.torch.tensors import borrowed, length, shared

if TYPE_CHECKING:
    from nfk.torch.module import TorchNetwork

SLAB_BYTES = 2**20  # of a microbatch's gradients that are normalised at once


class TorchDifferentiator(Differentiator):
    """Rows (g - z) * s made in torch on the module's device: written into the memory of the caller, or read where they
    are, by torch where blocks stay on a `device` of torch, else by JAX.

    What others get is memory that the next call but one uses again, since fresh pages cost more than a gradient; where
    JAX keeps its blocks on a `device` of its own, a copy there.
    """

    writes = True

    def __init__(self, network: TorchNetwork, key: jax.Array, outputs: int, device: Any = None) -> None:
        self.network, self.key, self.outputs, self.device = network, key, outputs, device
        self.layout: Layout = network.layout
        self._moments: _Normaliser | None = None
        self._buffers: list[list[Tensor]] = [[], []]

    @abstractmethod
    def write(self, places: list[Tensor], batch: Example) -> None:
        """g(x) for a batch, leaf by leaf into places of (rows, size of the leaf)."""

    def rows(self, mean: list, scale: list, batch: Example) -> list:
        count = length(batch) * self.outputs
        self._buffers.reverse()
        if isinstance(self.device, jax.Device) or not self._buffers[0] or len(self._buffers[0][0]) != count:
            self._buffers[0] = self._empty(count)
        places = self._buffers[0]
        self._write_rows(places, mean, scale, batch)
        return [self._shared(place) for place in places]

    def rows_into(self, place: np.ndarray | Tensor, mean: list, scale: list, batch: Example) -> None:
        rows = place if isinstance(place, Tensor) else torch.from_numpy(place)
        self._write_rows([rows[:, columns] for columns in self.layout.places], mean, scale, batch)

    def gradients(self, batch: Example) -> list[Tensor]:
        """g(x) for a batch, leaf by leaf: (rows, size of the leaf)."""
        self.network.check_unchanged()
        places = self._empty(length(batch) * self.outputs)
        self.write(places, batch)
        return places

    def _write_rows(self, places: list[Tensor], mean: list, scale: list, batch: Example) -> None:
        if self._moments is None or self._moments.mean is not mean or self._moments.scale is not scale:
            self.network.check_unchanged()  # other moments, so another pass
            self._moments = _Normaliser(mean, scale)
        self.write(places, batch)
        self._moments(places)

    def _empty(self, count: int) -> list[Tensor]:
        dtype = getattr(torch, str(self.layout.dtype))
        return [torch.empty(count, size, dtype=dtype, device=self.network.device) for size in self.layout.sizes]

    def _shared(self, tensor: Tensor) -> Any:
        if isinstance(self.device, torch.device):
            return tensor
        return shared(tensor) if self.device is None else jax.device_put(shared(tensor), self.device)


class _Normaliser:
    """(g - z) * s in place, in slabs that stay in the cache between the two steps."""

    def __init__(self, mean: list, scale: list) -> None:
        self.mean, self.scale = mean, scale
        pairs = [(borrowed(z), borrowed(s)) for z, s in zip(mean, scale, strict=True)]
        self._pairs = None if all(not z.any() and (s == 1).all() for z, s in pairs) else pairs

    def __call__(self, places: list[Tensor]) -> None:
        for place, (z, s) in zip(places, self._pairs, strict=True) if self._pairs else ():
            width = max(SLAB_BYTES // max(len(place) * place.itemsize, 1), 1)
            for start in range(0, place.shape[1], width):
                columns = slice(start, start + width)
                place[:, columns].sub_(z[columns]).mul_(s[columns])


class Vectorised(TorchDifferentiator):
    """A batch at once by `torch.func`: vmap of grad (of jacrev for several outputs), jvp and vjp."""

    def write(self, places: list[Tensor], batch: Example) -> None:
        arguments = self.network.batch(batch, self.key)
        derivative = grad(self._score) if self.outputs == 1 else jacrev(self._score)
        leaves = vmap(derivative, in_dims=(None, *(0 for _ in arguments)))(self.network.chosen, *arguments)
        for place, leaf in zip(places, leaves, strict=True):
            place.copy_(leaf.reshape(place.shape))

    def forward_product(self, columns: list, batch: Example) -> Any:
        scores = self._batch_scores(batch)
        tangents = [borrowed(leaf).to(self.network.precision) for leaf in columns]
        derivative = lambda tangent: jvp(scores, (self.network.chosen,), (tangent,))[1]  # noqa: E731
        try:
            return self._shared(self._plain(vmap(derivative, out_dims=1)(tangents)))
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(
                f"engine='products' needs forward-mode derivatives, and torch has none here: {error}\n"
                "Pass engine='gradients'"
            ) from error

    def reverse_product(self, weights: Any, batch: Example) -> Any:
        pullback = vjp(self._batch_scores(batch), self.network.chosen)[1]
        leaves = vmap(lambda w: pullback(w)[0], in_dims=1)(borrowed(weights).to(self.network.precision))
        flat = [leaf.reshape(weights.shape[1], -1) for leaf in leaves]
        return self._shared(self._plain(torch.cat(flat, dim=1))).T

    def _score(self, chosen: list[Tensor], *arguments: Any) -> Tensor:
        return self.network.scores(chosen, *arguments).reshape(() if self.outputs == 1 else (self.outputs,))

    def _batch_scores(self, batch: Example) -> Callable[[list[Tensor]], Tensor]:
        self.network.check_unchanged()
        arguments = self.network.batch(batch, self.key)
        scores = vmap(self._score, in_dims=(None, *(0 for _ in arguments)))
        return lambda chosen: scores(chosen, *arguments).reshape(-1)

    def _plain(self, tensor: Tensor) -> Tensor:
        return tensor.to(getattr(torch, str(self.layout.dtype)))


class ByLayer(Vectorised):
    """A batch at once by plain autograd, with a formula for each common layer and an expanded parameter elsewhere.

    On one core, in plain batch gradients of the same 16 examples (8 for the ResNet), with vmap(grad) and one example
    after another beside it: a six-layer critic 1.8 (2.5, 3.3), WRN-16-2 1.55 (1.65, 2.8), ResNet-18 1.7 (3.2, 2.5), a
    GPT-2 of 4 million parameters 1.25 (1.4, 1.5). A batch of one is plain autograd, which has the least overhead.
    """

    def write(self, places: list[Tensor], batch: Example) -> None:
        if self.outputs > 1 or not self.network.has_formulas:
            return super().write(places, batch)
        if length(batch) == 1:
            return _write_one_by_one(self, places, batch)
        return self._write_by_layer(places, batch)

    def gradients_by_layer(self, batch: Example) -> list[Tensor]:
        """g(x) by formulas, whether or not they were found to agree."""
        places = self._empty(length(batch))
        self._write_by_layer(places, batch)
        return places

    def _write_by_layer(self, places: list[Tensor], batch: Example) -> None:
        network, count = self.network, length(batch)
        sinks = [Place(tensor, rows) for tensor, rows in zip(network.chosen, places, strict=True)]
        copies = [sink.plain.detach().expand(count, *sink.plain.shape).requires_grad_() for sink in sinks]
        for sink, copy in zip(sinks, copies, strict=True):
            _move_gradient(copy, sink.add)
        arguments = network.batch(batch, self.key)
        constants = {id(tensor) for tensor in network.tensors.values()}

        def score(chosen: list[Tensor], *one: Any) -> Tensor:
            with Formulas(chosen, sinks, constants):
                return self._score(chosen, *one)

        total = vmap(score)(copies, *arguments).sum()
        if total.requires_grad:
            torch.autograd.backward(total, inputs=[*copies, *(sink.plain for sink in sinks)])
        for sink in sinks:
            sink.cleared()


class OneByOne(TorchDifferentiator):
    """One example after another by plain autograd: for what vmap does not take. Products go through the gradients."""

    def write(self, places: list[Tensor], batch: Example) -> None:
        _write_one_by_one(self, places, batch)

    def forward_product(self, columns: list, batch: Example) -> Any:
        tangents = [borrowed(leaf).reshape(len(leaf), -1) for leaf in columns]
        leaves = zip(self.gradients(batch), tangents, strict=True)
        return self._shared(torch.stack([leaf @ t.to(leaf.dtype).T for leaf, t in leaves]).sum(0))

    def reverse_product(self, weights: Any, batch: Example) -> Any:
        W = borrowed(weights)
        return self._shared(torch.cat([leaf.T.to(W.dtype) @ W for leaf in self.gradients(batch)]))


def _move_gradient(leaf: Tensor, take: Callable[[Tensor], None]) -> None:
    """When autograd has the gradient of a leaf, `take` gets it, and its memory is free for the next."""

    def moved(leaf: Tensor) -> None:
        assert leaf.grad is not None
        take(leaf.grad)
        leaf.grad = None

    leaf.register_post_accumulate_grad_hook(moved)


def _write_one_by_one(of: TorchDifferentiator, places: list[Tensor], batch: Example) -> None:
    arguments = of.network.batch(batch, of.key)
    leaves = [tensor.detach().requires_grad_() for tensor in of.network.chosen]
    rows: list[Place] = []
    for index, leaf in enumerate(leaves):
        _move_gradient(leaf, lambda gradient, i=index: rows[i].add(gradient[None]))
    for index in range(length(batch)):
        one = jax.tree.map(lambda leaf, i=index: leaf[i], arguments)
        scores = of.network.scores(leaves, *one).reshape(of.outputs)
        for output in range(of.outputs):
            row = slice(index * of.outputs + output, index * of.outputs + output + 1)
            rows[:] = [Place(leaf, place[row]) for leaf, place in zip(leaves, places, strict=True)]
            if scores.requires_grad:
                scores[output].backward(retain_graph=output + 1 < of.outputs, inputs=leaves)
            for place in rows:
                place.cleared()
