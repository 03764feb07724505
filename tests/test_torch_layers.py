"""Gradients by layer are those of plain autograd, whatever a parameter is used for."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the PyTorch bridge; pip install 'nfk[torch]' to run it")

import subprocess
import sys

import jax
import numpy as np
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

import nfk
import nfk.torch
from nfk.operator.stream import GradientStream
from nfk.progress import Reporter
from nfk.spaces import HOST
from nfk.stream import Examples
from nfk.torch import layers
from nfk.torch.derivatives import ByLayer, OneByOne

IMAGES = np.random.default_rng(0).standard_normal((5, 4, 6, 6))
TOKENS = np.random.default_rng(1).integers(0, 7, (5, 6))


def normed(channels: int) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels)
    for tensor in (layer.weight.data, layer.bias.data, layer.running_mean):
        tensor.normal_()
    layer.running_var.uniform_(0.5, 2)
    return layer


class Twice(nn.Module):
    """A table that is also the head, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(7, 5, padding_idx=2), nn.Linear(5, 5)
        self.places = nn.Embedding(6, 5)

    def forward(self, tokens):
        hidden = self.table(tokens) + self.places(torch.arange(6))
        return torch.tanh(self.layer(torch.tanh(self.layer(hidden)))) @ self.table.weight.T


def several(module, image):
    """An example of several images: they share one gradient."""
    return module(torch.stack([image, 2 * image, image**2])).tanh().sum()


def total(module, example):
    return module(example[None]).tanh().sum()


strided = nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1), nn.ReLU(inplace=True), nn.Conv2d(6, 4, 2, dilation=2, padding=1))
grouped = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2, bias=False), normed(8), nn.LeakyReLU(0.1, inplace=True))
CASES = {
    "convolutions": (strided, total, IMAGES),
    "groups": (grouped, total, IMAGES),
    "several images": (nn.Sequential(nn.Conv2d(4, 3, 3), normed(3)), several, IMAGES),
    "one axis": (nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 3, 5, 3), nn.Flatten(), nn.Linear(33, 2)), total, IMAGES),
    "without a batch axis": (nn.Conv2d(4, 3, 3), lambda m, x: m(x).tanh().sum(), IMAGES),
    "tied": (Twice(), total, TOKENS),
    "a padding in words": (nn.Conv2d(4, 3, 3, padding="same"), total, IMAGES),
}  # fmt: skip


def rows(network: nfk.torch.TorchNetwork, batch: np.ndarray, cache: int, monkeypatch) -> np.ndarray:
    monkeypatch.setattr(layers, "IN_CACHE", cache)
    by_layer = ByLayer(network, jax.random.key(0), 1)
    places = by_layer._empty(len(batch))
    by_layer._write_by_layer(places, batch)
    return torch.cat(places, dim=1).numpy()


@pytest.mark.parametrize("parameters", [None, "*bias"])
@pytest.mark.parametrize("cache", [0, 2**20])
@pytest.mark.parametrize("name", [name for name in CASES if name != "a padding in words"])
def test_they_are_those_of_plain_autograd(name, cache, parameters, monkeypatch):
    torch.manual_seed(0)
    module, score, data = CASES[name]
    with jax.enable_x64(True):
        model = nfk.torch.density(module.double().eval(), score, parameters=parameters)
        model.outputs(data[0])
        assert model.network.has_formulas
        expected = torch.cat(OneByOne(model.network, jax.random.key(0), 1).gradients(data), dim=1).numpy()
        np.testing.assert_allclose(rows(model.network, data, cache, monkeypatch), expected, rtol=1e-9, atol=1e-12)
    assert len(np.unique(np.abs(expected).sum(axis=1))) == len(data)


@pytest.mark.parametrize(
    "module", [CASES["a padding in words"][0], nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 3, 3))]
)
def test_what_has_no_formula_is_taken_by_vmap(module):
    data = IMAGES.astype(np.float32)
    model = nfk.torch.density(module.float().eval(), total)
    K = nfk.gram(model, data)
    assert not model.network.has_formulas
    E = nfk.fit(model, data, 5, method="exact")(data)
    np.testing.assert_allclose(E @ E.T, K, atol=1e-4 * np.abs(K).max())


def test_rows_are_written_where_they_stay():
    """Every row and nothing else, centred and scaled; with a last batch that is not full."""
    data = IMAGES.astype(np.float32)
    model = nfk.torch.density(CASES["groups"][0].float().eval(), total)
    model.outputs(data[0])
    P = model.layout.size
    mean, scale = np.linspace(-1, 1, P, dtype=np.float32), np.linspace(1, 2, P, dtype=np.float32)
    raw = torch.cat(OneByOne(model.network, jax.random.key(0), 1).gradients(data), dim=1).numpy()
    differentiator = model.network.differentiate(jax.random.key(0), 1)
    stream = GradientStream(differentiator, Examples(data), HOST, 3, Reporter(show=False))
    store = HOST.store(7, model.layout)
    store.array[:] = 7
    for z, s in ((mean, scale), (np.zeros(P, np.float32), np.ones(P, np.float32))):
        stream.write(store, 1, stream.pieces(z), stream.pieces(s), 0, 5)
        np.testing.assert_allclose(store.array[1:6], (raw - z) * s, rtol=1e-4, atol=1e-4)
        assert (store.array[[0, 6]] == 7).all()


def test_a_module_that_changes_between_passes_is_found():
    module, data = nn.Linear(6, 1).eval(), IMAGES[:, 0, 0].astype(np.float32)
    model = nfk.torch.energy(module)
    model.outputs(data[0])
    differentiator = model.network.differentiate(jax.random.key(0), 1)
    stream = GradientStream(differentiator, Examples(data), HOST, 2, Reporter(show=False))
    for _ in stream.sweep():
        pass
    module.weight.data.mul_(1.1)
    with pytest.raises(RuntimeError, match="have changed since nfk.torch.energy"):
        next(stream.sweep())


def test_a_fit_does_not_import_the_compiler_of_torch():
    """vmap(grad) and torch's own counter of operations do: a second of a fit that may take less."""
    program = (
        "import sys, numpy as np, torch, nfk.torch\n"
        "module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(32, 3)).eval()\n"
        "X = np.random.default_rng(0).normal(size=(12, 1, 6, 6)).astype('float32')\n"
        "nfk.fit(nfk.torch.classifier(module), X, 2)(X)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_operations_of_higher_order_are_counted_by_torch():
    """`torch.cond` and its like know torch's own modes alone."""

    class Branching(nn.Linear):
        def forward(self, x):
            if any(type(mode).__name__ == "_Flops" for mode in _get_current_dispatch_mode_stack()):
                raise NotImplementedError("no rule for this mode")
            return super().forward(x)

    model = nfk.torch.classifier(Branching(6, 3).eval())
    cost = model.network.cost(np.zeros(6, np.float32))
    plain = nfk.torch.classifier(nn.Linear(6, 3).eval()).network.cost(np.zeros(6, np.float32))
    assert cost == plain
    assert cost.flops == 2 * 6 * 3


def test_operations_are_counted_as_torch_counts_them():
    module = nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.LazyLinear(5))
    module(torch.from_numpy(IMAGES[:1]).float())
    with FlopCounterMode(display=False) as counter:
        module(torch.from_numpy(IMAGES[:1]).float())
    assert nfk.torch.classifier(module.eval()).network.cost(IMAGES[0]).flops == counter.get_total_flops() > 0
