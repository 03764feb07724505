"""The experiments of `make tasks`: their ledger, and some of them at a small size, from end to end."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from reproduction import data
from reproduction.experiments import TASKS
from reproduction.families.classifier import Classifier
from reproduction.families.gan import DigitGAN
from reproduction.tasks import inversion, outliers, probe
from reproduction.tasks.ledger import Ledger, recorded_settings, row, write_rows

pytestmark = pytest.mark.reproduction
needs_data = pytest.mark.skipif(data.data_folder() is None, reason="needs NFK_DATA")


@dataclass(frozen=True)
class Settings:
    rank: int = 4
    ranks: tuple[int, ...] = (1, 2)
    loss: str = "logistic"


OTHERS = [replace(Settings(), rank=5), replace(Settings(), ranks=(1, 3)), replace(Settings(), loss="squared_hinge")]


def silent(text: str) -> None:
    pass


class Counted:
    """A measurement that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, settings: Settings, *arguments) -> dict[str, float]:
        self.calls += 1
        return {"x": np.float64(settings.rank), "call": self.calls}


class TestLedger:
    def kept(self, kind: str, folder, measure, settings=Settings(), *arguments) -> dict:
        """By a ledger that has just been opened, as a second run would."""
        return getattr(Ledger("toy", folder, silent), kind)("a", measure, settings, *arguments)

    @pytest.mark.parametrize("kind", ["once", "arrays"])
    def test_what_was_measured_is_not_measured_again(self, kind, tmp_path):
        measure = Counted()
        for _ in range(2):
            assert self.kept(kind, tmp_path, measure, Settings(), 0.5) == {"x": 4, "call": 1}
        assert measure.calls == 1

    @pytest.mark.parametrize("kind", ["once", "arrays"])
    @pytest.mark.parametrize("other", OTHERS)
    def test_a_changed_setting_is_measured_again_and_an_unchanged_one_is_not(self, kind, other, tmp_path):
        measure = Counted()
        assert self.kept(kind, tmp_path, measure)["call"] == 1
        assert self.kept(kind, tmp_path, measure, other) == {"x": other.rank, "call": 2}
        assert self.kept(kind, tmp_path, measure, replace(other))["call"] == 2
        assert self.kept(kind, tmp_path, measure)["call"] == 3

    @pytest.mark.parametrize("kind", ["once", "arrays"])
    def test_a_changed_argument_is_measured_again_and_an_array_is_not_compared(self, kind, tmp_path):
        measure = Counted()
        for call, arguments in enumerate([(1,), (2,), ("one",), ((1, 2), np.ones(3))], start=1):
            assert self.kept(kind, tmp_path, measure, Settings(), *arguments)["call"] == call
        assert self.kept(kind, tmp_path, measure, Settings(), (1, 2), np.zeros(3))["call"] == 4

    @pytest.mark.parametrize("task", TASKS)
    def test_every_setting_of_a_task_is_recorded(self, task):
        settings = importlib.import_module(f"reproduction.tasks.{task}").SETTINGS
        recorded = recorded_settings(settings, ())
        for name, value in vars(settings).items():
            assert recorded[name] == (list(value) if isinstance(value, tuple) else value)
            changed = replace(settings, **{name: value * 2})
            assert recorded_settings(changed, ()) != recorded

    def test_an_interrupted_task_keeps_what_was_finished(self, tmp_path):
        def stop(settings):
            raise KeyboardInterrupt

        ledger = Ledger("toy", tmp_path, silent)
        ledger.once("a", lambda settings: {"x": 1}, Settings())
        with pytest.raises(KeyboardInterrupt):
            ledger.once("b", stop, Settings())
        assert list(Ledger("toy", tmp_path, silent).known) == ["a"]

    def test_arrays_are_made_once(self, tmp_path):
        ledger = Ledger("toy", tmp_path, silent)
        first = ledger.arrays("x", lambda settings: {"a": np.arange(3), "b": 2.0}, Settings())
        again = ledger.arrays("x", lambda settings: {}, Settings())
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


def test_every_task_is_a_module_with_a_run():
    for name in TASKS:
        assert callable(importlib.import_module(f"reproduction.tasks.{name}").run)


@pytest.fixture
def few_samples(monkeypatch):
    """Moments of a GAN over few samples of its generator."""
    whole = DigitGAN.model
    monkeypatch.setattr(DigitGAN, "model", lambda self, network: replace(whole(self, network), samples=128))


@needs_data
@pytest.mark.usefixtures("few_samples")
def test_probe_at_a_small_size(tmp_path):
    said = []
    settings = probe.Settings(rank=24, middle=16, ranks=(4, 16, 24))
    options = dict(families=((DigitGAN(), 200, 100),), seeds=1)
    rows = probe.run(Ledger("probe", tmp_path, said.append), tmp_path, settings, **options)
    assert len(said) == 1
    assert probe.run(Ledger("probe", tmp_path, said.append), tmp_path, settings, **options) == rows
    assert len(said) == 1  # nothing was measured again
    methods = {(line["method"], line["loss"]): line for line in rows}
    assert ("full Fisher vector", "squared_hinge") in methods
    assert methods["full Fisher vector", "logistic"]["features"] == 16_871
    assert methods["Fisher embedding, 24", "logistic"]["mean"] > 0.4  # chance is 0.1
    assert (tmp_path / "gan-mnist.png").stat().st_size > 0


@needs_data
@pytest.mark.usefixtures("few_samples")
def test_inversion_at_a_small_size(tmp_path):
    settings = inversion.Settings(rank=16, generated=300, tested=60)
    rows = inversion.run(Ledger("inversion", tmp_path, silent), tmp_path, settings, seeds=1)
    found = {(line["method"], line["metric"]): line["mean"] for line in rows}
    assert found["Fisher embedding, 16", "same class under LeNet-5, real images"] > 0.2
    assert found["PCA of real images, 16, reconstruction", "mean squared pixel error, real images"] < 0.05
    assert (tmp_path / "reconstructions.png").stat().st_size > 0


@needs_data
def test_outliers_at_a_small_size(tmp_path):
    settings = outliers.Settings(rank=16, tested=80)
    pairs = (("mnist", "fashion_mnist", ((Classifier(), 200),)),)
    rows = outliers.run(Ledger("outliers", tmp_path, silent), tmp_path, settings, pairs, seeds=1)
    found = {(line["method"], line["metric"]): line for line in rows}
    assert found["maximum softmax", "AUROC"]["mean"] > 0.8
    assert 0 < found["outside the top 16, squared length", "AUROC"]["half_interval"] < 0.2
