"""The wheel: small, typed, with nothing of the experiments; installed apart from this folder and used from there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import nfk

ROOT = Path(__file__).parents[1]
MOST_BYTES = 2_000_000
OPTIONAL = ("flax", "optax", "torch", "matplotlib", "mlxtend", "pandas", "transformers", "equinox", "blackjax", "PIL")
pytestmark = pytest.mark.xdist_group("package")

SCRIPT = """
import numpy as np
import nfk

X = np.random.default_rng(0).standard_normal((30, 4)).astype("float32")
model = nfk.classifier(lambda params, x: x @ params["w"], {"w": X[:4, :3]})
print(nfk.__file__, nfk.fit(model, X, rank=2)(X).shape)
"""

BLOCKED = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""

TYPED = """
import numpy as np
import nfk
from nfk.tasks import Probe, probe


def logits(params: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    return x @ params["w"]


X = np.zeros((30, 4), np.float32)
embedding: nfk.Embedding = nfk.fit(nfk.classifier(logits, {"w": X[:4, :3]}), X, rank=2)
rows: np.ndarray = embedding(X)
share: float = float(embedding.explained_variance_ratio.sum())
found: Probe = probe(rows, [0, 1] * 15, rows, [0, 1] * 15)
plan: nfk.Plan = nfk.plan(nfk.energy(logits, {}), X, rank=0.5)
print(found.accuracy.low, plan.peak_bytes, embedding.truncated(1).rank, share)
"""
WRONG = """
import nfk
nfk.fit(3, [1.0], rank=2)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("build", reason="pip install 'nfk[test]' to build the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The python of an environment of its own: the wheel, and the packages of this one, but not its `nfk`.

    A .pth file that is inside a folder of another .pth file is not read, so an editable install is not seen.
    """
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    site = Path(_output(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _output(python: Path, code: str, folder: Path | None = None) -> str:
    command = [str(python), "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment(), cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_wheel_is_small_and_typed_and_holds_the_library_alone(wheel):
    assert wheel.stat().st_size < MOST_BYTES
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"nfk", f"nfk-{nfk.__version__}.dist-info"}
    assert "nfk/py.typed" in names
    assert [name for name in names if name.endswith(".safetensors")] == ["nfk/demo/digits-lenet.safetensors"]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_three_lines_from_the_installed_wheel(installed, tmp_path):
    place, shape = _output(installed, SCRIPT, tmp_path).split(" ", 1)
    assert Path(place).is_relative_to(installed.parents[1])
    assert shape == "(30, 2)"


def test_the_core_imports_no_optional_package(installed, tmp_path):
    _output(installed, f"{BLOCKED}{SCRIPT}import nfk.cli.app, nfk.tasks, nfk.sklearn, nfk.runs", tmp_path)


def test_the_command_of_the_installed_wheel(installed, tmp_path):
    command = [str(installed.with_name("nfk")), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment(), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nfk fit MODEL DATA" in done.stdout


def _pyright(python: Path, path: Path) -> subprocess.CompletedProcess:
    pytest.importorskip("pyright", reason="pip install pyright to check the types from outside")
    command = [sys.executable, "-m", "pyright", "--pythonpath", str(python), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=_environment(), cwd=path.parent)


def test_a_type_checker_accepts_the_public_api_from_outside(installed, tmp_path):
    (tmp_path / "script.py").write_text(TYPED)
    done = _pyright(installed, tmp_path / "script.py")
    assert done.returncode == 0, done.stdout


def test_a_type_checker_finds_what_is_wrong_from_outside(installed, tmp_path):
    (tmp_path / "script.py").write_text(WRONG)
    assert "reportArgumentType" in _pyright(installed, tmp_path / "script.py").stdout


def test_the_citation_names_this_version():
    text = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.+)$", text, re.MULTILINE)[1] == nfk.__version__
