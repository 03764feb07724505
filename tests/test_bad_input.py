"""Bad input: each gets a sentence that names the argument, the rule, the value and the remedy, before work is done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import linear_sampler, mlp, mlp_params, vectors

import nfk
from nfk import assembly, fitting, store

PARAMS = mlp_params(np.float32, 6, 8, 4)
X = vectors(np.float32, 6)


@pytest.fixture(scope="module")
def model():
    return nfk.classifier(mlp, PARAMS)


@pytest.fixture
def saved(model, tmp_path):
    nfk.fit(model, X, 3, save=tmp_path / "run")
    return tmp_path / "run"


def test_no_examples(model):
    with pytest.raises(ValueError, match="X holds no examples"):
        nfk.fit(model, X[:0], 3)


def test_one_example(model):
    with pytest.raises(ValueError, match=r"X holds one example.*batch axis"):
        nfk.fit(model, X[:1], 3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_data_that_is_not_finite_names_the_example(model, value):
    bad = X.copy()
    bad[17, 2] = value
    with pytest.raises(ValueError, match=r"X\[17\] holds NaN or infinity"):
        nfk.fit(model, bad, 3)
    with pytest.raises(ValueError, match=r"X\[17\] holds NaN or infinity"):
        nfk.fit(model, X, 3)(bad)


def test_a_source_with_slices_is_checked_as_it_passes(model):
    class Source:
        def __len__(self):
            return len(X)

        def __getitem__(self, rows):
            part = X[rows].copy()
            part[np.arange(len(X))[rows] == 31] = np.nan
            return part

    with pytest.raises(ValueError, match=r"X\[31\] holds NaN"):
        nfk.fit(model, Source(), 3)


def test_parameters_that_are_not_finite():
    params = jax.tree.map(np.copy, PARAMS)
    params["second"]["kernel"][0, 0] = np.inf
    with pytest.raises(ValueError, match=r"params\['second/kernel'\] holds NaN or infinity"):
        nfk.classifier(mlp, params)


@pytest.mark.parametrize("engine", ["gradients", "products"])
def test_a_gradient_that_is_not_finite_names_the_example(engine):
    bad = X.copy()
    bad[23] = 0
    root = lambda params, x: jnp.sum(params * jnp.sqrt(jnp.sum((params * x) ** 2)))  # noqa: E731
    with pytest.raises(ValueError, match=r"gradient of the score at X\[23\] is NaN or infinite"):
        nfk.fit(nfk.energy(root, np.ones(6, np.float32)), bad, 3, engine=engine)


def test_an_infinite_gradient_in_a_parameter_without_a_scale():
    """Nothing in the fit moved the second parameter, so its scale is 0; of infinity and 0 numpy would warn."""
    part = lambda w, x: w[0] * x[0] + jnp.where(x[1] > 0, w[1] / (1 - x[1]), 0.0)  # noqa: E731
    flat = X * np.array([1, 0, 0, 0, 0, 0], np.float32)
    embedding = nfk.fit(nfk.energy(part, np.ones(2, np.float32)), flat, 1)
    with pytest.raises(ValueError, match=r"gradient of the score at X\[1\] is NaN or infinite"):
        embedding(np.stack([flat[0], np.ones(6, np.float32)]))


def test_a_gradient_that_is_not_finite_at_embedding_time():
    root = nfk.energy(lambda w, x: jnp.sum(w * jnp.sqrt(jnp.sum((w * x) ** 2))), np.ones(6, np.float32))
    embedding = nfk.fit(root, X, 3)
    with pytest.raises(ValueError, match=r"X\[1\]"):
        embedding(np.stack([X[0], np.zeros(6, np.float32)]))


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (41, r"rank=41 exceeds min\(rows, parameters\)=40: lower rank or add examples"),
        (0, "rank=0 is not positive"),
        (-3, "rank=-3 is not positive"),
        (1.5, "rank=1.5 is not a fraction"),
        (0.0, "rank=0.0 is not a fraction"),
        (True, "rank=True must be a number"),
        ("many", "rank='many' must be a number"),
    ],
)
def test_rank(model, rank, message):
    with pytest.raises((ValueError, TypeError), match=message):
        nfk.fit(model, X, rank)


def test_a_score_that_is_not_a_scalar():
    with pytest.raises(ValueError, match=r"score of nfk.density has shape \(4,\).*must be a scalar"):
        nfk.fit(nfk.density(mlp, PARAMS), X, 3)


def test_a_batched_classifier_is_told_how_to_wrap():
    batched = lambda params, x: mlp(params, x)[None]  # noqa: E731
    with pytest.raises(ValueError, match=r"shape \(1, 4\).*apply\(params, x\[None\]\)\[0\]"):
        nfk.fit(nfk.classifier(batched, PARAMS), X, 3)


def test_a_single_logit_is_told_what_to_do():
    with pytest.raises(ValueError, match=r"shape \(1,\).*\(-f/2, f/2\)"):
        nfk.fit(nfk.classifier(lambda params, x: mlp(params, x)[:1], PARAMS), X, 3)


def test_integer_parameters():
    params = {**PARAMS, "steps": np.arange(3)}
    with pytest.raises(TypeError, match=r"params\['steps'\] has dtype int.*leave it out with parameters="):
        nfk.classifier(mlp, params)
    allowed = nfk.classifier(mlp, params, parameters=lambda path: path != "steps")
    assert allowed.layout.size == nfk.classifier(mlp, PARAMS).layout.size


def test_a_filter_that_matches_nothing():
    with pytest.raises(ValueError, match=r"parameters='conv\*' matches none of the 4 parameter paths"):
        nfk.classifier(mlp, PARAMS, parameters="conv*")


def test_an_example_of_another_shape(model):
    with pytest.raises(ValueError, match=r"could not be evaluated on one example of shape \(5,\)"):
        nfk.fit(model, X[:, :5], 3)
    with pytest.raises(ValueError, match=r"shape \(5,\), but this embedding was fitted on \(6,\)"):
        nfk.fit(model, X, 3)(X[:, :5])


def test_arrays_of_different_length():
    with pytest.raises(ValueError, match="differ in length"):
        nfk.plan(nfk.classifier(mlp, PARAMS), {"a": X, "b": X[:5]}, 3)


def test_a_generator_that_returns_another_shape():
    critic = lambda params, x: mlp(params, x)[0]  # noqa: E731
    wrong = nfk.gan(critic, PARAMS, sample=linear_sampler(np.float32, 5))
    with pytest.raises(ValueError, match=r"sample\(key, n\) returned examples of shape \(5,\).*X have shape \(6,\)"):
        nfk.fit(wrong, X, 3)


def test_a_generator_that_is_missing_or_malformed():
    with pytest.raises(ValueError, match="expectation='model' needs samples"):
        nfk.gan(lambda params, x: mlp(params, x)[0], PARAMS)
    with pytest.raises(TypeError, match=r"sample\(key, n\)"):
        nfk.gan(lambda params, x: mlp(params, x)[0], PARAMS, sample=lambda key: key)


def test_all_zero_fisher():
    with pytest.raises(ValueError, match="zero Fisher information"):
        nfk.fit(nfk.density(lambda params, x: jnp.sum(x) + 0 * jnp.sum(params), np.ones(4, np.float32)), X, 3)


def test_unknown_options(model):
    with pytest.raises(TypeError, match=r"nfk.classifier has no option 'centered': the options are centred"):
        nfk.classifier(mlp, PARAMS, centered=True)
    with pytest.raises(ValueError, match="method='lanczos' is unknown"):
        nfk.fit(model, X, 3, method="lanczos")
    with pytest.raises(ValueError, match="engine='fast' is unknown"):
        nfk.fit(model, X, 3, engine="fast")
    with pytest.raises(ValueError, match="memory='lots' is not a size"):
        nfk.fit(model, X, 3, memory="lots")


def test_a_budget_that_is_too_small_says_what_to_change(model):
    with pytest.raises(MemoryError, match=r"leanest way needs .*Raise memory, lower rank=3"):
        nfk.fit(model, X, 3, memory="5kB")


def test_truncated_file(saved, model):
    file = next(saved.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ValueError, match="damaged"):
        nfk.load(saved, model)


def test_altered_file(saved, model):
    file = next(saved.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        nfk.load(saved, model)


def test_damaged_facts(saved, model):
    text = (saved / "embedding.json").read_text()
    (saved / "embedding.json").write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match="damaged"):
        nfk.load(saved, model)


def test_facts_cannot_point_out_of_the_folder(saved, model):
    facts = json.loads((saved / "embedding.json").read_text())
    (saved / "embedding.json").write_text(json.dumps({**facts, "tensors": "../../elsewhere.safetensors"}))
    with pytest.raises(FileNotFoundError, match="run/elsewhere.safetensors"):
        nfk.load(saved, model)


def test_nothing_saved(tmp_path, model):
    with pytest.raises(FileNotFoundError, match="holds no saved embedding"):
        nfk.load(tmp_path, model)


def test_a_file_of_another_model(saved):
    changed = jax.tree.map(np.copy, PARAMS)
    changed["first"]["bias"][0] += 1
    with pytest.raises(ValueError, match=r"another network: params\['first/bias'\] has other values"):
        nfk.load(saved, nfk.classifier(mlp, changed))
    with pytest.raises(ValueError, match="another model: its family is 'classifier', this one's is 'network'"):
        nfk.load(saved, nfk.network(mlp, PARAMS))
    with pytest.raises(ValueError, match="another model: its chosen"):
        nfk.load(saved, nfk.classifier(mlp, PARAMS, parameters="first/*"))


def test_the_same_weights_in_another_function(saved):
    """Equal parameters do not make an equal network: the score of a probe example differs."""
    relu = lambda p, x: jax.nn.relu(x @ p["first"]["kernel"] + p["first"]["bias"]) @ p["second"]["kernel"]  # noqa: E731
    with pytest.raises(ValueError, match="another network: with the same parameters"):
        nfk.load(saved, nfk.classifier(relu, PARAMS))(X)


def test_an_unwritable_folder_is_found_before_the_fit(model, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(fitting, "plan_fit", lambda *a, **k: pytest.fail("work began before the folder was checked"))
    with pytest.raises(OSError, match=r"save=.* cannot be written"):
        nfk.fit(model, X, 3, save=tmp_path / "file" / "run")


def test_a_failed_save_keeps_the_old_one(saved, model, monkeypatch):
    before = nfk.load(saved, model)
    monkeypatch.setattr(os, "replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        nfk.fit(model, X, 5).save(saved)
    monkeypatch.undo()
    np.testing.assert_array_equal(nfk.load(saved, model).right, before.right)


@pytest.mark.parametrize("side", ["parameters", "examples"])
def test_interruption_gives_what_the_finished_passes_are_worth(model, monkeypatch, side):
    """Ctrl-C in the second step: the result is that of the first, with its residuals, and it embeds."""
    from nfk.operator.gradients import GradientOperator

    calls = []
    name = "fused" if side == "parameters" else "rmatmat"
    original = getattr(GradientOperator, name)

    def interrupted(self, block):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, block)

    monkeypatch.setattr(GradientOperator, name, interrupted)
    with pytest.raises(nfk.Interrupted, match="finished passes gave 3 components") as stop:
        nfk.fit(model, X, 3, side=side, tol=1e-9, oversamples=0)
    monkeypatch.undo()
    partial = stop.value.result
    assert partial.rank == 3
    exact = np.linalg.eigvalsh(nfk.gram(model, X))[::-1][:3]
    assert (np.abs(partial.eigenvalues - exact) <= partial.residuals * partial.eigenvalues + 1e-4 * exact[0]).all()
    np.testing.assert_allclose(partial(X), partial.training, atol=1e-3 * np.abs(partial.training).max())


def test_interruption_of_the_certifying_pass(model, monkeypatch):
    from nfk.operator.gradients import GradientOperator
    from nfk.solve import krylov

    original, certifying = GradientOperator.fused, []
    monkeypatch.setattr(krylov, "verify", _noting(krylov.verify, certifying))

    def interrupted(self, block):
        if certifying:
            raise KeyboardInterrupt
        return original(self, block)

    monkeypatch.setattr(GradientOperator, "fused", interrupted)
    with pytest.raises(nfk.Interrupted, match="finished passes gave") as stop:
        nfk.fit(model, X, 3, side="parameters")
    monkeypatch.undo()
    partial = stop.value.result
    np.testing.assert_allclose(partial.eigenvalues[:3], nfk.fit(model, X, 3).eigenvalues, rtol=1e-3)
    np.testing.assert_allclose(partial(X), partial.training, atol=1e-3 * np.abs(partial.training).max())


def _noting(function, notes):
    def noted(*arguments, **options):
        notes.append(1)
        return function(*arguments, **options)

    return noted


def test_interruption_before_anything_is_known(model, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(assembly, "estimate", stop)
    with pytest.raises(nfk.Interrupted, match="nothing to keep"):
        nfk.fit(model, X, 3)


def test_interruption_of_the_power_iteration(model, monkeypatch, tmp_path):
    from nfk.operator.gradients import GradientOperator

    original, calls = GradientOperator.rmatmat, []

    def interrupted(self, weights):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return original(self, weights)

    monkeypatch.setattr(GradientOperator, "rmatmat", interrupted)
    with pytest.raises(nfk.Interrupted, match="finished passes gave 3 components") as stop:
        nfk.fit(model, X, 3, method="power", save=tmp_path)
    assert stop.value.result.rank == 3
    np.testing.assert_array_equal(nfk.load(tmp_path, model).right, stop.value.result.right)  # saved, too


@pytest.mark.around
def test_a_real_ctrl_c():
    """A signal in the middle of a fit, as a terminal sends it."""
    script = """
