"""The documentation is run, and its figures are those of the results file."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from registry import mlp, mlp_params

ROOT = Path(__file__).parents[1]


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md"])
def test_python_in_the_documentation_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).standard_normal((200, 30)).astype("float32")
    names = {"X": X, "X_new": X[:7], "params": mlp_params(np.float32, 30, 40, 5), "apply": mlp}
    for block in blocks(ROOT / name):
        exec(compile(block, name, "exec"), names)


def test_the_table_in_the_readme_comes_from_the_results():
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks import report
    finally:
        sys.path.remove(str(ROOT))
    readme = report.README.read_text()
    results = json.loads(report.RESULTS.read_text())
    assert not results["quick"], "results/core.json must hold the full benchmark"
    assert report.updated(readme, results) == readme, "run python -m benchmarks.report"


def test_the_claims_of_the_readme_hold_in_the_results():
    """The figures that the project stands on; a new benchmark run that misses one fails here."""
    results = json.loads((ROOT / "results" / "core.json").read_text())
    ours, _, paper = results["accuracy"]["rows"]
    assert ours["worst_relative_error"] <= 1e-6 < paper["worst_relative_error"]
    assert ours["passes"] <= 8
    for row, bar in zip(results["speed"]["rows"], (100, 40), strict=True):
        assert row["times_faster"] >= bar
        assert row["nfk_worst_relative_error"] < row["paper_worst_relative_error"]
    assert results["embedding"]["ratio"] <= 2.5
    assert 0.9 <= results["scaling"]["slope_of_time"] <= 1.1
    assert results["scaling"]["largest_over_smallest_memory"] <= 1.1


def test_links_in_the_documentation_lead_somewhere():
    for name in ("README.md", "CONTRIBUTING.md", "docs/guide.md", "docs/how-it-works.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text()):
            if "://" not in target:
                assert ((ROOT / name).parent / target).exists(), f"{name}: {target}"
