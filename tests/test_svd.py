"""The SVD on matrices with a prescribed spectrum: what is found, how exactly, and whether the bound holds."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfk.solve import ConvergenceWarning, Goal, loop
from nfk.solve.certify import Known, verify
from nfk.solve.exact import Exact
from nfk.solve.gram import Gram
from nfk.solve.krylov import Krylov
from nfk.solve.power import Power
from nfk.solve.sides import CoarseSide, ExampleSide, ParameterSide
from nfk.spaces import HOST


class Matrix:
    """A dense matrix as an operator."""

    def __init__(self, V: np.ndarray) -> None:
        self.V, self.shape, self.dtype, self.passes = V, V.shape, V.dtype, 0
        self.space = self.row_space = HOST
        self.coarse_rights = 0

    def _pass(self) -> None:
        self.passes += 1

    def matmat(self, block):
        self._pass()
        return self.V @ block

    def rmatmat(self, weights):
        self._pass()
        return self.V.T @ weights.astype(self.dtype)

    def fused(self, block):
        self._pass()
        return self.V @ block, self.V.T @ (self.V @ block)

    def gram(self, double=False):
        self._pass()
        V = self.V.astype(np.float64) if double else self.V
        return (V @ V.T).astype(np.float64)

    def images(self, block):
        self._pass()
        return self.V.astype(np.float64) @ block

    def dense(self):
        self._pass()
        return self.V.copy()

    def trace(self):
        return float(np.sum(self.V.astype(np.float64) ** 2))

    @property
    def coarse(self):
        return self.V.astype(jnp.bfloat16).astype(np.float64)

    def coarse_kernel(self, weights):
        self._pass()
        assert np.array_equal(weights, weights.astype(jnp.bfloat16).astype(np.float64))
        return self.coarse @ (self.coarse.T @ weights).astype(jnp.bfloat16).astype(np.float64)

    def coarse_rmatmat(self, weights):
        self._pass()
        self.coarse_rights += 1
        return (self.coarse.T @ weights.astype(jnp.bfloat16).astype(np.float64)).astype(self.dtype)

    def coarse_size(self):
        return self.trace() / self.shape[0]


SPECTRA = {
    "flat": np.ones(60),
    "geometric": 0.8 ** np.arange(60),
    "step": np.r_[np.full(7, 10.0), np.full(53, 0.1)],
    "slow": 1 / np.sqrt(1 + np.arange(60)),
    "rank-deficient": np.r_[1 + np.arange(5.0), np.zeros(55)],
    "zero": np.zeros(60),
}


def matrix(spectrum: np.ndarray, rows: int, columns: int, dtype=np.float64, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.standard_normal((rows, len(spectrum))))[0]
    right = np.linalg.qr(rng.standard_normal((columns, len(spectrum))))[0]
    return ((left * spectrum) @ right.T).astype(dtype)


class Silent:
    """Nobody is told how far the loop has come."""

    def stage(self, label):
        pass

    def finished(self, state, note):
        pass


def method_of(V: np.ndarray, rank: int | float, name: str, tol: float = 1e-6, blocks: int = 8, **options):
    operator = Matrix(V)
    fraction = isinstance(rank, float)
    goal = Goal(None if fraction else rank, rank if fraction else None, tol, operator.trace, min(V.shape))
    width = min(20 if fraction else rank + 4, *V.shape)
    if name == "power":
        return Power(operator, goal, [1], min(rank + 10, *V.shape))
    if name == "exact":
        return Exact(operator, goal)
    if name.startswith("gram"):
        return Gram(operator, goal, [1], single=name == "gram")
    sides = {"parameters": ParameterSide, "examples": ExampleSide, "coarse": CoarseSide}
    side = sides[name.partition(",")[0]](operator)
    narrow = min(3, width) if "narrow" in name else width
    options = {"most_steps": 120, "rounded": "rounded" in name or "coarse" in name} | options
    return Krylov(side, goal, [1], narrow, max(blocks * width, 3 * narrow), kept=width, **options)


def decompose(V: np.ndarray, rank: int | float, name: str, tol: float = 1e-6, **options):
    return loop(method_of(V, rank, name, tol, **options), Silent())


METHODS = [
    "parameters",
    "parameters, narrow",
    "examples",
    "examples, narrow",
    "gram",
    "gram in tiles",
    "power",
    "exact",
]


@pytest.mark.parametrize("shape", [(80, 200), (200, 80), (60, 60)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SPECTRA)
def test_prescribed_spectra_are_found(name, method, shape, dtype):
    spectrum = np.sort(SPECTRA[name])[::-1]
    V = matrix(spectrum, *shape, dtype)
    with warnings.catch_warnings():
        if method == "power":
            warnings.simplefilter("ignore", ConvergenceWarning)
        svd = decompose(V, 10, method, tol=1e-5 if dtype == np.float64 else 1e-3)
    tolerance = (1e-9 if dtype == np.float64 else 2e-5) * max(spectrum[0], 1e-30)
    if method == "power" and name in ("slow", "geometric"):
        tolerance = 5e-2 * spectrum[0]  # ten power iterations do not converge: the residuals must say so, below
    np.testing.assert_allclose(svd.singular_values, spectrum[:10], atol=tolerance)
    error = np.abs(svd.singular_values[:, None] ** 2 - np.r_[spectrum, 0] ** 2).min(axis=1)
    assert (error <= svd.residuals * svd.singular_values**2 + tolerance * max(spectrum[0], 1)).all()
    assert np.isfinite(svd.left).all()
    assert np.isfinite(svd.right).all()
    alive = svd.singular_values > 0
    for side in (svd.left, svd.right):
        np.testing.assert_allclose(side[:, alive].T @ side[:, alive], np.eye(alive.sum()), atol=1e-4)
        assert not side[:, ~alive].any()
    approximation = (svd.left * svd.singular_values) @ svd.right.T
    left_over = np.linalg.norm(V - approximation, 2) if V.any() else 0
    assert left_over <= spectrum[10] + 10 * tolerance + 1e-30


@pytest.mark.parametrize("method", METHODS)
def test_projectors_agree_with_numpy(method):
    """Vectors are unique up to sign or rotation; the projector on the leading subspace is unique."""
    V = matrix(np.r_[np.linspace(10, 5, 6), np.linspace(1, 0.1, 50)], 120, 90)
    svd = decompose(V, 6, method, tol=1e-4 if method == "power" else 1e-6)
    left, _, right = np.linalg.svd(V)
    np.testing.assert_allclose(svd.left @ svd.left.T, left[:, :6] @ left[:, :6].T, atol=1e-7)
    np.testing.assert_allclose(svd.right @ svd.right.T, right[:6].T @ right[:6], atol=1e-7)


def test_krylov_is_more_exact_than_power_in_half_the_passes():
    V = matrix(1 / np.sqrt(1 + np.arange(150.0)), 300, 400)
    values = 1 / (1 + np.arange(20.0))
    ours = decompose(V, 20, "parameters", tol=1e-4)
    with pytest.warns(ConvergenceWarning, match="10 power iterations do not reach it; use method='krylov'"):
        paper = decompose(V, 20, "power", tol=1e-4)
    assert 2 * ours.passes <= paper.passes == 22
    worst = [np.max(np.abs(svd.singular_values**2 / values - 1)) for svd in (ours, paper)]
    assert worst[0] < worst[1] / 100


@pytest.mark.parametrize("side", ["parameters", "examples"])
@pytest.mark.parametrize("share", [0.3, 0.8, 0.99])
def test_a_fraction_needs_the_fewest_components(side, share):
    spectrum = 1 / (1 + np.arange(60.0)) ** 0.7
    svd = decompose(matrix(spectrum, 100, 150), share, side, blocks=10)
    needed = int(np.argmax(np.cumsum(spectrum**2) / np.sum(spectrum**2) >= share)) + 1
    assert len(svd.singular_values) == needed


@pytest.mark.parametrize("side", ["parameters", "examples"])
def test_restarts_reach_the_tolerance_with_few_blocks(side):
    V = matrix(1 / (1 + np.arange(200.0)), 300, 260)
    svd = decompose(V, 8, side, tol=1e-5, blocks=3)
    assert svd.residuals.max() <= 1e-5
    np.testing.assert_allclose(svd.singular_values, 1 / (1 + np.arange(8.0)), rtol=1e-8)


def test_small_components_of_a_kernel_matrix_are_improved_until_they_are_certified():
    """In float32 a kernel matrix knows its small components only to rounding error of the largest."""
    V = matrix(10.0 ** -np.linspace(0, 3.1, 60), 100, 200, np.float32)
    svd = decompose(V, 50, "gram", tol=1e-3)
    assert svd.passes > 3
    assert svd.residuals.max() <= 1e-3


@pytest.mark.parametrize("shape", [(100, 200), (200, 100)])
def test_the_dense_baseline_sums_in_float64(shape):
    """A Gram matrix in float32 would lose singular values below 3e-4 of the first."""
    spectrum = 10.0 ** -np.linspace(0, 5, 60)
    svd = decompose(matrix(spectrum, *shape, np.float32), 55, "exact", tol=0.1)
    np.testing.assert_allclose(svd.singular_values, spectrum[:55], rtol=2e-2)


@pytest.mark.parametrize("side", ["parameters", "examples"])
def test_the_width_of_a_block_changes_nothing(side):
    V = matrix(0.9 ** np.arange(50), 70, 90)
    wide, narrow = decompose(V, 6, side), decompose(V, 6, f"{side}, narrow")
    np.testing.assert_allclose(wide.singular_values, narrow.singular_values, rtol=1e-9)
    np.testing.assert_allclose(wide.right, narrow.right, atol=1e-5)


def test_the_limit_of_the_precision_is_told():
    """Singular values down to 1e-5 of the first in float32: the residuals say what they are, and so does a warning."""
    V = matrix(10.0 ** -np.linspace(0, 5, 40), 100, 80, np.float32)
    with pytest.warns(ConvergenceWarning, match="the limit of float32"):
        svd = decompose(V, 38, "parameters", tol=1e-3)
    assert svd.residuals.max() > 1e-3


def test_too_few_components_for_the_variance_are_told():
    V = matrix(np.ones(100), 150, 200)
    with pytest.warns(ConvergenceWarning, match="components explain .* raise max_steps or memory"):
        decompose(V, 0.9, "parameters", most_steps=2)


@settings(max_examples=30, deadline=None)
@given(
    spectrum=st.lists(st.floats(1e-3, 1e3), min_size=12, max_size=30),
    side=st.sampled_from(["parameters", "examples"]),
    seed=st.integers(0, 1000),
)
def test_any_spectrum_is_found_and_bounded(spectrum, side, seed):
    spectrum = np.sort(spectrum)[::-1]
    with warnings.catch_warnings():  # six orders of magnitude may be beyond the precision; the bound must hold
        warnings.simplefilter("ignore", ConvergenceWarning)
        svd = decompose(matrix(spectrum, 40, 50, seed=seed), 5, side, tol=1e-6)
    values = svd.singular_values**2
    nearest = np.abs(values[:, None] - spectrum**2).min(axis=1)
    assert (nearest <= svd.residuals * values + 1e-12 * spectrum[0] ** 2).all()
    np.testing.assert_allclose(values, spectrum[:5] ** 2, rtol=1e-5, atol=1e-10 * spectrum[0] ** 2)


def test_too_few_steps_warn_and_tell_the_truth():
    V = matrix(1 / np.sqrt(1 + np.arange(150.0)), 300, 400)
    with pytest.warns(ConvergenceWarning, match="residual above tol=1e-08.*raise max_steps"):
        svd = decompose(V, 20, "parameters", tol=1e-8, most_steps=2)
    assert svd.residuals.max() > 1e-8


def test_the_largest_entry_of_each_left_vector_is_positive():
    svd = decompose(matrix(0.7 ** np.arange(30), 50, 40), 5, "parameters")
    assert (svd.left[np.abs(svd.left).argmax(axis=0), np.arange(5)] > 0).all()


@pytest.mark.parametrize("name", ["parameters", "examples", "power"])
def test_a_state_goes_on_where_it_stopped(name):
    """The loop, stopped after two steps and taken up again from the state, finds the same."""
    V = matrix(1 / (1 + np.arange(60.0)), 100, 150)

    class Stopping(Silent):
        state, steps = None, 0

        def finished(self, state, note):
            self.state, self.steps = state, self.steps + 1
            if self.steps == 2:
                raise KeyboardInterrupt

    stopping, method = Stopping(), method_of(V, 8, name)
    with pytest.raises(KeyboardInterrupt):
        loop(method, stopping)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        resumed, whole = loop(method, Silent(), stopping.state), decompose(V, 8, name)
    np.testing.assert_array_equal(resumed.singular_values, whole.singular_values)
    np.testing.assert_array_equal(resumed.left, whole.left)


ROUNDED = ["parameters, rounded", "parameters, narrow, rounded"]


@pytest.mark.parametrize("shape", [(80, 200), (60, 5000), (200, 80)])
@pytest.mark.parametrize("method", ["coarse", "coarse, narrow"])
@pytest.mark.parametrize("name", SPECTRA)
def test_a_search_in_bfloat16_is_certified_by_what_is_exact(name, method, shape):
    """Or it is repeated with all digits, where bfloat16 cannot see what is wanted."""
    spectrum = np.sort(SPECTRA[name])[::-1]
    V = matrix(spectrum, *shape, np.float32)
    search = method_of(V, 10, method, tol=1e-2)
    svd = loop(search, Silent())
    assert search.side.operator.passes < (60 if "narrow" in method else 20)
    assert search.side.operator.coarse_rights == 1  # an exact one would be a pass of twice the time
    assert svd.residuals.max(initial=0) <= 1e-2
    np.testing.assert_allclose(svd.singular_values, spectrum[:10], atol=1e-4 * spectrum[0])
    Q, values = svd.right.astype(np.float64), svd.singular_values**2
    A = V.astype(np.float64).T @ V.astype(np.float64)
    true = np.linalg.norm(A @ Q - Q * values, axis=0)
    assert (true <= 1.01 * svd.residuals * values + 1e-5 * spectrum[0] ** 2).all()
    np.testing.assert_allclose(Q.T @ Q, np.diag((values > 0).astype(float)), atol=1e-4)


@pytest.mark.parametrize("shape", [(300, 3000), (400, 1000)])
def test_a_search_in_bfloat16_sees_where_it_can_see_nothing_more(shape):
    """Of a low rank: what is left is rounding error, and to search for it took three passes more."""
    search = method_of(matrix(1 + np.arange(5.0), *shape, np.float32), 10, "coarse", tol=1e-2)
    svd = loop(search, Silent())
    assert search.side.operator.passes < 14
    np.testing.assert_allclose(svd.singular_values, np.r_[np.arange(5.0, 0, -1), np.zeros(5)], atol=1e-5)


@pytest.mark.parametrize(("tol", "repeated"), [(1e-2, False), (1e-6, True)])
def test_a_search_in_bfloat16_is_repeated_where_its_certificate_is_above_the_tolerance(tol, repeated, monkeypatch):
    V, seen = matrix(1 / np.sqrt(1 + np.arange(60)), 80, 200), []
    monkeypatch.setattr(Krylov, "_exactly", _watched(Krylov._exactly, seen))
    svd = decompose(V, 10, "coarse", tol=tol)
    assert bool(seen) == repeated
    assert svd.residuals.max() <= tol
    np.testing.assert_allclose(svd.singular_values**2, 1 / (1 + np.arange(10.0)), rtol=1e-4 if tol > 1e-3 else 1e-9)


def _watched(original, seen):
    def watched(self):
        seen.append(self)
        return original(self)

    return watched


@pytest.mark.parametrize("shape", [(80, 200), (60, 5000)])
@pytest.mark.parametrize("method", ROUNDED)
@pytest.mark.parametrize("name", SPECTRA)
def test_a_basis_in_bfloat16_leaves_nothing_of_its_rounding_in_the_result(name, method, shape, dtype):
    """Eigenvalues are as far off as the square of their residuals; the residuals are the true ones; and vectors are
    orthonormal, which those of the basis are not."""
    spectrum = np.sort(SPECTRA[name])[::-1]
    V = matrix(spectrum, *shape, dtype)
    search = method_of(V, 10, method, tol=1e-3)
    svd = loop(search, Silent())
    assert search.side.operator.passes < 20
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(svd.singular_values, spectrum[:10], atol=max(20 * eps, 1e-6) * spectrum[0])
    assert svd.residuals.max(initial=0) <= 1e-3
    Q, values = svd.right.astype(np.float64), svd.singular_values**2
    A = V.astype(np.float64).T @ V.astype(np.float64)
    true = np.linalg.norm(A @ Q - Q * values, axis=0)
    assert (true <= 1.01 * svd.residuals * values + 100 * eps * spectrum[0] ** 2).all()
    alive = np.diag((values > 0).astype(float))
    np.testing.assert_allclose(Q.T @ Q, alive, atol=500 * eps)


@pytest.mark.parametrize("shape", [(70, 300), (75, 200), (85, 500), (95, 300)])
def test_a_basis_in_bfloat16_sees_that_nothing_is_left_of_a_low_rank(shape):
    """What eigenvectors have outside of such a basis is not a new one: most such searches took 30 to 120 passes."""
    search = method_of(matrix(SPECTRA["rank-deficient"], *shape, np.float32), 10, ROUNDED[1], tol=1e-3)
    svd = loop(search, Silent())
    assert search.side.operator.passes < 12
    np.testing.assert_allclose(svd.singular_values, np.r_[np.arange(5.0, 0, -1), np.zeros(5)], atol=1e-5)


def test_ritz_values_of_a_basis_in_bfloat16_are_those_of_its_span():
    """At every step, through a restart: what the metric is for. Without it they are off by 1e-5."""
    spectrum = 1 / (1 + np.arange(60.0))
    V = matrix(spectrum, 100, 150)
    method = method_of(V, 8, "parameters, narrow, rounded", tol=1e-12, blocks=2)
    state, sizes = method.init(), [0]
    for _ in range(14):
        state = method.step(state)
        sizes.append(state.size)
        stored = np.hstack([block.astype(np.float64) for block in state.basis])
        basis = np.linalg.qr(stored)[0]
        exact = np.linalg.eigvalsh(basis.T @ V.T @ V @ basis)[::-1]
        np.testing.assert_allclose(state.ritz.values, exact, rtol=1e-9, atol=1e-12)
        assert np.abs(stored.T @ stored - np.eye(state.size)).max() > 1e-6
        np.testing.assert_allclose(basis.T @ state.remainder, 0, atol=1e-11)
    assert min(np.diff(sizes)) < 0
    assert {block.dtype.itemsize for block in state.basis} == {2, 8}  # what it restarts from is not rounded


@pytest.mark.parametrize("name", ["parameters", "parameters, rounded", "examples", "power"])
def test_what_a_finished_state_is_worth(name):
    """After each step: the vectors are orthonormal, and the recurrence's residuals bound the error."""
    spectrum = 1 / (1 + np.arange(60.0))
    method = method_of(matrix(spectrum, 100, 150), 8, name)
    state = method.init()
    assert method.salvage(state) is None
    for _ in range(4):
        state = method.step(state)
        svd = method.salvage(state)
        values = svd.singular_values**2
        error = np.abs(values[:, None] - spectrum**2).min(axis=1)
        assert (error <= svd.residuals * values + 1e-12).all()
        np.testing.assert_allclose(svd.right.T @ svd.right, np.eye(8), atol=1e-10)


