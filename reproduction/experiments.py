"""Every experiment by name: what it shows, the presets that it has, and how it starts.

A preset is a size: "smoke" runs inside the tests, "cpu" on two cores within hours, "paper" as in the paper. An
experiment keeps what it has measured, so that a second call goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from reproduction.refusal import Refused

Preset = Literal["smoke", "cpu", "paper"]
PRESETS: tuple[Preset, ...] = get_args(Preset)


@dataclass(frozen=True)
class Experiment:
    """`start(preset)` runs it and returns its results file; packages and data are imported only then."""

    shows: str
    start: Callable[[Preset], Path]
    presets: tuple[Preset, ...] = ("cpu",)
    rehearse: Callable[[Preset, Callable[[str], None]], int] | None = None


def _families(preset: Preset) -> Path:
    from reproduction.families.__main__ import OUTPUT, main

    main()
    return OUTPUT


def _task(name: str, preset: Preset) -> Path:
    from reproduction.tasks.runner import run_task

    return run_task(name)


def _paper(name: str, preset: Preset) -> Path:
    from reproduction.paper.runner import run_experiment

    return run_experiment(name, preset)


def _rehearse(name: str, preset: Preset, say: Callable[[str], None]) -> int:
    from reproduction.paper.rehearsal import rehearsed

    return rehearsed(name, preset, say)


PAPER = {
    "pretrained": "networks that others trained, each by the figure its weights are known for",
    "lowrank": "what the first components hold, trained and untrained, and in which sense of it",
    "linear-probe": "Table 1: linear probes of a CIFAR-10 critic, beside its activations and other features",
    "semi-supervised": "Table 2: few labels, on features of critics that were trained without any",
    "runtime": "seconds of a fit against the number of examples, from the benchmarks",
    "accuracy": "the error of every eigenvalue beside its share of the variance",
    "bound-noise": "why the importance-weighted bound costs a VAE its embedding",
    "distillation": "a WRN-16-1, taught by a WRN-16-2 that others trained, by every method",
    "inversion": "images found again from their embedding by critics that others trained",
    "top-images": "the images at the ends of the leading components",
    "likelihoods": "why likelihood models fall below their untrained networks",
    "likelihoods-others": "the same for larger ones that others trained",
}
PLANNED = (  # whose fits can be planned and tried
    "pretrained", "lowrank", "linear-probe", "semi-supervised", "accuracy", "distillation", "inversion", "top-images",
    "likelihoods-others",
)  # fmt: skip
TASKS = {
    "probe": "linear probes against rank, beside activations and full Fisher vectors",
    "few_labels": "few labels, and a basis that was fitted without any",
    "distillation": "a small student, taught by embeddings and by other ways",
    "inversion": "images found again from their embedding alone",
    "spectrum": "how low the rank is, trained and untrained, and in which layers",
    "ridge": "kernel ridge regression: exact, low rank, the linearised network",
    "outliers": "images of another data set, told by what lies outside the top k",
    "neighbours": "nearest neighbours by class, beside other features",
}


def _apart(task: str) -> str:
    """The name of a task: its own, or with -small where the paper's experiment has it already."""
    return f"{task}-small" if task in PAPER else task


EXPERIMENTS: dict[str, Experiment] = {
    **{
        name: Experiment(shows, partial(_paper, name), PRESETS, partial(_rehearse, name) if name in PLANNED else None)
        for name, shows in PAPER.items()
    },
    "families": Experiment("every family of models on real data, its spectrum and its probes", _families),
    **{_apart(name): Experiment(shows, partial(_task, name)) for name, shows in TASKS.items()},
}
ALIASES: dict[str, tuple[str, ...]] = {
    "paper": tuple(PAPER), "tasks": tuple(map(_apart, TASKS)), "all": tuple(EXPERIMENTS),
}  # fmt: skip


def chosen(names: tuple[str, ...], preset: Preset, plan: bool = False) -> list[str]:
    """The experiments that are meant, each once; refused before the first one starts.

    An alias means those of its experiments that have the preset, and with `plan` those that can be planned.
    """
    meant = list(dict.fromkeys(one for name in names for one in _meant(name, preset, plan)))
    for name in meant:
        if name not in EXPERIMENTS:
            known = ", ".join([*EXPERIMENTS, *ALIASES])
            raise Refused(f"{name}: no such experiment; choose from {known}")
        if preset not in EXPERIMENTS[name].presets:
            there = " and ".join(f"--preset {other}" for other in EXPERIMENTS[name].presets)
            raise Refused(f"{name} has no preset {preset!r} yet; it has {there}")
        if plan and EXPERIMENTS[name].rehearse is None:
            raise Refused(f"{name} cannot be planned without being run; leave --plan out")
    return meant


def _meant(name: str, preset: Preset, plan: bool) -> tuple[str, ...]:
    if name not in ALIASES:
        return (name,)
    several = [one for one in ALIASES[name] if preset in EXPERIMENTS[one].presets]
    several = [one for one in several if not plan or EXPERIMENTS[one].rehearse is not None]
    if not several:
        raise Refused(f"{name}: none of its experiments has --preset {preset}{' and can be planned' if plan else ''}")
    return tuple(several)
