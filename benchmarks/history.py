"""A few ratios for each release, so that a slowdown is seen: nfk over the PyTorch script, both pinned to one core.

python -m benchmarks.history [--pin 0]

Ratios of medians of alternated runs at small fixed jobs; a ratio says more than seconds, which belong to a machine.
Each run of the command appends one entry to benchmarks/history.json, or replaces that of the same version.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tyro

from benchmarks.peers.machine import processor
from benchmarks.report_tasks import head

ROOT = Path(__file__).parents[1]
HISTORY = ROOT / "benchmarks" / "history.json"
JOBS = (("lenet5", 256, 32), ("critic", 256, 32), ("transformer", 128, 32))
ROUNDS = 3
SLOWER = 1.25  # a ratio that has grown by this factor since the last release is named


def main(pin: int = 0, rounds: int = ROUNDS, environments: Path | None = None) -> None:
    """Measure the fixed jobs and append this version's ratios.

    Args:
        pin: the core.
        rounds: of all contestants in turn.
        environments: the folder of the contestants' virtual environments.
    """
    import nfk

    history = json.loads(HISTORY.read_text()) if HISTORY.exists() else []
    today = datetime.date.today().isoformat()
    entry = {"version": nfk.__version__, "date": today, "rounds": rounds, "processor": processor(), "ratios": {}}
    for network, examples, rank in JOBS:
        entry["ratios"] |= ratios(network, examples, rank, pin, rounds, environments)
    history = [old for old in history if old["version"] != entry["version"]] + [entry]
    HISTORY.write_text(json.dumps(history, indent=1) + "\n")
    print(json.dumps(entry, indent=1))
    for text in slower(history):
        print(text, file=sys.stderr)


def ratios(network: str, examples: int, rank: int, pin: int, rounds: int, environments: Path | None) -> dict[str, Any]:
    """Seconds of nfk and of nfk through PyTorch over those of the script."""
    from benchmarks.peers.tables import medians

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "peers.json"
        command = [
            sys.executable, "-m", "benchmarks.peers", "--networks", network, "--sizes", str(examples),
            "--ranks", str(rank), "--contestants", "script", "nfk", "nfk-torch", "--rounds", str(rounds),
            "--pin", str(pin), "--output", str(output),
        ]  # fmt: skip
        if environments is not None:
            command += ["--environments", str(environments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        cells = medians(json.loads(output.read_text())["measurements"])
    seconds = {cell["contestant"]: cell["seconds"] for cell in cells}
    name = f"{network}, N = {examples}, k = {rank}"
    return {f"{each}, {name}": seconds[each] / seconds["script"] for each in ("nfk", "nfk-torch")}


def slower(history: list[dict]) -> list[str]:
    """A sentence for every ratio that has grown since the release before that was measured on such a processor."""
    *earlier, now = history
    earlier = [entry for entry in earlier if entry["processor"] == now["processor"]]
    if not earlier:
        return []
    before = earlier[-1]
    return [
        f"{name}: {now['ratios'][name]:.2f} times the script, {ratio:.2f} in {before['version']}"
        for name, ratio in before["ratios"].items()
        if name in now["ratios"] and now["ratios"][name] > SLOWER * ratio
    ]


def table(history: list[dict]) -> str:
    """benchmarks/history.json in the documentation."""
    if not history:
        return "Not measured yet: `python -m benchmarks.history`.\n"
    names = list(dict.fromkeys(name for entry in history for name in entry["ratios"]))
    columns = (f"{entry['version']}, {entry['processor']}" for entry in history)
    lines = head("seconds over the script's, one core", *columns)
    for name in names:
        row = [f"{entry['ratios'][name]:.2f}" if name in entry["ratios"] else "-" for entry in history]
        lines.append(f"| {name} | {' | '.join(row)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    tyro.cli(main)
