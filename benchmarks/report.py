"""Write the documentation's tables from the files in results/: `python -m benchmarks.report`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import scale_mesh_tables, scale_tables
from benchmarks.factors_table import table as factors
from benchmarks.first_minutes.page import transcript
from benchmarks.history import table as history
from benchmarks.large_table import table as large
from benchmarks.minilm_table import table as minilm
from benchmarks.peers import ratios
from benchmarks.peers import tables as peers
from benchmarks.products_table import table as products
from benchmarks.report_findings import FINDINGS, RESULTS
from benchmarks.report_page import table as report_page
from benchmarks.report_paper import PAPER
from benchmarks.report_tasks import TASKS, head
from benchmarks.report_tasks import summary as tasks
from benchmarks.stages import table as stages
from benchmarks.tolerance_table import table as tolerance
from nfk.memory import human

ROOT = Path(__file__).parents[1]


def core(results: dict) -> str:
    """results/core.json: against the paper's algorithm."""
    accuracy, speed, embedding, scaling = (results[name] for name in ("accuracy", "speed", "embedding", "scaling"))
    ours, _, paper = accuracy["rows"]
    env = results["environment"]
    lines = [
        f"On {env['cores']} CPU cores, float32, jax {env['jax']}, seed {env['seed']}; {_measured_with(results)}.",
        "`make bench` writes these figures to `results/core.json` and this table from them.",
        "",
        *head("what", "nfk", "the paper's algorithm"),
        f"| worst relative error of the top {accuracy['rank']} eigenvalues, {accuracy['network']}, "
        f"{accuracy['examples']:,} MNIST images, tol={accuracy['tol']:g}, against exact float64 | "
        f"**{ours['worst_relative_error']:.1e}** | "
        f"{paper['worst_relative_error']:.1e} |",
        f"| passes over the gradients for it, moments and certificate included | {ours['passes']} | "
        f"{paper['passes']} |",
    ]
    for row in speed["rows"]:
        lines.append(
            f"| seconds of a fit, discriminator of {speed['parameters']:,} parameters, {speed['examples']:,} images, "
            f"k = {row['rank']} | {row['nfk_seconds']:.0f} (**{row['times_faster']:.0f} times faster**; with gradients "
            f"recomputed in each pass {row['nfk_seconds_gradients_recomputed']:.0f}, "
            f"{row['times_faster_gradients_recomputed']:.0f} times) | "
            f"{row['paper_seconds_projected']:,.0f}, projected |"
        )
        lines.append(
            f"| worst relative error of the top {row['rank']} eigenvalues there, against the float64 Gram "
            f"matrix of the same rows | "
            f"{row['nfk_worst_relative_error']:.1e} | {row['paper_worst_relative_error']:.1e} |"
        )
    smallest, largest = scaling["rows"][0]["examples"], scaling["rows"][-1]["examples"]
    lines += [
        f"| embedding new examples at k = {embedding['rank']}, in plain batch gradients over the same examples | "
        f"{embedding['ratio']:.2f}{_parts(embedding)} | - |",
        f"| growth of time with N, log-log slope from {smallest:,} to {largest:,}, {scaling['network']} | "
        f"{scaling['slope_of_time']:.2f} | - |",
        f"| most peak memory in that range over that of {smallest:,}, beyond the data and the N x U numbers | "
        f"{scaling['most_over_first_memory']:.2f} | - |",
        "",
        "The paper's algorithm is vmap of jvp and of vjp with 22 sweeps, L = 10. Single batches of it are timed, in",
        "turn with whole fits of ours, and its total is projected. Its accuracy is that of `method='power'`, the same",
        "iteration on the fast engine.",
        "",
    ]  # fmt: skip
    return "\n".join([*lines, *against(results.get("against", {}))])


def _measured_with(results: dict) -> str:
    """Which version each section was measured with; a section at a time may be measured anew."""
    of = {name: results[name]["nfk"] for name in ("accuracy", "speed", "embedding", "scaling")}
    if len(set(of.values())) == 1:
        return f"measured with version {of['accuracy']}"
    return "measured with version " + ", ".join(f"{version} ({name})" for name, version in of.items())


def _parts(embedding: dict) -> str:
    """What a call is made of, in the same unit, where it was measured."""
    unit, parts = embedding["batch_gradient_seconds"], embedding.get("seconds_of_parts", {})
    told = [f"{name} {seconds / unit:.2f}" for name, seconds in parts.items()]
    where = " of ".join(filter(None, [f"{embedding['cores']} core", embedding.get("processor")]))
    return f" ({', '.join(told)}; {embedding['examples']:,} examples, {where})" if told else ""


