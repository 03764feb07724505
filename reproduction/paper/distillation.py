"""Distillation: a WRN-16-2 that others trained (94.0 %) teaches a WRN-16-1 on CIFAR-10, every method by one recipe.

Examples are some training images and their mirror images, so that what the teacher says of both can be computed once,
its maps too. The weight of each method is chosen on other training images, by shorter trainings. The teacher itself was
trained on all 50,000 training images.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA

import nfk
from nfk.tasks import average, embedding_targets, probe_by_rank, proportion
from reproduction import figures
from reproduction.data import Split, cifar10
from reproduction.distillation.classroom import Classroom
from reproduction.distillation.contents import held
from reproduction.distillation.looking import look, look_at_all
from reproduction.distillation.methods import GROUPS, METHODS, Weights
from reproduction.distillation.methods import TEACHER as CHANNELS
from reproduction.distillation.teaching import Lessons, Recipe
from reproduction.paper.critics import few_inputs
from reproduction.paper.rehearsal import Fit
from reproduction.paper.runner import single
from reproduction.pretrained import Pretrained, load
from reproduction.tasks.ledger import Ledger, Row, row

TEACHER = "cifar10-wrn-16-2-a"
SHARED = ("KD", "NFKD", "PCA of the teacher's features")  # their weight is taken from the labels'
MAIN = ("no teacher", *SHARED, "NST", "FitNet", "AT")  # trained longer, too
LONGER = "student, trained longer"


@dataclass(frozen=True)
class Settings:
    images: int = 10_000  # training images, and as many mirror images
    held: int = 5_000  # other training images, to choose the weights on
    tested: int = 10_000
    probed: int = 2_000  # test images of the probe against k
    fitted: int = 2_000  # training images of the basis
    rank: int = 64
    target: int = 20  # components that a student learns
    ranks: tuple[int, ...] = (1, 2, 3, 5, 7, 9, 12, 16, 20, 32, 64)
    epochs: int = 4
    trial_epochs: int = 1  # of the trainings that choose a weight
    weighed: tuple[str, ...] = SHARED  # but of these it is chosen by trainings as long as the students' own
    seeds: int = 2
    longer_epochs: int = 12  # of a second, longer training, with the same weights
    longer_seeds: int = 2
    longer: tuple[str, ...] = MAIN
    batch: int = 32
    peak: float = 0.05  # of the learning rate
    methods: tuple[str, ...] = tuple(METHODS)
    memory: str = "3GB"

    def recipe(self, epochs: int) -> Recipe:
        return Recipe(epochs, self.batch, self.peak)


PRESETS = {
    "smoke": Settings(
        images=128, held=40, tested=40, probed=40, fitted=30, rank=20, ranks=(1, 20), epochs=1, trial_epochs=1,
        seeds=1, methods=("no teacher", "NFKD", "FitNet"), longer_epochs=2, longer_seeds=1,
        longer=("no teacher", "NFKD"),
    ),
    "cpu": Settings(),
    "paper": Settings(
        images=45_000, probed=10_000, fitted=45_000, epochs=250, trial_epochs=50, weighed=(), seeds=5, longer=(),
        batch=128, peak=0.1,
    ),
}  # fmt: skip
SMALLER = (
    "Students see 10,000 training images and their mirror images in four epochs of batches of 32, those of seven "
    "methods in twelve, too (the paper: 50,000, 250 epochs): it shows how fast a student learns, not where it ends, "
    "and its level is far below the paper's.",
    "Two seeds of both lengths; the same one gives every method the same first weights and batches.",
    "The weight of each method is chosen among three on 5,000 other training images, by one training of one epoch. So "
    "short a trial favours the labels: where the weight is taken from theirs (KD, NFKD, principal components) the "
    "trial has four epochs, but for NFKD's two variants. Twelve epochs have the weights of four.",
    "Students compute in bfloat16 with float32 weights; the teacher's maps are kept as float16. A training is not "
    "repeated to the last bit by another number of threads; KD's and the longer ones are of a later run than the "
    "others, the second seed of the longer ones of one later still.",
    "An interval is over seeds, for these 10,000 test images: what neither method nor seed explains has one standard "
    "deviation for all methods of one length.",
)


def fits(settings: Settings) -> Iterator[Fit]:
    """The teacher's basis."""
    found = load(TEACHER)
    yield Fit(f"{TEACHER}, rank {settings.rank}", found.model(), few_inputs(found), settings.fitted, settings.rank)


