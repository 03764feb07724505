"""From a model and a data set to an embedding: checks, plan, moments, SVD. Wires; computes nothing itself."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nfk import identity, interrupts, packing, store
from nfk.assembly import Assembly, faster
from nfk.checkpoint import Checkpoint, decided, decisions_of, facts_of, first_difference
from nfk.distributed import Processes
from nfk.embedding import Embedding
from nfk.identity import Kind
from nfk.model import Model, require_model, split_key
from nfk.planning import (
    Basis,
    Engine,
    Keep,
    MethodName,
    Options,
    Plan,
    Problem,
    ScratchFolder,
    Search,
    SideName,
    Target,
    plan_fit,
)
from nfk.progress import Reporter
from nfk.solve import SVD, Goal, Interrupted, Method, loop
from nfk.solve.exact import Exact
from nfk.solve.gram import Gram
from nfk.solve.krylov import Krylov
from nfk.solve.operator import Operator
from nfk.solve.power import Power
from nfk.solve.sides import CoarseSide, ExampleSide, ParameterSide
from nfk.spaces import Space, space_for
from nfk.stream import Examples


def plan(
    model: Model,
    X: Any,
    rank: int | float = 128,
    *,
    method: MethodName = "auto",
    engine: Engine | None = None,
    side: SideName | None = None,
    keep: Keep | None = None,
    memory: int | str | None = None,
    scratch: ScratchFolder | None = None,
    basis: Basis | None = None,
    search: Search | None = None,
    oversamples: int = 10,
    tol: float = 1e-2,
    mesh: Any = None,
) -> Plan:
    """What `fit` would do with the same arguments, and at what cost. Takes one trace of the network, runs nothing.

    The arguments are those of `fit`. A budget that cannot be kept is a `MemoryError` that says what the leanest way
    needs.

    Args:
        model: what `nfk.classifier`, `nfk.torch.classifier`, ... return.
        X: the examples, as for `fit`.
        rank: a number of components, or a fraction of variance to explain.
        method: "auto", or the one method to plan for.
        engine: "gradients" or "products"; None lets the plan choose, here and below.
        side: iterate on blocks of the "parameters" or of the "examples".
        keep: keep all gradients in memory (True) or on disk ("disk"), or compute them again in each pass (False).
        memory: the budget: bytes, "500MB", "4GB"; two thirds of what is free by default.
        scratch: a folder on disk for what does not fit in memory, False for none.
        basis: store the basis of a search as it is ("full"), or in half of the memory ("bfloat16").
        search: multiply kept gradients in a search as they are ("full"), or in bfloat16.
        oversamples: columns beyond the rank that are carried along.
        tol: the bound on every component's relative residual.
        mesh: the devices, as for `fit`.
    """
    require_model(model)
    space = space_for(mesh, model.network)
    options = Options(
        method, engine, side, keep, memory, oversamples, tol, space=space, scratch=scratch, basis=basis, search=search
    )  # fmt: skip
    return plan_fit(Problem.of(model, _several(Examples(X))), rank, options)


def fit(
    model: Model,
    X: Any,
    rank: int | float = 128,
    *,
    key: int | jax.Array = 0,
    method: MethodName = "auto",
    engine: Engine | None = None,
    side: SideName | None = None,
    keep: Keep | None = None,
    memory: int | str | None = None,
    scratch: ScratchFolder | None = None,
    basis: Basis | None = None,
    search: Search | None = None,
    tol: float = 1e-2,
    oversamples: int = 10,
    max_steps: int = 30,
    save: str | Path | None = None,
    checkpoint: str | Path | None = None,
    mesh: Any = None,
    progress: bool | None = None,
) -> Embedding:
    """The top `rank` eigenfunctions of the model's Fisher kernel over X: V = Phi Sigma Q', e(x) = V_x Q_k.

    Typically 8 passes over the gradients. Memory beyond the data does not grow with N, except for N x columns numbers,
    unless all gradients fit in the budget and are kept.

    Ctrl-C raises `nfk.Interrupted`; its `result` is the embedding that the finished passes are worth (saved, too, where
    `save` names a folder).

    Args:
        model: what `nfk.classifier`, `nfk.gan`, `nfk.torch.classifier`, ... return.
        X: the examples: an array, a memory map, a pytree of arrays, a list, or anything with a length and slices.
        rank: a number of components, or a fraction of variance to explain (0.95).
        key: a seed or a jax key, for the start, the model's samples and the score's own randomness.
        method: "auto" (the faster of the next two), "krylov" (blocks of columns, a few passes), "gram" (the N x N
            kernel, from gradients that are kept: best for few examples), "power" (the paper's algorithm) or "exact"
            (the dense baseline in float64).
        engine: "gradients" (per-example gradients and matrix products) or "products" (JVPs and VJPs).
        side: iterate on blocks of the "parameters" or of the "examples".
        keep: keep all gradients in memory (True) or on disk ("disk"), or compute them again in each pass (False).
        memory: a budget that is kept: bytes, "500MB", "4GB"; two thirds of what is free by default.
        scratch: a folder for what does not fit in memory, where the plan finds that the disk is faster than computing
            again. At the most half of what is free in the system's folder for temporary files by default; False for
            nothing on disk. Files there have no name: nothing is left behind, however the fit ends.
        basis: how a Krylov search stores its basis: as it is ("full"), or rounded to bfloat16 ("bfloat16"), in half of
            the memory. The right vectors are then made anew and certified in full, for a pass more: the answer is as
            exact.
        search: how a Krylov search multiplies gradients that are kept in memory: as they are ("full"), or rounded to
            bfloat16 ("bfloat16"), about twice as fast on processors that can. The certificate is in full precision, and
            where it is above `tol`, the search is repeated as they are.
        tol: a bound on every component's relative residual.
        oversamples: columns beyond the rank that are carried along.
        max_steps: Krylov steps at the most, of blocks as wide as the rank; narrower blocks may take as many more.
        save: a folder, checked before the work and written after it.
        checkpoint: a folder for the result of every finished pass. Killed at any moment, the same call goes on from
            there; when it has come to its end, the same call returns its result. Of several processes each keeps its
            own part there, and all go on from the last pass that all have finished.
        mesh: the devices that take part: a number of them, which share out the examples; a pair (data, basis), where
            the columns of the basis are shared out, too; or a jax.sharding.Mesh with these axes. None takes all
            accelerators for the data; on a CPU, the host itself.
        progress: a bar on standard error: always, never, or (None) when it is a terminal.

    `engine`, `side`, `keep`, `basis`, `search` and `mesh` never change the answer; None lets the plan choose.
    """
    require_model(model)
    space = space_for(mesh, model.network)
    options = Options(method, engine, side, keep, memory, oversamples, tol, max_steps, space, scratch, basis, search)
    run = _Fit(model, rank, key, options)
    space.processes.agree(lambda: {"options": _waited_for(checkpoint, save, space)}, first_difference)
    if save is not None:
        space.processes.by_first(lambda: store.check_writable(Path(save)))
    with Checkpoint(checkpoint, space.processes).held() as run.checkpoint:
        try:
            with interrupts.deferred(), space.processes.at_work(), Reporter(progress).running() as run.reporter:
                run.embedding = run(Examples(X))
        except KeyboardInterrupt:
            run.checkpoint.pause()
            result = run.salvaged()
            _save(result, save)
            raise Interrupted(_interrupted_text(result) + run.checkpoint.how_to_go_on(), result) from None
    _save(run.embedding, save)
    return run.embedding


def _waited_for(checkpoint: Any, save: Any, space: Space) -> dict[str, Any]:
    """What decides where processes wait for one another: where it differs, they would wait for ever."""
    given = {"checkpoint": checkpoint, "save": save}
    return {name: "not given" if value is None else "given" for name, value in given.items()} | {"mesh": space.devices}


def _save(embedding: Embedding | None, folder: str | Path | None) -> None:
    """What was computed is returned even where it cannot be written."""
    if embedding is None or folder is None:
        return
    try:
        embedding.save(folder)
    except OSError as error:
        text = (
            f"save={str(folder)!r} failed: {error.__cause__ or error}; the embedding is returned all the same, save it "
        )
        warnings.warn(text + "elsewhere", stacklevel=3)


def _several(examples: Examples) -> Examples:
    if len(examples) == 0:
        raise ValueError("X holds no examples: pass at least two")
    if len(examples) == 1:
        raise ValueError("X holds one example: a kernel over a data set needs at least two; is the batch axis missing?")
    return examples


class _Fit:
    """One fit: what its steps share, and how far it has come."""

    def __init__(self, model: Model, rank: int | float, key: Any, options: Options) -> None:
        self.model, self.rank, self.options = model, rank, options
        start_key, self.sample_key, self.score_key = split_key(key)
        self.seed = np.asarray(jax.random.key_data(start_key)).tolist()
        self.reporter = Reporter(show=False)
        self.checkpoint = Checkpoint(None)
        self.embedding: Embedding | None = None
        self._method: Method | None = None
        self._state: Any = None

    def __call__(self, examples: Examples) -> Embedding:
        self.examples, processes = examples, self.processes
        processes.together(self._check)
        processes.agree(partial(self._facts, slice(0, 1)), first_difference)
        self.plan = processes.together(partial(plan_fit, Problem.of(self.model, examples), self.rank, self.options))
        if processes.several:  # one plan for all: rates and memory may differ
            self.plan = decided(self.plan, processes.of_first(decisions_of(self.plan)))
        finished = self._resume()
        if finished is not None:
            return finished
        interrupts.check()
        operator, start = self._operator()
        self._method = self._chosen_method(self.checkpoint.recorded(operator), start)
        embedding = self._embedding(loop(self._method, self))
        self.checkpoint.finish(embedding.save)
        return embedding

    def _check(self) -> None:
        """What every process can see for itself."""
        examples = _several(self.examples)
        Target.of(self.rank, Problem.of(self.model, examples))
        examples.check(self.own)
        self.canary = identity.canary(self.model, examples.slice(0, 1))

    @property
    def processes(self) -> Processes:
        return self.options.space.processes

    @property
    def own(self) -> slice:
        """The examples that this process reads."""
        return self.options.space.own(len(self.examples))

    def _facts(self, rows: slice) -> dict[str, Any]:
        return facts_of(self.model, self.examples, self.canary, self.rank, self.score_key, self.options, rows)

    def _resume(self) -> Embedding | None:
        """The result, where it is known; the plan of the fit that was begun, or one for a new fit."""
        facts = lambda: self._arrangement | self._facts(self.own)  # noqa: E731
        decisions = self.checkpoint.open(facts)
        if decisions is not None:
            self.plan = decided(self.plan, decisions)
            found = self.checkpoint.finished(lambda folder: packing.read(folder, self.model, self.options.space))
            return None if found is None else Embedding(model=self.model, **found, plan=self.plan)
        if self.plan.rival is not None:
            self.plan = faster(self._assembly(self.plan), self._assembly(self.plan.rival))
        self.checkpoint.begin(facts, self.plan)
        return None

    @property
    def _arrangement(self) -> dict[str, Any]:
        """Which part of a block a process keeps follows from this; one process keeps all of it."""
        return {"devices": self.options.space.devices} if self.processes.several else {}

    # --- the events of the loop

    def stage(self, label: str) -> None:
        interrupts.check()
        self.reporter.stage(label)

    def finished(self, state: Any, note: str) -> None:
        self._state = state
        self.reporter.note(note)

    def salvaged(self) -> Embedding | None:
        """After Ctrl-C: what the last finished step is worth. Takes a pass where only left vectors are at hand."""
        if self.embedding is not None or self._method is None or self._state is None or self.processes.several:
            return self.embedding  # of several processes, each has stopped somewhere else
        try:
            with interrupts.deferred(), self.reporter.running():
                self.reporter.stage("finishing (Ctrl-C again to drop it)")
                found = self._method.salvage(self._state)
                return None if found is None else self._embedding(found)
        except KeyboardInterrupt:
            return None

    # --- the steps

    def _assembly(self, plan: Plan) -> Assembly:
        keys = self.seed, self.sample_key, self.score_key
        return Assembly(self.model, self.examples, plan, self.options, *keys, self.reporter)

    def _operator(self) -> tuple[Operator, Any]:
        """V, and a start for the search where the pass of the moments gave one."""
        assembly = self._assembly(self.plan)
        known = self.checkpoint.moments(assembly.space)
        operator, (self.moments, start) = assembly.operator(known)
        if known is None:
            self.checkpoint.keep_moments(self.moments, start, assembly.space)
        return operator, start

    def _chosen_method(self, operator: Operator, start: Any) -> Method:
        way, options = self.plan.way, self.options
        most = min(way.capacity, *operator.shape) if way.method == "krylov" else min(operator.shape)
        goal = Goal(way.target.rank, way.target.variance, options.tol, operator.trace, most)
        if way.method == "power":
            return Power(operator, goal, self.seed, way.width)
        if way.method == "exact":
            return Exact(operator, goal)
        if way.method == "gram":
            return Gram(operator, goal, self.seed, single=way.keep or way.factors)
        sides = {"parameters": ParameterSide, "examples": CoarseSide if way.halved else ExampleSide}
        side = sides[way.side](operator)
        steps = options.max_steps * -(-way.kept // way.width)
        return Krylov(side, goal, self.seed, way.width, way.capacity, way.kept, steps, start, way.rounded or way.halved)

    def _embedding(self, svd: SVD) -> Embedding:
        factor = self.moments.factor
        return Embedding(
            model=self.model, moments=self.moments, right=svd.right, left=svd.left,
            singular_values=svd.singular_values * factor, residuals=svd.residuals, trace=svd.trace * factor**2,
            passes=svd.passes + (self.moments.count > 0), score_key=self.score_key, kind=Kind.of(self.examples),
            outputs=self.plan.problem.outputs, canary=self.canary, engine=self.plan.engine, space=svd.space,
            plan=self.plan,
        )  # fmt: skip


def _interrupted_text(result: Embedding | None) -> str:
    if result is None:
        return "interrupted before the first step of the SVD was complete: nothing to keep"
    return (
        f"interrupted: the finished passes gave {result.rank} components with residuals up to "
        f"{result.residuals.max():.1e}; they are in the `result` of this exception"
    )
