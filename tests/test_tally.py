"""Moments of rows that come in microbatches of any size."""

from dataclasses import replace

import numpy as np
import pytest

import nfk
from nfk.layout import Layout
from nfk.planning import Options, Problem, plan_fit, plan_rows
from nfk.planning.rates import TYPICAL
from nfk.spaces import HOST
from nfk.spaces.tally import HostTally, rows_gathered
from nfk.stream import Examples


@pytest.mark.parametrize("sizes", [(1,) * 21, (2, 2, 2, 1, 2, 2), (3, 9, 2, 8, 1), (20,)])
@pytest.mark.parametrize("unit", [1.0, 2.0**70])
def test_moments_do_not_depend_on_how_rows_are_gathered(sizes, unit):
    """Small microbatches wait for one another; large ones do not. Leaves may come in parts."""
    layout = Layout.of({"a": np.zeros((40, 50), np.float32), "b": np.zeros(7, np.float32)}, None)
    rows = np.random.default_rng(3).standard_normal((sum(sizes), layout.size)) + 5
    given = (rows / unit).astype(np.float32)
    tally, first = HostTally(layout), 0
    for size in sizes:
        some = given[first : first + size + 1]  # one more, which is padding
        leaves = [list(np.split(leaf, [1])) for leaf in np.split(some, [2000], axis=1)]
        np.testing.assert_allclose(tally.add(leaves, size, unit), (rows[first : first + size] ** 2).sum(1), rtol=1e-5)
        first += size
    mean, squares, count = tally.result()
    assert count == len(rows)
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(squares, ((rows - rows.mean(0)) ** 2).sum(0), rtol=1e-4)


def test_a_large_row_is_not_held_for_others():
    assert rows_gathered(4 * 10_000) == 8
    assert rows_gathered(4 * 2_000_000) == 4
    assert rows_gathered(4 * 40_000_000) == 0


@pytest.mark.parametrize(("parameters", "rows"), [(1_000, 8), (2_000_000, 4), (40_000_000, 0)])
def test_the_plan_counts_the_rows_that_are_held(parameters, rows):
    model = nfk.classifier(lambda w, x: x[:2] * w.sum(), np.zeros(1_000, np.float32))
    problem = replace(Problem.of(model, Examples(np.ones((20, 3), np.float32))), parameters=parameters)
    plan = plan_fit(problem, 2, Options(memory="16GB"), TYPICAL)
    moments = next(iter(plan.way.stages()))["moments (mean, Fisher, scale and their sums)"]
    assert moments == (9 + rows) * 4 * parameters
    found = plan_rows(problem, HOST, "16GB")
    assert found.parts["rows that the moments take in together"] == rows * 4 * parameters
