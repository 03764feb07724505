"""The visit: the data, the network on them, and the plan, one check after another."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from nfk.doctor.agreement import batch_independence, determinism, engine_agreement
from nfk.doctor.data import look_at_data, places_of
from nfk.doctor.diagnosis import Diagnosis, Finding
from nfk.doctor.gradients import Survey, dead_parameters, finite_gradients, statistics
from nfk.doctor.patient import Patient, Sample
from nfk.model import Model, require_model
from nfk.planning import Options, Plan, Problem, plan_fit
from nfk.spaces import space_for
from nfk.stream import Examples


def doctor(
    model: Model, X: Any, rank: int | float = 128, *, key: int | jax.Array = 0, memory: int | str | None = None,
    mesh: Any = None,
) -> Diagnosis:  # fmt: skip
    """What to mend before `nfk.fit(model, X, rank)`: findings with their remedies. `print` the result.

    Looks at 32 examples, evenly spread over X (the first ones where X can only be read in order), and takes about a
    hundred gradients, whatever N is. Holds two small batches of gradients and 6 P numbers.

    Args:
        model: what `nfk.classifier`, `nfk.torch.classifier`, ... return.
        X: the examples, as for `nfk.fit`.
        rank: as for `nfk.fit`: the plan is made for it.
        key: a seed or a jax key, as for `nfk.fit`.
        memory: the budget of the fit that is planned.
        mesh: the devices of the fit that is planned, as for `nfk.fit`.
    """
    require_model(model)
    options = Options(memory=memory, space=space_for(mesh, model.network))
    examples = Examples(X)
    if len(examples) < 2:
        raise ValueError(f"X holds {len(examples)} examples: pass at least two; is the batch axis missing?")
    places = places_of(examples)
    patient = f"{model!r}, {len(places)} of {len(examples):,} examples"
    finding, sample = look_at_data(examples, places)
    findings = [finding]
    if sample is not None:
        findings += _network(model, examples, sample, rank, key, options)
    return Diagnosis(patient, tuple(findings))


def _network(
    model: Model, examples: Examples, sample: Sample, rank: int | float, key: Any, options: Options
) -> list[Finding]:
    try:
        problem = Problem.of(model, examples)
    except Exception as error:  # whatever a network raises is what was seen
        return [Finding("score", "error", str(error), "call the function on X[0] by hand and mend what it says")]
    shape = "one number" if problem.outputs == 1 else f"{problem.outputs} numbers"
    findings = [Finding("score", "ok", f"{shape} for each example, {problem.parameters:,} parameters")]
    plan, planned = _planned(problem, rank, options)
    patient = Patient.of(model, sample, problem, plan, key)
    survey = Survey.of(patient)
    findings += [finite_gradients(patient, survey), determinism(patient)]
    if survey.finite.sum() > 1:
        healthy = patient.only(np.flatnonzero(survey.finite).tolist())
        findings += [batch_independence(healthy), engine_agreement(healthy), dead_parameters(healthy, survey.used)]
        findings += statistics(healthy) if survey.used.any() else []
    return [*findings, planned]


def _planned(problem: Problem, rank: int | float, options: Options) -> tuple[Plan | None, Finding]:
    try:
        plan = plan_fit(problem, rank, options)
    except (MemoryError, ValueError, TypeError) as error:
        what, _, remedy = str(error).partition(": ")
        return None, Finding("plan", "error", what, remedy)
    devices = options.space.devices and f"on {options.space.devices}"
    return plan, Finding("plan", "ok", "; ".join(filter(None, [plan.brief, devices, problem.note])))
