"""What each command says and writes, against the library called directly; bad input is one sentence and exit code 2."""

from __future__ import annotations

import json

import numpy as np
import pytest

import nfk
from nfk.cli import models
from nfk.cli.app import COMMANDS
from nfk.runs import read_run


@pytest.fixture
def model(fitted) -> nfk.Model:
    return models.model_named("mine.py:model")


class TestFit:
    def test_the_run_is_what_the_library_finds(self, fitted, model):
        run, X = read_run("run"), np.load("x.npy")
        expected = nfk.fit(model, X, 4)
        np.testing.assert_array_equal(run.embedding, expected.training)
        np.testing.assert_array_equal(run.labels, np.load("y.npy"))
        np.testing.assert_array_equal(run.examples, X)
        np.testing.assert_allclose(run.outside_share, expected.decompose(X).outside_share, atol=1e-5)
        assert (run.spec.model, run.spec.data, run.spec.rank) == ("mine.py:model", "x.npy", 4)
        assert run.spec.command == "nfk fit mine.py:model x.npy --output run --rank 4 --labels y.npy"
        assert run.spec.seconds > 0

    def test_a_share_of_the_variance_instead_of_a_rank(self, here, nfk_command):
        done = nfk_command("fit", "mine.py:model", "x.npy", "--rank", 0.7, "--no-outside", "--json")
        assert done.facts["explained_variance"] >= 0.7
        assert read_run("run").rank == done.facts["rank"]
        assert read_run("run").squares is None

    def test_nothing_is_overwritten_unless_it_is_asked_for(self, fitted, nfk_command):
        before = (fitted / "run" / "embedding.json").read_text()
        again = ("fit", "mine.py:model", "x.npy", "--rank", 2)
        done = nfk_command(*again)
        assert (done.code, done.out) == (2, "")
        assert done.err == "nfk fit: run exists: choose another name, or overwrite it with --force\n"
        assert (fitted / "run" / "embedding.json").read_text() == before
        assert nfk_command(*again, "--force").code == 0
        assert read_run("run").rank == 2

    def test_a_folder_for_what_does_not_fit_in_memory(self, here, nfk_command):
        for command in (("plan",), ("fit", "--dry-run")):
            done = nfk_command(command[0], "mine.py:model", "x.npy", *command[1:], "--rank", 4, "--scratch", "nowhere")
            assert done.code != 0
            assert "scratch='nowhere' cannot be written" in done.err

    def test_a_dry_run_prints_the_plan_and_writes_nothing(self, here, nfk_command):
        done = nfk_command("fit", "mine.py:model", "x.npy", "--rank", 4, "--dry-run")
        assert done.out.startswith("Plan: 40 examples, 40 rows, 81 parameters, rank 4\n")
        assert done.out == nfk_command("plan", "mine.py:model", "x.npy", "--rank", 4).out
        assert not (here / "run").exists()

    def test_a_budget_that_cannot_be_kept_is_refused(self, here, nfk_command):
        done = nfk_command("fit", "mine.py:model", "x.npy", "--rank", 4, "--memory", "1kB")
        assert done.code == 2
        assert "is too little" in done.err
        assert nfk_command("fit", "mine.py:model", "x.npy", "--rank", 2).code == 0  # nothing is in the way

    def test_few_examples_have_as_many_components(self, here, nfk_command):
        done = nfk_command("fit", "mine.py:model", "new.npy", "--dry-run", "--json")
        assert done.facts["examples"] == 7
        assert "rank 7" in nfk_command("plan", "mine.py:model", "new.npy").out

    def test_a_fit_that_is_refused_leaves_no_folder(self, here, nfk_command):
        assert nfk_command("fit", "mine.py:model", "x.npy", "--rank", 99).code == 2
        assert not (here / "run").exists()
        done = nfk_command("fit", "mine.py:model", "x.npy", "--rank", 2, "--output", "mine.py/run")
        assert "mine.py/run cannot be written inside mine.py (that is a file): choose another place" in done.err

    def test_ctrl_c_keeps_what_is_known_and_says_how_to_go_on(self, here, nfk_command, monkeypatch):
        from nfk.cli import fit as command

        def interrupted(model, X, rank, **options):
            raise nfk.Interrupted("stopped", nfk.fit(model, X, 2))

        monkeypatch.setattr(command, "fit_embedding", interrupted)
        done = nfk_command("fit", "mine.py:model", "x.npy", "--rank", 9)
        assert done.code == 130
        assert "interrupted: 2 components are in run" in done.err
        assert "find all of them: nfk fit mine.py:model x.npy --output run --rank 9 --force" in done.err
        assert read_run("run").spec.interrupted

    def test_ctrl_c_before_the_first_step_says_so(self, here, nfk_command, monkeypatch):
        from nfk.cli import fit as command

        def interrupted(model, X, rank, **options):
            raise nfk.Interrupted("stopped", None)

        monkeypatch.setattr(command, "fit_embedding", interrupted)
        done = nfk_command("fit", "mine.py:model", "x.npy")
        assert done.code == 130
        assert "to go on: nfk fit mine.py:model x.npy --output run --force" in done.err

    def test_what_could_be_better_is_a_warning_in_one_line(self, here, nfk_command):
        done = nfk_command("fit", "mine.py:model", "x.npy", "--rank", 4, "--method", "power", "--tol", 1e-9)
        assert done.code == 0
        assert done.err.startswith("warning: ")


