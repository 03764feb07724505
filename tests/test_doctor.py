"""The doctor: a healthy model has nothing to mend, and every sickness is found, named and given a remedy."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nfk
from nfk.doctor.gradients import far_above

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 6)).astype(np.float32)
PARAMS = {"w": RNG.standard_normal((6, 5)).astype(np.float32), "v": RNG.standard_normal((5, 3)).astype(np.float32)}
NAMES = (
    "data", "score", "finite gradients", "determinism", "batch independence", "engine agreement", "dead parameters",
    "outlier gradients", "mean shift", "plan",
)  # fmt: skip


def network(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


def energy(params, x):
    return jnp.sum(network(params, x) ** 2)


def linear(params, x):
    return jnp.sum(x @ params["w"] @ params["v"])


def levels(diagnosis: nfk.Diagnosis) -> dict[str, str]:
    """Everything that is not well, by name; each has a remedy, and what is well has none."""
    for finding in diagnosis.findings:
        assert bool(finding.remedy) != finding.ok, finding
    return {finding.name: finding.level for finding in diagnosis.findings if not finding.ok}


@pytest.mark.parametrize(
    "model",
    [
        nfk.classifier(network, PARAMS),
        nfk.network(network, PARAMS),
        nfk.gan(energy, PARAMS, sample=lambda key, n: jax.random.normal(key, (n, 6))),
        nfk.vae(
            lambda p, x, key: energy(p, x + jax.random.normal(key, (6,))), PARAMS, centred=True, common_noise=False
        ),
    ],
    ids=lambda model: model.family,
)
def test_a_healthy_model_has_nothing_to_mend(model):
    diagnosis = nfk.doctor(model, X, rank=4)
    assert diagnosis.ok
    assert levels(diagnosis) == {}
    assert tuple(finding.name for finding in diagnosis.findings) == NAMES


def test_a_diagnosis_is_a_value_that_prints_itself():
    diagnosis = nfk.doctor(nfk.classifier(network, PARAMS), X, rank=100)
    assert not diagnosis.ok
    assert json.loads(json.dumps(diagnosis.to_dict()))["findings"][-1]["name"] == "plan"
    text = str(diagnosis)
    assert text.startswith("Diagnosis: 1 error\n")
    assert "32 of 60 examples" in text
    assert "-> lower rank or add examples" in text
    assert max(map(len, text.splitlines())) <= 120
    with pytest.raises(KeyError, match="'nonsense': there are data, score"):
        diagnosis["nonsense"]


def test_examples_that_are_not_numbers_are_named_and_the_others_looked_at():
    sick = X.copy()
    sick[[0, 59]] = np.nan
    diagnosis = nfk.doctor(nfk.classifier(network, PARAMS), sick, rank=4)
    assert levels(diagnosis) == {"data": "error"}
    assert diagnosis["data"].seen.startswith("X[0], X[59]: NaN or infinity in 2 of 32")
    assert diagnosis["finite gradients"].seen == "all 30 are"


def test_a_source_that_changes_between_two_readings():
    class Augmented:
        def __len__(self):
            return len(X)

        def __getitem__(self, rows):
            return X[rows] + RNG.standard_normal(1)

    diagnosis = nfk.doctor(nfk.classifier(network, PARAMS), Augmented(), rank=4)
    assert levels(diagnosis) == {"data": "error"}
    assert "shuffle=False" in diagnosis["data"].remedy


def test_a_score_that_cannot_be_evaluated():
    diagnosis = nfk.doctor(nfk.energy(network, PARAMS), X, rank=4)
    assert levels(diagnosis) == {"score": "error"}
    assert "must be a scalar" in diagnosis["score"].seen


def test_gradients_that_are_not_finite_though_the_score_is():
    sick = X.copy()
    sick[59] = 0
    norm = nfk.energy(lambda p, x: jnp.linalg.norm(x @ p["w"]) + jnp.sum(p["v"] * x[0]), PARAMS)
    diagnosis = nfk.doctor(norm, sick, rank=4)
    assert levels(diagnosis) == {"finite gradients": "error"}
    assert diagnosis["finite gradients"].seen.startswith("X[59]: NaN or infinity in 1 of 32")


def test_a_network_without_one_finite_gradient():
    norm = nfk.energy(lambda p, x: jnp.linalg.norm(x @ p["w"]) + jnp.sum(p["v"] * x[0]), PARAMS)
    diagnosis = nfk.doctor(norm, np.zeros_like(X), rank=4)
    assert not diagnosis.ok
    assert levels(diagnosis)["finite gradients"] == "error"


def called(function, x, how):
    """A function of the host in a score, whose derivative is one."""
    value = jax.ShapeDtypeStruct(x.shape, x.dtype)
    change = jax.pure_callback(lambda x: function(np.asarray(x)) - x, value, jax.lax.stop_gradient(x), vmap_method=how)
    return x + change


def test_random_numbers_in_the_score():
    noisy = nfk.energy(lambda p, x: energy(p, called(lambda x: x + RNG.standard_normal(), x, "sequential")), PARAMS)
    diagnosis = nfk.doctor(noisy, X, rank=4)
    assert levels(diagnosis)["determinism"] == "error"
    assert "random numbers" in diagnosis["determinism"].remedy


def test_an_example_that_depends_on_its_neighbours():
    """The same batch gives the same again, so it is not randomness."""
    mixed = lambda x: x - x.mean(axis=0) if x.ndim > 1 else x  # noqa: E731
    diagnosis = nfk.doctor(nfk.energy(lambda p, x: energy(p, called(mixed, x, "broadcast_all")), PARAMS), X, rank=4)
    assert levels(diagnosis)["batch independence"] == "error"
    assert diagnosis["determinism"].ok


def test_an_example_that_depends_on_its_place():
    placed = lambda x: x * np.linspace(1, 2, len(x), dtype=x.dtype)[:, None] if x.ndim > 1 else x  # noqa: E731
    diagnosis = nfk.doctor(nfk.energy(lambda p, x: energy(p, called(placed, x, "broadcast_all")), PARAMS), X, rank=4)
    assert levels(diagnosis)["batch independence"] == "error"
    assert diagnosis["determinism"].ok


def test_random_numbers_drawn_while_tracing():
    """They are constants of each compiled function: only another one shows it."""
    noisy = nfk.energy(lambda p, x: energy(p, x + RNG.standard_normal(6).astype(np.float32)), PARAMS)
    diagnosis = nfk.doctor(noisy, X, rank=4)
    assert levels(diagnosis) == {"engine agreement": "error"}
    assert "while it is traced" in diagnosis["engine agreement"].remedy


def test_a_score_without_forward_derivatives():
    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))
    diagnosis = nfk.doctor(nfk.energy(lambda p, x: double(energy(p, x)), PARAMS), X, rank=4)
    assert levels(diagnosis) == {"engine agreement": "warning"}
    assert "engine='gradients'" in diagnosis["engine agreement"].remedy


def test_parameters_that_take_no_part():
    params = {**PARAMS, "forgotten": np.ones(3, np.float32)}
    diagnosis = nfk.doctor(nfk.classifier(network, params), X, rank=4)
    assert levels(diagnosis) == {"dead parameters": "warning"}
    assert "nothing of 'forgotten'" in diagnosis["dead parameters"].seen

    large = {"w": np.ones((1000, 5), np.float32), "v": PARAMS["v"]}
    diagnosis = nfk.doctor(nfk.classifier(lambda p, x: network({**p, "w": p["w"][:6]}, x), large), X, rank=4)
    assert diagnosis["dead parameters"].seen == "99.1% of the parameters take no part in these examples"

    diagnosis = nfk.doctor(nfk.classifier(lambda p, x: network(PARAMS, x), PARAMS), X, rank=4)
    assert levels(diagnosis) == {"dead parameters": "error"}


def test_one_gradient_for_all_examples():
    diagnosis = nfk.doctor(nfk.energy(lambda p, x: jnp.sum(p["w"]) + jnp.sum(p["v"]), PARAMS), X, rank=4)
    assert levels(diagnosis)["moments"] == "error"
    assert "fisher='identity'" in diagnosis["moments"].remedy


def test_gradients_out_of_all_proportion():
    sick = X.copy()
    sick[0] *= 1000
    diagnosis = nfk.doctor(nfk.energy(linear, PARAMS), sick, rank=4)
    assert levels(diagnosis) == {"outlier gradients": "warning"}
    assert diagnosis["outlier gradients"].seen.startswith("X[0]: up to")


def test_gradients_that_vanish():
    """Where its units are off, the kernel does not see an example."""
    sick = np.abs(X)
    sick[0] *= -1
    params = {"w": np.abs(PARAMS["w"]), "v": PARAMS["v"]}
    relu = nfk.energy(lambda p, x: jnp.sum(jax.nn.relu(x @ p["w"]) @ p["v"]), params, centred=False)
    diagnosis = nfk.doctor(relu, sick, rank=4)
    assert diagnosis["outlier gradients"].level == "warning"
    assert diagnosis["outlier gradients"].seen.startswith("X[0]: 1 of 32 rows of the kernel are zero")


def test_outliers_are_judged_beside_the_spread_of_the_others():
    even, wide = np.ones(32), np.exp(np.linspace(-4, 4, 32))
    even[3] = wide[3] = 30.0
    assert far_above(even) == [3]
    assert far_above(wide) == []
    assert far_above(np.zeros(4)) == []


def test_a_mean_that_the_data_do_not_share_with_the_samples():
    sample = lambda key, n: jax.random.normal(key, (n, 6))  # noqa: E731
    diagnosis = nfk.doctor(nfk.gan(linear, PARAMS, sample=sample), X + 3, rank=4)
    assert "expectation='data'" in diagnosis["mean shift"].remedy
    uncentred = nfk.doctor(nfk.density(linear, PARAMS), X + 3, rank=4)
    assert "centred=True" in uncentred["mean shift"].remedy


def test_the_share_of_the_mean_is_that_of_the_kernel():
    """|mean V|^2 / mean |V|^2 = 1'K1 / (n trace K), without its bias."""
    model, some = nfk.density(energy, PARAMS), X[:30]
    K = nfk.gram(model, some)
    plain = K.sum() / 30 / np.trace(K)
    share = (30 * plain - 1) / 29
    assert 0.05 < share < 0.95
    assert nfk.doctor(model, some, rank=4)["mean shift"].seen.startswith(f"{share:.0%} of the kernel")


