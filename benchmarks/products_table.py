"""The table of results/products.json."""

from __future__ import annotations

from benchmarks.report_tasks import head


def table(results: dict) -> str:
    """results/products.json in the documentation, a table for each kind of processor."""
    if not results:
        return "Not measured yet: `python -m benchmarks.products`.\n"
    return "\n".join(line for processor in sorted(results) for line in _lines(processor, results[processor]))


def _lines(processor: str, found: dict) -> list[str]:
    names = [name for name in found["rows"][0] if name != "width"]
    size = f"{found['examples']:,} x {found['parameters']:,}"
    lines = head(f"{processor}: GFLOP/s, V of {size}", *(f"{row['width']} columns" for row in found["rows"]))
    lines += [f"| {name} | {' | '.join(f'{row[name]:.0f}' for row in found['rows'])} |" for name in names]
    text = (
        f"Square matrices get {found['square']:.0f} GFLOP/s on this core. A gigabyte of fresh memory costs "
        f"{found['seconds_of_a_fresh_gigabyte']:.1f} s."
    )
    return [*lines, "", text, ""]
