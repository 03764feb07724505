"""The table of results/products.json."""

from __future__ import annotations

from benchmarks.report_tasks import head


def table(results: dict) -> str:
    """results/products.json in the documentation."""
    if not results:
        return "Not measured yet: `python -m benchmarks.products`.\n"
    names = [name for name in results["rows"][0] if name != "width"]
    size = f"{results['examples']:,} x {results['parameters']:,}"
    lines = head(f"GFLOP/s, V of {size}", *(f"{row['width']} columns" for row in results["rows"]))
    lines += [f"| {name} | {' | '.join(f'{row[name]:.0f}' for row in results['rows'])} |" for name in names]
    text = (
        f"Square matrices get {results['square']:.0f} GFLOP/s on this core. A gigabyte of fresh memory costs "
        f"{results['seconds_of_a_fresh_gigabyte']:.1f} s."
    )
    return "\n".join([*lines, "", text, ""])
