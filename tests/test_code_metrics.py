"""The numbers of benchmarks/code_metrics.py, on a small module that can be counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("radon", reason="pip install 'nfk[dev]'")

ROOT = Path(__file__).parents[1]

SOURCE = '''"""A docstring is no code."""
from typing import Any


def short(x: Any) -> Any:
    """Nor is this one."""
    return on_host(x)


class Box:
    def long(self, x):
        # a comment

        if isinstance(x, (list, np.ndarray)):
            return 1
        for item in x:
            if item and default_backend() == "cpu":
                return 2
        return 3
'''


@pytest.fixture
def code_metrics(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import code_metrics

    return code_metrics


def test_the_numbers_of_a_small_module(code_metrics):
    found = code_metrics.metrics({"box.py": SOURCE, "empty.py": ""})
    assert found["modules"] == 2
    assert found["lines"] == 11
    assert found["longest_body"] == {"lines": 6, "name": "box.py:Box.long"}
    assert found["worst_complexity"] == {"complexity": 5, "name": "box.py:Box.long"}
    assert found["mentions_of_any"] == 3
    assert found["mentions_of_a_place"] == 3
    assert found["places"]["box.py"] == {"on_host": 1, "default_backend()": 1, "isinstance(..., np.ndarray)": 1}


def test_the_working_tree_has_its_files_but_those_left_out(code_metrics, tmp_path):
    (tmp_path / "src" / "lab").mkdir(parents=True)
    (tmp_path / "src" / "box.py").write_text(SOURCE)
    (tmp_path / "src" / "lab" / "other.py").write_text(SOURCE)
    assert code_metrics.sources(code_metrics.TREE, ("src",), ("src/lab",), tmp_path) == {"src/box.py": SOURCE}


def test_a_revision_is_written_beside_the_working_tree(code_metrics, tmp_path, capsys):
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    output = tmp_path / "code.json"
    code_metrics.main(("before=HEAD", code_metrics.TREE), output=output)
    written = json.loads(output.read_text())["revisions"]
    assert json.loads(capsys.readouterr().out)["revisions"] == written
    assert list(written) == ["before", "working tree"]
    for found in written.values():
        assert found["lines"] > 1000
        assert not any("lab" in Path(path).parts for path in found["places"])
