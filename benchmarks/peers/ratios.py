"""nfk's seconds beside those of others, as ratios: the script, the fastest library, the floor."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from benchmarks.peers.tables import FLOOR, JOB, LIBRARIES, NOT_YET, SIZE, Row, cores, floors, medians
from benchmarks.report_tasks import head

OURS = ("nfk", "nfk-torch")


def table(results: dict) -> str:
    """One line for each network, kernel, processor and size that nfk and something beside it have run on."""
    if not results:
        return NOT_YET
    cells = medians(results["measurements"])
    cells = [cell for cell in cells + floors(cells, results["environment"]) if cell["condition"].endswith("idle")]
    place = lambda cell: tuple(cell[name] for name in (*JOB, *SIZE))  # noqa: E731
    lines = head(
        "network, kernel, processor, cores", "N, k", "script / nfk", "script / nfk, PyTorch module",
        "fastest library / faster nfk", "faster nfk / floor",
    )  # fmt: skip
    for _, group in groupby(sorted(cells, key=place), key=place):
        lines += _line({cell["contestant"]: cell for cell in group})
    return "\n".join([*lines, ""])


def _line(job: dict[str, Row]) -> list[str]:
    ours = [job[name] for name in OURS if name in job and job[name]["status"] == "done"]
    if not ours:
        return []
    best, first = min(ours, key=_least), ours[0]
    library = min((job[name] for name in LIBRARIES if name in job), key=_least, default=None)
    script = [_ratio(job.get("script"), job.get(name)) for name in OURS]
    ratios = [*script, _ratio(library, best), _ratio(best, job.get(FLOOR))]
    if set(ratios) == {"-"}:
        return []
    what = f"{first['network']}, {first['kernel']}, {first['processor']}, {cores(first)}"
    return [f"| {what} | {first['examples']:,}, {first['rank']} | {' | '.join(ratios)} |"]


def _ratio(above: Row | None, below: Row | None) -> str:
    """`above` may have been stopped or projected: then it takes at least so much longer."""
    if above is None or below is None or below["status"] != "done" or _least(above) == float("inf"):
        return "-"
    least = "" if above["status"] == "done" else "at least "
    return f"{least}{_least(above) / below['seconds']:.1f}"


def _least(cell: Row) -> float:
    """Seconds, or what they are at the least; no number for what does not run."""
    known: Iterable[str] = {"done": ("seconds",), "projected": ("projected",), "over budget": ("budget",)}.get(
        cell["status"], ()
    )
    return next((cell[name] for name in known if cell[name] is not None), float("inf"))