@dataclass(frozen=True)
class Teacher:
    """The settings that the teacher's embedding and outputs depend on: more seeds do not change them."""

    images: int
    probed: int
    fitted: int
    rank: int
    memory: str


def run(ledger: Ledger, pictures: Path, settings: Settings) -> list[Row]:
    """What the teacher says of all images is computed only where a measurement still wants it."""
    found, (train, others, test) = load(TEACHER), _examples(settings)
    about = Teacher(settings.images, settings.probed, settings.fitted, settings.rank, settings.memory)
    told = cache(lambda: ledger.arrays("teacher", _said, about, ledger, found, train, test))
    lessons = cache(lambda: _lessons(settings, about, ledger, found, train, told()))
    rows = _probes(ledger, settings, about, told, train, test, pictures)
    classroom = Classroom(ledger, lessons, settings.target)
    asked, graded = (cache(lambda part=part: _untaught(found, part)) for part in (others, test))
    chosen: dict[str, Weights] = {}
    recipe, long = settings.recipe(settings.epochs), settings.recipe(settings.longer_epochs)
    for name in (*settings.longer, *(name for name in settings.methods if name not in settings.longer)):
        tries = settings.recipe(settings.epochs if name in settings.weighed else settings.trial_epochs)
        chosen[name], tried = classroom.trials(name, tries, asked, settings.images)
        rows += tried
        if name in settings.longer:
            rows += classroom.students(
                {name: chosen[name]}, settings.longer_seeds, long, graded, settings.images, LONGER
            )
    rows += classroom.students(chosen, settings.seeds, recipe, graded, settings.images)
    rows = [*map(_shown, rows), *_apart([row for row in rows if row["role"] == LONGER], settings.tested)]
    _picture(rows, pictures)
    rows += [_share_of_classes(settings, told()["embedding"])]
    return rows + _contents(ledger, settings, about, found, train)


def _shown(row: Row) -> Row:
    """Without the single images, which the ledger keeps."""
    return {key: value for key, value in row.items() if key != "correct"}


def _apart(students: list[Row], tested: int) -> Iterator[Row]:
    """Each longer training less that of no teacher, and less NFKD's, image by image, where there is one of each.

    With several, their interval is over seeds, as that of the shorter ones: it needs no single images.
    """
    if any(student["seeds"] > 1 for student in students):
        return
    right = {}
    for student in students:
        (correct,) = student["correct"]
        right[student["method"]] = np.unpackbits(np.frombuffer(bytes.fromhex(correct), np.uint8))[:tested].astype(float)
    for name, other in itertools.product(right, ("no teacher", "NFKD")):
        if name != other:
            facts = dict(data="CIFAR-10", role=f"{LONGER}, difference", less=other, tested=tested)
            yield single(name, average(right[name] - right[other]), metric="difference of test accuracies", **facts)


def _picture(rows: list[Row], pictures: Path) -> None:
    """Students of both lengths, the best of the longer ones first; means over seeds, without their spread."""
    lines = {}
    for longer in sorted((one for one in rows if one["role"] == LONGER), key=lambda one: -one["mean"]):
        short = next(one for one in rows if (one["role"], one["method"]) == ("student", longer["method"]))
        both = [(one["epochs"], 100 * one["mean"]) for one in (short, longer)]
        lines[longer["method"]] = tuple(map(list, zip(*both, strict=True)))
        title = f"WRN-16-1 on {longer['images']:,} images of CIFAR-10, taught by WRN-16-2"
    if lines:
        figures.curves(lines, pictures / "students.png", title, "epochs", "test accuracy, %", logarithmic=True)


def _share_of_classes(settings: Settings, embedding: np.ndarray) -> Row:
    """How much of NFKD's target lies in as many components as ten classes can have, nine."""
    squares = np.square(embedding[..., : settings.target], dtype=np.float64).sum((0, 1))
    facts = dict(data="CIFAR-10", role="shape of the target", images=settings.images)
    name = f"the first 9 of {settings.target} components"
    return row(name, [float(squares[:9].sum() / squares.sum())], metric="share of NFKD's target", **facts)


