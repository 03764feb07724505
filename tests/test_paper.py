"""The experiments of the paper, small and from end to end: what they write, and that a second call goes on."""

from __future__ import annotations

import json

import pytest

from reproduction import __main__ as entry
from reproduction import data
from reproduction.experiments import PAPER
from reproduction.paper.rehearsal import rehearsed
from reproduction.paper.runner import run_experiment

pytestmark = pytest.mark.reproduction
HERE = data.data_folder() is not None and (data.data_folder() / "pretrained").is_dir()
needs_weights = pytest.mark.skipif(not HERE, reason="needs NFK_DATA with pretrained/")


@needs_weights
@pytest.mark.parametrize("name", PAPER)
def test_a_smoke_run_writes_its_rows_and_a_figure_away_from_the_results(name, tmp_path, capsys):
    path = run_experiment(name, "smoke", tmp_path / "results", tmp_path / "runs")
    assert path == tmp_path / "runs" / "smoke" / f"{name}.json"
    assert not (tmp_path / "results").exists()
    found = json.loads(path.read_text())
    assert found["command"] == f"python -m reproduction {name} --preset smoke"
    assert {"jax", "torch", "nfk"} <= found["versions"].keys()
    assert found["settings"]
    assert found["rows"]
    for row in found["rows"]:
        assert {"method", "metric"} <= row.keys()
        assert row["low"] <= row["value"] <= row["high"] if "value" in row else row["seeds"] == len(row["values"])
    assert all(picture.stat().st_size > 5_000 for picture in path.with_suffix("").glob("*.png"))
    assert any(path.with_suffix("").glob("*.png"))
    capsys.readouterr()
    again = run_experiment(name, "smoke", tmp_path / "results", tmp_path / "runs")
    assert json.loads(again.read_text())["rows"] == found["rows"]
    assert not capsys.readouterr().out  # nothing was measured again


@needs_weights
def test_the_size_of_the_paper_is_planned_in_full_and_run_on_a_few_images(capsys):
    """One of them: the others differ in their networks alone."""
    said = []
    assert rehearsed("semi-supervised", "paper", said.append) == 4
    assert sum("Plan: 50,000 examples, 50,000 rows, 692,065 parameters, rank 512" in text for text in said) == 2
    assert sum("of the variance in 4 components" in text for text in said) == 4


def test_an_experiment_that_cannot_be_planned_says_so(capsys):
    assert entry.main(("families",), preset="cpu", plan=True) == 2
    assert "families cannot be planned without being run; leave --plan out" in capsys.readouterr().err
