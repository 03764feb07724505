"""PyTorch on its own device: gradients and blocks stay there as tensors. Here that device is the CPU.

What would go wrong on a GPU is looked for in two ways: everything that leaves torch is counted, and tensors that are
made without a word on where end up on a device without numbers.
"""

from __future__ import annotations

import functools
import itertools
import warnings

import pytest

torch = pytest.importorskip("torch", reason="the PyTorch bridge; pip install 'nfk[torch]' to run it")

import numpy as np
from registry import vectors
from test_torch import PAIRS, Perceptron, assert_same
from torch import nn

import nfk
import nfk.torch
from nfk.operator.gradients import GradientOperator
from nfk.operator.moments import Moments, estimate
from nfk.operator.products import ProductOperator
from nfk.operator.stream import GradientStream
from nfk.progress import Reporter
from nfk.stream import Examples
from nfk.torch.space import TorchSpace
from nfk.torch.tensors import Remote

CPU = torch.device("cpu")
WAYS = {
    "parameters' side": {"side": "parameters", "method": "krylov"},
    "recomputed": {"side": "parameters", "method": "krylov", "keep": False},
    "examples' side": {"side": "examples", "method": "krylov"},
    "products": {"engine": "products"},
    "kernel matrix": {"method": "gram"},
    "kernel matrix in tiles": {"method": "gram", "keep": False},
    "power": {"method": "power", "tol": 1e-2},
    "exact": {"method": "exact"},
}
FAMILIES = [
    (name, way) for name in PAIRS if name not in ("classifier", "network") for way in ("recomputed", "products")
]
LIMIT = r".*residual above tol.*"


@functools.cache
def here(name: str):
    """A model of the pairs whose blocks are tensors, its data, and all eigenvalues of its kernel by the definition."""
    model, _, data = PAIRS[name](space="torch")
    return model, data, np.linalg.eigvalsh(nfk.gram(model, data))[::-1]


