"""PyTorch modules: the kernel of the same network in JAX, of networks nobody here wrote, and what is told otherwise."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the PyTorch bridge; pip install 'nfk[torch]' to run it")

import jax
import jax.numpy as jnp
import numpy as np
from registry import mlp, mlp_params, vectors
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import nn

import nfk
import nfk.torch
from nfk.sklearn import FisherEmbedding

torch.set_num_threads(1)  # two pools of threads on the cores of one test process wait for each other
X = vectors(np.float32, 6, count=24)
IMAGES = vectors(np.float32, 64, count=24).reshape(-1, 1, 8, 8)


class Perceptron(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def perceptron(params: dict, x: jax.Array) -> jax.Array:
    hidden = jnp.tanh(params["first"]["weight"] @ x + params["first"]["bias"])
    return params["second"]["weight"] @ hidden + params["second"]["bias"]


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Linear(64, 3)

    def forward(self, images):
        return self.head(torch.tanh(self.conv(images)).flatten(1))


def convnet(params: dict, image: jax.Array) -> jax.Array:
    hidden = jax.lax.conv_general_dilated(image[None], params["conv"]["weight"], (2, 2), [(1, 1), (1, 1)])
    hidden = jnp.tanh(hidden[0] + params["conv"]["bias"][:, None, None])
    return params["head"]["weight"] @ hidden.reshape(-1) + params["head"]["bias"]


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Perceptron(6, 7, 4), Perceptron(2, 7, 6)


def elbo(module, x, noise):
    mean, log_scale = module.encoder(x).chunk(2)
    divergence = 0.5 * (torch.exp(2 * log_scale) + mean**2 - 1 - 2 * log_scale).sum()
    return -0.5 * ((x - module.decoder(mean + torch.exp(log_scale) * noise)) ** 2).sum() - divergence


def elbo_in_jax(params, x, key):
    mean, log_scale = jnp.split(perceptron(params["encoder"], x), 2)
    latent = mean + jnp.exp(log_scale) * jax.random.normal(key, (2,), x.dtype)
    divergence = 0.5 * jnp.sum(jnp.exp(2 * log_scale) + mean**2 - 1 - 2 * log_scale)
    return -0.5 * jnp.sum((x - perceptron(params["decoder"], latent)) ** 2) - divergence


SAMPLES = vectors(np.float32, 6, seed=8, count=256)
one = Perceptron(6, 8, 1).eval()
three = Perceptron(6, 8, 3).eval()
images = Convnet().eval()
autoencoder = Autoencoder().eval()
of = nfk.torch.arrays
PAIRS: dict[str, Callable[..., tuple[nfk.Model, nfk.Model, Any]]] = {
    "classifier": lambda **o: (nfk.torch.classifier(images, **o), nfk.classifier(convnet, of(images)), IMAGES),
    "some parameters": lambda **o: (
        nfk.torch.classifier(images, parameters="head/*", **o),
        nfk.classifier(convnet, of(images), parameters="head/*"), IMAGES,
    ),
    "energy": lambda **o: (
        nfk.torch.energy(three, lambda m, x: (m(x) ** 2).sum(), **o),
        nfk.energy(lambda p, x: jnp.sum(perceptron(p, x) ** 2), of(three)), X,
    ),
    "gan": lambda **o: (
        nfk.torch.gan(one, sample=lambda seed, n: torch.tensor(SAMPLES[:n]), samples=100, sigmoid=True, **o),
        nfk.gan(lambda p, x: perceptron(p, x)[0], of(one), sample=lambda key, n: SAMPLES[:n], samples=100,
                sigmoid=True), X,
    ),
    "density": lambda **o: (
        nfk.torch.density(three, lambda m, x: torch.log_softmax(m(x), 0)[0], **o),
        nfk.density(lambda p, x: jax.nn.log_softmax(perceptron(p, x))[0], of(three)), X,
    ),
    "vae": lambda **o: (
        nfk.torch.vae(autoencoder, elbo, noise=(2,), **o), nfk.vae(elbo_in_jax, of(autoencoder)), X,
    ),
    "vae with noise of its own": lambda **o: (
        nfk.torch.vae(autoencoder, elbo, noise=(2,), common_noise=False, **o),
        nfk.vae(elbo_in_jax, of(autoencoder), common_noise=False), X,
    ),
    "network": lambda **o: (nfk.torch.network(three, **o), nfk.network(perceptron, of(three)), X),
}  # fmt: skip


def assert_same(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_network_in_jax_has_the_same_embedding(name):
    ours, theirs, data = PAIRS[name]()
    assert ours.layout.paths == theirs.layout.paths
    E, F = (nfk.fit(model, data, 5, method="exact")(data) for model in (ours, theirs))
    assert_same(E * np.sign((E * F).sum(axis=0)), F)


WAYS = {
    "vectorised": ({}, {"engine": "gradients"}),
    "products": ({}, {"engine": "products"}),
    "one by one": ({"vectorised": False}, {"engine": "gradients"}),
    "one by one, products": ({"vectorised": False}, {"engine": "products"}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["gan", "vae", "network"])
def test_every_way_is_the_dense_definition(name, way):
    options, engine = WAYS[way]
    model, _, data = PAIRS[name](**options)
    K = nfk.gram(model, data)
    embedding = nfk.fit(model, data, 8, tol=1e-4, **engine)
    np.testing.assert_allclose(embedding.eigenvalues, np.linalg.eigvalsh(K)[::-1][:8], rtol=1e-4)
    assert_same(embedding(data), embedding.training, 1e-3)


def test_the_definition_by_hand():
    """Nothing of the package on the other side: torch.func, a mean and a variance in numpy."""
    params, data = mlp_params(np.float64, 6, 8, 4), vectors(np.float64, 6)

    def score(p, x):
        hidden = torch.tanh(x @ p["first"]["kernel"] + p["first"]["bias"])
        return torch.logsumexp(hidden @ p["second"]["kernel"] + p["second"]["bias"], 0)

    tensors = jax.tree.map(torch.tensor, params)
    rows = torch.func.vmap(torch.func.grad(score), in_dims=(None, 0))(tensors, torch.tensor(data))
    g = np.concatenate([np.asarray(leaf).reshape(40, -1) for leaf in jax.tree.leaves(rows)], axis=1)
    U = g - g.mean(axis=0)
    V = U / np.sqrt((U**2).mean(axis=0))
    with jax.enable_x64(True):
        K = nfk.gram(nfk.classifier(mlp, params, damping=0.0), data)
    np.testing.assert_allclose(K, V @ V.T, rtol=1e-8, atol=1e-8)


def test_an_example_has_one_embedding_in_any_batch():
    model = PAIRS["vae"]()[0]
    embedding = nfk.fit(model, X, 4)
    whole = embedding(X)
    for index in (0, 23):
        assert_same(embedding(X[index : index + 1]), whole[index : index + 1])
    other = nfk.fit(model, X, 4, key=1)
    assert np.abs(other.eigenvalues / embedding.eigenvalues - 1).max() > 1e-3  # the key decides the noise


@pytest.fixture(scope="module")
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=11, n_positions=12, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        attn_implementation="eager",
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def log_prob(module, example):
    """log p of a sequence of tokens, those beyond its mask left out."""
    tokens, mask = example["tokens"], example["mask"]
    logits = module(input_ids=tokens[None], attention_mask=mask[None]).logits[0]
    chosen = torch.log_softmax(logits[:-1], -1).gather(1, tokens[1:, None])[:, 0]
    return (chosen * mask[1:]).sum()


def sequences(padding: int = 0) -> dict:
    rng = np.random.default_rng(4)
    tokens, mask = rng.integers(1, 11, (14, 7)), np.arange(7) < rng.integers(3, 8, (14, 1))
    wide = [np.pad(part, ((0, 0), (0, padding))) for part in (np.where(mask, tokens, 0), mask.astype(np.int64))]
    return {"tokens": wide[0], "mask": wide[1]}


def test_gpt2(gpt2):
    """The dense kernel at full rank, new sequences, padding that changes nothing; the tied head counts once."""
    model, data = nfk.torch.density(gpt2, log_prob), sequences()
    assert model.layout.size == sum(parameter.numel() for parameter in gpt2.parameters())
    assert "transformer/wte/weight" in model.layout.paths
    assert not any("lm_head" in path for path in model.layout.paths)
    K = nfk.gram(model, data)
    embedding = nfk.fit(model, data, 14, tol=0.1)
    E = embedding(data)
    assert_same(E @ E.T, K, 1e-4)
    new = jax.tree.map(lambda leaf: leaf[3:5], data)
    assert_same(embedding(new), E[3:5])
    assert_same(nfk.gram(model, sequences(padding=4)), K, 1e-4)


def test_attention_that_cannot_be_vectorised_is_told(gpt2):
    from transformers import GPT2LMHeadModel

    config = copy.deepcopy(gpt2.config)
    config._attn_implementation = "sdpa"
    model = nfk.torch.density(GPT2LMHeadModel(config).eval(), log_prob)
    with pytest.raises(ValueError, match=r"(?s)cannot vectorise.*module.transformer.*attn_implementation='eager'"):
        nfk.plan(model, sequences(), 3)


def test_resnet():
    """Batch norm in eval mode, with statistics of its own."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    module = ResNetForImageClassification(
        ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3)
    )
    photos = np.random.default_rng(0).standard_normal((12, 3, 16, 16), dtype=np.float32)
    module(torch.tensor(photos) * 2 + 1)
    model = nfk.torch.classifier(module.eval())  # its output is read at .logits
    E = nfk.fit(model, photos, 12, tol=0.1)(photos)
    assert_same(E @ E.T, nfk.gram(model, photos), 1e-4)