class TestEmbed:
    def test_new_data_as_the_library_embeds_them(self, fitted, nfk_command, model):
        assert nfk_command("embed", "run", "new.npy", "-o", "e.npy").out == "e.npy: 7 examples, 4 numbers each\n"
        np.testing.assert_array_equal(np.load("e.npy"), nfk.load("run", model)(np.load("new.npy")))

    def test_the_data_of_the_fit_without_the_network(self, fitted, nfk_command):
        (fitted / "mine.py").unlink()
        assert nfk_command("embed", "run", "-o", "e.npz", "--json").facts["examples"] == 40
        with np.load("e.npz") as found:
            np.testing.assert_array_equal(found["embedding"], read_run("run").embedding)
            np.testing.assert_array_equal(found["labels"], np.load("y.npy"))

    def test_parquet(self, fitted, nfk_command):
        parquet = pytest.importorskip("pyarrow.parquet")
        assert nfk_command("embed", "run", "-o", "e.parquet").code == 0
        found = parquet.read_table("e.parquet").to_pydict()
        np.testing.assert_array_equal(np.array(found["embedding"], "float32"), read_run("run").embedding)
        assert found["label"] == np.load("y.npy").tolist()

    def test_the_files_of_the_tensorboard_projector(self, fitted, nfk_command):
        assert nfk_command("embed", "run", "-o", "projector").code == 0
        vectors = np.loadtxt("projector/vectors.tsv", delimiter="\t")
        np.testing.assert_allclose(vectors, read_run("run").embedding, rtol=1e-5)
        lines = (fitted / "projector" / "metadata.tsv").read_text().splitlines()
        assert lines[:3] == ["row\tlabel", "0\t0", "1\t1"]
        assert len(lines) == 41
        assert 'tensor_path: "vectors.tsv"' in (fitted / "projector" / "projector_config.pbtxt").read_text()

    def test_a_network_with_several_outputs_has_one_row_for_each_example(self, here, nfk_command):
        nfk_command("fit", "mine.py:several", "x.npy", "--rank", 4, "--labels", "y.npy")
        nfk_command("embed", "run", "-o", "e.npy")
        nfk_command("embed", "run", "x.npy", "-o", "f.npy")
        rows = read_run("run").embedding.reshape(40, 3, 4)
        np.testing.assert_array_equal(np.load("e.npy")[:, 3:6], rows[:, :, 1])
        np.testing.assert_allclose(np.load("e.npy"), np.load("f.npy"), rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (("-o", "e.tsv"), "e.tsv: files that end in '.tsv' are not known"),
            (("-o", "x.npy"), "x.npy exists: choose another name, or overwrite it with --force"),
            (("y.npy", "-o", "e.npy"), "but this embedding was fitted on"),
            (("new.npy", "-o", "e.npy", "--model", "mine.py:several"), "was fitted with another model"),
            (("-o", "y.npy/e.npy"), "y.npy/e.npy cannot be written inside y.npy (that is a file)"),
        ],
    )
    def test_what_cannot_be_is_refused(self, arguments, sentence, fitted, nfk_command):
        done = nfk_command("embed", "run", *arguments)
        assert done.code == 2
        assert sentence in done.err
        assert not (fitted / "e.npy").exists()


