"""Derivatives of a torch score in its parameters: a batch at once by `torch.func`, or one example after another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import jax
import torch
from torch import Tensor
from torch.func import grad, jacrev, jvp, vjp, vmap

from nfk.layout import Layout
from nfk.model.interface import Differentiator, Example
from nfk.torch.tensors import borrowed, length, shared

if TYPE_CHECKING:
    from nfk.torch.module import TorchNetwork


class TorchDifferentiator(Differentiator):
    """Rows (g - z) * s made in torch and read by JAX in place: the array keeps the tensor's memory alive.

    Where JAX keeps its blocks on a `device` of its own, what it gets is a copy there.
    """

    def __init__(self, network: TorchNetwork, key: jax.Array, outputs: int, device: jax.Device | None = None) -> None:
        self.network, self.key, self.outputs, self.device = network, key, outputs, device
        self.layout: Layout = network.layout

    def _shared(self, tensor: Tensor) -> jax.Array:
        return shared(tensor) if self.device is None else jax.device_put(shared(tensor), self.device)

    @abstractmethod
    def gradients(self, batch: Example) -> list[Tensor]:
        """g(x) for a batch, leaf by leaf: (rows, size of the leaf)."""

    def rows(self, mean: list, scale: list, batch: Example) -> list:
        moments = zip(map(borrowed, mean), map(borrowed, scale), strict=True)
        leaves = zip(self.gradients(batch), moments, strict=True)
        return [self._shared((leaf.to(z.dtype) - z).mul_(s)) for leaf, (z, s) in leaves]

    def _flat(self, leaves: Iterable[Tensor], rows: int) -> list[Tensor]:
        return [leaf.reshape(rows, size) for leaf, size in zip(leaves, self.layout.sizes, strict=True)]


class Vectorised(TorchDifferentiator):
    """A batch at once: vmap of grad (of jacrev for several outputs), jvp and vjp."""

    def gradients(self, batch: Example) -> list[Tensor]:
        self.network.check_unchanged()
        arguments = self.network.batch(batch, self.key)
        derivative = grad(self._score) if self.outputs == 1 else jacrev(self._score)
        leaves = vmap(derivative, in_dims=(None, *(0 for _ in arguments)))(self.network.chosen, *arguments)
        return self._flat(leaves, length(batch) * self.outputs)

    def forward_product(self, columns: list, batch: Example) -> jax.Array:
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

    def reverse_product(self, weights: jax.Array, batch: Example) -> jax.Array:
        pullback = vjp(self._batch_scores(batch), self.network.chosen)[1]
        leaves = vmap(lambda w: pullback(w)[0], in_dims=1)(borrowed(weights).to(self.network.precision))
        return self._shared(self._plain(torch.cat(self._flat(leaves, weights.shape[1]), dim=1))).T

    def _score(self, chosen: list[Tensor], *arguments: Any) -> Tensor:
        return self.network.scores(chosen, *arguments).reshape(() if self.outputs == 1 else (self.outputs,))

    def _batch_scores(self, batch: Example) -> Callable[[list[Tensor]], Tensor]:
        self.network.check_unchanged()
        arguments = self.network.batch(batch, self.key)
        scores = vmap(self._score, in_dims=(None, *(0 for _ in arguments)))
        return lambda chosen: scores(chosen, *arguments).reshape(-1)

    def _plain(self, tensor: Tensor) -> Tensor:
        return tensor.to(getattr(torch, str(self.layout.dtype)))


class OneByOne(TorchDifferentiator):
    """One example after another by plain autograd: for what vmap does not take. Products go through the gradients."""

    def gradients(self, batch: Example) -> list[Tensor]:
        self.network.check_unchanged()
        arguments = self.network.batch(batch, self.key)
        leaves = [tensor.detach().requires_grad_() for tensor in self.network.chosen]
        rows = []
        for index in range(length(batch)):
            one = jax.tree.map(lambda leaf, i=index: leaf[i], arguments)
            scores = self.network.scores(leaves, *one).reshape(self.outputs)
            rows += [torch.autograd.grad(s, leaves, retain_graph=True, materialize_grads=True) for s in scores]
        return self._flat([torch.stack(parts) for parts in zip(*rows, strict=True)], len(rows))

    def forward_product(self, columns: list, batch: Example) -> jax.Array:
        tangents = [borrowed(leaf).reshape(len(leaf), -1) for leaf in columns]
        leaves = zip(self.gradients(batch), tangents, strict=True)
        return self._shared(torch.stack([leaf @ t.to(leaf.dtype).T for leaf, t in leaves]).sum(0))

    def reverse_product(self, weights: jax.Array, batch: Example) -> jax.Array:
        W = borrowed(weights)
        return self._shared(torch.cat([leaf.T.to(W.dtype) @ W for leaf in self.gradients(batch)]))