def test_a_spectral_norm_and_an_empty_parameter():
    """Parametrised weights keep their own names; what is not used has no gradient."""
    module = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 1))
    module.register_parameter("unused", nn.Parameter(torch.ones(3)))
    module.register_parameter("empty", nn.Parameter(torch.ones(0, 3)))
    model = nfk.torch.energy(module.eval())
    assert "0/parametrizations/weight/original" in model.layout.paths
    embedding = nfk.fit(model, X, 6)
    np.testing.assert_allclose(embedding.eigenvalues, np.linalg.eigvalsh(nfk.gram(model, X))[::-1][:6], rtol=1e-4)
    assert embedding.moments.dead >= 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_precision(dtype):
    """Half precision is read as float32; float64 stays where jax has it."""
    module = copy.deepcopy(three).to(dtype)
    widened = copy.deepcopy(module).to(torch.float64 if dtype == torch.float64 else torch.float32)
    with jax.enable_x64(dtype == torch.float64):
        model = nfk.torch.classifier(module)
        assert model.layout.dtype == (np.float64 if dtype == torch.float64 else np.float32)
        K, expected = nfk.gram(model, X), nfk.gram(nfk.torch.classifier(widened), X)
        np.testing.assert_allclose(K, expected, rtol=1e-6, atol=1e-6)
        for engine in ("gradients", "products"):
            found = nfk.fit(model, X, 4, engine=engine).eigenvalues
            np.testing.assert_allclose(found, np.linalg.eigvalsh(K)[::-1][:4], rtol=1e-4)


