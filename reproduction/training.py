"""One training loop for every network: seeded batches, progress, checkpoints, resume, and a log.

A training is a pure function `step(state, batch, key) -> (state, metrics)` and nothing else. The batch and the key of
step t depend on the seed and on t alone, so a training that was interrupted and resumed ends where it would have ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from nfk.progress import Reporter
from reproduction.data import Split

State = Any
Batch = Any
Step = Callable[[State, Batch, jax.Array], tuple[State, dict[str, jax.Array]]]
Augment = Callable[[np.random.Generator, Batch], Batch]
CHECKPOINT_SECONDS = 60


def train(
    step: Step,
    state: State,
    data: Any,
    *,
    steps: int,
    batch: int,
    seed: int = 0,
    folder: Path | None = None,
    augment: Augment | None = None,
    log_every: int = 50,
    progress: bool | None = None,
    name: str = "training",
) -> State:
    """Run `steps` steps over batches of `data` (an array or a pytree of arrays) and return the last state.

    With a `folder`: a checkpoint there every minute and at the end or an interruption, from which the same call
    goes on; and `log.jsonl`, a line of mean metrics per `log_every` steps.
    """
    batches = Batches(data, batch, seed, augment)
    checkpoints = Checkpoints(folder, {"steps": steps, "batch": batch, "seed": seed, "examples": batches.examples})
    state, first = checkpoints.restore(state)
    log = Log(folder, first)
    compiled = jax.jit(step, donate_argnums=0)
    reporter = Reporter(progress)
    state = jax.tree.map(jnp.array, state)  # a copy: the steps give away what they are given
    done = first
    try:
        with reporter.running():
            reporter.stage(name)
            reporter.begin_pass(steps - first)
            for now in range(first, steps):
                key = jax.random.fold_in(jax.random.key(seed), now)
                state, metrics = compiled(state, batches[now], key)
                done = now + 1
                reporter.advance(1)
                if log.add(metrics, done, last=done == steps or done % log_every == 0):
                    reporter.note(log.text)
                    checkpoints.save_if_due(done, state)
    finally:
        if done > first and log.finite:
            checkpoints.save(done, state)
    return state


class Batches:
    """Batch t of an endless series of shuffled epochs; which rows it holds depends on the seed and on t alone.

    The examples that do not fill a last batch are left out of their epoch; every epoch leaves out others.
    """

    def __init__(self, data: Any, size: int, seed: int, augment: Augment | None = None) -> None:
        self.data, self.seed, self.augment = data, seed, augment
        self.examples = len(jax.tree.leaves(data)[0])
        if self.examples < 1 or size < 1:
            raise ValueError(f"{self.examples} examples in batches of {size}: there must be at least one of each")
        self.size = min(size, self.examples)
        self.per_epoch = self.examples // self.size
        self._epoch: tuple[int, np.ndarray] | None = None

    def __getitem__(self, now: int) -> Batch:
        epoch, place = divmod(now, self.per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.examples)
        rows = self._epoch[1][place * self.size : (place + 1) * self.size]
        batch = jax.tree.map(lambda leaf: leaf[rows], self.data)
        return batch if self.augment is None else self.augment(np.random.default_rng([self.seed, 1, now]), batch)


class Checkpoints:
    """The last state of a training, in a folder (by orbax, atomically); without a folder, nothing."""

    def __init__(self, folder: Path | None, facts: dict[str, int]) -> None:
        self.folder, self.facts = folder, facts
        self._saved = time.perf_counter()

    @cached_property
    def _manager(self) -> Any:
        import orbax.checkpoint as ocp

        assert self.folder is not None
        options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
        return ocp.CheckpointManager((self.folder / "checkpoints").absolute(), options=options)

    def restore(self, state: State) -> tuple[State, int]:
        """The state of the last checkpoint and its step, or the state as given and 0."""
        if self.folder is None or (step := self._manager.latest_step()) is None:
            return state, 0
        import orbax.checkpoint as ocp

        facts = self._manager.restore(step, args=ocp.args.Composite(facts=ocp.args.JsonRestore()))["facts"]
        for name, value in self.facts.items():
            if facts[name] != value:
                raise ValueError(
                    f"{self.folder} holds a training with {name}={facts[name]}, not {name}={value}: "
                    "go on with the old value, or name another folder"
                )
        kinds = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), state)
        try:
            found = self._manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(kinds)))
        except ValueError as error:
            raise ValueError(
                f"{self.folder} holds a training of another network or optimizer: name another folder"
            ) from error
        return found["state"], step

    def save_if_due(self, step: int, state: State) -> None:
        if time.perf_counter() - self._saved > CHECKPOINT_SECONDS:
            self.save(step, state)

    def save(self, step: int, state: State) -> None:
        if self.folder is None or step == self._manager.latest_step():
            return
        import orbax.checkpoint as ocp

        parts = ocp.args.Composite(state=ocp.args.StandardSave(state), facts=ocp.args.JsonSave(self.facts))
        self._manager.save(step, args=parts)
        self._saved = time.perf_counter()


class Log:
    """Means of the metrics since the last line, as text and as lines of JSON in `log.jsonl`."""

    def __init__(self, folder: Path | None, first: int) -> None:
        self.path = None if folder is None else folder / "log.jsonl"
        self.text, self.finite = "", True
        self._waiting: list[dict] = []
        before = 0.0 if self.path is None else self._cut(first)
        self._started = time.perf_counter() - before

    def _cut(self, first: int) -> float:
        """Keep the lines up to the checkpoint that is resumed, and return the seconds of training until then."""
        lines = [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []
        lines = [line for line in lines if line["step"] <= first]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return lines[-1]["seconds"] if lines else 0.0

    def add(self, metrics: dict, step: int, last: bool) -> bool:
        """Take the metrics of a step; where `last`, write the line and say so."""
        self._waiting.append(metrics)
        if not last:
            return False
        means = {name: float(np.mean([line[name] for line in self._waiting])) for name in metrics}
        self._waiting = []
        self.text = "  ".join(f"{name} {value:.4g}" for name, value in means.items())
        if self.path is not None:
            line = {"step": step, "seconds": round(time.perf_counter() - self._started, 1), **means}
            with self.path.open("a") as stream:
                stream.write(json.dumps(line) + "\n")
        self.finite = bool(np.isfinite(list(means.values())).all())
        if not self.finite:
            raise FloatingPointError(
                f"a metric is not finite at step {step} ({self.text}): lower the learning rate, or look at the data; "
                "the checkpoint before it is kept"
            )
        return True


def train_module(
    module: nnx.Module,
    loss: Callable[[Any, Batch, jax.Array], jax.Array],
    data: Any,
    *,
    optimizer: optax.GradientTransformation,
    average: float | None = None,
    **options: Any,
) -> nnx.Module:
    """Minimise `loss(module, batch, key)`; trains `module` in place (its batch statistics too) and returns it.

    With `average`, the weights returned are the exponential average of those of all steps, with that decay.
    """
    module.train()
    definition, params, rest = nnx.split(module, nnx.Param, ...)
    params, rest = nnx.to_pure_dict(params), nnx.to_pure_dict(rest)

    def step(state: State, batch: Batch, key: jax.Array) -> tuple[State, dict]:
        def objective(params: Any) -> tuple[jax.Array, Any]:
            current = nnx.merge(definition, params, state["rest"])
            value = loss(current, batch, key)
            return value, nnx.to_pure_dict(nnx.state(current, nnx.Not(nnx.Param)))

        (value, rest), gradient = jax.value_and_grad(objective, has_aux=True)(state["params"])
        update, memory = optimizer.update(gradient, state["optimizer"], state["params"])
        params = optax.apply_updates(state["params"], update)
        mean = params if average is None else averaged(state["mean"], params, average)
        return {"params": params, "rest": rest, "optimizer": memory, "mean": mean}, {"loss": value}

    state = {"params": params, "rest": rest, "optimizer": optimizer.init(params), "mean": params}
    state = train(step, state, data, **options)
    nnx.update(module, state["mean"], state["rest"])
    module.eval()
    return module


def averaged(mean: Any, new: Any, decay: float) -> Any:
    """decay * mean + (1 - decay) * new, leaf by leaf: the exponential average of weights."""
    return jax.tree.map(lambda a, b: decay * a + (1 - decay) * b, mean, new)


def train_classifier(
    module: nnx.Module,
    data: Split,
    *,
    epochs: int,
    batch: int = 64,
    learning_rate: float = 2e-3,
    optimizer: Callable[[int], optax.GradientTransformation] | None = None,
    **options: Any,
) -> nnx.Module:
    """Adam (or `optimizer(steps)`) on the cross-entropy, cosine schedule; trains `module` in place and returns it."""
    steps = epochs * (len(data) // batch)
    chosen = optax.adam(optax.cosine_decay_schedule(learning_rate, steps)) if optimizer is None else optimizer(steps)
    arrays = {"images": data.images, "labels": data.labels}
    return train_module(module, cross_entropy, arrays, optimizer=chosen, steps=steps, batch=batch, **options)


def momentum(steps: int, learning_rate: float = 0.1, decay: float = 5e-4) -> optax.GradientTransformation:
    """The usual recipe of residual networks: SGD with Nesterov momentum 0.9, weight decay, a cosine schedule."""
    schedule = optax.cosine_decay_schedule(learning_rate, steps)
    return optax.chain(optax.add_decayed_weights(decay), optax.sgd(schedule, momentum=0.9, nesterov=True))


def cross_entropy(module: Any, batch: Batch, key: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(module(batch["images"]), batch["labels"]).mean()


def in_batches(function: Callable[[Any], Any], examples: Any, size: int = 250) -> np.ndarray:
    """function(batch) over all examples, joined: `function` is compiled once (and once more for a shorter end)."""
    compiled = jax.jit(function)
    count = len(jax.tree.leaves(examples)[0])
    parts = [compiled(jax.tree.map(lambda leaf, a=a: leaf[a : a + size], examples)) for a in range(0, count, size)]
    return np.concatenate([np.asarray(part) for part in parts])


def accuracy(module: Any, data: Split) -> float:
    """Share of examples whose largest logit is their label's."""
    guesses = in_batches(lambda images: jnp.argmax(module(images), axis=-1), data.images)
    return float(np.mean(guesses == data.labels))


def shift_and_flip(rng: np.random.Generator, batch: dict, reach: int = 4) -> dict:
    """Images padded by `reach` (by reflection), cropped at random places, half of them mirrored."""
    images = batch["images"]
    count, height, width = images.shape[:3]
    wide = np.pad(images, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="reflect")
    top, left = rng.integers(0, 2 * reach + 1, (2, count, 1, 1))
    rows, columns = top + np.arange(height)[:, None], left + np.arange(width)
    crops = wide[np.arange(count)[:, None, None], rows, columns]
    mirrored = rng.random(count) < 0.5
    crops[mirrored] = crops[mirrored, :, ::-1]
    return {**batch, "images": crops}
