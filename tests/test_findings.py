"""The intervals of the findings: the layout of methods and seeds against tests that are known."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from scipy import stats

from benchmarks.report_findings import pooled, residual

pytestmark = pytest.mark.around


def rows(table: np.ndarray) -> list[dict]:
    return [{"values": list(values), "seeds": len(values)} for values in table]


def test_of_two_methods_the_interval_is_that_of_the_paired_t_test():
    table = np.random.default_rng(0).normal(0.6, 0.01, (2, 5))
    a, b = rows(table)
    interval = stats.ttest_rel(*(100 * table)).confidence_interval(0.95)
    told = [float(number) for number in re.findall(r"[+-]\d+\.\d", pooled([a, b])(a, b))]
    assert told == pytest.approx([100 * np.mean(table[0] - table[1]), interval.low, interval.high], abs=0.06)


def test_what_methods_and_seeds_explain_is_no_residual():
    method, seed = np.array([[0.5], [0.6], [0.9]]), np.array([[0.01, -0.02, 0.0, 0.05]])
    deviation, freedom = residual(method + seed)
    assert deviation == pytest.approx(0, abs=1e-12)
    assert freedom == 6
    noise = np.random.default_rng(1).normal(0, 0.3, (400, 50))
    assert residual(method[0] + np.tile(seed[0, :1], 50) + noise)[0] == pytest.approx(0.3, rel=0.02)


@pytest.mark.parametrize("seeds", [1, 2])
def test_methods_with_fewer_seeds_than_others_have_longer_intervals(seeds):
    table = np.random.default_rng(2).normal(0.6, 1.0, (3, 4))
    (a, b), (short,) = rows(table[:2]), rows(table[2:, :seeds])
    shown = pooled([a, b, short])
    widths = []
    for pair in ((a, b), (a, short)):
        low, high = map(float, re.findall(r"\(([+-][\d.]+) to ([+-][\d.]+)\)", shown(*pair))[0])
        widths.append(high - low)
    assert widths[1] / widths[0] == pytest.approx(np.sqrt(4 / seeds), rel=0.01)
    (alone,) = rows(table[:1, :1])
    assert re.fullmatch(r"[+-]\d+\.\d", pooled([alone, short])(alone, alone))  # nothing to pool, no interval


def test_the_seconds_of_the_results_are_those_that_the_benchmarks_have_now(tmp_path):
    """The table of runtime is read from other files, and would stay behind when these are measured anew."""
    from reproduction.paper import runtime
    from reproduction.tasks.ledger import Ledger

    rows = runtime.run(Ledger("runtime", tmp_path), tmp_path, runtime.PRESETS["cpu"])
    assert rows == json.loads((runtime.RESULTS / "runtime.json").read_text())["rows"], "python -m reproduction runtime"


def test_longer_trainings_differ_over_their_seeds_and_one_of_each_over_test_images():
    """Of several seeds the single images are not asked for; of one they are all there is."""
    from benchmarks.report_findings import _longer

    def student(name: str, role: str, values: list[float]) -> dict:
        return {"method": name, "role": role, "values": values, "mean": float(np.mean(values)),
                "spread": float(np.std(values)), "seeds": len(values), "epochs": 4}  # fmt: skip

    names = ("no teacher", "NFKD", "KD")
    short = [student(name, "student", [0.5, 0.5]) for name in names]
    values = {"no teacher": [0.6, 0.62], "NFKD": [0.61, 0.62], "KD": [0.66, 0.67]}
    images = {"method": "KD", "role": "student, trained longer, difference", "less": "NFKD", "value": 0.05, "low": 0.01,
              "high": 0.09}  # fmt: skip
    for seeds, told in ((2, "+5.0 ("), (1, "+5.0 (+1.0 to +9.0)")):
        longer = [student(name, "student, trained longer", found[:seeds]) for name, found in values.items()]
        first, *_ = (line for line in _longer([*short, *longer, images], short) if line.startswith("| KD"))
        assert told in first
        assert ("+1.0 to +9.0" in first) == (seeds == 1)
        assert first.endswith(f"| {seeds} |")
