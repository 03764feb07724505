"""Three lines for the models people have: sequences with padding, encoders, denoisers; what is told and noted."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the PyTorch bridge; pip install 'nfk[torch]' to run it")

import jax
import numpy as np
from torch import nn

import nfk
import nfk.torch
from nfk.torch import tensors

rng = np.random.default_rng(0)
LENGTHS = rng.integers(3, 7, 10)
SENTENCES = [rng.integers(1, 11, length) for length in LENGTHS]


def padded(side: str, width: int = 7) -> dict:
    """The sentences as a tokenizer returns them."""
    missing = [width - len(tokens) for tokens in SENTENCES]
    pads = [(0, count) if side == "right" else (count, 0) for count in missing]
    pairs = list(zip(SENTENCES, pads, strict=True))
    return {
        "input_ids": np.stack([np.pad(tokens, pad) for tokens, pad in pairs]),
        "attention_mask": np.stack([np.pad(np.ones_like(tokens), pad) for tokens, pad in pairs]),
    }


def gpt2(**options):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape = dict(vocab_size=11, n_positions=12, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(GPT2Config(**shape, **options)).eval()


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=12,
        )
    ).eval()  # fmt: skip


def bert(head: str = "BertModel"):
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12, num_labels=3,
    )  # fmt: skip
    return getattr(transformers, head)(config).eval()


def gradient(model: nfk.Model, example) -> np.ndarray:
    leaves = model.network.jacobian(example, jax.random.key(0))
    return np.concatenate([leaf.reshape(-1) for leaf in leaves])


def embedded(model: nfk.Model, data) -> np.ndarray:
    E = nfk.fit(model, data, 4, method="exact")(data)
    return E * np.sign(E[np.abs(E).argmax(axis=0), np.arange(4)])


@pytest.mark.parametrize("make", [gpt2, llama])
def test_padding_of_a_language_model_changes_nothing(make):
    """Left, right and none: the same gradient, and the same embedding; the gradient is that of plain autograd."""
    module = make()
    model = nfk.torch.language_model(module)
    right, left = padded("right"), padded("left")
    for index, tokens in enumerate(SENTENCES[:3]):
        batch = torch.tensor(tokens)[None]
        module.zero_grad()
        each = torch.log_softmax(module(batch).logits[0, :-1], -1)
        each.gather(1, batch[0, 1:, None]).sum().backward()
        names = model.network.names
        known = dict(module.named_parameters())
        expected = np.concatenate([known[name].grad.reshape(-1).numpy() for name in names])
        of = lambda data, i=index: jax.tree.map(lambda leaf: leaf[i], data)  # noqa: E731
        for example in (tokens, of(right), of(left)):
            np.testing.assert_allclose(gradient(model, example), expected, atol=1e-5 * np.abs(expected).max())
    E = embedded(model, right)
    for data in (left, padded("right", 9), padded("left", 9)):
        np.testing.assert_allclose(embedded(model, data), E, atol=2e-3 * np.abs(E).max())
    E = nfk.fit(model, right, 10, method="exact")(right)
    K = nfk.gram(model, right)
    np.testing.assert_allclose(E @ E.T, K, atol=1e-4 * np.abs(K).max())


def test_tokens_without_a_mask_and_a_module_of_ones_own():
    class Bigram(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table, self.head = nn.Embedding(11, 5), nn.Linear(5, 11)

        def forward(self, words):
            return self.head(torch.tanh(self.table(words)))

    module = Bigram().eval()
    data = padded("right")
    score = nfk.torch.language_model(module).network.evaluate(
        jax.tree.map(lambda leaf: leaf[0], data), jax.random.key(0)
    )
    tokens = torch.tensor(SENTENCES[0])
    expected = torch.log_softmax(module(tokens)[:-1], -1)[torch.arange(len(tokens) - 1), tokens[1:]].sum()
    np.testing.assert_allclose(score, expected.item(), rtol=1e-5)
    whole = np.stack([np.resize(tokens, 7) for tokens in SENTENCES])
    assert embedded(nfk.torch.language_model(gpt2()), whole).shape == (10, 4)


@pytest.mark.parametrize("make", [
    lambda: nfk.torch.encoder(bert()),
    lambda: nfk.torch.classifier(bert("BertForSequenceClassification")),
])  # fmt: skip
def test_an_encoder_with_padding_is_vectorised(make):
    model = make()
    E = nfk.fit(model, padded("right"), 10, method="exact", tol=0.1)(padded("right"))
    K = nfk.gram(model, padded("right", 9))
    np.testing.assert_allclose(E @ E.T, K, atol=1e-3 * np.abs(K).max())


def test_the_score_of_an_encoder():
    module, tokens = bert(), SENTENCES[0]
    model = nfk.torch.encoder(module)
    with torch.no_grad():
        states = module(torch.tensor(tokens)[None]).last_hidden_state[0]
    example = jax.tree.map(lambda leaf: leaf[0], padded("right"))
    np.testing.assert_allclose(
        model.network.evaluate(example, jax.random.key(0)), -0.5 * (states.mean(0) ** 2).sum(), rtol=1e-4
    )
    pooled = nfk.torch.encoder(module, lambda m, e: 2 * m(e[None]).last_hidden_state[0].mean(0))
    np.testing.assert_allclose(
        pooled.network.evaluate(tokens, jax.random.key(0)), -2 * (states.mean(0) ** 2).sum(), rtol=1e-4
    )


def test_large_tables_take_no_part_and_the_plan_says_so(monkeypatch):
    whole = nfk.torch.language_model(gpt2())
    assert "take part" not in str(nfk.plan(whole, padded("right"), 2))
    monkeypatch.setattr(tensors, "LARGE", 100)
    model = nfk.torch.language_model(gpt2())
    assert not any("wte" in path or "wpe" in path for path in model.layout.slices)
    assert model.layout.size == whole.layout.size - 11 * 8 - 12 * 8
    text = str(nfk.plan(model, padded("right"), 2))
    assert f"{model.layout.size:,} of {whole.layout.size:,} parameters take part" in text
    assert "transformer/wte/weight" in text
    assert nfk.torch.language_model(gpt2(), parameters="*").layout.size == whole.layout.size


class Denoiser(nn.Module):
    """E[eps | x_t] for x ~ N(mean, 1): sqrt(1 - a) (x_t - sqrt(a) mean)."""

    def __init__(self, kept: np.ndarray) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.register_buffer("kept", torch.tensor(kept, dtype=torch.float32))

    def forward(self, noisy, steps):
        a = self.kept[steps][:, None]
        return (1 - a).sqrt() * (noisy - a.sqrt() * self.mean)


def test_the_best_denoiser_of_a_gaussian_has_the_score_of_the_gaussian():
    """sum over t of (SNR(t-1)/SNR(t) - 1) a (1 - a) -> a_1 - a_T, so grad -> x - mean: that of log p(x)."""
    kept = 1 / (1 + np.exp(np.linspace(-7, 7, 400)))
    scheduler = type("Scheduler", (), {"alphas_cumprod": torch.tensor(kept)})()
    model = nfk.torch.diffusion(Denoiser(kept).eval(), scheduler, shape=(3,), times=399)
    x, y = rng.standard_normal((2, 3)).astype(np.float32)
    g, h = (gradient(model, example) for example in (x, y))
    np.testing.assert_allclose(g - h, x - y, rtol=0.05, atol=0.02)  # the draws are common, so they cancel
    draws = [model.network.jacobian(x, jax.random.key(seed))[0].reshape(-1) for seed in range(100)]
    np.testing.assert_allclose(np.mean(draws, axis=0), x - np.array([0.5, -1, 2]), atol=0.2)
    fewer = nfk.torch.diffusion(Denoiser(kept).eval(), kept, shape=(3,), times=40)
    np.testing.assert_allclose(gradient(fewer, x) - gradient(fewer, y), x - y, rtol=0.1, atol=0.1)
    data = rng.standard_normal((12, 3)).astype(np.float32)
    E = nfk.fit(fewer, data, 3, method="exact")(data)
    np.testing.assert_allclose(E @ E.T, nfk.gram(fewer, data), atol=1e-3)


torch_module = nn.Linear(3, 2).eval()


def pooled_by_hand(module, example):
    """As the documentation of `transformers` has it, with a batch axis of one."""
    one = {name: leaf[None] for name, leaf in example.items()}
    return module(**one).pooler_output.square().sum()


def test_a_function_of_ones_own_takes_a_padding_mask():
    def pooled(module, example):
        return nfk.torch.output(module, example).pooler_output.square().sum()

    data, module = padded("right"), bert()
    E = nfk.fit(nfk.torch.energy(module, pooled), data, 3, method="exact")(data)
    F = nfk.fit(nfk.torch.energy(module, pooled_by_hand, vectorised=False), data, 3, method="exact")(data)
    np.testing.assert_allclose(E * np.sign((E * F).sum(axis=0)), F, atol=1e-3 * np.abs(F).max())


def test_what_a_tokenizer_returns_is_data():
    transformers = pytest.importorskip("transformers")
    data, model = padded("right"), nfk.torch.encoder(bert())
    expected = nfk.fit(model, data, 2)(data)
    for made in (lambda leaf: leaf, lambda leaf: leaf.tolist(), torch.tensor):  # return_tensors="np", None and "pt"
        found = transformers.BatchEncoding({name: made(leaf) for name, leaf in data.items()})
        np.testing.assert_array_equal(nfk.fit(model, found, 2)(found), expected)


def test_a_network_of_timm():
    timm = pytest.importorskip("timm", reason="needs torchvision too; pip install timm")
    torch.manual_seed(0)
    module = timm.create_model("resnet18", pretrained=False, num_classes=5).eval()
    model = nfk.torch.classifier(module, parameters=["conv1/*", "*bn*", "fc/*"])  # the definition takes all at once
    images = np.random.default_rng(0).standard_normal((6, 3, 32, 32)).astype(np.float32)
    embedding = nfk.fit(model, images, 3)
    np.testing.assert_allclose(embedding.eigenvalues, np.linalg.eigvalsh(nfk.gram(model, images))[::-1][:3], rtol=1e-3)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            lambda: nfk.torch.density(gpt2()),
            r"function of \(module, example\) second.*nfk.torch.language_model\(module\)",
        ),
        (
            lambda: nfk.classifier(torch_module),
            r"for a PyTorch module there is nfk.torch.*nfk.torch.classifier\(module",
        ),
        (lambda: nfk.energy(torch_module, None), r"nfk.torch.energy\(module.eval\(\)"),
        (lambda: nfk.vae(torch_module), r"nfk.torch.vae\(module.eval\(\)"),
        (lambda: nfk.gan(lambda p, x: x), r"nfk.gan takes a function first and its parameters second"),
        (lambda: nfk.torch.diffusion(torch_module, [0.1, 0.5], shape=(3,)), r"schedule must be the falling numbers"),
        (lambda: nfk.torch.diffusion(torch_module, [0.5, 0.1], shape=3), r"shape=3 must be the shape of one example"),
        (
            lambda: nfk.plan(nfk.torch.language_model(bert()), padded("right"), 2),
            r"row of logits for every token.*nfk.torch.encoder\(module\)",
        ),
        (lambda: nfk.plan(nfk.torch.classifier(bert()), padded("right"), 2), r"for an encoder .*nfk.torch.encoder"),
        (
            lambda: nfk.plan(nfk.torch.energy(bert()), padded("right"), 2),
            r"output of shape \(7, 8\) .*not one number: .*nfk.torch.encoder\(module\)",
        ),
        (
            lambda: nfk.fit(nfk.torch.energy(bert(), pooled_by_hand), padded("right"), 2),
            r"(?s)in the forward function of the module \(BertModel\).*padding mask.*nfk.torch.output\(module, exam",
        ),
        (
            lambda: nfk.fit(torch_module, np.zeros((5, 3)), 2),
            r"a PyTorch module: say what its score is.*nfk.torch.class",
        ),
        (
            lambda: nfk.fit(nfk.torch.encoder(bert()), ["one text", "another"], 2),
            r"X is text: pass numbers.*tokenizer\(X, padding=True, return_tensors='np'\)",
        ),
        (
            lambda: nfk.plan(nfk.torch.language_model(gpt2()), {"tokens": padded("right")["input_ids"]}, 2),
            r"has no 'input_ids'",
        ),
    ],
)
def test_mistakes_are_told(mistake, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mistake()
