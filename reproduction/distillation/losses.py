"""The losses of `nfk.tasks.distillation_losses` for PyTorch, channels first; a test holds each to its twin there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def _unit(vectors: Tensor, axis: int) -> Tensor:
    return vectors * torch.rsqrt((vectors**2).sum(axis, keepdim=True).clamp_min(1e-12))


def embedding_loss(predicted: Tensor, target: Tensor, distance: str = "squared") -> Tensor:
    """The squared distance of k numbers, or 1 - cosine; the mean over the batch."""
    if distance == "squared":
        return ((predicted - target) ** 2).sum(1).mean()
    return (1 - (_unit(predicted, 1) * _unit(target, 1)).sum(1)).mean()


def softened(student: Tensor, teacher: Tensor, temperature: float = 4.0) -> Tensor:
    """KD: T^2 KL(softmax(teacher / T) || softmax(student / T))."""
    logs = (F.log_softmax(logits / temperature, -1) for logits in (student, teacher))
    return temperature**2 * F.kl_div(*logs, reduction="batchmean", log_target=True)


def hint(predicted: Tensor, teacher: Tensor) -> Tensor:
    """FitNet: the mean squared error of one map."""
    return F.mse_loss(predicted, teacher)


def attention(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """AT: where each group looks, the mean square over channels at length one."""

    def places(maps: Tensor) -> Tensor:
        return _unit((maps**2).mean(1).flatten(1), 1)

    pairs = zip(student, teacher, strict=True)
    return torch.stack([F.mse_loss(places(s), places(t)) for s, t in pairs]).sum()


def selectivity(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """NST: MMD between channels at length one, with the kernel (a . b)^2."""

    def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
        return (torch.einsum("ncp,ndp->ncd", a, b) ** 2).mean()

    total = torch.zeros(())
    for pair in zip(student, teacher, strict=True):
        s, t = (_unit(maps.flatten(2), 2) for maps in pair)
        total = total + mean_kernel(t, t) + mean_kernel(s, s) - 2 * mean_kernel(s, t)
    return total


def variational(predicted: Sequence[Tensor], teacher: Sequence[Tensor], raw_variances: Sequence[Tensor]) -> Tensor:
    """VID: minus a bound on the information of the teacher's maps in the student's, a variance for each channel."""
    total = torch.zeros(())
    for mu, t, raw in zip(predicted, teacher, raw_variances, strict=True):
        variance = (F.softplus(raw) + 1e-5)[:, None, None]
        total = total + ((mu - t) ** 2 / variance + torch.log(variance)).mean() / 2
    return total
