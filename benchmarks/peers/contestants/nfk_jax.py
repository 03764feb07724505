"""nfk as its user writes it, on the network in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# user: begin
import nfk

# user: end
from benchmarks.peers import jax_networks
from benchmarks.peers.job import Job
from benchmarks.peers.measure import Answer, Stopwatch, contest

CONSTRUCTORS = {"classifier": nfk.classifier, "gan": nfk.gan, "density": nfk.density}


def options(job: Job, sample: Callable) -> dict[str, Any]:
    """What makes the model's kernel that of the job."""
    if not job.kernel_is_fisher:
        return {"fisher": "identity", "centred": False, "expectation": "data"}
    return {"damping": job.settings.damping} | (
        {} if job.samples is None else {"sample": sample, "samples": len(job.samples)}
    )


def answer(embedding: nfk.Embedding, new_examples: Any) -> Answer:
    certificate = float(embedding.residuals.max())
    facts = {"passes": embedding.passes, "certificate": certificate, "plan": str(embedding.plan)}
    return Answer(
        embedding.eigenvalues, facts, train=embedding.training, embed=lambda: np.asarray(embedding(new_examples))
    )


def prepare(job: Job) -> Callable[[Stopwatch], Answer]:
    network, params, X = jax_networks.apply(job), jax_networks.params(job), jax_networks.examples(job)
    constructor, rank = CONSTRUCTORS[job.settings.family], job.settings.rank
    tolerance = {} if job.settings.tol is None else {"tol": job.settings.tol}
    choices = options(job, lambda key, n: jax_networks.examples(job, "samples")[:n])
    new = None if job.new_examples is None else jax_networks.examples(job, "new_examples")

    def solve(watch: Stopwatch) -> Answer:
        # user: begin
        model = constructor(network, params, **choices)
        embedding = nfk.fit(model, X, rank, **tolerance)
        # user: end
        watch.lap("fit")
        return answer(embedding, new)

    return solve


if __name__ == "__main__":
    contest(prepare)