class TestQuestions:
    def test_probe_by_rank_as_the_library_finds_it(self, fitted, nfk_command, model):
        X, y = np.load("x.npy"), np.load("y.npy")
        np.savez("test.npz", X=X[::2], y=y[::2])
        facts = nfk_command("probe", "run", "--test", "test.npz", "--json").facts
        E = nfk.load("run", model)(X[::2])
        expected = nfk.tasks.probe_by_rank(read_run("run").embedding, y, E, y[::2], [1, 2, 4])
        assert {k: found["value"] for k, found in facts["accuracy"].items()} == {
            str(k): found.accuracy.value for k, found in expected.items()
        }

    def test_without_a_test_set_a_fifth_is_held_out(self, fitted, nfk_command):
        assert nfk_command("probe", "run", "--json").facts["tested"] == 8
        assert "linear probe, 8 examples (held out)" in nfk_command("probe", "run").out

    def test_a_probe_needs_labels(self, here, nfk_command):
        nfk_command("fit", "mine.py:model", "x.npy", "--rank", 2)
        assert "run has no labels: fit again with --labels" in nfk_command("probe", "run").err

    def test_neighbours_leave_out_the_example_itself(self, fitted, nfk_command):
        facts = nfk_command("neighbours", "run", 3, 8, "--count", 2, "--json").facts
        E = read_run("run").embedding
        unit = E / np.linalg.norm(E, axis=1, keepdims=True)
        for query in facts["queries"]:
            near = np.argsort(-(unit @ unit[query["row"]]))
            near = near[near != query["row"]][:2]
            assert [one["row"] for one in query["neighbours"]] == near.tolist()
            assert query["neighbours"][0]["label"] == near[0] % 2

    def test_neighbours_of_other_examples(self, fitted, nfk_command):
        facts = nfk_command("neighbours", "run", "--query", "x.npy", "--count", 1, "--json").facts
        assert [query["neighbours"][0]["row"] for query in facts["queries"]] == list(range(40))

    def test_new_examples_need_not_have_the_labels_of_the_fit(self, here, nfk_command):
        rows = np.load("x.npy")
        lines = [",".join(map(str, row)) for row in rows]
        (here / "x.csv").write_text("a,b,c,d,e,f,kind\n" + "".join(f"{line},{i % 2}\n" for i, line in enumerate(lines)))
        (here / "new.csv").write_text("a,b,c,d,e,f\n" + lines[3] + "\n")
        nfk_command("fit", "mine.py:model", "x.csv", "--labels", "kind", "--rank", 3)
        facts = nfk_command("neighbours", "run", "--query", "new.csv", "--count", 1, "--json").facts
        assert facts["queries"][0]["neighbours"][0]["row"] == 3
        done = nfk_command("probe", "run", "--test", "new.csv", "--labels", "colour")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "new.csv has no column 'colour'" in done.err
        assert "new.csv has no labels to compare with" in nfk_command("probe", "run", "--test", "new.csv").err

    def test_an_example_that_is_not_there(self, fitted, nfk_command):
        done = nfk_command("neighbours", "run", 40)
        assert (done.code, done.err) == (2, "nfk neighbours: there is no example 40: they are counted from 0 to 39\n")

    def test_outliers_are_sorted_by_what_lies_outside(self, fitted, nfk_command):
        share = read_run("run").outside_share
        listed = nfk_command("outliers", "run", "--count", 3, "--json").facts["outliers"]
        assert [one["row"] for one in listed] == np.argsort(-share)[:3].tolist()
        assert listed[0]["outside_share"] == pytest.approx(share.max())

    @pytest.mark.parametrize(("limit", "code"), [(0.0, 1), (1.0, 0)])
    def test_a_limit_for_outliers_is_an_exit_code(self, limit, code, fitted, nfk_command):
        assert nfk_command("outliers", "run", "--above", limit).code == code

    def test_outliers_of_other_data(self, fitted, nfk_command, model):
        listed = nfk_command("outliers", "run", "--data", "new.npy", "--json").facts["outliers"]
        share = nfk.load("run", model).decompose(np.load("new.npy")).outside_share
        assert [one["row"] for one in listed] == np.argsort(-share).tolist()

    def test_the_spectrum_as_a_table_as_json_and_as_a_figure(self, fitted, nfk_command):
        run = read_run("run")
        facts = nfk_command("spectrum", "run", "--json", "--figure", "s.png").facts
        assert facts["eigenvalues"] == pytest.approx(run.eigenvalues.tolist())
        assert facts["explained_variance"][-1] == pytest.approx(run.explained_variance_ratio.sum())
        assert (fitted / "s.png").read_bytes().startswith(b"\x89PNG")
        shown = nfk_command("spectrum", "run").out
        assert f"{run.eigenvalues[0]:.4g}" in shown
        assert "first (" in shown

    def test_labels_cannot_dress_the_table(self, here, nfk_command):
        (here / "words.txt").write_text("[red]a[/red]\n[bold\n" * 20)
        nfk_command("fit", "mine.py:model", "x.npy", "--rank", 2, "--labels", "words.txt")
        assert "[red]a[/red]" in nfk_command("neighbours", "run", 0).out