def _examples(settings: Settings) -> tuple[Split, Split, Split]:
    """Training images in an order of their own, always the same; others to choose by; the first test images."""
    train, test = cifar10("train"), cifar10("test")
    order = np.random.default_rng(0).permutation(len(train))
    ends = settings.images, settings.images + settings.held
    return train.take(order[: ends[0]]), train.take(order[ends[0] : ends[1]]), test.take(slice(settings.tested))


def _untaught(found: Pretrained, part: Split) -> Lessons:
    return Lessons(torch.as_tensor(found.inputs(part.images)), torch.as_tensor(part.labels), {})


def _fitted(about: Teacher, ledger: Ledger, found: Pretrained, train: Split) -> nfk.Embedding:
    """The teacher's basis; saved, and read again by a second call."""
    folder, model = ledger.folder / f"teacher-{about.fitted}-{about.rank}", found.model()
    if any(folder.glob("*.json")):
        return nfk.load(folder, model)
    inputs = found.inputs(train.images[: about.fitted])
    return nfk.fit(model, inputs, about.rank, memory=about.memory, save=folder)


def _said(about: Teacher, ledger: Ledger, found: Pretrained, train: Split, test: Split) -> dict[str, np.ndarray]:
    """The teacher's embedding, features and logits of both views, its maps in files; what it says of test images."""
    views = [found.inputs(images) for images in (train.images, train.images[:, :, ::-1])]
    maps = [_file(ledger, about, group, "w+") for group in range(3)]
    outputs = [
        look_at_all(found.module, torch.as_tensor(view), into=[kept[number] for kept in maps])
        for number, view in enumerate(views)
    ]
    for kept in maps:
        kept.flush()
    embedding, tested = _fitted(about, ledger, found, train), found.inputs(test.images[: about.probed])
    return {
        "embedding": np.stack([embedding(view) for view in views]),
        "features": np.stack([features.numpy() for features, _ in outputs]),
        "logits": np.stack([logits.numpy() for _, logits in outputs]),
        "tested": embedding(tested),
        "tested_logits": found.outputs(tested),
        "singular_values": embedding.singular_values,
        "explained_variance": np.cumsum(embedding.explained_variance_ratio),
    }


def _file(ledger: Ledger, about: Teacher, group: int, mode: str) -> np.ndarray:
    """The maps of one group, both views, channels last: float16, a file, since they may be larger than memory."""
    path, side = ledger.folder / f"maps-{about.images}-group-{group + 1}.npy", 32 >> group
    if mode != "w+":
        return np.load(path, mmap_mode=mode)
    path.parent.mkdir(parents=True, exist_ok=True)
    return np.lib.format.open_memmap(path, mode, np.float16, (2, about.images, side, side, CHANNELS[group]))


def _lessons(
    settings: Settings, about: Teacher, ledger: Ledger, found: Pretrained, train: Split, told: dict
) -> Lessons:
    flat = {name: told[name].reshape(-1, told[name].shape[-1]) for name in ("embedding", "features")}
    values, k = told["singular_values"], settings.target
    scores = PCA(k, random_state=0).fit_transform(flat["features"])
    targets = {
        "scaled": embedding_targets(flat["embedding"], values, k, "scaled"),
        "whitened": embedding_targets(flat["embedding"], values, k, "whitened"),
        "pca": scores / np.sqrt(np.mean(scores**2)),
    }
    signals = {name: torch.as_tensor(rows.reshape(2, -1, k), dtype=torch.float32) for name, rows in targets.items()}
    signals |= {name: torch.from_numpy(_file(ledger, about, group, "c")) for group, name in enumerate(GROUPS)}
    signals["logits"] = torch.as_tensor(told["logits"])
    return Lessons(torch.as_tensor(found.inputs(train.images)), torch.as_tensor(train.labels), signals)


