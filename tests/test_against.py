"""This version beside an earlier release: what is taken from git, what a median leaves out, what a page shows."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks import against, core, report

pytestmark = pytest.mark.reproduction


def run(seconds, **facts):
    return {"seconds": seconds, "wall_seconds": seconds, "peak_bytes": int(seconds * 1e6), **facts}


def test_the_first_run_compiles_and_is_told_apart():
    found = against._summary("0.3.0", [run(9), run(2), run(3), run(2.5, passes=4)], None)
    assert found["seconds"] == 2.5
    assert found["first_seconds"] == 9
    assert found["peak_bytes"] == 9_000_000
    assert found["passes"] == 4


def test_the_worst_eigenvalue_counts():
    found = against._summary("0.3.0", [run(1, eigenvalues=[2.0, 1.1])], [2.0, 1.0])
    assert found["worst_relative_error"] == pytest.approx(0.1)


def test_a_release_is_taken_from_git(tmp_path):
    known = subprocess.run(["git", "-C", against.ROOT, "cat-file", "-e", against.RELEASES["0.3.0"]], check=False)
    if known.returncode:
        pytest.skip("a clone without its history")
    assert '__version__ = "0.3.0"' in (against.source_of("0.3.0", tmp_path) / "nfk" / "__init__.py").read_text()


def test_the_page_shows_both_and_their_ratio():
    rows = {"0.3.0": against._summary("0.3.0", [run(10)], None), "now": against._summary("0.4.0", [run(4)], None)}
    lines = report.against({"0.3.0": {"fit-32": {"examples": 1024, **rows, "ratio": 0.4}}})
    assert "| a fit, k = 32 | 1,024 | 10.0 | 4.0 | 0.40 | 10, 4 | - |" in lines
    assert report.against({}) == []


def test_figures_of_an_earlier_version_stay_beside_the_new_ones():
    results = {"speed": {"nfk": "0.3.0", "rows": [1]}, "scaling": {"nfk": core.nfk.__version__}}
    for section in ("speed", "scaling", "accuracy"):
        core.keep_release(results, section)
    assert results["releases"] == {"0.3.0": {"speed": {"nfk": "0.3.0", "rows": [1]}}}
