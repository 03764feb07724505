"""Students of every method: the weight of each is chosen on held-out images, then some seeds are trained and tested."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from reproduction.distillation.methods import Weights, build
from reproduction.distillation.teaching import Lessons, Recipe, correct, taught
from reproduction.tasks.ledger import Ledger, Row, row

Lend = Callable[[], Lessons]  # made when they are wanted
TRIAL_SEED = 100
STUDENT = 175_066  # parameters of a WRN-16-1


class Classroom:
    """Trains students, once for each method, weight and seed, and keeps which share of the images each has right.

    Args:
        ledger: keeps every score, so that a second run goes on.
        lessons: what all students learn from.
        target: components that a student of an embedding learns.
    """

    def __init__(self, ledger: Ledger, lessons: Lend, target: int) -> None:
        self.ledger, self.lessons, self.target = ledger, lessons, target

    def trials(self, name: str, recipe: Recipe, held: Lend, images: int) -> tuple[Weights, list[Row]]:
        """The best of the weights that the method tries, on held-out training images and one seed; and all of them."""
        tried = build(name, self.target).tried
        if len(tried) == 1:
            return tried[0], []
        scores = [
            self.score(f"held out, {name}", weights, held, recipe, TRIAL_SEED, images)["accuracy"] for weights in tried
        ]
        metric = "accuracy on held-out training images"
        facts = _facts(recipe, images) | {"role": "choice of the weight", "metric": metric}
        rows = [
            row(f"{name}, {weights.labels:g} labels + {weights.teacher:g} teacher", [score], **facts)
            for weights, score in zip(tried, scores, strict=True)
        ]
        return tried[scores.index(max(scores))], rows

    def students(
        self, chosen: dict[str, Weights], seeds: int, recipe: Recipe, test: Lend, images: int, role: str = "student"
    ) -> list[Row]:
        """Test accuracy of every method; the first seed of all of them comes before the second of any.

        `correct` has the single images, where they were kept: bits, as a hexadecimal number for each seed.
        """
        scores: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
        for seed in range(seeds):
            for name, weights in chosen.items():
                scores[name].append(self.score(f"student, {name}", weights, test, recipe, seed, images))
        facts = _facts(recipe, images) | {"role": role, "metric": "test accuracy"}
        made = []
        for name, several in scores.items():
            used = {"label_weight": chosen[name].labels, "teacher_weight": chosen[name].teacher}
            correct = [found["correct"] for found in several if "correct" in found]
            made.append(row(name, [found["accuracy"] for found in several], correct=correct, **used, **facts))
        return made

    def score(self, name: str, weights: Weights, test: Lend, recipe: Recipe, seed: int, images: int) -> dict[str, Any]:
        """Accuracy of one student on the images of `test`, nought where its training diverged."""
        full = f"{name}, {weights.labels:g} + {weights.teacher:g}, {recipe.epochs} epochs, seed {seed}"
        folder = self.ledger.folder / "checkpoints" / full.replace(" ", "-").replace(",", "")

        def measure(recipe: Recipe, *recorded: int) -> dict[str, Any]:
            torch.manual_seed(seed + 1)
            method = build(name.split(", ", 1)[1], self.target)
            try:
                student = taught(method, weights, self.lessons(), recipe, seed, folder)
            except FloatingPointError:
                return {"accuracy": 0.0, "diverged": True}
            right = correct(student, test().images, test().labels)
            return {"accuracy": float(right.mean()), "diverged": False, "correct": np.packbits(right).tobytes().hex()}

        found = self.ledger.once(full, measure, recipe, images, self.target)
        shutil.rmtree(folder, ignore_errors=True)  # kept until the score is: a training that is stopped goes on
        return found


def _facts(recipe: Recipe, images: int) -> Row:
    return {"data": "CIFAR-10", "images": images, "epochs": recipe.epochs, "parameters": STUDENT}
