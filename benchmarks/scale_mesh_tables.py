"""Tables of docs/scale.md from results/scale.json: many devices and processes; none without it."""

from __future__ import annotations

from benchmarks import scale_model
from benchmarks.report_tasks import head
from nfk.memory import human

WHAT = {"gradients": "gradients dominate: a critic, computed again in each pass", "products": "products dominate: kept"}

WHO = ("one process, host", "one process, mesh", "two processes")
TRAVELS = (("gather_rows",), ("exchanged", "summed"), ("written",))  # programs: blocks, sums, gradients


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
    found = results["processes"]
    cores = [core for row in found.values() for core in row["cores"]["two processes"]]
    apart = all(len(core) == 1 for core in cores) and len({core[0] for core in cores}) == 2
    where = "each with a core of its own" if apart else "**which shared a core: these figures say nothing**"
    lines = [
        f"Seconds of a fit after the one that compiles, contestants in turn; two processes, {where}, one thread in "
        "each (`python -m benchmarks.scale --only processes`, on an idle machine). The host is where a fit of one "
        "process on a CPU runs by default: its products are by BLAS, those of a mesh by XLA. The most that there is "
        "for two: two processes that know nothing of each other, each with a whole fit.",
        "",
        *head("fit", *WHO, "times one on a mesh", "the most here", "times one on the host"),
    ]
    for name, row in found.items():
        seconds, speedup = row["seconds"], row["speedup"]
        of = f"{WHAT[name]}; {row['parameters']:,} parameters, {row['examples']:,} examples, k = {row['rank']}"
        times = " | ".join(f"{seconds[who]:.2f} s ({row['passes'][who]} passes)" for who in WHO)
        speeds = " | ".join(f"{x:.2f}" for x in (speedup[WHO[1]], row["most"], speedup[WHO[0]]))
        lines.append(f"| {of} | {times} | {speeds} |")
    worst = max(row["difference"] for row in found.values())
    return "\n".join([*lines, "", f"Their leading eigenvalues differ by {worst:.0e} at the most.", ""])


def traffic(results: dict) -> str:
    if "traffic" not in results:
        return ""
    rows = results["traffic"]
    first, worst = rows[0], max(abs(row["received"] / row["predicted"] - 1) for row in rows)
    lines = [
        f"Bytes that each device receives in a fused pass of {first['columns']} columns, {first['parameters']:,} "
        f"parameters, {first['examples']:,} examples: counted in the programs that XLA compiled, and as the plan "
        f"reckons; they differ by {worst:.1%} at the most (`python -m benchmarks.scale --only traffic`):",
        "",
        *head("data x basis", "counted", "reckoned", "blocks gathered", "sums reduced", "gradients", "anything else"),
    ]
    for row in rows:
        parts = [sum(row["parts"].get(name, 0) for name in names) for names in TRAVELS]
        sizes = " | ".join(human(size) for size in (*parts, row["received"] - sum(parts)))
        data, basis = row["mesh"]
        lines.append(f"| {data} x {basis} | {human(row['received'])} | {human(row['predicted'])} | {sizes} |")
    return "\n".join([*lines, ""])


def memory(results: dict) -> str:
    if "memory" not in results:
        return ""
    rows = results["memory"]
    first = rows[0]
    lines = [
        f"What one device holds at the most in the same search, by the number of devices that share out the columns: "
        f"{first['parameters']:,} parameters, {first['examples']} examples, a basis of up to {first['capacity']} "
        f"columns in blocks of {first['columns']}, {first['chunk']} examples' gradients at a time. Arrays are those "
        "alive after every program; the work space of a program is what XLA's own analysis says of it. Each column is "
        "the most at any time, the last one that of the sum (`python -m benchmarks.scale --only memory`):",
        "",
        *head("basis shards", "blocks of parameters x columns", "times shards, relative to one",
              "images, examples x columns", "work space of a program", "gradients, parameters, moments", "all"),
    ]  # fmt: skip
    for row in rows:
        share = row["blocks"] * row["shards"] / first["blocks"]
        sizes = " | ".join(human(row[name]) for name in ("images", "work", "rest", "all"))
        lines.append(f"| {row['shards']} | {human(row['blocks'])} | {share:.2f} | {sizes} |")
    return "\n".join([*lines, ""])


def pairs(results: dict) -> str:
    found = results.get("pairs", {})
    if "worst_kernel" not in found:
        return ""  # or not at its end
    rows = found["rows"]
    models, ways, meshes = (len({str(row[name]) for row in rows}) for name in ("model", "way", "mesh"))
    one_each = len({(row["way"], str(row["mesh"])) for row in rows}) == ways
    where = f"each way on one of {meshes} meshes" if one_each else f"on {meshes} meshes in turn"
    return (
        f"All {len(rows)} pairs of {models} models and {ways} ways to run, {where}, 37 examples, "
        f"against one host in float32. Relative to the largest, eigenvalues differ by {found['worst_eigenvalues']:.0e} "
        f"at the most, the kernel of the embedding by {found['worst_kernel']:.0e}, the trace by "
        f"{found['worst_trace']:.0e}, and a call of the embedding differs from what the fit says of the same examples "
        f"by {found['worst_call']:.0e} (`python -m benchmarks.scale --only pairs`).\n"
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
