"""What was measured: a list of records in a file that is written after each, and their medians."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.oracle_cache import Reference
from nfk.atomic import write_atomically


@dataclass(frozen=True)
class Key:
    """One job under one condition, on one kind of processor: seconds of another are not comparable."""

    network: str
    examples: int
    kernel: str
    rank: int
    condition: str
    processor: str

    def __str__(self) -> str:
        return f"{self.network}, N = {self.examples:,}, k = {self.rank}, {self.kernel}, {self.condition}:"


@dataclass
class Records:
    """Measurements by job, contestant and round."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Records:
        if not path.exists():
            return cls()
        found = json.loads(path.read_text())
        return cls(found["measurements"], found["environment"])

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.as_json(), indent=1) + "\n"
        write_atomically(path, lambda partial: Path(partial).write_text(text))

    def as_json(self) -> dict[str, Any]:
        return {"environment": self.environment, "measurements": self.rows}

    def has(self, key: Key, contestant: str, number: int) -> bool:
        return any(row["round"] == number for row in self.of(key, contestant))

    def of(self, key: Key, contestant: str) -> list[dict[str, Any]]:
        wanted = {**asdict(key), "contestant": contestant}
        return [row for row in self.rows if all(row[name] == value for name, value in wanted.items())]

    def is_over(self, key: Key, contestant: str) -> bool:
        """Whether it was over the budget, or failed, or was projected: not tried again."""
        return any(row["status"] != "done" for row in self.of(key, contestant))

    def least(self, key: Key, contestant: str, budget: float) -> dict[str, Any] | None:
        """What follows from a job with fewer examples or components, where that was over the budget or projected.

        Nobody's work grows slower than the number of examples, so a projection does neither.
        """
        same = ("network", "kernel", "condition", "processor")
        smaller = [
            row for row in self.rows
            if row["contestant"] == contestant and all(row[name] == getattr(key, name) for name in same)
            and (row["examples"], row["rank"]) != (key.examples, key.rank)
            and row["examples"] <= key.examples and row["rank"] <= key.rank
        ]  # fmt: skip
        for row in sorted(smaller, key=lambda row: (-row["examples"], -row["rank"])):
            facts = {"facts": {"follows_from": {"examples": row["examples"], "rank": row["rank"]}}}
            if row["status"] == "over budget" and row["budget_seconds"] >= budget:
                return {"status": "over budget", **facts}
            if row["status"] == "projected":
                seconds = row["projected_seconds"] * key.examples / row["examples"]
                if seconds > budget:
                    return {"status": "projected", "projected_seconds": seconds, **facts}
        return None

    def add(
        self,
        key: Key,
        contestant: str,
        number: int,
        found: dict[str, Any],
        reference: Reference | None,
        facts: dict[str, Any],
    ) -> None:
        values = found.pop("eigenvalues", None)
        if found.get("projected_seconds"):
            found["status"] = "projected"
        error = None if values is None or reference is None else reference.error(np.array(values))
        rounding = None if reference is None else reference.rounding(key.rank)
        self.rows.append({
            **asdict(key), **facts, "contestant": contestant, "round": number, **found,
            "worst_relative_error": error, "error_of_float32_gradients": rounding,
        })  # fmt: skip
