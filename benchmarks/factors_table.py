"""The table of results/factors.json."""

from __future__ import annotations

from benchmarks.report_tasks import head


def table(results: dict) -> str:
    """results/factors.json in the documentation."""
    if not results:
        return "Not measured yet: `python -m benchmarks.factors`.\n"
    lines = head(
        "network", "N", "parameters, of them with factors", "gradients", "factors", "times", "largest difference"
    )
    for row in results["networks"]:
        kept, factors = row["seconds"]["gradients"], row["seconds"]["factors"]
        size = f"{row['parameters']:,}, {row['parameters_with_factors']:,}"
        times = f"{kept:.2f} s | {factors:.2f} s | {kept / factors:.1f}"
        lines.append(f"| {row['network']} | {row['examples']:,} | {size} | {times} | {row['difference']:.0e} |")
    return "\n".join([*lines, ""])
