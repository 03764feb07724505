"""The entry of the experiments: what is there by name, and what is said where it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reproduction import __main__ as entry
from reproduction import experiments
from reproduction.experiments import EXPERIMENTS, PAPER, PLANNED, TASKS, Experiment, chosen
from reproduction.tasks.runner import run_task

pytestmark = pytest.mark.reproduction


def test_every_task_and_the_families_are_there_by_name():
    tasks = ("probe", "few_labels", "distillation", "inversion", "spectrum", "ridge", "outliers", "neighbours")
    assert {"families", "distillation-small", "inversion-small", *tasks} <= set(EXPERIMENTS)
    assert set(TASKS) == set(tasks)
    assert chosen(("all",), "cpu") == list(EXPERIMENTS)
    assert chosen(("ridge", "tasks", "ridge"), "cpu")[0] == "ridge"
    assert [name.removesuffix("-small") for name in chosen(("tasks",), "cpu")] == list(TASKS)


def test_without_a_name_they_are_listed(capsys):
    assert entry.main() == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in EXPERIMENTS)


def test_an_unknown_experiment_is_named_and_the_known_ones_with_it(capsys):
    assert entry.main(("probe", "probes")) == 2
    assert "probes: no such experiment; choose from pretrained, " in capsys.readouterr().err


def test_a_preset_that_is_not_there_is_refused_before_anything_runs(capsys, monkeypatch):
    started = []
    monkeypatch.setitem(EXPERIMENTS, "quick", Experiment("", started.append, ("smoke", "cpu")))
    assert entry.main(("quick", "ridge"), preset="paper") == 2
    assert "quick has no preset 'paper' yet; it has --preset smoke and --preset cpu" in capsys.readouterr().err
    assert not started


def test_all_of_a_size_are_those_that_have_it(capsys):
    assert chosen(("all",), "smoke") == list(PAPER)
    assert chosen(("all",), "paper", plan=True) == [name for name in PAPER if name in PLANNED]
    assert chosen(("all",), "cpu") == list(EXPERIMENTS)
    assert entry.main(("tasks",), preset="smoke") == 2
    assert "tasks: none of its experiments has --preset smoke" in capsys.readouterr().err


def test_the_preset_reaches_the_experiment_and_its_file_is_said(capsys, monkeypatch):
    def start(preset: str) -> Path:
        return Path(f"results/{preset}.json")

    monkeypatch.setitem(experiments.EXPERIMENTS, "quick", Experiment("", start, ("smoke",)))
    assert entry.main(("quick",), preset="smoke") == 0
    assert "quick: results/smoke.json" in capsys.readouterr().out


def test_a_task_runs_with_its_ledger_and_writes_its_rows(tmp_path, monkeypatch):
    from reproduction.tasks import ridge
    from reproduction.tasks.ledger import row

    monkeypatch.setattr(ridge, "run", lambda ledger, pictures: [row(ledger.folder.name, [1.0], metric=pictures.name)])
    path = run_task("ridge", tmp_path / "results", tmp_path / "runs")
    (line,) = json.loads(path.read_text())
    assert path == tmp_path / "results" / "ridge.json"
    assert (line["method"], line["metric"]) == ("ridge", "ridge")