CONTESTS = {
    "fit-128": "a fit, k = 128", "fit-32": "a fit, k = 32", "recomputed-32": "a fit, k = 32, gradients recomputed",
    "embedding-128": "embedding new examples, k = 128", "streamed-4096": "four steps of the small critic, k = 32",
}  # fmt: skip


def against(releases: dict) -> list[str]:
    """This version beside earlier ones, run in turn: processor seconds on one core."""
    lines = []
    for release, contests in releases.items():
        lines += [
            f"Beside version {release} on one core, in turn, the same tolerance for both, everything compiled;",
            "medians, in processor seconds (`python -m benchmarks.against --output results/core.json`).",
            "",
            *head(
                "what",
                "examples",
                release,
                "now",
                "now / before",
                "memory, MB: before, now",
                "worst error: before, now",
            ),
        ]
        for name, found in contests.items():
            before, now = found[release], found["now"]
            memory = ", ".join(f"{one['peak_bytes'] / 1e6:,.0f}" for one in (before, now))
            errors = ", ".join(
                f"{one['worst_relative_error']:.0e}" for one in (before, now) if "worst_relative_error" in one
            )
            lines.append(
                f"| {CONTESTS.get(name, name)} | {found['examples']:,} | {before['seconds']:.1f} | "
                f"{now['seconds']:.1f} | {found['ratio']:.2f} | {memory} | {errors or '-'} |"
            )
        lines.append("")
    return lines


def families(results: dict) -> str:
    """results/families.json: what each network is, the spectrum of its kernel, and the linear probes."""
    versions = results["versions"]
    lines = [
        f"{results['cores']} CPU cores, jax {versions['jax']}, flax {versions['flax']}, seed 0; `make families` writes",
        "`results/families.json` and these tables from it.",
        "",
        *head("family", "network, data", "parameters", "training, s", "metric", "value", "variance, k = 1, 10, 100",
              "untrained"),
    ]  # fmt: skip
    for row in results["rows"]:
        share, before = (
            ", ".join(f"{100 * row[name][k]:.1f}" for k in ("1", "10", "100"))
            for name in ("explained_variance", "explained_variance_untrained")
        )
        lines.append(
            f"| {row['family']} | {row['network']}, {row['data']} | {row['parameters']:,} | "
            f"{row['seconds_training']:,.0f} | {row['metric']} | {row['value']:.4g} | {share} % | {before} % |"
        )
    return "\n".join([*lines, "", *probes(results["rows"])])


def probes(rows: list[dict]) -> list[str]:
    """Test accuracies of linear probes, the best of a row in bold."""
    lines = head(
        "network, data", "labelled, test", "Fisher, k = 64", "activations", "untrained, k = 64", "pixels or words",
        "PCA or LSA, k = 64",
    )  # fmt: skip
    for row in rows:
        probe = row["probe"]
        raw, reduced = ("bag of words", "lsa") if "lsa" in probe else ("pixels", "pca")
        best = max(probe.values())
        cells = [
            f"**{100 * probe[name]:.1f}**" if probe[name] == best else f"{100 * probe[name]:.1f}"
            for name in ("nfk", "activations", "untrained", raw, reduced)
        ]
        counts = f"{row['examples']:,}, {row['test_examples']:,}"
        lines.append(f"| {row['network']}, {row['data']} | {counts} | {' | '.join(cells)} |")
    return [*lines, ""]


def summary(results: dict) -> str:
    """The probes of results/families.json alone."""
    return "\n".join(probes(results["rows"]))


def bridges(results: dict) -> str:
    """results/bridges.json: the PyTorch bridge against the same network in JAX."""
    env = results["environment"]
    lines = [
        f"Processor time through torch {env['torch']} over that of the same network in jax {env['jax']}, on one core.",
        "`taskset -c 0 python -m benchmarks.bridges --output results/bridges.json` writes these figures.",
        "",
        *head("network", "parameters", "per-example gradients", "a fit", "new embeddings"),
    ]
    for row in results["rows"]:
        ratios = " | ".join(f"{row[name]['ratio']:.1f}" for name in ("gradients", "fit", "embedding"))
        lines.append(f"| {row['network']} | {row['parameters']:,} | {ratios} |")
    return "\n".join([*lines, ""])


