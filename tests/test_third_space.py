"""A third place for blocks: what the solver and the engines ask of one is in `Space`, and nothing else.

Its blocks are sealed. They do what `spaces/space.py` says that blocks do, and cannot be read as numpy or jax arrays, as
tensors on another framework's device cannot. So a module that reads one without asking its space is found here.
"""

from __future__ import annotations

import numpy as np
import pytest
from registry import CASES

import nfk
from nfk.checkpoint import Checkpoint
from nfk.fitting import _Fit
from nfk.planning import Options
from nfk.spaces import Host
from nfk.spaces.host import HostStore
from nfk.stream import Examples


class Sealed:
    """A block that only its space can open."""

    __array_ufunc__ = None  # numpy leaves arithmetic with it to the methods below

    def __init__(self, array: np.ndarray) -> None:
        self.inside, self.shape, self.dtype = array, array.shape, array.dtype

    def __array__(self, *arguments, **options):
        raise TypeError("read as an array outside its space")

    def __len__(self):
        return len(self.inside)

    def __getitem__(self, place):
        return Sealed(self.inside[place])

    @property
    def T(self):
        return Sealed(self.inside.T)

    def __add__(self, other):
        return Sealed(self.inside + opened(other))

    def __sub__(self, other):
        return Sealed(self.inside - opened(other))

    def __mul__(self, other):
        return Sealed(self.inside * opened(other))

    def __matmul__(self, other):
        return Sealed(self.inside @ opened(other))


def opened(value):
    if isinstance(value, Sealed):
        return value.inside
    return type(value)(map(opened, value)) if isinstance(value, (list, tuple)) else value


class Third(Host):
    """The host's operations on sealed blocks."""

    name = "third"

    def stacked(self, blocks, rows, columns, dtype):
        return Sealed(super().stacked(((place, opened(block)) for place, block in blocks), rows, columns, dtype))

    def store(self, rows, layout):
        return ThirdStore(**vars(super().store(rows, layout)))


class ThirdStore(HostStore):
    def block(self, rows):
        return Sealed(super().block(rows))


def _sealing(name: str, seals: bool):
    def operation(self, *arguments, **options):
        options = {key: opened(value) for key, value in options.items()}
        result = getattr(super(Third, self), name)(*map(opened, arguments), **options)
        return Sealed(result) if seals else result

    setattr(Third, name, operation)


for _name in ("get", "inner", "norms", "row_squares", "lend"):
    _sealing(_name, seals=False)
for _name in (
    "zeros", "random", "put", "product", "add_product", "add_columns", "rotate", "normalise", "joined", "columns",
    "padded", "combine", "rounded",
):  # fmt: skip
    _sealing(_name, seals=True)

WAYS = {
    "parameters' side": {"side": "parameters"},
    "recomputed": {"side": "parameters", "keep": False},
    "examples' side": {"side": "examples"},
    "products": {"engine": "products"},
    "gram": {"method": "gram"},
    "power": {"method": "power", "tol": 1e-2},
    "exact": {"method": "exact"},
}


@pytest.mark.xdist_group("gan float32")
@pytest.mark.parametrize("dtype", ["float32"], indirect=True)
@pytest.mark.parametrize(("name", "way"), [*(("gan", way) for way in WAYS), ("network_three_outputs", "products")])
def test_a_fit_asks_a_space_and_nobody_else(name, way, dtype, close, tmp_path):
    case = CASES[name](dtype)
    options = Options(space=Third(), **{"tol": case.tol, **WAYS[way]})
    fit = _Fit(case.model, 4, 0, options)
    with Checkpoint(tmp_path).held() as fit.checkpoint:
        embedding = fit(Examples(case.X))
    assert isinstance(embedding.right, Sealed)
    close(embedding.eigenvalues, case.values[:4])
    E = embedding(case.X)
    close(E, embedding.training)


@pytest.mark.xdist_group("gan float32")
def test_an_embedding_asks_its_space(tmp_path):
    case = CASES["gan"](np.dtype(np.float32))
    embedding = _Fit(case.model, 4, 0, Options(space=Third()))(Examples(case.X))
    plain = nfk.fit(case.model, case.X, 4)
    np.testing.assert_allclose(embedding.decompose(case.X).total, plain.decompose(case.X).total, rtol=1e-4)
    for memory in (None, "60kB"):  # all at once, and in tiles
        K = embedding.gram(case.X, memory=memory)
        np.testing.assert_allclose(K, plain.gram(case.X), atol=1e-4 * np.abs(K).max())
    two = embedding.truncated(2)
    np.testing.assert_allclose(two(case.X[:5]), embedding(case.X[:5])[:, :2], rtol=1e-5)
    for layer, shares in embedding.layer_shares().items():
        np.testing.assert_allclose(shares, plain.layer_shares()[layer], atol=1e-3)
    merged = nfk.merge(embedding, embedding)
    np.testing.assert_allclose(merged.eigenvalues[:3], 2 * embedding.eigenvalues[:3], rtol=1e-3)
    again = nfk.load(embedding.save(tmp_path), case.model)
    np.testing.assert_allclose(again(case.X), embedding(case.X), rtol=1e-5)
