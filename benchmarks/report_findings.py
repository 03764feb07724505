"""Tables of docs/findings.md, and of docs/results.md what it refers to; none where there is no results file."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from benchmarks.report_tasks import head, percent

Rows = list[dict]
BESIDE = ("no teacher", "NFKD")


def said(results: dict) -> list[str]:
    """The command, and what is smaller than in the paper."""
    smaller = " ".join(results["smaller"])
    return [f"`{results['command']}`. {smaller}".strip(), ""]


def _page(table: Callable[[Rows], list[str]]) -> Callable[[dict], str]:
    return lambda results: "\n".join([*said(results), *table(results["rows"]), ""]) if results else ""


def _mean(rows: Rows, **wanted: str) -> dict:
    return next(row for row in rows if all(row.get(key) == value for key, value in wanted.items()))


def difference(a: dict, b: dict) -> str:
    """The mean of a - b over the same seeds in points, with the 95 % interval of Student's t."""
    each = [100 * (x - y) for x, y in zip(a["values"], b["values"], strict=False)]
    middle = sum(each) / len(each)
    if len(each) < 2:
        return f"{middle:+.1f}"
    low, high = stats.t.interval(0.95, len(each) - 1, middle, stats.sem(each) or 1e-12)
    return f"{middle:+.1f} ({low:+.1f} to {high:+.1f})"


def bound_noise(rows: Rows) -> list[str]:
    """Accuracy of each score as it is, at length one, with all components; and how alike two draws are."""
    metrics = {
        "64 components": "test accuracy", "rows at length one": "test accuracy, rows at length one",
        "all components": "test accuracy, all components",
    }  # fmt: skip
    lines = head("score", *metrics, "agreement of two draws")
    for name in dict.fromkeys(row["method"] for row in rows):
        cells = [percent(_mean(rows, method=name, metric=metric)) for metric in metrics.values()]
        alike = _mean(rows, method=name, metric="agreement of two draws")["mean"]
        lines.append(f"| {name} | {' | '.join(cells)} | {alike:.2f} |")
    return lines