def test_a_plan_that_does_not_fit():
    diagnosis = nfk.doctor(nfk.classifier(network, PARAMS), X, rank=4, memory="1KB")
    assert levels(diagnosis) == {"plan": "error"}
    assert "Raise memory" in diagnosis["plan"].remedy


def test_a_plan_for_several_devices():
    diagnosis = nfk.doctor(nfk.classifier(network, PARAMS), X, rank=4, mesh=2)
    assert "on 2 (cpu): 2 for the data, 1 for the basis" in diagnosis["plan"].seen
    assert diagnosis.ok


def test_a_torch_module_healthy_and_sick():
    torch = pytest.importorskip("torch")

    class Sick(torch.autograd.Function):
        """A forward derivative that is not the backward one's."""

        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return 2 * x

        @staticmethod
        def setup_context(context, inputs, output):
            pass

        @staticmethod
        def backward(context, g):
            return 2 * g

        @staticmethod
        def jvp(context, t):
            return 3 * t

    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).eval()
    healthy = nfk.doctor(nfk.torch.classifier(module), X, rank=4)
    assert levels(healthy) == {}
    assert "JVPs, VJPs" in healthy["engine agreement"].seen
    sick = nfk.torch.energy(module, lambda module, x: Sick.apply(module(x).sum()))
    diagnosis = nfk.doctor(sick, X, rank=4)
    assert levels(diagnosis) == {"engine agreement": "error"}
    assert "JVPs differ by" in diagnosis["engine agreement"].seen


def test_bad_arguments_are_errors_at_once():
    with pytest.raises(TypeError, match="wrap the network first"):
        nfk.doctor(network, X)
    with pytest.raises(ValueError, match="X holds 1 examples: pass at least two"):
        nfk.doctor(nfk.classifier(network, PARAMS), X[:1])
