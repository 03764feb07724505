"""The plan's choice against the fastest of all ways, from the measurements in results/choices.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.choices import kind
from nfk.planning import Options, Problem, plan_fit
from nfk.planning.rates import Rates

FOUND = json.loads((Path(__file__).parent.parent / "results" / "choices.json").read_text())
RATES = Rates(**{**FOUND["rates"], "products": tuple(FOUND["rates"]["products"])})
NEAR = 1.5  # a choice within this factor of the fastest is a good one
LATE = 0.2  # seconds: below that nobody waits


def ratio(case: dict) -> float:
    """Time of the way that the planner chooses today, over the fastest that was measured."""
    plan = plan_fit(Problem(**case["problem"]), case["rank"], Options(memory=case["memory"]), RATES)
    names = kind(plan.way)
    older = {"search": "full"}  # of what was measured before there was another
    times = {
        json.dumps({name: way.get(name, older.get(name)) for name in names}): way["seconds"] for way in case["ways"]
    }
    chosen = json.dumps(kind(plan.way))
    assert chosen in times, f"{chosen} was not measured"
    return (times[chosen] + LATE) / (min(times.values()) + LATE)


@pytest.mark.parametrize("case", FOUND["cases"], ids=lambda case: case["name"])
def test_the_plan_takes_a_way_that_is_about_the_fastest(case):
    assert ratio(case) <= NEAR


def test_there_are_a_dozen_problems_and_the_ways_differ():
    assert len(FOUND["cases"]) >= 12
    assert len({json.dumps(kind_of(case)) for case in FOUND["cases"]}) >= 3
    assert any(max(way["seconds"] for way in case["ways"]) > 3 * case["ways"][0]["seconds"] for case in FOUND["cases"])


def kind_of(case: dict) -> dict:
    return {name: case["ways"][0].get(name) for name in ("method", "engine", "keep", "side")}
