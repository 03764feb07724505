"""From a model and a data set to an embedding: checks, plan, moments, SVD. Wires; computes nothing itself."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nfk import files
from nfk.blocks import random_block
from nfk.embedding import Embedding, probe_score
from nfk.features import GradientFeatures, ProductFeatures
from nfk.krylov import krylov
from nfk.models import Model, split_key
from nfk.moments import Moments, Sketch, estimate
from nfk.planning import Engine, Method, Plan, Side, make_plan
from nfk.progress import Reporter
from nfk.stream import Examples, Generated
from nfk.svd import SVD, Goal, Interrupted, exact, power

POWER_ITERATIONS = 10


def plan(
    model: Model,
    X: Any,
    rank: int | float = 128,
    *,
    method: Method = "krylov",
    engine: Engine | None = None,
    side: Side | None = None,
    keep: bool | None = None,
    memory: int | str | None = None,
    oversamples: int = 10,
) -> Plan:
    """What `fit` would do with the same arguments, and at what cost. Takes one trace of the network, runs nothing."""
    check_model(model)
    examples = Examples(X)
    _check_count(examples)
    return make_plan(
        model,
        examples,
        rank,
        method=method,
        engine=engine,
        side=side,
        keep=keep,
        memory=memory,
        oversamples=oversamples,
    )


def fit(
    model: Model,
    X: Any,
    rank: int | float = 128,
    *,
    key: int | jax.Array = 0,
    method: Method = "krylov",
    engine: Engine | None = None,
    side: Side | None = None,
    keep: bool | None = None,
    memory: int | str | None = None,
    tol: float = 1e-3,
    oversamples: int = 10,
    max_steps: int = 30,
    save: str | Path | None = None,
    progress: bool | None = None,
) -> Embedding:
    """The top `rank` eigenfunctions of the model's Fisher kernel over X: V = Phi Sigma Q', e(x) = V_x Q_k.

    `rank` is a number of components, or a fraction of variance to explain (0.95). `tol` bounds every component's
    relative residual. `memory` ("4GB") is a budget that is kept; `nfk.plan` shows what fits in it. `save` names a
    folder, checked before the work and written after it. Typically 8 passes over the gradients; memory beyond the data
    does not grow with N, except for N x columns numbers, unless all gradients fit in the budget and are kept.

    Ctrl-C raises `nfk.Interrupted`; its `result` is the embedding that the finished passes are worth (saved, too, where
    `save` names a folder).
    """
    check_model(model)
    _check_options(tol, oversamples, max_steps)
    examples = Examples(X)
    if save is not None:
        files.check_writable(Path(save))
        files.describe_model(model)
    chosen = plan(
        model,
        examples,
        rank,
        method=method,
        engine=engine,
        side=side,
        keep=keep,
        memory=memory,
        oversamples=oversamples,
    )
    examples.check()
    reporter = Reporter(progress)
    try:
        with reporter.running():
            embedding = _Fit(model, examples, chosen, key, tol, max_steps, reporter).run()
    except Interrupted as stop:
        if save is not None and isinstance(stop.result, Embedding):
            _save(stop.result, save)
        raise
    if save is not None:
        _save(embedding, save)
    return embedding


def _save(embedding: Embedding, folder: str | Path) -> None:
    """What was computed is returned even where it cannot be written."""
    try:
        embedding.save(folder)
    except OSError as error:
        text = f"save={str(folder)!r} failed: {error}; the embedding is returned all the same, save it elsewhere"
        warnings.warn(text, stacklevel=3)


def _check_count(examples: Examples) -> None:
    if len(examples) == 0:
        raise ValueError("X holds no examples: pass at least two")
    if len(examples) == 1:
        raise ValueError("X holds one example: a kernel over a data set needs at least two; is the batch axis missing?")


def check_model(model: Any) -> None:
    if not isinstance(model, Model):
        raise TypeError(
            f"model is a {type(model).__name__}: wrap the network first, as in nfk.classifier(apply, params); there "
            "are also nfk.gan, nfk.energy, nfk.vae, nfk.density and nfk.network"
        )


def _check_options(tol: float, oversamples: int, max_steps: int) -> None:
    if not isinstance(tol, (int, float, np.floating)) or not tol > 0:
        raise ValueError(f"tol={tol!r} must be a positive number: 1e-3 is a good start")
    if not isinstance(oversamples, (int, np.integer)) or oversamples < 0:
        raise ValueError(f"oversamples={oversamples!r} must be a whole number, 0 or more")
    if not isinstance(max_steps, (int, np.integer)) or max_steps < 1:
        raise ValueError(f"max_steps={max_steps!r} must be a whole number, 1 or more")


class _Fit:
    """One fit: what the steps share."""

    def __init__(
        self, model: Model, examples: Examples, plan: Plan, key: Any, tol: float, max_steps: int, reporter: Reporter
    ) -> None:
        self.model, self.examples, self.plan = model, examples, plan
        self.tol, self.max_steps, self.reporter = tol, max_steps, reporter
        start_key, self.sample_key, self.score_key = split_key(key)
        self.seed = np.random.default_rng(np.asarray(jax.random.key_data(start_key)).tolist())
        self.differentiator = model.differentiate(self.score_key, plan.problem.outputs, plan.unrolled)
        self.probe = probe_score(model, examples)

    def run(self) -> Embedding:
        moments: Any = None
        try:
            if self.plan.rival is not None:
                self._time_engines()
            moments, kept, start = self._moments()
            return self._embedding(self._decompose(self._operator(moments, kept), start), moments)
        except KeyboardInterrupt as stop:
            found = getattr(stop, "result", None)
            result = None if found is None else self._embedding(found, moments)
            raise Interrupted(_interrupted_text(result), result) from None

    def _embedding(self, svd: SVD, moments: Moments) -> Embedding:
        return Embedding.from_svd(svd, self.model, moments, self.score_key, self.examples, self.plan, self.probe)

    def _moments(self) -> tuple[Moments, np.ndarray | None, np.ndarray | None]:
        """The moments; the raw gradients where they are kept and the same pass gives both; a start for the SVD."""
        model, plan, p = self.model, self.plan, self.plan.problem
        if not model.needs_moments:
            return Moments.trivial(model), None, None
        over, kept, sketch = self.examples, None, None
        if model.expectation == "model":
            over = Examples(Generated(model.sample, self.sample_key, model.samples), name="sample")
            _check_samples(over, self.examples)
        elif plan.keep and p.on_host:
            kept = np.empty((p.rows, p.parameters), model.layout.dtype)
        if plan.engine == "gradients" and plan.side == "parameters" and p.method == "krylov" and p.on_host:
            sketch = Sketch(model.layout, p.width, plan.chunk * p.outputs, self.seed, kept)
        moments = estimate(self.differentiator, over, plan.microbatch, self.reporter, kept, sketch)
        return moments, kept, None if sketch is None else sketch.block(moments)

    def _operator(self, moments: Moments, kept: np.ndarray | None = None) -> GradientFeatures | ProductFeatures:
        plan = self.plan
        common: dict[str, Any] = dict(on_host=plan.problem.on_host, reporter=self.reporter)
        if plan.engine == "products":
            known = moments.trace if plan.problem.trace_known else None
            return ProductFeatures(
                self.differentiator, self.examples, moments, microbatch=plan.chunk, columns=plan.group,
                gradients=plan.microbatch, trace=known, **common,
            )  # fmt: skip
        return GradientFeatures(
            self.differentiator, self.examples, moments, microbatch=plan.microbatch, chunk=plan.chunk, kept=kept,
            keep=plan.keep and plan.problem.method != "exact", **common,
        )  # fmt: skip

    def _decompose(self, operator: GradientFeatures | ProductFeatures, start: np.ndarray | None) -> SVD:
        plan, p = self.plan, self.plan.problem
        most = min(plan.blocks * p.width, p.rows, p.parameters)
        goal = Goal(rank=p.rank, variance=p.variance, tol=self.tol, trace=operator.trace, most=most)
        if p.method == "power":
            return power(
                operator, p.rank or p.width, seed=self.seed, iterations=POWER_ITERATIONS, oversamples=p.oversamples
            )
        if p.method == "exact":
            return exact(operator, goal)
        return krylov(
            operator, goal, seed=self.seed, width=p.width, side=plan.side, most_blocks=plan.blocks,
            most_steps=self.max_steps, columns=plan.columns, start=start,
            on_step=lambda worst: self.reporter.note(f"residual {worst:.0e}" if np.isfinite(worst) else ""),
        )  # fmt: skip

    def _time_engines(self) -> None:
        """Run a fused pass of both engines over the first chunk, twice each, and take the faster."""
        p = self.plan.problem
        first = Examples(self.examples.slice(0, min(len(self.examples), self.plan.chunk)), self.examples.name)
        columns = min(plan.columns or p.width for plan in (self.plan, self.plan.rival))
        block = random_block(self.seed, (p.parameters, columns), self.model.layout.dtype, p.on_host)
        seconds = {}
        rival: Any = self.plan.rival
        for plan in (self.plan, rival):
            trial = _Fit(self.model, first, replace(plan, keep=False), 0, self.tol, 1, Reporter(False))
            operator = trial._operator(Moments.trivial(self.model))
            operator.fused(block)
            started = time.perf_counter()
            operator.fused(block)
            seconds[plan.engine] = time.perf_counter() - started
        if seconds[rival.engine] < seconds[self.plan.engine]:
            self.plan = rival
            self.differentiator = self.model.differentiate(self.score_key, p.outputs, self.plan.unrolled)
        self.plan = replace(self.plan, rival=None)


def _check_samples(samples: Examples, examples: Examples) -> None:
    """The generator's examples look like the data's, or the error says how they differ."""
    drawn, given = samples.slice(0, 2), examples.slice(0, 1)
    if jax.tree.structure(drawn) != jax.tree.structure(given):
        raise ValueError("sample(key, n) returned another kind of pytree than X: return examples like those of X")
    for path, (made, real) in _pairs(drawn, given):
        if np.shape(made)[1:] != np.shape(real)[1:] or len(made) != 2:
            raise ValueError(
                f"sample(key, n) returned examples of shape {np.shape(made)[1:]}{path}, but those of X have shape "
                f"{np.shape(real)[1:]}: make it return n examples shaped like X[0]"
            )


def _pairs(first: Any, second: Any) -> list:
    left = jax.tree_util.tree_flatten_with_path(first)[0]
    return [
        (f" at {jax.tree_util.keystr(path)}" if path else "", (a, b))
        for (path, a), b in zip(left, jax.tree.leaves(second), strict=True)
    ]


def _interrupted_text(result: Embedding | None) -> str:
    if result is None:
        return "interrupted before the first step of the SVD was complete: nothing to keep"
    return (
        f"interrupted: the finished passes gave {result.rank} components with residuals up to "
        f"{result.residuals.max():.1e}; they are in the `result` of this exception"
    )