def likelihoods(rows: Rows) -> list[str]:
    """Trained less untrained for each network, with one thing changed."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    variants = list(dict.fromkeys(row["method"] for row in rows))
    lines = head("changed", *networks)
    for variant in variants:
        pairs = [[row for row in rows if (row["method"], row["network"]) == (variant, network)] for network in networks]
        lines.append(f"| {variant} | {' | '.join(difference(*pair) if len(pair) == 2 else '' for pair in pairs)} |")
    plain = [row for row in rows if row["method"] in ("as it is", "all components")]
    lines += ["", *head("accuracy, %", *networks)]
    for state in ("trained", "untrained"):
        for variant, shown in (("as it is", "64 components"), ("all components", "all components")):
            cells = [
                percent(row)
                for network in networks
                for row in plain
                if (row["method"], row["network"], row["state"]) == (variant, network, state)
            ]
            lines.append(f"| {state}, {shown} | {' | '.join(cells)} |")
    return lines


def residual(table: np.ndarray) -> tuple[float, int]:
    """What neither the row nor the column of a table explains: its standard deviation, and its degrees of freedom.

    The table is methods x seeds, and the same seed gives every method the same student and the same batches.
    """
    left = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return float(np.sqrt(np.sum(left**2) / freedom)), freedom


def pooled(rows: Rows) -> Callable[[dict, dict], str]:
    """The mean of a - b over their common seeds in points, with a 95 % interval: one deviation for all methods.

    It is estimated from the methods that have several seeds.
    """
    several = [row for row in rows if row["seeds"] > 1]
    common = min((row["seeds"] for row in several), default=0)
    table = 100 * np.array([row["values"][:common] for row in several])
    deviation, freedom = residual(table) if len(several) > 1 else (math.nan, 0)

    def shown(a: dict, b: dict) -> str:
        each = [100 * (x - y) for x, y in zip(a["values"], b["values"], strict=False)]
        middle = sum(each) / len(each)
        if not freedom:
            return f"{middle:+.1f}"
        half = stats.t.ppf(0.975, freedom) * deviation * math.sqrt(2 / len(each))
        return f"{middle:+.1f} ({middle - half:+.1f} to {middle + half:+.1f})"

    return shown


def distillation(rows: Rows) -> list[str]:
    """Students, best first; what the targets hold; the probe of the teacher against k."""
    students = sorted((row for row in rows if row["role"] == "student"), key=lambda row: -row["mean"])
    alone, ours, apart = _mean(students, method="no teacher"), _mean(students, method="NFKD"), pooled(students)
    lines = head("method", "test accuracy, %", "above no teacher", "above NFKD", "seeds", "weight of labels + teacher")
    for row in students:
        gains = ("" if row is other else apart(row, other) for other in (alone, ours))
        weight = f"{row['label_weight']:g} + {row['teacher_weight']:g}"
        lines.append(f"| {row['method']} | {percent(row)} | {' | '.join(gains)} | {row['seeds']} | {weight} |")
    lines += _longer(rows, students)
    shapes = [row for row in rows if row["role"] == "shape of the target"]
    told = [f"{percent(row)} % of NFKD's target lies in {row['method']}." for row in shapes]
    return [*lines, "", *told, "", *_contents(rows), "", *_against_k(rows)]


def _longer(rows: Rows, short: Rows) -> list[str]:
    """Students that were trained longer, best first, beside the shorter training.

    Differences are over seeds, as those of the shorter ones; where there is one training of each, over test images.
    """
    longer = sorted((row for row in rows if row["role"] == "student, trained longer"), key=lambda row: -row["mean"])
    if not longer:
        return []
    apart = {(row["method"], row["less"]): points(row) for row in rows if "less" in row}
    if all(row["seeds"] > 1 for row in longer):
        shown, beside = pooled(longer), [_mean(longer, method=name) for name in BESIDE]
        apart = {(row["method"], other["method"]): shown(row, other) for row in longer for other in beside}
    epochs = f"{short[0]['epochs']} epochs, %", f"{longer[0]['epochs']} epochs, %"
    lines = ["", *head("method", *epochs, "above no teacher", "above NFKD", "seeds")]
    for row in longer:
        before = _mean(short, method=row["method"])["mean"]
        gains = (apart.get((row["method"], other), "") if row["method"] != other else "" for other in BESIDE)
        cells = f"{100 * before:.1f} | {percent(row)} | {' | '.join(gains)} | {row['seeds']}"
        lines.append(f"| {row['method']} | {cells} |")
    return lines


def points(row: dict) -> str:
    """A difference of shares, in points, with its interval."""
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * row[key] for key in ("value", "low", "high")))


def _contents(rows: Rows) -> list[str]:
    """How much of the teacher can be read from each target."""
    told = [row for row in rows if row["role"] == "what a target holds"]
    wanted, targets = (list(dict.fromkeys(row[key] for row in told)) for key in ("metric", "method"))
    columns = (one.removeprefix("R^2 of ") for one in wanted)
    lines = head("% of the variance that a linear map reads from", *columns) if told else []
    for target in targets:
        cells = {row["metric"]: percent(row) for row in told if row["method"] == target}
        lines.append(f"| {target} | {' | '.join(cells.get(one, '') for one in wanted)} |")
    return lines


def _against_k(rows: Rows) -> list[str]:
    probes = [row for row in rows if row["role"] in ("probe of the teacher's embedding", "teacher")]
    lines = head("linear probe of the teacher's embedding", "test accuracy, %")
    for row in probes:
        low, high = (f"{100 * row[end]:.1f}" for end in ("low", "high"))
        lines.append(f"| {row['method']} | {100 * row['mean']:.1f} ({low} to {high}) |")
    return lines


def accuracy(rows: Rows) -> list[str]:
    lines = head("fit", "worst relative error of 128 eigenvalues", "median", "passes")
    for row in rows[1:]:
        lines.append(f"| {row['method']} | {row['value']:.1e} | {row['median']:.1e} | {row['passes']} |")
    return lines


def runtime(rows: Rows) -> list[str]:
    """Medians of the benchmarks against N, with the fastest and the slowest round where there are several."""
    counts = sorted({row["examples"] for row in rows})
    lines = head("network", "k", "fit", "from", *(f"N = {count:,}" for count in counts))
    keys = ("network", "rank", "method", "source", "condition")
    for about in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        mine = {row["examples"]: row for row in rows if tuple(row[key] for key in keys) == about}
        cells = (_seconds(mine[count]) if count in mine else "" for count in counts)
        network, rank, method, source, condition = about
        lines.append(f"| {network} | {rank} | {method} | {source}, {condition} | {' | '.join(cells)} |")
    return lines


def _seconds(row: dict) -> str:
    several = f" ({row['low']:.3g} to {row['high']:.3g})" if row["rounds"] > 1 else ""
    return (f"{row['value']:,.0f}" if row["value"] >= 1000 else f"{row['value']:.3g}") + several


def top_images(rows: Rows) -> list[str]:
    """How much of one class stands at each end of a component."""
    lines = head("network", "moments over", "component", "variance, %", "lowest, %", "highest, %")
    for low, high in zip(rows[::2], rows[1::2], strict=True):
        ends = (f"{100 * row['value']:.0f} ({100 * row['low']:.0f} to {100 * row['high']:.0f})" for row in (low, high))
        component = low["method"].split(",")[0].removeprefix("component ")
        facts = f"{low['network']} | the {low['moments']} | {component} | {100 * low['variance']:.1f}"
        lines.append(f"| {facts} | {' | '.join(ends)} |")
    return lines


FINDINGS = {
    "bound-noise": _page(bound_noise), "likelihoods": _page(likelihoods), "likelihoods-others": _page(likelihoods),
}  # fmt: skip
RESULTS = {
    "distillation": _page(distillation), "runtime": _page(runtime), "accuracy": _page(accuracy),
    "top-images": _page(top_images),
}  # fmt: skip