def kills(results: dict) -> str:
    """results/kills.json: fits that were killed, and what it costs to be safe from it."""
    lines = []
    if "kills" in results:
        names = "method", "processes", "kills", "fits", "the same to the last bit", "worst error of an eigenvalue"
        lines += ["", *head(*names)]
    for row in [*results.get("kills", ()), *results.get("processes", ())]:
        names = ("kills", "fits", "fits_to_the_last_bit")
        counts = " | ".join([row["method"], str(row.get("processes", 1)), *(str(row[name]) for name in names)])
        lines.append(f"| {counts} | {row['worst_relative_error_of_an_eigenvalue']:.0e} |")
    if "cost" in results:
        columns = ("gradients", "images", "a fit", "passes", "written", "of it writing", "resumed in its last pass")
        lines += ["", *head(*columns, "that pass")]
    for row in results.get("cost", ()):
        where = "kept in memory" if row["gradients_kept"] else "recomputed in each pass"
        size = f"{row['examples']:,} | {row['seconds']:.0f} s | {row['passes']} | {human(row['bytes'])}"
        times = f"{row['seconds_resumed']:.1f} s | {row['seconds_of_the_last_pass']:.1f} s"
        lines.append(f"| {where} | {size} | {row['share_writing']:.1%} | {times} |")
    return "\n".join([*lines, ""]) if lines else ""


def code(results: dict) -> str:
    """results/code.json: how the source of the core reads, before its redesign and now; nothing without it."""
    if not results:
        return ""
    rows = {
        "modules": lambda found: found["modules"],
        "lines of code": lambda found: f"{found['lines']:,}",
        "longest function, lines": lambda found: found["longest_body"]["lines"],
        "worst cyclomatic complexity": lambda found: found["worst_complexity"]["complexity"],
        "mentions of `Any`": lambda found: found["mentions_of_any"],
        "mentions of a place (`on_host`, the kind of an array, the backend)": lambda found: found[
            "mentions_of_a_place"
        ],
        "modules with one": lambda found: len(found["places"]),
    }
    versions = list(results["revisions"])
    lines = [
        "`src/nfk` without what stands around the library (command line, report, doctor, demo, runs, experiments);",
        "`python -m benchmarks.code_metrics` writes `results/code.json`.",
        "",
        *head("", *(f"`{version}`" for version in versions)),
    ]
    for name, count in rows.items():
        lines.append(f"| {name} | {' | '.join(str(count(results['revisions'][version])) for version in versions)} |")
    return "\n".join([*lines, ""])


BENCHMARKS = {
    "peers": peers.summary, "peers:errors": peers.times_to_error, "peers:embeddings": peers.embeddings,
    "peers:busy": peers.busy, "peers:ratios": ratios.table, "tolerance": tolerance, "history": history, "large": large,
    "stages": stages, "factors": factors, "products": products,
}  # fmt: skip

SCALE = ("repeats", "processes", "traffic", "memory", "pairs", "model")
TABLES = (
    ("README.md", "peers-summary", peers.short),
    ("docs/results.md", "core", core), ("docs/results.md", "families", summary), ("docs/results.md", "tasks", tasks),
    ("docs/families.md", "families", families),
    ("docs/bridges.md", "bridges", bridges),
    ("docs/howto/language-model.md", "minilm", minilm),
    ("docs/architecture.md", "code", code),
    ("docs/scale.md", "kills", kills),
    ("docs/scale.md", "scale_data:memory", scale_tables.memory),
    ("docs/scale.md", "scale_data:disk", scale_tables.disk),
    ("docs/scale.md", "large_basis", scale_tables.large), ("docs/scale.md", "scale_examples", scale_tables.examples),
    *(("docs/scale.md", f"scale:{name}", getattr(scale_mesh_tables, name)) for name in SCALE),
    ("docs/first-ten-minutes.md", "first_minutes", transcript),
    ("docs/report.md", "report_page", report_page),
    *(("docs/benchmarks.md", name, table) for name, table in BENCHMARKS.items()),
    *(("docs/results.md", f"tasks/{name}", table) for name, table in TASKS.items()),
    *(("docs/results.md", name, table) for name, table in {**PAPER, **RESULTS}.items()),
    *(("docs/findings.md", name, table) for name, table in FINDINGS.items()),
)  # fmt: skip

PLACES = {"history": "benchmarks/history", "peers-summary": "results/peers"}  # where it is not results/NAME


def read(path: Path) -> Any:
    """A results file, or all files of a folder by name; nothing where there is neither."""
    file = path.with_suffix(".json")
    return json.loads(file.read_text()) if file.exists() else {each.stem: read(each) for each in path.glob("*.json")}


def updated(text: str, name: str, table: Callable[[Any], str]) -> str:
    """The text with what stands between the marks of these results written anew; `file:part` reads the file."""
    results = read(ROOT / PLACES.get(name, f"results/{name.partition(':')[0]}"))
    marks = re.compile(rf"(<!-- results:{name} -->\n).*?(<!-- /results:{name} -->)", re.DOTALL)
    return marks.sub(lambda match: match[1] + table(results) + match[2], text)


def main() -> None:
    for page, name, table in TABLES:
        path = ROOT / page
        path.write_text(updated(path.read_text(), name, table))


if __name__ == "__main__":
    main()