def test_float64_without_jax_in_float64():
    found = nfk.fit(nfk.torch.classifier(copy.deepcopy(three).double()), X.astype(np.float64), 4).eigenvalues
    np.testing.assert_allclose(found, nfk.fit(nfk.torch.classifier(three), X, 4).eigenvalues, rtol=1e-4)


def test_parameters_that_need_no_gradient_take_part_and_nothing_of_the_module_changes():
    module = copy.deepcopy(three)
    module.first.requires_grad_(False)
    before = copy.deepcopy(module.state_dict())
    model = nfk.torch.classifier(module)
    np.testing.assert_allclose(nfk.gram(model, X), nfk.gram(nfk.torch.classifier(three), X), rtol=1e-6)
    nfk.fit(model, torch.tensor(X), 3)
    assert not module.first.weight.requires_grad
    assert module.second.weight.grad is None
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_parameters_and_gradients_are_not_copied(monkeypatch):
    assert of(three)["first"]["weight"].ctypes.data == three.first.weight.data_ptr()
    pairs = []
    original = nfk.torch.derivatives.shared

    def noted(tensor):
        array = original(tensor)
        pairs.append((array.unsafe_buffer_pointer(), tensor.data_ptr()))
        return array

    monkeypatch.setattr(nfk.torch.derivatives, "shared", noted)
    nfk.fit(nfk.torch.network(three), X, 3, engine="gradients")
    assert len(pairs) >= 4
    assert all(ours == theirs for ours, theirs in pairs)


