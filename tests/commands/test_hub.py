"""Model folders of `transformers`, small ones made here, and a tokenizer of whole words: from texts to an embedding."""

from __future__ import annotations

import json

import numpy as np
import pytest

from nfk.cli.models import model_named
from nfk.cli.reading import Reading, read
from nfk.runs import read_run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.xdist_group("transformers")

TEXTS = [f"{'good' if i % 2 else 'bad'} film {'very ' * (i % 5)}{'yes no what ' * (i % 3)}end" for i in range(12)]
WORDS = ["[PAD]", "[UNK]", "good", "bad", "film", "very", "yes", "no", "what", "end"]


def save_tokenizer(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers

    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]")
    fast.save_pretrained(folder)


@pytest.fixture
def folder(here):
    """A GPT-2 of two small layers in `gpt`, BERT as a classifier and alone in `bert` and `encoder`, and `films.txt`."""
    torch.manual_seed(0)
    sizes = {"vocab_size": len(WORDS), "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    gpt = transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=32, **sizes)
    transformers.GPT2LMHeadModel(gpt).save_pretrained("gpt")
    bert = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=len(WORDS),
        max_position_embeddings=32,
    )  # fmt: skip
    transformers.BertForSequenceClassification(bert).save_pretrained("bert")
    transformers.BertModel(bert).save_pretrained("encoder")
    for name in ("gpt", "bert", "encoder"):
        save_tokenizer(here / name)
    (here / "films.txt").write_text("\n".join(TEXTS) + "\n")
    return here


def test_texts_are_tokens_padded_behind(folder):
    data = read("films.txt", Reading(length=10), "gpt")
    first = data.examples["input_ids"][0]
    assert [WORDS[token] for token in first[:3]] == ["bad", "film", "end"]
    assert data.examples["attention_mask"][0].tolist() == [1, 1, 1] + [0] * 7
    assert data.shown == TEXTS


@pytest.mark.parametrize("length", [14, 20])
def test_the_score_of_a_language_model_is_its_log_likelihood_whatever_the_padding(length, folder):
    """Against the loss that transformers computes for one text alone, without any padding."""
    model, data = model_named("gpt"), read("films.txt", Reading(length=length), "gpt")
    module = transformers.GPT2LMHeadModel.from_pretrained("gpt").eval()
    for row in (0, 5):
        example = {name: part[row] for name, part in data.examples.items()}
        tokens = torch.tensor(example["input_ids"][example["attention_mask"] > 0])[None]
        with torch.no_grad():
            expected = -module(tokens, labels=tokens).loss.item() * (tokens.shape[1] - 1)
        assert float(np.asarray(model.network.evaluate(example, None))) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("name", "kind"), [("gpt", "language_model"), ("bert", "classifier"), ("encoder", "encoder")])
def test_from_texts_to_an_embedding(name, kind, folder, nfk_command):
    done = nfk_command("fit", name, "films.txt", "--rank", 3, "--length", 14)
    assert (done.code, done.err) == (0, "")
    run = read_run("run")
    assert (run.examples, run.family) == (TEXTS, f"torch.{kind}")
    assert nfk_command("embed", "run", "films.txt", "-o", "e.npy").code == 0
    np.testing.assert_allclose(np.load("e.npy"), run.embedding, rtol=1e-2, atol=1e-2 * np.abs(run.embedding).max())


def test_a_folder_that_is_damaged_is_named(folder, nfk_command):
    (folder / "gpt" / "model.safetensors").write_bytes(b"nothing")
    done = nfk_command("plan", "gpt", "films.txt")
    assert done.code == 2
    assert "gpt could not be read by transformers" in done.err


def test_texts_without_a_tokenizer(folder, nfk_command):
    config = json.loads((folder / "gpt" / "config.json").read_text())
    (folder / "bare").mkdir()
    (folder / "bare" / "config.json").write_text(json.dumps(config))
    done = nfk_command("plan", "mine.py:model", "films.txt", "--tokenizer", "bare")
    assert done.code == 2
    assert "--tokenizer bare: there is no tokenizer in such a folder" in done.err