import os, signal, numpy as np, jax.numpy as jnp, nfk
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent such as nohup may have it ignored
rng = np.random.default_rng(0)
model = nfk.energy(lambda w, x: jnp.sum(jnp.tanh(x @ w)), rng.standard_normal((60, 90), dtype=np.float32))
X = rng.standard_normal((2000, 60), dtype=np.float32)
nfk.fit(model, X, 8)
from nfk.operator.gradients import GradientOperator
original, calls = GradientOperator.fused, []
def counted(self, block):
    calls.append(1)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGINT)
    return original(self, block)
GradientOperator.fused = counted
try:
    nfk.fit(model, X, 8, side="parameters", tol=1e-12, keep=False)
except nfk.Interrupted as stop:
    print(stop.result.rank, stop.result(X[:3]).shape)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.stdout == "8 (3, 8)\n", result.stderr


def test_a_sampler_that_returns_too_few():
    critic = lambda params, x: mlp(params, x)[0]  # noqa: E731
    few = nfk.gan(critic, PARAMS, sample=lambda key, n: jax.random.normal(key, (64, 6)))
    with pytest.raises(ValueError, match=r"returned an array of shape \(64, 6\) for n=256: return n examples"):
        nfk.fit(few, X, 3)
    swapped = nfk.gan(critic, PARAMS, sample=lambda n, key: jax.random.normal(key, (n, 6)))
    with pytest.raises(ValueError, match=r"(?s)sample\(key, n\) failed.*takes a jax key first"):
        nfk.fit(swapped, X, 3)


