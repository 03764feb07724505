"""Tables of docs/scale.md from results/scale.json: many devices and processes; none without it."""

from __future__ import annotations

from benchmarks import scale_model
from benchmarks.report_tasks import head
from nfk.memory import human

WHAT = {"gradients": "gradients dominate: a critic, computed again in each pass", "products": "products dominate: kept"}

WHO = ("one process, host", "one process, mesh", "two processes")


def repeats(results: dict) -> str:
    if "repeats" not in results:
        return ""
    told = [
        f"{row['processes']} processes: {row['differed']} of {row['fits']} fits differed" for row in results["repeats"]
    ]
    first = results["repeats"][0]
    return (
        f"The same fit again and again ({first['parameters']:,} parameters, {first['examples']} examples, blocks of "
        f"{first['columns']} columns), every bit of moments, eigenvalues, embedding and residuals compared. "
        f"{'; '.join(told)} (`python -m benchmarks.scale --only repeats`).\n"
    )


def processes(results: dict) -> str:
    if "processes" not in results:
        return ""
    lines = [
        "Median seconds of a fit, without compilation, contestants in turn on an idle machine, one core for each "
        "process (`python -m benchmarks.scale --only processes`). The host is where a fit of one process on a CPU "
        "runs by default: its products are by BLAS, those of a mesh by XLA.",
        "",
        *head("fit", "one process, host", "one process, mesh", "two processes", "times one (host)", "times one (mesh)"),
    ]
    for name, row in results["processes"].items():
        seconds, speedup = row["seconds"], row["speedup"]
        of = f"{WHAT[name]}; {row['parameters']:,} parameters, {row['examples']:,} examples, k = {row['rank']}"
        times = " | ".join(
            f"{seconds[who]:.2f} s" for who in ("one process, host", "one process, mesh", "two processes")
        )
        lines.append(f"| {of} | {times} | {speedup['one process, host']:.2f} | {speedup['one process, mesh']:.2f} |")
    return "\n".join([*lines, ""])


def traffic(results: dict) -> str:
    if "traffic" not in results:
        return ""
    lines = [
        "Bytes that each device receives in a fused pass of 16 columns, 39,984 parameters, 512 examples: counted in "
        "the programs that XLA compiled, and as the plan reckons (`python -m benchmarks.scale --only traffic`):",
        "",
        *head("data x basis", "counted", "reckoned", "blocks gathered", "sums reduced", "gradients"),
    ]
    for row in results["traffic"]:
        parts = [human(row["parts"].get(name, 0)) for name in ("gather_rows", "summed", "written")]
        data, basis = row["mesh"]
        lines.append(
            f"| {data} x {basis} | {human(row['received'])} | {human(row['predicted'])} | {' | '.join(parts)} |"
        )
    return "\n".join([*lines, ""])


def memory(results: dict) -> str:
    if "memory" not in results:
        return ""
    rows = results["memory"]
    lines = [
        "What one device holds at the most in the same search (blocks of 32 columns, 99,960 parameters), by the number "
        "of devices that share out the columns (`python -m benchmarks.scale --only memory`):",
        "",
        *head("basis shards", "blocks of parameters x columns", "times shards", "everything"),
    ]
    for row in rows:
        share = row["blocks"] * row["shards"] / rows[0]["blocks"]
        lines.append(f"| {row['shards']} | {human(row['blocks'])} | {share:.2f} | {human(row['all'])} |")
    return "\n".join([*lines, ""])


def pairs(results: dict) -> str:
    if "pairs" not in results:
        return ""
    rows, worst = results["pairs"]["rows"], results["pairs"]["worst"]
    models, ways, meshes = (len({str(row[name]) for row in rows}) for name in ("model", "way", "mesh"))
    return (
        f"All {len(rows)} pairs of {models} models and {ways} ways to run, on {meshes} meshes in turn, 37 examples, "
        f"against one host in float32: eigenvalues and kernel differ by {worst:.0e} at the most, relative to the "
        "largest (`python -m benchmarks.scale --only pairs`).\n"
    )


def model(results: dict) -> str:
    if "model" not in results:
        return ""
    lines = [
        f"Rank {scale_model.RANK}, gradients computed again in each pass, at {scale_model.NETWORK / 1e12:.0f} TFLOP/s, "
        f"{human(scale_model.DEVICE_BYTES)} and {human(scale_model.MEMORY)}/s between devices for each accelerator "
        "(stated, not measured), the fastest way to share them out (`python -m benchmarks.scale --only model`):",
        "",
        *head(
            "parameters", "examples", "accelerators", "time", "basis shards", "memory of each", "or what is too large"
        ),
    ]
    for row in results["model"]:
        start = f"| {row['network']} | {row['examples']:,} | {row['devices']} |"
        if "least" in row:
            needs, most = row["least"]
            lines.append(f"{start} - | - | {needs} at the least | {most} |")
        else:
            lines.append(f"{start} {_duration(row['seconds'])} | {row['shards']} | {human(row['bytes'])} | |")
    return "\n".join([*lines, ""])


def _duration(seconds: float) -> str:
    for name, size in (("years", 365 * 86400), ("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {name}"
    return f"{seconds:.0f} s"
