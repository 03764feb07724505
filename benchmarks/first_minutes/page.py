"""The transcript as a page of the documentation."""

from __future__ import annotations

from typing import Any


def transcript(results: dict[str, Any]) -> str:
    """results/first_minutes.json, step by step."""
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    cores = f"{results['cores']} core{'s' if results['cores'] > 1 else ''}"
    lines = [
        f"**{_minutes(results['seconds'])} in all**, on {cores} of a CPU ({results['machine']}), Python "
        f"{results['python']}, {versions}. The wheel has {results['wheel_kilobytes']} kB; packages came from a mirror "
        "nearby. `python -m benchmarks.first_minutes` writes `results/first_minutes.json`, the source of this page.",
        "",
    ]
    for step in results["steps"]:
        lines += ["", step["why"] + (f" *({_seconds(step['seconds'])})*" if step["command"] else "")]
        if "file" in step:
            lines += ["", f"`{step['file']}`:", "", "```py", *step["source"].splitlines(), "```"]
        if step["command"]:
            lines += ["", "```text", f"$ {step['command']}", *step["output"], "```"]
    return "\n".join([*lines, ""])


def _seconds(seconds: float) -> str:
    return "at once" if seconds < 0.5 else f"{seconds:.0f} s" if seconds >= 2 else f"{seconds:.1f} s"


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"