def test_a_source_that_returns_too_few():
    class Short:
        def __len__(self):
            return 40

        def __getitem__(self, rows):
            return X[rows][:5]

    with pytest.raises(ValueError, match="a slice must return as many examples as were asked for"):
        nfk.fit(nfk.classifier(mlp, PARAMS), Short(), 3)


def test_a_source_may_use_its_memory_again(model):
    class Reusing:
        buffer = np.empty((64, 6), np.float32)

        def __len__(self):
            return 40

        def __getitem__(self, rows):
            part = X[rows]
            self.buffer[: len(part)] = part
            return self.buffer[: len(part)]

    for engine in ("gradients", "products"):
        found = nfk.fit(model, Reusing(), 3, engine=engine).eigenvalues
        np.testing.assert_allclose(found, nfk.fit(model, X, 3).eigenvalues, rtol=1e-4)


def test_a_save_that_fails_returns_the_embedding(model, tmp_path, monkeypatch):
    monkeypatch.setattr(store.tensors, "write", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.warns(UserWarning, match="failed: disk full; the embedding is returned all the same"):
        embedding = nfk.fit(model, X, 3, save=tmp_path / "run")
    assert embedding.rank == 3


def test_other_files_in_the_folder_are_left_alone(model, tmp_path):
    (tmp_path / "embedding-mine.safetensors").write_text("mine")
    embedding = nfk.fit(model, X, 3, save=tmp_path)
    nfk.fit(model, X, 2, save=tmp_path)
    assert (tmp_path / "embedding-mine.safetensors").read_text() == "mine"
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert embedding.rank == 3


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: nfk.fit(mlp, X, 3), "model is a function: wrap the network first"),
        (lambda: nfk.classifier(PARAMS, mlp), r"takes a function first.*nfk.classifier\(function, params\)"),
        (lambda: nfk.classifier(mlp, {**PARAMS, "name": "net"}), r"params\['name'\] is a builtins.str, not an array"),
        (lambda: nfk.classifier(mlp, {**PARAMS, "key": jax.random.key(0)}), r"params\['key'\] has dtype random key"),
        (lambda: nfk.fit(nfk.classifier(lambda p, x: (mlp(p, x), x), PARAMS), X, 3), "apply returned a tuple"),
        (lambda: nfk.fit(nfk.network(lambda p, x: (mlp(p, x), x), PARAMS), X, 3), "returned a tuple: return one array"),
        (lambda: nfk.fit(nfk.density(lambda p, x: jnp.argmax(mlp(p, x)), PARAMS), X, 3), "dtype int32: return floats"),
        (lambda: nfk.fit(nfk.classifier(mlp, PARAMS), "hello", 3), "X is text"),
        (lambda: nfk.fit(nfk.classifier(mlp, PARAMS), (row for row in X), 3), "has no length and slices"),
        (lambda: nfk.fit(nfk.classifier(mlp, PARAMS), X, 3, tol="small"), "tol='small' must be a positive number"),
        (lambda: nfk.fit(nfk.classifier(mlp, PARAMS), X, 3, oversamples=2.5), "oversamples=2.5 must be a whole number"),
        (lambda: nfk.fit(nfk.classifier(mlp, PARAMS), X, 3, key=None), "key=None must be a whole number"),
        (lambda: nfk.classifier(mlp, PARAMS, centred="no"), "centred='no' must be True or False"),
        (lambda: nfk.classifier(mlp, PARAMS, samples="many", sample=None), "samples='many' must be a number"),
        (lambda: nfk.gram(nfk.classifier(mlp, PARAMS), X[:0]), "X holds no examples"),
    ],
)
def test_common_mistakes_are_told(mistake, message):
    with pytest.raises((ValueError, TypeError), match=message):
        mistake()


def test_no_warning_on_an_ordinary_fit(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nfk.fit(model, X, 10)