def _contents(ledger: Ledger, settings: Settings, about: Teacher, found: Pretrained, train: Split) -> list[Row]:
    """How much of the teacher's features, logits and maps can be read from each target; over the basis's images."""
    known = cache(lambda: _known(settings, about, ledger, found, train))
    alone = ledger.once("what the targets hold", lambda *_: _shares(*known()), about, settings.target)
    beside = ledger.once("what they hold with the labels", lambda *_: _with_labels(*known()), about, settings.target)
    facts = dict(data="CIFAR-10", role="what a target holds", images=about.fitted)
    pairs = {tuple(pair.split(" -> ")): shares for pair, shares in (alone | beside).items()}
    return [row(a, shares, metric=f"R^2 of the teacher's {b}", **facts) for (a, b), shares in pairs.items()]


Named = dict[str, np.ndarray]


def _known(settings: Settings, about: Teacher, ledger: Ledger, found: Pretrained, train: Split) -> tuple[Named, Named]:
    """The targets of the methods, and what one would like to read from them."""
    images = torch.as_tensor(found.inputs(train.images[: about.fitted]))
    E, k = _fitted(about, ledger, found, train).training, settings.target
    with torch.no_grad():
        seen = [look(found.module.eval(), part, True) for part in images.split(250)]
    features, logits = (torch.cat([getattr(one, part) for one in seen]).numpy() for part in ("features", "logits"))
    maps = torch.cat([one.groups[1].flatten(1) for one in seen]).numpy()
    targets = {
        f"NFKD's target, {k} components": E[:, :k], f"PCA of the features, {k}": PCA(k).fit_transform(features),
        "logits": logits, "labels": np.eye(10)[train.labels[: about.fitted]],
    }  # fmt: skip
    return targets, {"pooled features": features, "logits": logits, "maps that FitNet teaches": maps}


def _shares(targets: Named, wanted: Named) -> dict[str, Any]:
    """ "target -> wanted": shares over five random halves."""
    return {f"{a} -> {b}": [held(targets[a], wanted[b], seed) for seed in range(5)] for a in targets for b in wanted}


def _with_labels(targets: Named, wanted: Named) -> dict[str, Any]:
    """What each target holds of features and logits beside the labels, which a student has anyway."""
    wanted = {name: wanted[name] for name in ("pooled features", "logits")}
    unit = {name: (rows - rows.mean(0)) / np.sqrt(rows.var(0).sum()) for name, rows in targets.items()}
    labels = unit.pop("labels")
    joint = {f"labels and {name}": np.hstack([labels, rows]) for name, rows in unit.items()}
    return _shares(joint, wanted)


def _probes(
    ledger: Ledger, settings: Settings, about: Teacher, told: Callable[[], dict], train: Split, test: Split,
    pictures: Path,
) -> list[Row]:  # fmt: skip
    """The paper's figure: a linear probe of the teacher's embedding against k, and the teacher on the same images."""
    ranks, labels = settings.ranks, test.labels[: settings.probed]

    def measure(about: Teacher, ranks: tuple[int, ...]) -> dict[str, Any]:
        made = probe_by_rank(told()["embedding"][0], train.labels, told()["tested"], labels, ranks)
        own = proportion(told()["tested_logits"].argmax(1) == labels)
        found = {str(k): result.accuracy for k, result in made.items()} | {"teacher": own}
        return {name: [estimate.value, estimate.low, estimate.high] for name, estimate in found.items()}

    scores = ledger.once("probe of the teacher's embedding", measure, about, ranks)
    up = 100 * np.array([scores[str(k)] for k in ranks])
    figures.curves(
        {"linear probe of the embedding, 95 % interval": (ranks, up[:, 0], (up[:, 2] - up[:, 1]) / 2)},
        pictures / "teacher-probe.png", "WRN-16-2 on CIFAR-10", "components k", "test accuracy, %",
        levels={"the teacher itself": 100 * scores["teacher"][0]}, logarithmic=True,
    )  # fmt: skip
    facts = dict(data="CIFAR-10", metric="test accuracy", images=settings.probed)
    names = {f"k = {k}": (str(k), {"role": "probe of the teacher's embedding", "features": k}) for k in ranks}
    names["the teacher, where probed"] = ("teacher", {"role": "teacher"})
    return [
        row(name, [scores[key][0]], low=scores[key][1], high=scores[key][2], **more, **facts)
        for name, (key, more) in names.items()
    ]
