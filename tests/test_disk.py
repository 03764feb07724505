"""What does not fit in memory lies on disk: the same answer, nothing left behind, and no room is said clearly."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace

import jax
import numpy as np
import pytest
from registry import mlp, mlp_params, vectors
from safetensors.numpy import load_file

import nfk
from nfk import tensors
from nfk.checkpoint import Checkpoint
from nfk.memory import human
from nfk.packing import pack
from nfk.planning import Options, Problem, plan_fit
from nfk.planning.rates import TYPICAL
from nfk.spaces import Mapped, Mesh, Scratch
from nfk.stream import Examples


def _safetensors(header, size=8):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


X = vectors(np.float32, 6, count=60)
PARAMS = mlp_params(np.float32, 6, 1000, 4)
MODELS = {
    "over the data": nfk.classifier(mlp, PARAMS),
    "over samples": nfk.gan(lambda p, x: mlp(p, x)[0], PARAMS, sample=lambda key, n: np.resize(X, (n, 6)), samples=32),
}


@pytest.fixture
def model():
    return MODELS["over the data"]


@pytest.fixture
def gradients(model):
    """Bytes of all of them."""
    return len(X) * model.layout.size * 4


@pytest.mark.parametrize("method", ["krylov", "gram"])
@pytest.mark.parametrize("moments", list(MODELS))
def test_gradients_on_disk_are_computed_once_and_give_the_same(method, moments, tmp_path, monkeypatch):
    computed, model = [], MODELS[moments]
    options = {"method": method, "memory": "2MB", "key": 3, "tol": 1e-4}
    there = nfk.fit(model, X, 5, keep=False, **options)
    monkeypatch.setattr("nfk.operator.stream.run", _counting(computed))
    fitted = nfk.fit(model, X, 5, keep="disk", scratch=tmp_path, **options)
    np.testing.assert_allclose(fitted.eigenvalues, there.eigenvalues, rtol=1e-5)
    np.testing.assert_allclose(fitted.training, there.training, atol=1e-4 * np.abs(there.training).max())
    assert fitted.passes > 3
    samples = 0 if model.moments_over_data else model.samples
    assert sum(computed) == len(X) + samples
    assert not list(tmp_path.iterdir())


def _counting(computed):
    from nfk.stream import run

    def counted(function, examples, start, stop, size, reporter):
        computed.append(stop - start)
        return run(function, examples, start, stop, size, reporter)

    return counted


ROUNDED = {"method": "krylov", "basis": "bfloat16"}


@pytest.mark.parametrize("way", [{"side": "parameters"}, ROUNDED, {"side": "examples"}, {"method": "gram"}])
def test_a_basis_in_memory_maps_gives_the_same(way, model, tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(Scratch, "file", _watched(Scratch.file, taken))
    options = {"method": "krylov", "keep": False, **way}
    there = nfk.fit(model, X, 30, **options)
    least = min(_budgets(model, 30, **options))
    with pytest.raises(MemoryError):
        nfk.fit(model, X, 30, memory=least, scratch=False, **options)
    fitted = nfk.fit(model, X, 30, memory=least, scratch=tmp_path, **options)
    assert fitted.plan.way.mapped
    assert "in memory maps" in str(fitted.plan)
    assert fitted.plan.way.rounded == (way is ROUNDED)
    assert sum(taken) >= 30 * model.layout.size * 4
    np.testing.assert_allclose(fitted.eigenvalues, there.eigenvalues, rtol=1e-4)
    K = there.training @ there.training.T
    np.testing.assert_allclose(fitted.training @ fitted.training.T, K, atol=1e-5 * K.max())
    np.testing.assert_allclose(fitted(X), fitted.training, atol=1e-4 * np.abs(fitted.training).max())
    assert not list(tmp_path.iterdir())


def _watched(original, sizes):
    def file(self, size):
        sizes.append(size)
        return original(self, size)

    return file


def _budgets(model, rank, **options):
    """Ever smaller budgets that suffice with a disk."""
    budget = nfk.plan(model, X, rank, **options).peak_bytes
    while True:
        try:
            nfk.plan(model, X, rank, memory=budget, **options)
        except MemoryError:
            return
        yield budget
        budget = int(0.8 * budget)


def test_a_basis_in_bfloat16_serves_where_a_full_one_does_not_fit(model):
    """The plan takes it, says so, and the answer is the dense definition, to the tolerance and by the certificate."""
    options = {"method": "krylov", "side": "parameters", "keep": False, "scratch": False}
    least = min(_budgets(model, 12, basis="full", **options))
    memory = int(0.8 * least)
    plan = nfk.plan(model, X, 12, memory=memory, **options)
    assert "gradients recomputed in each pass, basis in bfloat16" in str(plan)
    assert plan.peak_bytes <= memory
    with pytest.raises(MemoryError):
        nfk.plan(model, X, 12, memory=memory, basis="full", **options)
    fitted = nfk.fit(model, X, 12, memory=memory, **options)
    assert fitted.plan.way.rounded
    values = np.linalg.eigvalsh(nfk.gram(model, X))[::-1][:12]
    assert (np.abs(fitted.eigenvalues / values - 1) <= fitted.residuals + 1e-5).all()
    np.testing.assert_allclose(fitted.eigenvalues, values, rtol=1e-4)
    assert fitted.right.dtype == np.float32
    np.testing.assert_allclose(fitted.right.T @ fitted.right, np.eye(12), atol=1e-5)


def test_a_tolerance_that_bfloat16_may_miss_is_not_planned_with_it(model):
    options = {"method": "krylov", "side": "parameters", "keep": False, "scratch": False}
    memory = int(0.8 * min(_budgets(model, 12, basis="full", **options)))
    assert nfk.plan(model, X, 12, tol=1e-3, memory=memory, **options).way.rounded
    with pytest.raises(MemoryError):
        nfk.plan(model, X, 12, tol=1e-4, memory=memory, **options)
    assert nfk.plan(model, X, 12, tol=1e-4, memory=memory, basis="bfloat16", **options).way.rounded


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"basis": "half"}, "basis='half' must be 'full' or 'bfloat16'"),
        ({"basis": "bfloat16", "method": "gram"}, "basis='bfloat16' is for method='krylov' on side='parameters', not"),
        ({"basis": "bfloat16", "side": "examples"}, "and side='examples': leave one of them out"),
        ({"basis": "bfloat16", "space": Mesh.of(jax.devices()[:1])}, "basis='bfloat16' needs blocks on the host"),
    ],
)
def test_a_basis_that_cannot_be(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Options(**options)


def test_the_plan_reads_where_that_is_faster_and_computes_where_that_is(model, gradients):
    problem = replace(Problem.of(model, Examples(X)), forward_flops=1e8, examples=20_000)
    options = Options(method="krylov", memory=20 * gradients)
    fast = plan_fit(problem, 5, options, replace(TYPICAL, disk_read=1e9, disk_write=1e9))
    slow = plan_fit(problem, 5, options, replace(TYPICAL, disk_read=1e6, disk_write=1e6))
    assert fast.way.shelf
    assert not slow.way.shelf
    assert f"disk      {human(20_000 * model.layout.size * 4)} in {options.disk.folder}" in str(fast)
    assert "  disk  " not in str(slow)


def test_enough_memory_needs_no_disk(model):
    assert not nfk.plan(model, X, 5, memory="1GB").way.disk_bytes


def test_nothing_on_disk_where_it_is_not_wanted(model, gradients):
    assert not nfk.plan(model, X, 5, memory=gradients // 2, scratch=False, method="gram").way.disk_bytes
    for options, remedy in (({"scratch": False}, "scratch=False"), ({"space": Mesh.of(jax.devices()[:1])}, "mesh, or")):
        words = f"keep='disk' needs blocks on the host and a scratch folder: leave out {remedy}"
        with pytest.raises(ValueError, match=words):
            Options(keep="disk", **options)
    with pytest.raises(ValueError, match="keep='disk' keeps gradients, but engine='products' forms none"):
        nfk.fit(model, X, 5, keep="disk", engine="products")


def test_a_folder_that_cannot_be_written_is_named(model, tmp_path):
    with pytest.raises(
        OSError, match="scratch='.*missing' cannot be written: No such file or directory; name a folder"
    ):
        nfk.fit(model, X, 5, scratch=tmp_path / "missing")


@pytest.mark.parametrize("scratch", [True, 1, b"here", ""])
def test_what_is_no_folder_is_refused(model, scratch):
    """Python would take a number for a file that is open, and close it: True is standard output."""
    os.fstat(1)
    with pytest.raises(ValueError, match=f"scratch={scratch!r} must be a folder, False for nothing on disk"):
        nfk.fit(model, X, 5, scratch=scratch, keep="disk")
    os.fstat(1)


def test_a_full_disk_says_how_much_is_missing(model, gradients, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        OSError, match=f"has no room for {human(gradients)}: make room, or name another folder"
    ) as error:
        nfk.fit(model, X, 5, keep="disk", scratch=tmp_path)
    assert error.value.errno == errno.ENOSPC


def test_a_file_system_in_memory_is_no_disk(model, tmp_path, monkeypatch):
    assert Scratch.of(tmp_path).free_bytes() > 0
    monkeypatch.setattr("nfk.spaces.scratch._kind_of", lambda folder: "tmpfs")
    assert Scratch.of(tmp_path).free_bytes() == 0
    with pytest.raises(MemoryError, match=r"keep='disk' takes .* but scratch=.* is kept in memory \(tmpfs\), no disk"):
        nfk.plan(model, X, 5, keep="disk", scratch=tmp_path)


def test_a_killed_fit_with_a_mapped_basis_goes_on(model, tmp_path, monkeypatch):
    options = {"method": "krylov", "side": "parameters", "keep": False}
    memory = min(_budgets(model, 30, **options))
    whole = nfk.fit(model, X, 30, memory=memory, **options)
    assert whole.plan.way.mapped
    monkeypatch.setattr("nfk.journal.LARGE", 1)  # the results of passes stay in their files
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "keep", _dying(Checkpoint.keep, 4))
        with pytest.raises(RuntimeError, match="killed"):
            nfk.fit(model, X, 30, memory=memory, checkpoint=tmp_path, **options)
    fitted = nfk.fit(model, X, 30, memory=memory, checkpoint=tmp_path, **options)
    np.testing.assert_array_equal(fitted.eigenvalues, whole.eigenvalues)
    np.testing.assert_array_equal(fitted.training, whole.training)


def _dying(original, passes):
    def keep(self, *arguments):
        if self.passes == passes:
            raise RuntimeError("killed")
        original(self, *arguments)

    return keep


def test_a_large_basis_is_mapped_when_it_is_loaded_and_any_reader_of_the_format_reads_it(model, tmp_path, monkeypatch):
    embedding = nfk.fit(model, X, 5)
    embedding.save(tmp_path)
    for name, array in load_file(next(tmp_path.glob("*.safetensors"))).items():
        np.testing.assert_array_equal(array, pack(embedding)[0][name])
    monkeypatch.setattr("nfk.tensors.LARGE", embedding.right.nbytes)
    loaded = nfk.load(tmp_path, model)
    assert isinstance(loaded.right.base, np.memmap)
    assert not isinstance(loaded.left, np.memmap)
    np.testing.assert_array_equal(loaded(X), embedding(X))
    np.testing.assert_array_equal(loaded.decompose(X).total, embedding.decompose(X).total)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no plausible length"),
        ((9).to_bytes(8, "little") + b"{}", "no plausible length"),
        (_safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}}), "numbers that are not there"),
        (_safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}), "numbers that are not there"),
        (_safetensors({"a": {"dtype": "X9", "shape": [2], "data_offsets": [0, 8]}}), "header is damaged"),
    ],
)
def test_a_file_that_is_no_safetensors_file_is_refused(content, why, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=why):
        tensors.read(tmp_path / "file")


def test_blocks_of_other_files_are_copied_and_own_ones_are_not(tmp_path):
    np.save(tmp_path / "entry.npy", np.ones((12, 3), np.float32))
    space = Mapped(Scratch.of(None), tall=10)
    theirs = np.load(tmp_path / "entry.npy", "c")
    block = space.put(theirs)
    assert not np.shares_memory(block, theirs)
    assert np.shares_memory(space.put(block), block)
    for made in (
        block,
        space.zeros(12, 2, np.float32),
        space.columns(block, slice(1, 3)),
        space.random([1], 12, 2, "f4"),
    ):
        assert isinstance(made.base, np.memmap)
    assert space.zeros(9, 2, np.float32).base is None  # a short one is in memory