@pytest.mark.parametrize(("name", "way"), [*itertools.product(("classifier", "network"), WAYS), *FAMILIES])
def test_a_fit_is_the_dense_definition(name, way):
    model, data, values = here(name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", LIMIT, nfk.ConvergenceWarning)
        embedding = nfk.fit(model, data, 5, **{"tol": 1e-3, **WAYS[way]})
    assert isinstance(embedding.right, torch.Tensor)
    np.testing.assert_allclose(embedding.eigenvalues, values[:5], atol=3e-4 * values[0])
    assert_same(embedding(data), embedding.training, 1e-3)


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("name", PAIRS)
def test_operators_are_the_dense_definition(name, vectorised):
    model, _, data = PAIRS[name](space="torch", vectorised=vectorised)
    V, space = nfk.kernel.fisher_vectors(model, data), model.network.space
    outputs, key = model.outputs(data[0]), nfk.model.split_key(0)[2]
    differentiator = model.network.differentiate(key, outputs, device=space.device)
    stream = GradientStream(differentiator, Examples(data), space, 7, Reporter(show=False))
    over = (
        GradientStream(differentiator, Examples(SAMPLED), space, 7, Reporter(show=False)) if name == "gan" else stream
    )
    moments = estimate(over, model) if model.needs_moments else Moments.trivial(model)
    kept = space.store(stream.rows, stream.layout)
    rng = np.random.default_rng(0)
    M, W = (rng.standard_normal((size, 6)).astype(np.float32) for size in V.shape[::-1])
    for operator in (GradientOperator(stream, moments, 14, kept), ProductOperator(stream, moments, 7, 4)):
        for _ in range(2):  # the second time, from rows that were kept
            left, right = operator.fused(space.put(M))
            for found, expected in ((left, V @ M), (right, V.T @ (V @ M)), (operator.rmatmat(W), V.T @ W)):
                assert found.device == CPU
                assert_same(space.get(found), expected, 2e-4)
        assert_same(operator.dense(), V, 2e-4)
        np.testing.assert_allclose(operator.trace(), np.sum(V**2), rtol=1e-3)


SAMPLED = PAIRS["gan"]()[0].sample(nfk.model.split_key(0)[1], 100)


def test_an_embedding_works_from_its_device(tmp_path):
    model, data, _ = here("classifier")
    embedding = nfk.fit(model, data, 4, save=tmp_path / "saved", checkpoint=tmp_path / "checkpoint")
    plain = nfk.fit(PAIRS["classifier"]()[0], data, 4)
    assert isinstance(plain.right, np.ndarray)
    found, expected = embedding.decompose(data), plain.decompose(data)
    np.testing.assert_allclose(found.total, expected.total, rtol=1e-4)
    np.testing.assert_allclose(found.inside, expected.inside, rtol=1e-3)
    for memory in (None, "100kB"):  # all at once, and in tiles
        assert_same(embedding.gram(data, memory=memory), plain.gram(data), 1e-4)
    assert_same(embedding.gram(data[:5], data), plain.gram(data[:5], data), 1e-4)
    assert_same(embedding.truncated(2)(data[:5]), embedding(data[:5])[:, :2])
    for layer, shares in embedding.layer_shares().items():
        np.testing.assert_allclose(shares, plain.layer_shares()[layer], atol=1e-3)
    merged = nfk.merge(embedding, embedding)
    np.testing.assert_allclose(merged.eigenvalues[:3], 2 * embedding.eigenvalues[:3], rtol=1e-3)
    vector = nfk.dataset_vector(model, data)
    np.testing.assert_allclose(vector.distance(nfk.dataset_vector(PAIRS["classifier"]()[0], data)), 0, atol=1e-6)
    assert nfk.doctor(model, data, 4).ok
    for again in (
        nfk.load(tmp_path / "saved", model),
        nfk.load(tmp_path / "saved", PAIRS["classifier"]()[0]),  # a module on the CPU reads what one on a GPU wrote
        nfk.fit(model, data, 4, checkpoint=tmp_path / "checkpoint"),
    ):
        assert_same(again(data), embedding(data))


class Leaving:
    """Counts the numbers of every tensor that leaves torch."""

    def __init__(self, monkeypatch) -> None:
        self.sizes: list[int] = []
        for name in ("numpy", "tolist", "item", "__array__", "__dlpack__", "__float__", "__int__", "__bool__"):
            monkeypatch.setattr(torch.Tensor, name, self.counting(getattr(torch.Tensor, name)))

    def counting(self, original):
        def leave(tensor, *arguments, **options):
            self.sizes.append(tensor.numel())
            return original(tensor, *arguments, **options)

        return leave


class Wide(nn.Module):
    """Two convolutions and a head, so that a block of few columns is far larger than all examples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.head = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 24, 3), nn.Linear(24 * 16, 10)

    def forward(self, images):
        return self.head(torch.tanh(self.two(torch.tanh(self.one(images)))).flatten(1))


@pytest.mark.parametrize(
    "way", [way for way in WAYS if way != "exact"]
)  # the dense baseline has all of V on the host by definition
def test_only_small_matrices_leave_the_device(way, monkeypatch):
    module, count, rank = Wide().eval(), 24, 3
    images = vectors(np.float32, 64, count=count).reshape(-1, 1, 8, 8)
    model = nfk.torch.classifier(module, space="torch")
    P, columns = model.layout.size, 20
    assert 4 * count * columns < P  # so that sizes can be told apart
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", LIMIT, nfk.ConvergenceWarning)
        leaving = Leaving(monkeypatch)
        embedding = nfk.fit(model, images, rank, oversamples=2, **{"tol": 1e-2, **WAYS[way]})
        embedding(images)
        embedding.decompose(images)
        embedding.gram(images)
    large = [size for size in leaving.sizes if size > max(count * columns, count**2)]
    assert large == [P, P]  # the mean and the squares of the gradients, once


@pytest.mark.parametrize("way", ["recomputed", "kernel matrix", "products"])
@pytest.mark.parametrize("name", ["classifier", "vae", "network"])
def test_every_tensor_is_made_where_the_module_is(name, way):
    model, data, values = here(name)
    with torch.device("meta"):  # what says nothing of its device has no numbers
        embedding = nfk.fit(model, data, 4, tol=1e-3, **WAYS[way])
        assert_same(embedding(data), embedding.training, 1e-3)
    np.testing.assert_allclose(embedding.eigenvalues, values[:4], atol=3e-4 * values[0])


def test_without_float64_sums_are_compensated(monkeypatch):
    monkeypatch.setattr(nfk.torch.space, "has_float64", lambda device: device is None)
    monkeypatch.setattr(torch.Tensor, "double", None)
    monkeypatch.setattr(nfk.torch.TorchNetwork, "evaluate", lambda self, example, key: np.zeros(1))
    model, data, values = here_without_double()
    for way in ("recomputed", "kernel matrix"):
        np.testing.assert_allclose(nfk.fit(model, data, 4, tol=1e-3, **WAYS[way]).eigenvalues, values[:4], rtol=1e-3)


def here_without_double():
    model, other, data = PAIRS["density"](space="torch")
    return model, data, np.linalg.eigvalsh(nfk.gram(other, data))[::-1]


def test_a_parameter_elsewhere_is_read_when_it_is_asked_for():
    module = Perceptron(6, 8, 3).to(torch.bfloat16)
    remote = Remote(module.first.weight.detach())
    assert remote.shape == (8, 6)
    np.testing.assert_array_equal(np.asarray(remote), nfk.torch.arrays(module)["first"]["weight"])


def test_half_precision_and_tf32_do_not_reach_the_products():
    space = TorchSpace(CPU)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        A = np.random.default_rng(0).standard_normal((300, 20)).astype(np.float32)
        np.testing.assert_allclose(space.inner(space.put(A), space.put(A)), A.T.astype(float) @ A, rtol=0, atol=1e-3)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


class Elsewhere(nn.Module):
    """A module with a buffer that was left behind."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.register_buffer("left_behind", torch.zeros(2, device="meta"))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            lambda: nfk.torch.classifier(Perceptron(6, 8, 3).eval(), space="gpu"),
            "space='gpu' is unknown: choose 'torch'",
        ),
        (
            lambda: nfk.fit(PAIRS["density"](space="torch")[0], torch.zeros(24, 6, device="meta"), 3),
            r"X is a tensor on meta: .*X.cpu\(\)",
        ),
        (lambda: nfk.torch.energy(Elsewhere().eval()), "module.left_behind is on the meta device"),
    ],
)
def test_mistakes_are_told(mistake, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mistake()


def test_a_module_on_two_devices_is_told(monkeypatch):
    module = Perceptron(6, 8, 3).eval()
    monkeypatch.setattr(nfk.torch.tensors, "state", lambda module: [("a", torch.zeros(1)), ("b", Pretended())])
    with pytest.raises(ValueError, match=r"module.a is on cpu and module.b on cuda:1: .* call module.to\('cpu'\)"):
        nfk.torch.tensors.check_module(module)


class Pretended:
    device, is_meta = torch.device("cuda:1"), False
