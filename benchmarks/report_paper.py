"""Tables of the files that `python -m reproduction NAME` writes, for docs/results.md; none where there is no file."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.report_findings import difference, points
from benchmarks.report_tasks import head, number, percent, pivot

Rows = list[dict]


def interval(row: dict) -> str:
    """A share in per cent, with its 95 % interval."""
    return f"{100 * row['value']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})"


def about(results: dict) -> list[str]:
    """The command, the versions, and what is smaller than in the paper."""
    versions = ", ".join(f"{name} {results['versions'][name]}" for name in ("nfk", "jax", "torch"))
    lines = [f"`{results['command']}` writes `results/{results['experiment']}.json`; here with {versions}.", ""]
    if results.get("unfinished"):
        lines += ["**Unfinished**: the run was stopped before its last rows; the same command goes on from there.", ""]
    lines += [f"- {sentence}" for sentence in results["smaller"]]
    return [*lines, ""]


def _page(table: Callable[[Rows], list[str]]) -> Callable[[dict], str]:
    """A table of the rows below what `about` says; nothing without a results file."""
    return lambda results: "\n".join([*about(results), *table(results["rows"]), ""]) if results else ""


def _named(row: dict) -> str:
    return row["method"] if row["network"] == "-" else f"{row['method']} ({row['network']})"


def _pretrained(rows: Rows) -> list[str]:
    lines = head("weights", "parameters", "figure", "known as", "measured (95 % interval)", "licence")
    for row in rows:
        share = "accuracy" in row["metric"] or "probe" in row["metric"] or "share" in row["metric"]
        numbers = [row[key] * (100 if share else 1) for key in ("value", "low", "high")]
        known = "" if "known" not in row else f"{row['known'] * (100 if share else 1):.4g}"
        figure = f"{row['metric']}, %" if share else row["metric"]
        found = "{:.4g} ({:.4g} to {:.4g})".format(*numbers)
        lines.append(f"| `{row['method']}` | {row['parameters']:,} | {figure} | {known} | {found} | {row['licence']} |")
    return lines


def _lowrank(rows: Rows) -> list[str]:
    lines = []
    for condition in dict.fromkeys(row["condition"] for row in rows):
        several = [row for row in rows if row["condition"] == condition]
        ks = sorted({row["k"] for row in several if "k" in row})
        columns = [("variance", "in", k) for k in ks] + [("variance", "out", k) for k in ks]
        columns += [("squares", shift, ks[-1]) for shift in ("in", "out")]
        titles = [f"{of}, k = {k}{', no shift' if shift == 'out' else ''}" for of, shift, k in columns]
        lines += ["", f"*{condition[0].upper()}{condition[1:]}*, shares in per cent:", ""]
        lines += head("network", "N", "the shift's", *titles)
        for name, count in dict.fromkeys((row["method"], row["rows"]) for row in several):
            mine = [row for row in several if (row["method"], row["rows"]) == (name, count)]
            by_column = {(row["of"], row["shift"], row["k"]): percent(row) for row in mine if "k" in row}
            shift = next(percent(row) for row in mine if "k" not in row)
            cells = " | ".join(by_column[column] for column in columns)
            lines.append(f"| {name} | {count:,} | {shift} | {cells} |")
    return lines


def _linear_probe(rows: Rows) -> list[str]:
    """A table for every role, a column for every network and number of labels; differences below their accuracies."""
    lines = []
    plain = [row for row in rows if row["role"] != "differences"]
    for role in dict.fromkeys(row["role"] for row in plain):
        several = [row for row in plain if row["role"] == role]
        title = f"*{role[0].upper()}{role[1:]}*, {several[0]['tested']:,} test images"
        lines += ["", f"{title}; test accuracy in per cent, with its 95 % interval:", ""]
        networks = [row for row in several if "critic" in row["network"] or "vae" in row["network"]]
        table = pivot(networks, lambda row: row["method"], _labelled, interval)
        lines += table if networks else _plain(several)
        lines += _differences([row for row in rows if row.get("of") == role])
    return lines


def _labelled(row: dict) -> str:
    return f"{row['network']}, {row['labels']:,} labels"


def _plain(rows: Rows) -> list[str]:
    return [*head("method", "labels", "test accuracy"), *(
        f"| {_named(row)} | {row['labels']:,} | {interval(row)} |" for row in rows
    )]  # fmt: skip


def _differences(rows: Rows) -> list[str]:
    """In points, image by image."""
    if not rows:
        return []
    column = lambda row: f"{_labelled(row)}: less {row['less']}"  # noqa: E731
    return ["", "The same as differences over the same test images, in points:", "",
            *pivot(rows, column, lambda row: row["method"], points, "features, labels: less what")]  # fmt: skip


def _semi_supervised(rows: Rows) -> list[str]:
    lines = [
        "Mean ± standard deviation over 5 draws of the labelled images; test accuracy in per cent. Differences are",
        "over the same draws, with the 95 % interval of Student's t.",
    ]
    for data in dict.fromkeys(row["data"] for row in rows):
        several = [row for row in rows if row["data"] == data]
        lines += ["", f"{data}:", "", *pivot(several, _named, _budget), "", *_lead(several)]
    return lines


def _budget(row: dict) -> str:
    return f"{row['labels']:,} labels"


def _lead(rows: Rows) -> list[str]:
    """Each critic's embedding less its activations and less the pixels, over the same draws, in points."""
    ours = {(row["network"], row["labels"]): row for row in rows if row["method"].startswith("Fisher embedding")}
    lines = []
    for critic in dict.fromkeys(network for network, _ in ours):
        others = [row for row in rows if row["network"] in (critic, "-") and row not in ours.values()]
        cell = lambda row, critic=critic: difference(ours[critic, row["labels"]], row)  # noqa: E731
        lines += ["", *pivot(others, _named, _budget, cell, f"the embedding of {critic}, in points above")]
    return lines[1:]


def _inversion(rows: Rows) -> list[str]:
    lines = []
    for network in dict.fromkeys(row["network"] for row in rows):
        several = [row for row in rows if row["network"] == network]
        table = pivot(several, lambda row: row["method"], lambda row: row["metric"], number)
        lines += ["", f"{network}, mean ± standard deviation over {several[0]['seeds']} seeds:", "", *table]
    return lines


PAPER = {
    "pretrained": _page(_pretrained), "lowrank": _page(_lowrank), "linear-probe": _page(_linear_probe),
    "semi-supervised": _page(_semi_supervised), "inversion": _page(_inversion),
}  # fmt: skip