def test_memory_that_jax_reads_is_not_used_again():
    array = nfk.torch.derivatives.shared(torch.full((512, 512), 3.0))
    gc.collect()
    others = [torch.full((512, 512), float(number)) for number in range(8)]
    assert (np.asarray(array) == 3).all()
    assert len(others) == 8


@pytest.mark.parametrize(
    "change",
    [
        lambda m: torch.optim.SGD(m.parameters(), 0.1).step(),
        lambda m: m.first.weight.data.mul_(1.01),
        lambda m: m.register_buffer("late", torch.ones(2)),
    ],
)
def test_a_module_that_is_trained_on_is_found(change):
    module = copy.deepcopy(three)
    model, unused = nfk.torch.classifier(module), nfk.torch.classifier(module)
    embedding = nfk.fit(model, X, 3)
    module(torch.tensor(X)).sum().backward()
    change(module)
    for use in (lambda: embedding(X), lambda: nfk.fit(model, X, 3), lambda: nfk.gram(unused, X)):
        with pytest.raises(RuntimeError, match=r"have changed since nfk.torch.classifier was called.*call nfk.torch"):
            use()


def test_training_mode_is_told():
    module = copy.deepcopy(three)
    embedding = nfk.fit(nfk.torch.classifier(module), X, 3)
    with pytest.raises(ValueError, match=r"module is in training mode.*call module.eval\(\)"):
        nfk.torch.classifier(module.train())
    with pytest.raises(ValueError, match=r"module is in training mode.*call module.eval\(\)"):
        embedding(X)
    dropout = nn.Sequential(nn.Linear(6, 3), nn.Dropout()).eval()
    dropout[1].train()
    with pytest.raises(ValueError, match=r"module.1 \(Dropout\) is in training mode, though the module is not"):
        nfk.torch.classifier(dropout)


def test_statistics_of_the_batch_are_told():
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval()
    with pytest.raises(ValueError, match=r"module.1 \(BatchNorm1d, track_running_stats=False\).*nn.GroupNorm"):
        nfk.torch.classifier(module)


class Branching(nn.Module):
    def forward(self, x):
        return 2 * x if x.sum().item() > 0 else x


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cells, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.cells(x.reshape(len(x), 3, 2))[0][:, -1])


