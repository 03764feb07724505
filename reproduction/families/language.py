"""A causal language model of film sentences; its sentence embeddings tell opinion from fact, praise from blame."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

import nfk
from reproduction.data import Sentences, sentences
from reproduction.families.family import Baselines, Family
from reproduction.networks.transformer import CausalTransformer
from reproduction.text import Vocabulary
from reproduction.training import in_batches, train_module

LENGTH, WORDS = 48, 3000


class Language(Family):
    """log p of a sentence. Trained once, without labels, on the training sentences of both tasks."""

    name, network = "language", "causal transformer"
    rows, test_rows = 8_000, 2_000
    steps = 1_600

    def __init__(self, task: str) -> None:
        self.data = task

    @property
    def label(self) -> str:
        return "language-films"

    def splits(self, download: bool = False) -> tuple[Any, Any]:
        return sentences(self.data, "train", download=download), sentences(self.data, "test", download=download)

    @cached_property
    def _corpus(self) -> list[str]:
        return [text for task in ("polarity", "subjectivity") for text in sentences(task, "train").texts]

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self._corpus, WORDS)

    def examples(self, data: Sentences) -> dict[str, np.ndarray]:
        return self.vocabulary.encode(data.texts, LENGTH)

    def build(self, seed: int) -> CausalTransformer:
        return CausalTransformer(WORDS, LENGTH, 64, 2, 4, rngs=nnx.Rngs(seed))

    def train(self, network: Any, train: Any, seed: int, folder: Path | None) -> Any:
        def loss(module: Any, batch: dict, key: jax.Array) -> jax.Array:
            return -module.log_prob(batch["tokens"], batch["mask"]).sum() / batch["mask"].sum()

        schedule = optax.warmup_cosine_decay_schedule(0, 3e-3, 100, self.steps)
        return train_module(
            network, loss, self.vocabulary.encode(self._corpus, LENGTH),
            optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1)),
            steps=self.steps, batch=64, seed=seed, folder=folder, name=self.label,
        )  # fmt: skip

    def metric(self, network: Any, test: Any) -> tuple[str, float]:
        X = self.examples(test)
        log_p = in_batches(lambda batch: network.log_prob(batch["tokens"], batch["mask"]), X)
        return "perplexity per word", float(np.exp(-log_p.sum() / X["mask"].sum()))

    def model(self, network: CausalTransformer) -> nfk.Model:
        """By the gradient in the layers: those in the tables of words mostly tell which rare words a sentence has."""
        log_prob = lambda module, batch: module.log_prob(batch["tokens"], batch["mask"])  # noqa: E731
        return nfk.density(*nfk.from_nnx(network, method=log_prob), parameters="layers/*")

    def activations(self, network: CausalTransformer, X: dict) -> np.ndarray:
        """The mean hidden state over the words of a sentence."""

        def mean(batch: dict) -> jax.Array:
            weights = batch["mask"][..., None]
            return jnp.sum(weights * network.hidden(batch["tokens"]), axis=1) / jnp.sum(weights, axis=1)

        return in_batches(mean, X)

    def baselines(self, train: Any, test: Any, rank: int, seed: int) -> Baselines:
        """Word counts, and the leading singular vectors of weighted word counts (latent semantic analysis)."""
        words = CountVectorizer(binary=True, token_pattern=r"\S+").fit(train.texts)
        weighted = TfidfVectorizer(token_pattern=r"\S+", sublinear_tf=True).fit(train.texts)
        lsa = TruncatedSVD(rank, random_state=seed).fit(weighted.transform(train.texts))
        return {
            "bag of words": (words.transform(train.texts), words.transform(test.texts)),
            "lsa": tuple(lsa.transform(weighted.transform(part.texts)) for part in (train, test)),
        }
