"""The table of results/tolerance.json."""

from __future__ import annotations

from benchmarks.report_tasks import head


def table(results: dict) -> str:
    """results/tolerance.json in the documentation."""
    if not results:
        return "Not measured yet: `python -m benchmarks.tolerance`.\n"
    lines = head(
        "network, k", "`tol`", "passes", "probe, %", "change", "answers changed", "neighbours shared", "variance lost",
        "worst eigenvalue error",
    )  # fmt: skip
    for row in results["rows"]:
        mean = {key: value["mean"] for key, value in row.items() if isinstance(value, dict)}
        change = row["probe_change"]
        lines.append(
            f"| {row['network']}, {row['rank']} | {row['tol']:g} | {mean['passes']:.1f} | {100 * mean['probe']:.1f} | "
            f"{100 * change['mean']:+.2f} ({100 * change['least']:+.1f} to {100 * change['most']:+.1f}) | "
            f"{100 * mean['answers_changed']:.2f} % | {100 * mean['neighbours_shared']:.2f} % | "
            f"{mean['variance_lost']:.0e} | {mean['worst_eigenvalue_error']:.0e} |"
        )
    return "\n".join([*lines, ""])
