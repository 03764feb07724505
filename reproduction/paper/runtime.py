"""Figure 3's upper half: seconds of a fit against the number of examples. Nothing is measured: it reads the benchmarks.

`python -m benchmarks.core` and `python -m benchmarks.peers` write results/core.json and results/peers.json.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reproduction import figures
from reproduction.tasks.ledger import Ledger, Row

RESULTS = Path(__file__).parents[2] / "results"
IDLE = "one core idle"


@dataclass(frozen=True)
class Settings:
    core: str = "core.json"
    peers: str = "peers.json"


PRESETS = {"smoke": Settings(), "cpu": Settings(), "paper": Settings()}
SMALLER = (
    "N goes to 16,384: the paper's 65,536 is more than CIFAR-10's 60,000 images. Nobody ran the paper's program: its "
    "seconds are projected from timed batches of its products.",
    "`script` is a short program that keeps all gradients; how everybody was timed is on the page of benchmarks.",
)


def run(ledger: Ledger, pictures: Path, settings: Settings) -> list[Row]:
    core, peers = (json.loads((RESULTS / name).read_text()) for name in (settings.core, settings.peers))
    grown = core["scaling"]["rows"]
    rows = [
        _row("nfk", [one["seconds"]], core["scaling"]["network"], one["examples"], core["scaling"]["rank"], "core")
        for one in grown
    ]
    for one in core["speed"]["rows"]:
        facts = (core["speed"]["network"], core["speed"]["examples"], one["rank"], "core")
        rows.append(_row("nfk", [one["nfk_seconds"]], *facts))
        rows.append(_row("the paper's products, projected", [one["paper_seconds_projected"]], *facts))
    beside = _beside(peers["measurements"])
    _pictures(beside, pictures)
    across = [one["examples"] for one in grown]
    seconds = [one["seconds"] for one in grown]
    straight = [seconds[0] * count / across[0] for count in across]
    figures.curves(
        {"nfk": (across, seconds), "in proportion to N": (across, straight)}, pictures / "seconds.png",
        f"{core['scaling']['network']}, k = {core['scaling']['rank']}", "examples N", "seconds of a fit",
        logarithmic=True, logarithmic_y=True,
    )  # fmt: skip
    return rows + beside


def _pictures(rows: list[Row], pictures: Path) -> None:
    """Of each network with three numbers of examples or more: everybody who was timed at several, smallest rank."""
    for network in dict.fromkeys(row["network"] for row in rows):
        rank = min(row["rank"] for row in rows if row["network"] == network)
        lines: dict[str, list[Row]] = {}
        for row in sorted(rows, key=lambda row: row["examples"]):
            if (row["network"], row["rank"]) == (network, rank):
                lines.setdefault(row["method"], []).append(row)
        shown = {
            name: tuple([row[key] for row in several] for key in ("examples", "value"))
            for name, several in sorted(lines.items(), key=lambda item: (item[0] != "nfk", item[0]))
            if len(several) > 1
        }
        if max(map(len, lines.values())) < 3:
            continue
        figures.curves(
            shown, pictures / f"seconds-{network}.png", f"{network}, k = {rank}, one core", "examples N",
            "seconds of a fit", logarithmic=True, logarithmic_y=True,
        )  # fmt: skip


def _beside(measurements: list[dict[str, Any]]) -> list[Row]:
    """Every way to fit the Fisher kernel, over its rounds: no projection, no core that others use, no lower bound. Of
    each network on the processor on which most was measured."""
    asked = [
        one for one in measurements
        if (one["status"], one["condition"], one["kernel"]) == ("done", IDLE, "fisher")
        and not one["contestant"].startswith("floor")
    ]  # fmt: skip
    counts = Counter((one["network"], one["processor"]) for one in asked)
    chosen = {network: processor for (network, processor), _ in reversed(counts.most_common())}
    found: dict[tuple, list[float]] = {}
    for one in asked:
        if chosen[one["network"]] == one["processor"]:
            key = (one["contestant"], one["network"], one["examples"], one["rank"], one["processor"])
            found.setdefault(key, []).append(one["seconds"])
    return [
        _row(who, seconds, network, examples, rank, "peers", f"{IDLE}, {processor}")
        for (who, network, examples, rank, processor), seconds in found.items()
    ]


def _row(
    method: str, seconds: list[float], network: str, examples: int, rank: int, source: str, condition: str = "two cores"
) -> Row:
    """The median, and the fastest and slowest round."""
    return {
        "method": method, "metric": "seconds of a fit", "value": float(np.median(seconds)), "low": min(seconds),
        "high": max(seconds), "rounds": len(seconds), "network": network, "examples": examples, "rank": rank,
        "condition": condition, "source": f"results/{source}.json",
    }  # fmt: skip
