"""Several processes of torch.distributed, each reading its own rows: real ones, by gloo on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the PyTorch bridge; pip install 'nfk[torch]' to run it")

import numpy as np
from test_torch import PAIRS, assert_same
from torch_processes import CASES

import nfk
import nfk.torch
from nfk.distributed import ALONE, Replicas
from nfk.operator.moments import united
from nfk.torch.processes import TorchProcesses
from nfk.torch.space import TorchSpace

pytestmark = [pytest.mark.around, pytest.mark.xdist_group("processes")]
SIZE = 2
PATH = os.pathsep.join([str(Path(__file__).parent), *sys.path])


def run(task: str, folder: Path) -> tuple[list[int], list[str]]:
    """How each process ended, and what it said."""
    command = [sys.executable, str(Path(__file__).parent / "torch_processes.py"), task, str(folder)]
    started = [
        subprocess.Popen([*command, str(rank), str(SIZE)], env={**os.environ, "PYTHONPATH": PATH},
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(SIZE)
    ]  # fmt: skip
    printed = [process.communicate(timeout=300)[0] for process in started]
    (folder / "meeting").unlink(missing_ok=True)
    return [process.returncode for process in started], printed


def launch(task: str, folder: Path) -> None:
    codes, printed = run(task, folder)
    assert codes == [0] * SIZE, "\n".join(printed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the processes have written what they found; all checks share them."""
    folder = tmp_path_factory.mktemp("processes")
    launch("results", folder)
    return folder


@pytest.fixture(scope="module")
def found(folder):
    return [np.load(folder / f"{rank}.npz") for rank in range(SIZE)]


def test_results_are_the_same_in_every_process(found):
    for name in found[0].files:
        if not name.startswith(("error", "read")):
            np.testing.assert_array_equal(found[0][name], found[1][name], err_msg=name)


@pytest.mark.parametrize(("name", "way"), CASES)
def test_results_are_those_of_one_process(found, name, way):
    model, _, data = PAIRS[name](space="torch")
    data = data[:23]
    values = np.linalg.eigvalsh(nfk.gram(model, data))[::-1][:4]
    np.testing.assert_allclose(found[0][f"{name}, {way}"], values, rtol=1e-3)
    rows = nfk.fit(model, data, 4, tol=1e-3)(data)
    assert_same(found[0][f"{name}, {way}, rows"], rows, 2e-2 if way == "power" else 3e-3)


def test_each_process_reads_its_own_rows(found):
    first, second = (part["read"] for part in found)
    assert first.tolist() == [True] * 11 + [False] * 12
    assert second.tolist() == [True] + [False] * 10 + [True] * 12  # the first example shows what examples look like


def test_what_an_embedding_does(found, folder):
    model, _, data = PAIRS["network"](space="torch")
    data = data[:23]
    embedding = nfk.fit(model, data, 4, tol=1e-3)
    assert_same(found[0]["gram"], embedding.gram(data), 1e-4)
    np.testing.assert_allclose(found[0]["total"], embedding.decompose(data).total, rtol=1e-4)
    np.testing.assert_allclose(found[0]["fisher"], nfk.dataset_vector(model, data).values, rtol=1e-3, atol=1e-7)
    assert_same(nfk.load(folder / "saved", model)(data), embedding(data), 3e-3)


def test_mistakes_are_told_in_every_process(found):
    said = {name: [str(part[name]) for part in found] for name in found[0].files if name.startswith("error")}
    assert "process 1 of 2 cannot go on: ValueError" in said["error, gradient"][0]
    assert "X[11:23][9] is NaN or infinite" in said["error, gradient"][1]
    for rank in range(SIZE):
        assert "process 1 of 2 does not do what process 0 does" in said["error, length"][rank]
        assert "number of examples is 23, this one's is 22" in said["error, length"][rank]
        assert "rank is 3, this one's is 4" in said["error, rank"][rank]
        assert "is NaN or infinite" in said["error, tiles"][rank]
        assert said["error, few"][rank] == "nothing", "one example for each is enough"


class Pretended(Replicas):
    """This process in the place of two, with what the other one said."""

    rank, size = 0, 2

    def __init__(self, other: tuple, vectors: list) -> None:
        self._other, self._vectors = other, iter(vectors)

    def everyone(self, value):
        return [value, self._other]

    def sum(self, block):
        return block + torch.tensor(next(self._vectors))[:, None]

    def stacked(self, rows):
        raise NotImplementedError


def test_units_of_processes_are_brought_together():
    """Gradients of 1e-20 in one process and 1e20 in the other: what counts are the large ones."""
    space = TorchSpace(torch.device("cpu"), Pretended((3, 2.0**-60), [np.full(2, 0.5, "f4"), np.full(2, 1.0, "f4")]))
    one = np.ones(2, np.float32)
    mean, squares, count, unit = united(space, one, one, 3, 2.0**60)
    assert (count, unit) == (6, 2.0**-60)
    np.testing.assert_allclose(mean, 0.5)  # the other's half alone
    np.testing.assert_allclose(squares, 1.0 + 3 * 0.5**2)


def test_a_group_needs_torch_distributed():
    assert TorchProcesses.of(None) is ALONE
    with pytest.raises(ValueError, match=r"group= needs torch.distributed: call torch.distributed.init_process_group"):
        nfk.fit(PAIRS["network"](group="world")[0], PAIRS["network"]()[2], 3)