@pytest.mark.parametrize(
    ("module", "cause"),
    [
        (nn.Sequential(nn.Linear(6, 3), Branching()).eval(), r"module.1 \(Branching\): vmap.*item\(\).*torch.where"),
        (Recurrent().eval(), r"module.cells \(GRU\): .*vectorised=False"),
    ],
)
def test_what_cannot_be_vectorised_is_told_and_taken_one_by_one(module, cause):
    with pytest.raises(ValueError, match=f"(?s)torch.func cannot vectorise .* at {cause}"):
        nfk.fit(nfk.torch.classifier(module), X, 3)
    model = nfk.torch.classifier(module, vectorised=False)
    found = nfk.fit(model, X, 3).eigenvalues
    np.testing.assert_allclose(found, np.linalg.eigvalsh(nfk.gram(model, X))[::-1][:3], rtol=1e-4)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: nfk.torch.classifier(three.state_dict()), "takes a torch.nn.Module first, not a OrderedDict"),
        (lambda: nfk.langevin(nfk.torch.energy(one), X), "written in torch, and this needs a score that JAX"),
        (lambda: nfk.torch.density(three, None), r"takes a function of \(module, example\) second"),
        (lambda: nfk.torch.classifier(three, centered=True), r"no option 'centered': the options are .*, vectorised"),
        (lambda: nfk.torch.vae(three, elbo, noise=2), r"noise=2 must be the shape .* noise=\(16,\)"),
        (lambda: nfk.torch.gan(one), r"pass a function sample\(seed, n\)"),
        (lambda: nfk.torch.gan(one, sample=3), r"sample must be a function of two arguments: sample\(seed, n\)"),
        (
            lambda: nfk.fit(nfk.torch.gan(one, sample=lambda seed, n: n / 0, samples=8), X, 3),
            r"(?s)sample\(key, n\) failed.*for nfk.torch a seed",
        ),
        (lambda: nfk.fit(nfk.torch.classifier(one), X, 3), r"shape \(1,\).*two or more logits.*torch.stack"),
        (lambda: nfk.fit(nfk.torch.classifier(three, lambda m, x: [m(x)]), X, 3), "apply returned a list of shape"),
        (lambda: nfk.fit(nfk.torch.density(three, lambda m, x: m(x)), X, 3), r"shape \(3,\).*must be a scalar"),
        (lambda: nfk.fit(nfk.torch.density(three, lambda m, x: 1.0), X, 3), "returned a float: return one tensor"),
        (lambda: nfk.fit(nfk.torch.density(three, lambda m, x: m(x).argmax()), X, 3), "dtype int64: return floats"),
        (
            lambda: nfk.fit(nfk.torch.density(three, lambda m, x: m(x + torch.randn(6)).sum()), X, 3),
            "score of nfk.torch.density is random.*noise=shape",
        ),
        (
            lambda: nfk.fit(nfk.torch.classifier(three), X[:, :5], 3),
            r"(?s)could not be evaluated on one example of shape \(5,\).*lambda module, x: module\(x\[None\]\)\[0\]",
        ),
        (
            lambda: nfk.torch.classifier(nn.Linear(6, 3, device="meta").eval()),
            "module.weight is on the meta device, which has no numbers: load the weights first",
        ),
    ],
)
def test_mistakes_are_told(mistake, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mistake()


def test_parameters_that_are_not_finite_are_told():
    module = copy.deepcopy(three)
    module.second.bias.data[0] = np.nan
    with pytest.raises(ValueError, match=r"params\['second/bias'\] holds NaN or infinity"):
        nfk.torch.classifier(module)


def test_a_plan_counts_what_the_module_does():
    plan = nfk.plan(nfk.torch.classifier(images), IMAGES, 4)
    assert plan.problem.forward_flops >= 2 * (4 * 9 * 16 + 64 * 3)
    assert 4 * 64 <= plan.problem.activation_bytes < 4 * 64 * 40
    wide = Perceptron(6, 50, 200).eval()  # its weights are in memory already, and autograd keeps no copy of them
    assert nfk.plan(nfk.torch.network(wide), X, 4).problem.activation_bytes < 4 * 50 * 200
    assert nfk.plan(nfk.torch.network(Perceptron(6, 50, 200).eval()), X, 4).engine == "products"


def test_a_call_of_a_small_module_takes_more_examples():
    """Of 100,000 parameters: 16 in 4 MB would take longer for the call than for their gradients."""
    images = vectors(np.float32, 100, count=80)
    module = Perceptron(100, 1000, 1).eval()
    assert nfk.plan(nfk.torch.energy(module), images, 4, keep=True).batches.gradients == 41  # 16 MB
    assert nfk.plan(nfk.torch.energy(Perceptron(100, 10, 1).eval()), images, 4, keep=True).batches.gradients == 64


def test_save_then_load_is_the_identity(tmp_path):
    module = copy.deepcopy(three)
    embedding = nfk.fit(nfk.torch.classifier(module), X, 3, save=tmp_path)
    again = nfk.load(tmp_path, nfk.torch.classifier(copy.deepcopy(module)))
    np.testing.assert_array_equal(again(X), embedding(X))
    with torch.no_grad():
        module.first.bias[0] += 1
    with pytest.raises(ValueError, match=r"another network: params\['first/bias'\] has other values"):
        nfk.load(tmp_path, nfk.torch.classifier(module))
    with pytest.raises(ValueError, match="another network: with the same parameters"):
        nfk.load(tmp_path, nfk.torch.classifier(three, lambda m, x: 2 * m(x)))(X)


def test_a_pipeline_of_sklearn_is_fitted_and_pickled():
    pipeline = make_pipeline(FisherEmbedding(nfk.torch.classifier(three), n_components=4), LogisticRegression())
    pipeline.fit(X, X[:, 0] > 0)
    again = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(again.predict(X), pipeline.predict(X))


@pytest.mark.around
def test_the_core_does_not_import_torch():
    script = "import nfk, sys; assert 'torch' not in sys.modules; sys.modules['torch'] = None; import nfk.torch"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "ImportError: nfk.torch needs PyTorch: pip install 'nfk[torch]'" in result.stderr


def test_no_warning_on_an_ordinary_fit():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nfk.fit(nfk.torch.classifier(images), torch.tensor(IMAGES), 4)(IMAGES[:2])
