"""What the gradients look like: finite, reaching every parameter, of comparable lengths, not all alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from nfk.doctor.diagnosis import Finding
from nfk.doctor.patient import NAMED, Patient, squares_of
from nfk.model import split_key
from nfk.operator.moments import Moments, estimate
from nfk.stream import Examples, Generated

FAR = 10.0  # times the median length, from which a gradient is an outlier
SPREADS = 6.0  # robust standard deviations of the logarithm, from which it is one
MOSTLY = 0.5  # the share from which dead parameters, or a common shift, are worth a warning
SAMPLES = 32  # of the model, for its moments


@dataclass(frozen=True)
class Survey:
    """One look at all gradients: which are finite, and which parameters they reach."""

    finite: np.ndarray
    used: np.ndarray

    @classmethod
    def of(cls, patient: Patient) -> Survey:
        finite, used = np.zeros(len(patient.sample), bool), np.zeros(patient.model.layout.size, bool)
        for group in patient.groups:
            rows = patient.rows(group)
            finite[group] = np.isfinite(rows).all(axis=(1, 2))
            used |= (rows[finite[group]] != 0).any(axis=(0, 1))
        return cls(finite, used)


def finite_gradients(patient: Patient, survey: Survey) -> Finding:
    bad = np.flatnonzero(~survey.finite).tolist()
    if not bad:
        return Finding("finite gradients", "ok", f"all {len(survey.finite)} are")
    return Finding(
        "finite gradients", "error",
        f"{patient.sample.named(bad)}: NaN or infinity in {len(bad)} of {len(survey.finite)} gradients",
        "look at those examples, and at log(0), sqrt(0), 0/0 or a norm of zeros in the network: the derivative is not "
        "finite there even where the value is",
    )  # fmt: skip


def statistics(patient: Patient) -> list[Finding]:
    """Outliers and a common shift: of the rows V_x, with moments over a few examples."""
    try:
        moments = _moments(patient)
    except ValueError as error:
        what, _, remedy = str(error).rpartition("; ")
        return [Finding("moments", "error", what or remedy, remedy if what else "look at the samples of the model")]
    squares, total = np.zeros(len(patient.sample)), np.zeros((patient.outputs, patient.model.layout.size))
    for number, group in enumerate(patient.groups):
        new = group[: len(squares) - number * patient.batch]
        rows = patient.rows(group, moments)[: len(new)]
        squares[new] = squares_of(rows)
        total += rows.sum(axis=0, dtype=np.float64)
    return [_outliers(patient, np.sqrt(squares)), _shift(patient, squares, total.reshape(-1))]


def _moments(patient: Patient) -> Moments:
    model, stream = patient.model, patient.stream()
    if not model.needs_moments:
        return Moments.trivial(model)
    if model.expectation == "model":
        drawn = Generated(model.sample, split_key(patient.key)[1], min(model.samples, SAMPLES))
        stream = replace(stream, examples=Examples(drawn, "sample"))
    return estimate(stream, model)


def dead_parameters(patient: Patient, used: np.ndarray) -> Finding:
    """Parameters on which no row depends."""
    share, slices = 1 - used.mean(), patient.model.layout.slices
    arrays = [path for path, place in slices.items() if not used[place].any()]
    if not used.any():
        return Finding(
            "dead parameters", "error", "the score does not change with any parameter",
            "check that the function uses the params it is given, not a copy of its own",
        )  # fmt: skip
    if not arrays and share < MOSTLY:
        return Finding("dead parameters", "ok", f"{share:.1%} of the parameters take no part in these examples")
    some = ", ".join(map(repr, arrays[:NAMED])) + f" and {len(arrays) - NAMED} more" * (len(arrays) > NAMED)
    return Finding(
        "dead parameters", "warning",
        f"{share:.1%} of the parameters take no part in these examples" + f"; nothing of {some}" * bool(arrays),
        "check that the score uses them; where it is not meant to, leave them out with parameters=..., which saves "
        "their memory and time",
    )  # fmt: skip


def _outliers(patient: Patient, lengths: Float[np.ndarray, " n"]) -> Finding:
    name, far, zero = "outlier gradients", far_above(lengths), np.flatnonzero(lengths == 0).tolist()
    if zero:
        return Finding(
            name, "warning", f"{patient.sample.named(zero)}: {len(zero)} of {len(lengths)} rows of the kernel are zero",
            "the kernel cannot see these examples: is the score saturated or clipped there, or are its units dead?",
        )  # fmt: skip
    relative = lengths / np.median(lengths)
    if not far:
        return Finding(name, "ok", f"lengths from {relative.min():.2g} to {relative.max():.2g} medians")
    share = (lengths[far] ** 2).sum() / (lengths**2).sum()
    return Finding(
        name, "warning",
        f"{patient.sample.named(far)}: up to {relative.max():,.0f} medians long, {share:.0%} of the kernel's trace",
        "the first components will be these examples alone: look at them, scale the inputs as in training, or leave "
        "them out",
    )  # fmt: skip


def far_above(lengths: Float[np.ndarray, " n"]) -> list[int]:
    """Those above ten medians and, on a logarithmic scale, above six robust standard deviations."""
    positive = lengths > 0
    if not positive.any():
        return []
    logs = np.log(np.where(positive, lengths, lengths[positive].min()))
    above = logs - np.median(logs)
    spread = 1.4826 * np.median(np.abs(above))
    return np.flatnonzero(above > max(np.log(FAR), SPREADS * spread)).tolist()


def _shift(patient: Patient, squares: Float[np.ndarray, " n"], total: np.ndarray) -> Finding:
    """The share of the trace that all rows have in common, |mean V|^2 / mean |V|^2, without its bias of 1/n."""
    count, trace = len(squares), squares.sum()
    plain = float(total @ total) / count / trace if trace > 0 else 0.0
    share = max((count * plain - 1) / (count - 1), 0.0)
    name, seen = "mean shift", f"{share:.0%} of the kernel's trace is one shift that all examples share"
    if share < MOSTLY:
        return Finding(name, "ok", seen)
    model = patient.model
    if model.expectation == "model" and model.needs_moments:
        remedy = (
            "data and the model's samples differ in the mean: check sample= and the scaling of X, or expectation='data'"
        )
    else:
        remedy = "the first component will be nearly constant: pass centred=True, or drop it"
    return Finding(name, "warning", seen, remedy)