def test_a_restart_costs_no_pass():
    V = matrix(1 / (1 + np.arange(200.0)), 300, 260)
    method = method_of(V, 8, "parameters", tol=1e-5, blocks=3)
    svd = loop(method, Silent())
    steps = svd.passes - 1
    assert steps > 3
    whole = decompose(V, 8, "parameters", tol=1e-5, blocks=30)
    assert svd.passes <= whole.passes + 3


@pytest.mark.parametrize("probes", [3, 10])
def test_a_method_that_is_wrong_about_its_vectors_does_not_get_small_residuals(probes):
    """It claims that nothing of V'V Q lies outside of Q; the probes show how much does, and the bound covers it."""
    V = matrix(0.9 ** np.arange(50), 70, 90)
    vectors = np.linalg.eigh(V.T @ V)[1]
    noise = 0.02 * np.random.default_rng(3).standard_normal((90, 6))
    Q = np.linalg.qr(vectors[:, ::-1][:, :6] + noise)[0]
    claimed = np.sum((V @ Q) ** 2, axis=0)
    svd = verify(Matrix(V), Known(Q.copy(), V @ Q, claimed), [5], probes, tol=1e9)
    true = np.linalg.norm(V.T @ V @ svd.right - svd.right * svd.singular_values**2, axis=0) / svd.singular_values**2
    assert true.min() > 1e-3
    assert (svd.residuals >= true).all()
