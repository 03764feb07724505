"""Run folders: what was fitted comes back without the model, whole or with a sentence that says what is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
from registry import mlp, mlp_params

import nfk
from nfk import packing, store
from nfk.runs import Run, Spec, is_run, read_run, write_run

X = np.random.default_rng(0).standard_normal((40, 6)).astype("float32")
WORDS = np.array(["cat", "dog", "a <b>"] * 13 + ["dog"])


@pytest.fixture(scope="module")
def model() -> nfk.Model:
    return nfk.classifier(mlp, mlp_params(np.float32, 6, 8, 3))


@pytest.fixture(scope="module")
def embedding(model) -> nfk.Embedding:
    return nfk.fit(model, X, 5)


@pytest.fixture
def run(embedding, tmp_path) -> Run:
    spec = Spec(model="m.py:model", data="x.npy", rank=5, seconds=1.5, options={"memory": "1GB"})
    squares = embedding.decompose(X).total
    write_run(tmp_path / "run", embedding, spec=spec, labels=WORDS, examples=X, squares=squares)
    return read_run(tmp_path / "run")


def test_what_was_fitted_comes_back_without_the_model(run, embedding):
    np.testing.assert_array_equal(run.embedding, embedding.training)
    np.testing.assert_array_equal(run.residuals, embedding.residuals)
    np.testing.assert_array_equal(run.explained_variance_ratio, embedding.explained_variance_ratio)
    for name, share in embedding.layer_shares().items():
        np.testing.assert_array_equal(run.layer_shares[name], share)
    assert list(run.layer_shares) == list(embedding.model.layout.slices)
    assert (run.family, run.parameters, run.passes) == ("classifier", embedding.model.layout.size, embedding.passes)
    assert (run.count, run.rank, run.examples_shape, run.name) == (40, 5, (6,), "run")
    assert run.plan == str(embedding.plan)


def test_what_was_asked_for_comes_back(run):
    assert run.spec == Spec(model="m.py:model", data="x.npy", rank=5, seconds=1.5, options={"memory": "1GB"})
    assert run.versions["jax"]
    np.testing.assert_array_equal(run.labels, WORDS)
    np.testing.assert_array_equal(run.examples, X)


def test_the_share_outside_is_that_of_the_embedding(run, embedding):
    np.testing.assert_allclose(run.outside_share, embedding.decompose(X).outside_share, atol=1e-5)
    assert run.outside_share.max() > 0.01


def test_a_run_is_an_embedding_that_its_model_loads(run, model, embedding):
    np.testing.assert_array_equal(nfk.load(run.folder, model)(X[:3]), embedding(X[:3]))


@pytest.mark.parametrize("labels", [np.arange(40), np.arange(40) % 2 == 0, ["x"] * 40, np.array([b"y"] * 40)])
def test_labels_are_numbers_or_words(labels, embedding, tmp_path):
    write_run(tmp_path, embedding, labels=labels)
    expected = np.asarray(labels)
    expected = expected.astype(str) if expected.dtype.kind == "S" else expected
    np.testing.assert_array_equal(read_run(tmp_path).labels, expected)


def test_texts_come_back_and_nothing_else_need_be_given(embedding, tmp_path):
    texts = [f"sentence {i} \u2713 <script>" for i in range(40)]
    write_run(tmp_path, embedding, examples=texts)
    run = read_run(tmp_path)
    assert run.examples == texts
    assert (run.labels, run.squares, run.outside_share, run.spec) == (None, None, None, Spec())


def test_a_network_with_several_outputs_has_a_label_for_each_example(tmp_path):
    ntk = nfk.network(mlp, mlp_params(np.float32, 6, 8, 3))
    write_run(tmp_path, nfk.fit(ntk, X, 4), labels=WORDS)
    run = read_run(tmp_path)
    assert (run.count, len(run.embedding), run.outputs) == (40, 120, 3)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"labels": [1, 2]}, r"labels have shape \(2,\): give one for each of the 40 examples of the fit"),
        ({"labels": np.ones(40)}, "labels have dtype float64: give whole numbers or words"),
        ({"examples": X[:7]}, r"examples are an array of shape \(7, 6\)"),
        ({"examples": ["a"]}, r"examples have shape \(1,\)"),
        ({"squares": np.ones(3)}, r"squares have shape \(3,\)"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(given, sentence, embedding, tmp_path):
    with pytest.raises((ValueError, TypeError), match=sentence):
        write_run(tmp_path / "run", embedding, **given)
    assert not is_run(tmp_path / "run")


def test_other_folders_are_named(embedding, tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no saved embedding"):
        read_run(tmp_path)
    embedding.save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"was saved without its run: write it with nfk.runs.write_run"):
        read_run(tmp_path / "saved")


def test_a_run_of_another_version_is_named(embedding, tmp_path):
    tensors, facts = packing.pack(embedding)
    store.write(tmp_path, tensors, facts | {"run": {"format": 9, "versions": {"nfk": "7.0"}}})
    with pytest.raises(ValueError, match=r"is a run folder of nfk 7\.0 \(format 9\), but this version reads format 1"):
        read_run(tmp_path)


def test_an_altered_label_is_noticed(run):
    path = run.folder / "embedding.json"
    document = json.loads(path.read_text())
    document["facts"]["run"]["classes"][0] = "mouse"
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="is damaged"):
        read_run(run.folder)
