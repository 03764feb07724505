"""The documentation is run, and its figures are those of the results file."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
from registry import mlp, mlp_params

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


OF_REPRODUCTION = ("docs/families.md", "docs/tasks.md")  # they use reproduction/, as docs/data.md does, which downloads
PAGES = sorted(
    name
    for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
    if (name := path.relative_to(ROOT).as_posix()) != "docs/data.md" and blocks(path)
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.reproduction) if name in OF_REPRODUCTION else name for name in PAGES],
)
def test_python_in_the_documentation_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).standard_normal((200, 30)).astype("float32")
    names = {"X": X, "X_new": X[:7], "params": mlp_params(np.float32, 30, 40, 5), "apply": mlp}
    for block in blocks(ROOT / name):
        for package in ("torch", "transformers", "flax", "equinox"):
            if package in block:
                pytest.importorskip(package, reason=f"the blocks on {package}; pip install it to run them")
        exec(compile(block, name, "exec"), names)


def test_the_tables_of_the_documentation_come_from_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import report

    assert not json.loads((ROOT / "results" / "core.json").read_text())["quick"], "core.json must be the full benchmark"
    for page, name, table in report.TABLES:
        text = (ROOT / page).read_text()
        assert f"<!-- results:{name} -->" in text
        assert report.updated(text, name, table) == text, f"{page}: run python -m benchmarks.report"


def test_the_results_of_the_families_are_complete():
    """A row for every family, and every number that the row promises."""
    results = json.loads((ROOT / "results" / "families.json").read_text())
    families = {row["family"] for row in results["rows"]}
    assert families == {"classifier", "gan", "vae", "flow", "autoregressive", "energy", "diffusion", "language"}
    for row in results["rows"]:
        assert row.keys() >= {"network", "data", "parameters", "seconds_training", "metric", "value"}
        assert set(row["explained_variance"]) == {"1", "10", "100"}
        share = [row["explained_variance"][k] for k in ("1", "10", "100")]
        assert 0 < share[0] <= share[1] <= share[2] <= 1
        controls = {"bag of words", "lsa"} if row["family"] == "language" else {"pixels", "pca"}
        assert set(row["probe"]) == {"nfk", "activations", "untrained"} | controls


TASKS = ("probe", "few_labels", "distillation", "inversion", "spectrum", "ridge", "outliers", "neighbours")


@pytest.mark.parametrize("task", TASKS)
def test_the_results_of_the_tasks_are_rows_with_mean_spread_and_seeds(task):
    rows = json.loads((ROOT / "results" / "tasks" / f"{task}.json").read_text())
    assert len(rows) > 3
    for row in rows:
        assert row.keys() >= {"method", "metric", "mean", "spread", "seeds", "values", "made_by"}
        assert len(row["values"]) == row["seeds"] >= 1
        assert row["mean"] == pytest.approx(np.mean(row["values"]))
        assert row["spread"] == pytest.approx(np.std(row["values"], ddof=1) if row["seeds"] > 1 else 0)
    assert max(row["seeds"] for row in rows) >= 3


def test_the_claims_of_the_readme_hold_in_the_results():
    """The figures that the project stands on; a new benchmark run that misses one fails here."""
    results = json.loads((ROOT / "results" / "core.json").read_text())
    ours, _, paper = results["accuracy"]["rows"]
    assert ours["worst_relative_error"] <= 1e-6 < paper["worst_relative_error"]
    assert ours["passes"] < paper["passes"]
    for row, bar in zip(results["speed"]["rows"], (100, 40), strict=True):
        assert row["times_faster"] >= bar
        assert row["nfk_worst_relative_error"] < row["paper_worst_relative_error"]
    assert results["embedding"]["ratio"] <= 2.5
    assert results["scaling"]["slope_of_time"] <= 1.1  # below 1 where small fits are mostly overhead
    assert results["scaling"]["most_over_first_memory"] <= 1.1


def test_the_figures_of_the_text_are_those_of_the_tables():
    """Figures that are told in words stand in the generated tables, too: results that change are told anew."""
    tables = "".join(
        part
        for name in (*OF_REPRODUCTION, "docs/results.md")
        for part in re.findall(r"<!-- results:.*?<!-- /results", (ROOT / name).read_text(), re.DOTALL)
    )
    for name in ("docs/when-to-use.md", "docs/howto/distillation.md"):
        told = re.findall(r"\d+\.\d+", (ROOT / name).read_text())
        assert told
        assert set(told) <= set(re.findall(r"\d+\.\d+", tables)), name


OF_THE_PAPER = {"99.5", "89.8", "65.3", "63.2", "68.7"}  # its own figures, which are quoted
GENERATED = re.compile(r"<!-- results:.*?<!-- /results:[^>]*-->", re.DOTALL)


@pytest.mark.parametrize("name", ["docs/findings.md", "docs/results.md"])
def test_every_figure_of_the_findings_stands_in_a_table_that_is_made_from_results(name):
    """Decimals in the prose are those of a table; a whole per cent is a rounded one of the tables of its section."""
    pages = [(ROOT / page).read_text() for page in ("docs/findings.md", "docs/results.md", "docs/scale.md")]
    tables = "".join(part for page in pages for part in GENERATED.findall(page))
    known = set(re.findall(r"\d+\.\d+", tables))
    known |= {f"{100 * float(figure):.1f}" for figure in known if figure.startswith("0.")} | OF_THE_PAPER
    told = 0
    for section in re.split(r"(?m)^(?=#{2,3} )", (ROOT / name).read_text()):
        prose = re.sub(r"`[^`]*`|<img[^>]*>|\]\([^)]*\)", "", GENERATED.sub("", section))
        figures = set(re.findall(r"(?<![\w.])\d+\.\d+(?!\w|\.\d)", prose))
        assert figures <= known, f"{name}, {section.splitlines()[0]}: {figures - known} stand in no table"
        there = {round(float(figure) * by) for figure in re.findall(r"\d+\.\d+", section) for by in (1, 100)}
        whole = {int(figure) for figure in re.findall(r"(?<![\d.,])(\d+) %", prose)} - {95}
        assert whole <= there, f"{name}, {section.splitlines()[0]}: {whole - there} % in no table of the section"
        for interval in re.findall(r"[+-]?\d+\.\d+ to [+-]?\d+\.\d+(?= ?\))", prose):
            assert interval in tables, f"{name}, {section.splitlines()[0]}: {interval} stands in no table"
        told += len(figures)
    assert told > 10


def test_the_accuracies_of_the_readme_are_those_of_the_results():
    rows = json.loads((ROOT / "results" / "tasks" / "few_labels.json").read_text())
    found = {row["method"]: 100 * row["mean"] for row in rows if row["labels"] == 250}
    told = [found[name] for name in ("Fisher embedding, 128", "activations of the critic", "pixels")]
    assert "250 labels give {:.0f} % on MNIST, its activations {:.0f} %, pixels {:.0f} %".format(*told) in README


def test_commands_in_the_documentation_exist():
    from nfk.cli.app import COMMANDS
    from nfk.cli.reading import Reading

    lines = re.findall(r"^nfk (\w+)(.*)$", (ROOT / "docs/howto/command-line.md").read_text(), re.MULTILINE)
    assert len(lines) > 4
    for command, rest in lines:
        options = {*inspect.signature(COMMANDS[command]).parameters, *Reading.__annotations__, "json"}
        assert {name.replace("-", "_") for name in re.findall(r"--([\w-]+)", rest)} <= options, command


def test_the_readme_is_short():
    words = [word for word in README.split() if re.search("[a-zA-Z]", word)]
    assert len(words) < 600


def test_links_in_the_documentation_lead_somewhere():
    for name in ("README.md", "CONTRIBUTING.md", *(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))):
        for target in re.findall(r"\]\(([^)#]+)\)|src=\"([^\"]+)\"", (ROOT / name).read_text()):
            target = "".join(target)
            if "://" not in target:
                assert ((ROOT / name).parent / target).exists(), f"{name}: {target}"
