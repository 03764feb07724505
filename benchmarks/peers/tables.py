"""Tables from results/peers.json, for docs/benchmarks.md and the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import numpy as np

from benchmarks.peers.registry import REGISTRY
from benchmarks.report_tasks import head

Row = dict[str, Any]
JOB = ("network", "kernel", "condition", "processor")
SIZE = ("examples", "rank")
TARGETS = (1e-3, 1e-6)
FLOOR = "floor"
MEMORY = 2 / 3


NOT_YET = "Not measured yet: `python -m benchmarks.peers`.\n"


def summary(results: dict) -> str:
    """One table a network, kernel, condition and processor: seconds, worst relative error and memory of everybody."""
    if not results:
        return NOT_YET
    cells = medians(results["measurements"])
    solvers = [cell for cell in cells if not cell["contestant"].startswith("projection")]
    parts = _by_job(solvers + floors(cells, results["environment"]), _table)
    return "\n".join([_measured(results), "", *parts])


IN_SHORT = ("critic", "lenet5")
LIBRARIES = ("curvlinops", "matfree", "neural-tangents", "nngeometry")


def short(results: dict) -> str:
    """A line for each number of examples of the networks `IN_SHORT`, at the largest rank that nfk and, if there is one,
    the script have run on the processor, and on as many of its cores, on which most was measured, for the README;
    nothing without results."""
    if not results:
        return ""
    cells = [
        cell
        for cell in medians(results["measurements"])
        if cell["condition"].endswith("idle") and cell["kernel"] == "fisher" and cell["network"] in IN_SHORT
    ]
    counts = Counter(_of(cell, ("processor", "condition")) for cell in cells)
    chosen = max(counts, key=lambda place: (counts[place], place[0] == results["environment"]["processor"]))
    processor, cells = chosen[0], [cell for cell in cells if _of(cell, ("processor", "condition")) == chosen]
    lines = []
    for _, group in groupby(cells, key=lambda cell: _of(cell, JOB)):
        job = list(group)
        compared = {_of(cell, SIZE) for cell in job if cell["contestant"] == "script"}
        ours = [cell for cell in job if cell["contestant"] == "nfk" and cell["status"] == "done"]
        ours = sorted(ours, key=lambda cell: (_of(cell, SIZE) in compared, _of(cell, SIZE)))
        largest = {cell["examples"]: cell for cell in ours}
        lines += [_short_line(largest[examples], job) for examples in sorted(largest)]
    return "\n".join(
        [*head(f"{processor}: network, examples, k", "nfk", "PyTorch script", "fastest library"), *lines, ""]
    )


def _short_line(ours: Row, job: list[Row]) -> str:
    same = {cell["contestant"]: cell for cell in job if _of(cell, SIZE) == _of(ours, SIZE)}
    ran = [same[name] for name in LIBRARIES if name in same and same[name]["status"] == "done"]
    tried = [same[name] for name in LIBRARIES if name in same]
    fastest = min(ran, key=lambda cell: cell["seconds"], default=None) or (tried[0] if tried else None)
    library = "-" if fastest is None else f"{fastest['contestant']}: {_brief(fastest)}"
    plain = ", plain kernel" if ours["kernel"] == "plain" else ""
    what = f"{ours['network']}{plain}, {ours['examples']:,}, {ours['rank']}"
    return f"| {what} | {_brief(ours)} | {_brief(same.get('script'))} | {library} |"


def _brief(cell: Row | None) -> str:
    """Seconds and error, without the memory."""
    return _text(None if cell is None else {**cell, "bytes": None}, 0.0)


def times_to_error(results: dict) -> str:
    """The least seconds of any setting of a contestant that reached the error: to 1e-3 / to 1e-6."""
    if not results:
        return NOT_YET
    cells = [cell for cell in medians(results["measurements"]) if cell["error"] is not None]
    return "\n".join(_by_job(cells, _targets))


def embeddings(results: dict) -> str:
    """Time and probe accuracy of those who embed new examples."""
    if not results:
        return NOT_YET
    cells = [cell for cell in medians(results["measurements"]) if cell["probe"]]
    return "\n".join(_by_job(cells, _probes))


def busy(results: dict) -> str:
    """Seconds beside a process that spins on every core, over those on an idle machine."""
    if not results:
        return NOT_YET
    cells = [cell for cell in medians(results["measurements"]) if cell["status"] == "done" and not _is_floor(cell)]
    place = lambda cell: _of(cell, ("network", "kernel", "processor", *SIZE, "contestant"))  # noqa: E731
    idle = {(cell["condition"], *place(cell)): cell["seconds"] for cell in cells}
    lines = head("network", "processor", "cores", "N, k", "contestant", "idle", "busy", "ratio")
    for cell in cells:
        before = idle.get((cell["condition"].replace("busy", "idle"), *place(cell)))
        if cell["condition"].endswith("busy") and before is not None:
            lines.append(
                f"| {cell['network']} | {cell['processor']} | {cores(cell)} | {cell['examples']:,}, {cell['rank']} | "
                f"{_label(cell['contestant'])} | {before:.1f} s | {cell['seconds']:.1f} s | "
                f"{cell['seconds'] / before:.1f} |"
            )
    return "\n".join([*lines, ""])


def cores(cell: Row) -> str:
    """Which of them a contestant had."""
    return "one" if cell["condition"].startswith("one core") else "all"


def _is_floor(cell: Row) -> bool:
    return cell["contestant"].startswith("floor")


def _by_job(cells: list[Row], table: Callable[[list[Row]], list[str]]) -> list[str]:
    """A titled table for each network, kernel, condition and processor."""
    parts = []
    for job, group in groupby(sorted(cells, key=lambda cell: _of(cell, JOB)), key=lambda cell: _of(cell, JOB)):
        parts += [_title(*job), "", *table(list(group)), ""]
    return parts


def medians(measurements: Iterable[Row]) -> list[Row]:
    """One cell per job, size and contestant over its rounds."""
    key = lambda row: (*_of(row, JOB), *_of(row, SIZE), row["contestant"])  # noqa: E731
    return [_median(list(group)) for _, group in groupby(sorted(measurements, key=key), key=key)]


def _median(rows: list[Row]) -> Row:
    done = [row for row in rows if row["status"] == "done"]
    chosen = done or rows[-1:]

    def middle(name: str) -> float | None:
        return None if chosen[0].get(name) is None else float(np.median([row[name] for row in chosen]))

    return {
        **{name: rows[0][name] for name in (*JOB, *SIZE, "contestant", "parameters")},
        "status": "done" if done else rows[-1]["status"], "rounds": len(done), "reason": rows[-1].get("reason"),
        "probe": chosen[0].get("probe"), "embed_seconds": middle("embed_seconds"),
        "budget": rows[-1].get("budget_seconds"),
        "seconds": middle("seconds"), "projected": middle("projected_seconds"), "bytes": middle("peak_bytes"),
        "error": middle("worst_relative_error"), "rounding": rows[0].get("error_of_float32_gradients"),
        "facts": [row.get("facts", {}) for row in chosen],
    }  # fmt: skip


def floors(cells: list[Row], environment: dict) -> list[Row]:
    """For each job with both floors measured: one plain batch gradient per example and needed pass, and the products.

    The smaller of N^2 P (a symmetric update) and 4 N P (3 k + 16) operations, at the faster rate of PyTorch's and
    numpy's sgemm in the same run. Two passes are needed where N x P float32 numbers do not fit in two thirds of the
    memory, else one; samples count once.
    """
    found = []
    for cell in cells:
        if cell["contestant"] != "floor-torch" or cell["status"] != "done":
            continue
        same = [other for other in cells if _of(other, (*JOB, *SIZE)) == _of(cell, (*JOB, *SIZE))]
        jax = [other for other in same if other["contestant"] == "floor-jax" and other["status"] == "done"]
        gradient = min(_fact(each, "gradient_seconds") for each in (cell, *jax))
        rate = max(_fact(each, "flop_per_second") for each in (cell, *jax) if "flop_per_second" in each["facts"][0])
        N, P, k = cell["examples"], cell["parameters"], cell["rank"]
        passes = 1 if MEMORY * environment["memory_bytes"] >= 4 * N * P else 2
        samples = 256 if cell["network"] == "critic" and cell["kernel"] == "fisher" else 0
        work = min(N * N * P, 4 * N * P * (3 * k + 16)) / rate
        seconds = gradient * (passes * N + samples) + work
        found.append({**cell, "contestant": FLOOR, "seconds": seconds, "error": None, "bytes": None})
    return found


def _fact(cell: Row, name: str) -> float:
    return float(np.median([facts[name] for facts in cell["facts"]]))


def _of(row: Row, names: Iterable[str]) -> tuple:
    return tuple(row[name] for name in names)


def _title(network: str, kernel: str, condition: str, processor: str) -> str:
    from benchmarks.peers.making import NETWORKS

    what = "the Fisher kernel" if kernel == "fisher" else "the plain kernel, gradients without mean and scale"
    return f"**{NETWORKS[network].title}; {what}; {condition} machine; {processor}.**"


def _table(cells: list[Row]) -> list[str]:
    sizes = sorted({_of(cell, SIZE) for cell in cells})
    names = [name for name in _order(cells) if not name.startswith("floor-")]
    lines = head("contestant", "lines", *(f"N = {n:,}, k = {k}" for n, k in sizes))
    for name in names:
        own = {_of(cell, SIZE): cell for cell in cells if cell["contestant"] == name}
        row = [_text(own.get(size), _fastest(cells, size)) for size in sizes]
        lines.append(f"| {_label(name)} | {_lines(name)} | {' | '.join(row)} |")
    rounding = {_of(cell, SIZE): cell["rounding"] for cell in cells}
    if any(rounding.values()):
        row = ["-" if rounding[size] is None else f"{rounding[size]:.0e}" for size in sizes]
        lines.append(f"| *error of float32 gradients alone* | | {' | '.join(row)} |")
    return lines


def _order(cells: list[Row]) -> list[str]:
    """As in the registry, settings of a contestant after it, the floor last."""
    names = {cell["contestant"] for cell in cells}
    place = {name: index for index, name in enumerate(REGISTRY)}
    return sorted(names, key=lambda name: (place.get(name.split("@")[0], len(place)), name))


def _label(name: str) -> str:
    if name == FLOOR:
        return "*the floor*"
    base, _, setting = name.partition("@")
    contestant = REGISTRY[base]
    return contestant.title + (f", `{contestant.setting}={setting}`" if setting else "")


def _lines(name: str) -> str:
    lines = 0 if name == FLOOR else REGISTRY[name.split("@", maxsplit=1)[0]].lines
    return str(lines) if lines else ""


def _fastest(cells: list[Row], size: tuple) -> float:
    times = [
        cell["seconds"] for cell in cells if _of(cell, SIZE) == size and cell["error"] is not None and cell["seconds"]
    ]
    return min(times, default=0.0)


def _text(cell: Row | None, fastest: float) -> str:
    if cell is None:
        return "-"
    if cell["status"] == "failed":
        return "does not run"
    if cell["status"] == "over budget":
        return "over the budget" if cell["budget"] is None else f"over {cell['budget']:,.0f} s"
    if cell["status"] == "projected":
        return f"at least {cell['projected']:,.0f} s, projected"
    seconds = f"{cell['seconds']:.1f} s" if cell["seconds"] < 100 else f"{cell['seconds']:,.0f} s"
    parts = [f"**{seconds}**" if cell["seconds"] == fastest else seconds]
    if cell["error"] is not None:
        parts.append(f"{cell['error']:.0e}")
    if cell["bytes"] is not None:
        parts.append(f"{cell['bytes'] / 1e9:.1f} GB")
    return ", ".join(parts)


def _targets(cells: list[Row]) -> list[str]:
    sizes = sorted({_of(cell, SIZE) for cell in cells})
    bases = list(dict.fromkeys(name.split("@")[0] for name in _order(cells)))
    lines = head("contestant", *(f"N = {n:,}, k = {k}" for n, k in sizes))
    for base in bases:
        row = []
        for size in sizes:
            own = [cell for cell in cells if cell["contestant"].split("@")[0] == base and _of(cell, SIZE) == size]
            row.append(" / ".join(_reached(own, target) for target in TARGETS))
        lines.append(f"| {_label(base)} | {' | '.join(row)} |")
    return lines


def _reached(cells: list[Row], target: float) -> str:
    """The least seconds with an error of at most the target, or twice what float32 gradients alone have."""
    if not cells:
        return "-"
    times = [cell["seconds"] for cell in cells if cell["error"] <= max(target, 2 * (cell["rounding"] or 0))]
    return f"{min(times):.1f} s" if times else "not reached"


def _probes(cells: list[Row]) -> list[str]:
    sizes = sorted({_of(cell, SIZE) for cell in cells})
    lines = head("embedding", "numbers", *(f"N = {n:,}" for n, _ in sizes))
    for name in _order(cells):
        own = {_of(cell, SIZE): cell for cell in cells if cell["contestant"] == name}
        numbers = next(iter(own.values()))["probe"]["numbers"]
        lines.append(f"| {_label(name)} | {numbers} | {' | '.join(_probe_text(own.get(size)) for size in sizes)} |")
    return lines


def _probe_text(cell: Row | None) -> str:
    if cell is None:
        return "-"
    probe = cell["probe"]
    interval = f"{100 * probe['low']:.1f} to {100 * probe['high']:.1f}"
    return (
        f"{100 * probe['accuracy']:.1f} % ({interval}), {cell['seconds']:.1f} s, new ones {cell['embed_seconds']:.1f} s"
    )


def _measured(results: dict) -> str:
    env, rows = results["environment"], results["measurements"]
    rounds = max((cell["rounds"] for cell in medians(rows)), default=0)
    return (
        f"{env['cores']} cores, {env['memory_bytes'] / 1e9:.0f} GB, seed {env['seed']}; "
        f"medians of {rounds} where as many were run. A cell: seconds end to end, worst relative error of the top k "
        "eigenvalues, memory beyond the data."
    )