@pytest.mark.parametrize(
    "command", ["embed run -o e.npy", "probe run", "neighbours run 0", "outliers run", "spectrum run"]
)
def test_a_folder_that_is_no_run_is_refused(command, here, nfk_command):
    done = nfk_command(*command.split())
    assert done.code == 2
    assert "run holds no saved embedding: there is no embedding.json in it" in done.err


def test_a_run_of_another_version_is_refused(fitted, nfk_command):
    from nfk import store

    tensors, facts = store.read(fitted / "run")
    facts["run"] |= {"format": 2, "versions": {"nfk": "9.1"}}
    store.write(fitted / "run", tensors, facts)
    done = nfk_command("spectrum", "run")
    assert done.code == 2
    assert "run is a run folder of nfk 9.1 (format 2), but this version reads format 1" in done.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command, nfk_command):
    done = nfk_command(command, "--help")
    assert done.code == 0
    assert f"Example: nfk {command}" in done.out


def test_the_list_of_commands_has_a_line_for_each(nfk_command):
    done = nfk_command()
    assert done.out == nfk_command("--help").out
    assert all(f"• {command} " in done.out for command in COMMANDS)
    assert "Example" not in done.out
    assert "130 Ctrl-C" in done.out


@pytest.mark.parametrize("arguments", [("fits",), ("fit",), ("fit", "a", "b", "--rank", "many"), ("embed", "run")])
def test_words_that_are_not_understood_are_exit_code_2(arguments, here, nfk_command):
    done = nfk_command(*arguments)
    assert done.code == 2
    assert done.err


def test_the_version(nfk_command):
    assert nfk_command("--version").out == f"{nfk.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_for_the_shell(shell, nfk_command):
    done = nfk_command("--completion", shell)
    assert done.code == 0
    assert "neighbours" in done.out
    done = nfk_command("--completion")
    assert (done.code, done.err) == (2, "nfk --completion: name a shell, bash, zsh, fish or tcsh\n")


def test_json_is_one_object_and_nothing_else(fitted, nfk_command):
    for command in ("plan mine.py:model x.npy --rank 4 --json", "spectrum run --json", "outliers run --json"):
        assert isinstance(json.loads(nfk_command(*command.split()).out), dict)


class TestDoctorAndReport:
    def test_a_sound_model_is_exit_code_0_and_a_sick_one_1(self, here, nfk_command):
        pytest.importorskip("nfk.doctor")
        assert nfk_command("doctor", "mine.py:model", "x.npy", "--rank", 4).code == 0
        X = np.load("x.npy")
        X[3, 2] = np.nan
        np.save("sick.npy", X)
        done = nfk_command("doctor", "mine.py:model", "sick.npy", "--rank", 4, "--json")
        assert done.code == 1
        assert not done.facts["ok"]

    def test_a_page_about_two_runs_is_not_overwritten(self, fitted, nfk_command):
        pytest.importorskip("nfk.report")
        nfk_command("fit", "mine.py:several", "x.npy", "--rank", 3, "--output", "other")
        assert nfk_command("report", "run", "other", "--output", "page.html").code == 0
        page = (fitted / "page.html").read_text()
        assert "other" in page
        done = nfk_command("report", "run", "--output", "page.html")
        assert (done.code, (fitted / "page.html").read_text()) == (2, page)
        assert "page.html exists" in done.err

    def test_a_report_needs_a_run(self, here, nfk_command):
        assert nfk_command("report").code == 2
        assert nfk_command("report", "nowhere").code == 2

    def test_a_fit_goes_on_from_its_checkpoint(self, here, nfk_command):
        import inspect

        if "checkpoint" not in inspect.signature(nfk.fit).parameters:
            pytest.skip("nfk.fit keeps no checkpoints")
        fit = ("fit", "mine.py:model", "x.npy", "--rank", 3, "--checkpoint", "kept")
        assert nfk_command(*fit).code == 0
        assert (here / "kept").is_dir()
        first = read_run("run").embedding
        assert nfk_command(*fit, "--force").code == 0
        np.testing.assert_array_equal(read_run("run").embedding, first)
