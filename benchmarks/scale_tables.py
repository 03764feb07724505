"""Tables of docs/scale.md from results/scale_data.json, large_basis.json and scale_examples.json; none without them."""

from __future__ import annotations

from benchmarks.report_tasks import head
from benchmarks.scale_examples import TITLES, curves, slope
from nfk.memory import human


def memory(results: dict) -> str:
    found = results.get("memory")
    if not found:
        return ""
    lines = [
        f"A fit over `.npy` shards with a budget of {human(found['budget_bytes'])} "
        "(`python -m benchmarks.scale_data`):",
        "",
        *head("data", "examples", "memory of its own beyond the start", "planned"),
    ]
    for row in found["rows"]:
        sizes = " | ".join(human(row[name]) for name in ("own_bytes", "planned_bytes"))
        lines.append(f"| {human(row['data_bytes'])} | {row['examples']:,} | {sizes} |")
    return "\n".join([*lines, ""])


def disk(results: dict) -> str:
    if "disk" not in results:
        return ""
    rates = next(iter(results["disk"].values()))
    lines = [
        "Seconds of the same fit, contestants in turn on one core, and in brackets what the plan expects "
        f"(`python -m benchmarks.scale_data`). The disk reads {human(rates['disk_read_rate'])}/s and writes "
        f"{human(rates['disk_write_rate'])}/s by the plan's own measurement. Here the system could hold the file in "
        "its memory; the column before the last is the same with every page dropped after use.",
        "",
        *head("network", "gradients", "memory", "computed again", "read", "read, nothing cached", "the plan takes"),
    ]
    for row in results["disk"].values():
        seconds, planned = row["seconds"], row["planned_seconds"]
        lines.append(
            f"| {row['network']}, {row['parameters']:,} parameters, {row['examples']:,} examples | "
            f"{human(row['gradient_bytes'])} | {human(row['memory'])} | {seconds['computed']:.0f} s "
            f"({planned['computed']:.0f}) | {seconds['read']:.0f} s ({planned['read']:.0f}) | "
            f"{seconds['read_from_the_disk_itself']:.0f} s | {row['the_plan_takes']} |"
        )
    return "\n".join([*lines, ""])


def large(results: dict) -> str:
    if "rows" not in results:
        return ""
    names = ("network", "N, k", "basis", "budget", "beyond the start", "whole process", "on disk", "passes",
             "worst residual", "processor time")  # fmt: skip
    lines = ["`python -m benchmarks.large_basis NAME`:", "", *head(*names)]
    for row in results["rows"].values():
        used = {"gradients": row["gradients_on_disk"], "basis": row["basis_in_memory_maps"]}
        where = [name for name in used if used[name]]
        before = f" (and {row['runs_before']} runs before)" if row["runs_before"] else ""
        lines.append(
            f"| {row['parameters']:,} parameters | {row['examples']:,}, {row['rank']} | "
            f"{human(4 * row['parameters'] * row['rank'])} | {row['budget']} | "
            f"{human(row['own_bytes_at_the_peak'] - row['own_bytes_at_the_start'])} | "
            f"{human(row['own_bytes_at_the_peak'])} | "
            f"{human(row['disk_bytes'])} ({', '.join(where) or 'nothing'}) | {row['passes']} | "
            f"{row['worst_residual']:.0e} | {row['processor_seconds'] / 60:.0f} min{before} |"
        )
    return "\n".join([*lines, ""])


def examples(results: dict) -> str:
    if "rows" not in results:
        return ""
    found = curves(results["rows"])
    lines = [
        f"Processor seconds of a fit with k = {results['rank']} and the same passes for every N of a curve, gradients "
        "computed again in each pass, over CIFAR-10 and, beyond 50,000, mirrored images. An example's time in each "
        "pass is the constant of the cost model below. Measured beside other work. The dense way keeps all gradients "
        "and decomposes their Gram matrix in float64; it stops where they do not fit in the machine's memory. "
        "`python -m benchmarks.scale_examples` goes on where it stopped.",
        "",
        *head("network", "processor", "passes", "N", "log-log slope, 95 % interval", "an example in a pass"),
    ]
    for (name, processor, _), points in found.items():
        sizes = f"{points[0]['examples']:,} to {points[-1]['examples']:,}"
        each = [row["milliseconds_an_example_and_pass"] for row in points]
        fitted = slope(points)
        text = "too few points" if fitted is None else "{:.2f} ({:.2f} to {:.2f})".format(*fitted)
        lines.append(
            f"| {TITLES[name]} | {processor} | {points[0]['passes']} | {sizes} | {text} | "
            f"{min(each):.1f} to {max(each):.1f} ms |"
        )
    lines += ["", *head("network", "processor", "passes", "N", "nfk", "dense")]
    dense = {_place(row): _seconds(row) for row in results["rows"] if row["way"] == "dense"}
    for points in found.values():
        for row in points:
            name, processor, _, count = _place(row)
            cells = (TITLES[name], processor, row["passes"], f"{count:,}", _seconds(row), dense.get(_place(row), "-"))
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


def _place(row: dict) -> tuple:
    return tuple(row[name] for name in ("network", "processor", "steps", "examples"))


def _seconds(row: dict) -> str:
    if "seconds" in row:
        return f"{row['seconds']:,.0f} s"
    return "does not fit" if "refused" in row else f"not run: {human(row['not_run_bytes'])}"
