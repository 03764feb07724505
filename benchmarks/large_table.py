"""The table of results/large.json."""

from __future__ import annotations

from benchmarks.report_tasks import head

NAMES = {"forty-million": "convolutional classifier", "resnet-18": "ResNet-18, PyTorch"}


def table(results: dict) -> str:
    """results/large.json in the documentation."""
    lines = []
    if set(results) & set(NAMES):
        lines += head("network", "parameters", "examples, k", "budget", "memory beyond the start", "passes",
                      "processor seconds", "certificate")  # fmt: skip
    for name, row in ((name, results[name]) for name in NAMES if name in results):
        lines.append(
            f"| {NAMES[name]} | {row['parameters']:,} | {row['examples']}, {row['rank']} | {row['memory']} | "
            f"{row['peak_bytes'] / 2**30:.2f} GB | {row['passes']} | {row['processor_seconds']:.0f} | "
            f"{row['certificate']:.0e} |"
        )
    if "gradient" in results:
        parts = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in results["gradient"]["seconds"].items())
        lines += ["", f"One example's gradient of that ResNet-18, processor time: {parts}."]
    return "\n".join([*lines, ""]) if lines else "Not measured yet: `python -m benchmarks.large`.\n"
