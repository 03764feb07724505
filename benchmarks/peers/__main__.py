"""nfk against other ways to the same eigenvalues; prints one JSON object.

python -m benchmarks.peers --networks critic --sizes 1024 4096 --ranks 128 32 --contestants script nfk nfk-torch \\
    floor-torch floor-jax --resume
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks.peers import environments as venvs
from benchmarks.peers import job as jobs
from benchmarks.peers import machine, making, oracle_cache, probing, running, tables
from benchmarks.peers.records import Key, Records
from benchmarks.peers.registry import REGISTRY

DEFAULTS = ("script", "nfk", "nfk-torch", "floor-torch", "floor-jax")


@dataclass(frozen=True)
class Run:
    """What to measure.

    Args:
        networks: which of lenet5, critic, wrn-16-2, resnet-18, transformer.
        sizes: numbers of examples.
        ranks: numbers of eigenvalues.
        contestants: names of benchmarks/peers/registry.py, or all; name@1e-2 sets its tolerance
            (projection@512: how many numbers).
        rounds: of all contestants in turn; medians are reported.
        budget_seconds: a contestant that needs more is stopped and reported as over it.
        pin: one core, with one thread each.
        busy: a spinning process on every core beside the contestants.
        touch_gigabytes: of memory that are touched before each contestant, so that none pays for what a host is slow to
            hand out: more than any of them needs.
        probe: also embed 1,000 test images and read their labels with a linear probe (lenet5 and wrn-16-2).
        reference: compare with eigenvalues in float64, which for many examples take longer than the contestants.
        resume: keep what the output holds already and go on.
        output: the results file.
        environments: the folder of the virtual environments.
    """

    networks: tuple[str, ...] = ("critic",)
    sizes: tuple[int, ...] = (256, 1024)
    ranks: tuple[int, ...] = (32, 128)
    contestants: tuple[str, ...] = DEFAULTS
    rounds: int = 3
    budget_seconds: float = 600.0
    pin: int | None = None
    busy: bool = False
    touch_gigabytes: float = 0.0
    probe: bool = False
    reference: bool = True
    resume: bool = False
    output: Path = venvs.ROOT / "results" / "peers.json"
    environments: Path = venvs.FOLDER

    @property
    def condition(self) -> running.Condition:
        return running.Condition(self.pin, self.busy)

    @property
    def names(self) -> list[str]:
        """The contestants, checked."""
        chosen = list(REGISTRY) if self.contestants == ("all",) else list(self.contestants)
        for name in chosen:
            if name.split("@")[0] not in REGISTRY:
                raise SystemExit(f"--contestants {name} is unknown: choose from {', '.join(REGISTRY)}, or all")
        for name in self.networks:
            if name not in making.NETWORKS:
                raise SystemExit(f"--networks {name} is unknown: choose from {', '.join(making.NETWORKS)}")
        return chosen


def main(options: Annotated[Run, tyro.conf.arg(name="")]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a contestant never outlives the command
    records = Records.read(options.output) if options.resume else Records()
    records.environment = {**machine.facts(), "seed": making.SEED}
    for network in options.networks:
        for size in sorted(options.sizes):
            for kernel, names in by_kernel(options.names).items():
                for rank in options.ranks:
                    key = Key(network, size, kernel, rank, options.condition.name, machine.processor())
                    compare(options, key, names, records)
    print(json.dumps(records.as_json(), indent=1))
    print(tables.summary(records.as_json()), file=sys.stderr)


def by_kernel(names: list[str]) -> dict[str, list[str]]:
    """Who runs at which kernel: at the plain one those that know no other, and nfk and the script beside them."""
    plain = [name for name in names if REGISTRY[name.split("@")[0]].plain_only]
    fisher = [name for name in names if name not in plain]
    beside = [name for name in fisher if name in ("script", "nfk", "nfk-torch")]
    return {**({"fisher": fisher} if fisher else {}), **({"plain": [*beside, *plain]} if plain else {})}


def compare(options: Run, key: Key, names: list[str], records: Records) -> None:
    """All rounds of one job, the contestants in turn; what was measured already is left alone."""
    todo = [(number, name) for number in range(options.rounds) for name in names if not records.has(key, name, number)]
    follows = {name: records.least(key, name, options.budget_seconds) for _, name in todo}
    for name, found in follows.items():
        if found is not None and not records.of(key, name):
            facts = {"parameters": making.parameters(key.network), "budget_seconds": options.budget_seconds}
            records.add(key, name, 0, found, None, facts)
    todo = [(number, name) for number, name in todo if not records.is_over(key, name)]
    records.write(options.output)
    if not todo:
        return
    settings = {"kernel": key.kernel, "rank": key.rank, "budget_seconds": options.budget_seconds}
    job, labels = making.make(key.network, key.examples, settings, labelled=options.probe)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "job.npz"
        jobs.write(job, plain)
        reference = oracle_cache.eigenvalues(job, plain, options.environments) if options.reference else None
        for number, name in todo:
            if records.is_over(key, name):
                continue
            print(f"{key} {name}, round {number + 1} ...", file=sys.stderr, flush=True)
            base, _, setting = name.partition("@")
            path = _with_setting(job, Path(folder), float(setting)) if setting else plain
            embeddings = Path(folder) / "embeddings.npz" if options.probe and REGISTRY[base].embeds else None
            running.touch(int(1e9 * options.touch_gigabytes))
            found = running.measure(
                base, path, options.budget_seconds, options.condition, options.environments, embeddings
            )
            facts = {
                "parameters": job.parameters, "budget_seconds": options.budget_seconds,
                "touched_gigabytes": options.touch_gigabytes,
            }  # fmt: skip
            if found["status"] == "done" and embeddings is not None:
                facts["probe"] = probing.accuracy(embeddings, labels)
            records.add(key, name, number, found, reference, facts)
            records.write(options.output)


def _with_setting(job: jobs.Job, folder: Path, value: float) -> Path:
    """The job with a setting of the contestant's own: its tolerance, or how many numbers to project to."""
    path = folder / f"job-{value:g}.npz"
    if not path.exists():
        jobs.write(replace(job, settings=replace(job.settings, tol=value)), path)
    return path


if __name__ == "__main__":
    tyro.cli(main)
