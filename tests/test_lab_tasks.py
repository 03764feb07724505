"""The experiments of `make tasks`: their ledger, and some of them at a small size, from end to end."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest

from nfk.lab import data
from nfk.lab.families.classifier import Classifier
from nfk.lab.families.gan import DigitGAN
from nfk.lab.tasks.__main__ import TASKS, main
from nfk.lab.tasks.ledger import Ledger, row, write_rows

needs_data = pytest.mark.skipif(data.data_folder() is None, reason="needs NFK_DATA")


def small(monkeypatch, task: str, **sizes):
    """The module of a task with its sizes made small."""
    module = importlib.import_module(f"nfk.lab.tasks.{task}")
    for name, value in sizes.items():
        assert hasattr(module, name)
        monkeypatch.setattr(module, name, value)
    return module


def silent(text: str) -> None:
    pass


class TestLedger:
    def test_what_was_measured_is_not_measured_again(self, tmp_path):
        calls = []
        measure = lambda value: calls.append(value) or {"accuracy": np.float64(value)}  # noqa: E731
        for _ in range(2):
            assert Ledger("toy", tmp_path, silent).once("a", measure, 0.5) == {"accuracy": 0.5}
        assert calls == [0.5]

    def test_other_settings_are_measured_again(self, tmp_path, monkeypatch):
        module = importlib.import_module("nfk.lab.tasks.ridge")
        fake = lambda size: {"x": float(size)}  # noqa: E731
        fake.__module__ = module.__name__
        ledger = Ledger("toy", tmp_path, silent)
        assert ledger.once("a", fake, 1) == {"x": 1}
        assert ledger.once("a", fake, 2) == {"x": 2}
        made = {"a": ledger.arrays("b", fake, 1)["x"]}
        monkeypatch.setattr(module, "EXAMPLES", 17)
        assert ledger.arrays("b", lambda: {"x": 5.0})["x"] == 5
        monkeypatch.setattr(module, "SEEDS", 17)
        assert ledger.known["a"]["settings"]["arguments"] == [2]
        assert made["a"] == 1

    def test_an_interrupted_task_keeps_what_was_finished(self, tmp_path):
        def stop():
            raise KeyboardInterrupt

        ledger = Ledger("toy", tmp_path, silent)
        ledger.once("a", lambda: {"x": 1})
        with pytest.raises(KeyboardInterrupt):
            ledger.once("b", stop)
        assert list(Ledger("toy", tmp_path, silent).known) == ["a"]

    def test_arrays_are_made_once(self, tmp_path):
        ledger = Ledger("toy", tmp_path, silent)
        first = ledger.arrays("x", lambda: {"a": np.arange(3), "b": 2.0})
        again = ledger.arrays("x", lambda: {})
        np.testing.assert_array_equal(first["a"], again["a"])
        assert float(again["b"]) == 2
        assert [path.name for path in (tmp_path / "toy").iterdir()] == ["x.npz"]

    def test_rows_are_a_list_with_mean_spread_and_seeds(self, tmp_path):
        path = write_rows("toy", [row("m", [0.5, 0.7], metric="accuracy", data="d")], tmp_path)
        (line,) = json.loads(path.read_text())
        assert (line["method"], line["metric"], line["seeds"]) == ("m", "accuracy", 2)
        assert line["mean"] == pytest.approx(0.6)
        assert line["spread"] == pytest.approx(np.sqrt(0.02))
        assert "jax" in line["made_by"]


def test_a_task_that_does_not_exist_is_named():
    with pytest.raises(SystemExit, match=r"probes: no such task; choose from probe, few_labels"):
        main(("probes",))


def test_every_task_is_a_module_with_a_run():
    for name in TASKS:
        module = importlib.import_module(f"nfk.lab.tasks.{name}")
        assert callable(module.run)


@needs_data
def test_probe_at_a_small_size(monkeypatch, tmp_path):
    sizes = dict(RANK=24, MIDDLE=16, SEEDS=1, RANKS=(4, 16, 24), FAMILIES=((DigitGAN(), 200, 100),))
    rows = small(monkeypatch, "probe", **sizes).run(Ledger("probe", tmp_path, silent), tmp_path)
    methods = {(line["method"], line["loss"]): line for line in rows}
    assert ("full Fisher vector", "squared_hinge") in methods
    assert methods["full Fisher vector", "logistic"]["features"] == 16_871
    assert methods["Fisher embedding, 24", "logistic"]["mean"] > 0.4  # chance is 0.1
    assert (tmp_path / "gan-mnist.png").stat().st_size > 0


@needs_data
def test_inversion_at_a_small_size(monkeypatch, tmp_path):
    module = small(monkeypatch, "inversion", GENERATED=300, TESTED=60, SEEDS=1, RANK=16)
    rows = module.run(Ledger("inversion", tmp_path, silent), tmp_path)
    found = {(line["method"], line["metric"]): line["mean"] for line in rows}
    assert found["Fisher embedding, 16", "same class under LeNet-5, real images"] > 0.2
    assert found["PCA of real images, 16, reconstruction", "mean squared pixel error, real images"] < 0.05
    assert (tmp_path / "reconstructions.png").stat().st_size > 0


@needs_data
def test_outliers_at_a_small_size(monkeypatch, tmp_path):
    module = small(monkeypatch, "outliers", DIGITS=((Classifier(), 200),), PHOTOS=(), TESTED=80, SEEDS=1, RANK=16)
    rows = module.run(Ledger("outliers", tmp_path, silent), tmp_path)
    found = {(line["method"], line["metric"]): line for line in rows if line["data"].startswith("mnist")}
    assert found["maximum softmax", "AUROC"]["mean"] > 0.8
    assert 0 < found["outside the top 16, squared length", "AUROC"]["half_interval"] < 0.2
