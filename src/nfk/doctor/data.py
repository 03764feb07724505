"""Whether the examples can be read: numbers, and the same ones again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from nfk.doctor.diagnosis import Finding
from nfk.doctor.patient import Sample
from nfk.stream import Examples, check_finite

SAMPLE = 32  # examples that are looked at


def places_of(examples: Examples) -> list[int]:
    count = min(SAMPLE, len(examples))
    if getattr(examples.source, "sequential", False):
        return list(range(count))
    return np.unique(np.linspace(0, len(examples) - 1, count).astype(int)).tolist()


def look_at_data(examples: Examples, places: Sequence[int]) -> tuple[Finding, Sample | None]:
    """Whether the examples are numbers and the same when they are read again; and those that are."""
    sample, again = (Sample(_read(examples, places), places, examples.name) for _ in range(2))
    same = [_equal(sample.taken([index]).batch, again.taken([index]).batch) for index in range(len(sample))]
    if not all(same):
        changed = [index for index, equal in enumerate(same) if not equal]
        return Finding(
            "data", "error", f"{sample.named(changed)}: other numbers when read a second time",
            "a fit reads the data several times, in one order: use shuffle=False, and no random augmentation",
        ), None  # fmt: skip
    finite = [index for index in range(len(sample)) if _is_finite(sample.taken([index]))]
    if len(finite) == len(sample):
        return Finding("data", "ok", f"{len(sample)} examples, the same when read twice, every number finite"), sample
    bad = sorted(set(range(len(sample))) - set(finite))
    finding = Finding(
        "data", "error", f"{sample.named(bad)}: NaN or infinity in {len(bad)} of {len(sample)} examples",
        "remove or repair those examples: np.isfinite(X) finds all of them",
    )  # fmt: skip
    return finding, sample.taken(finite) if len(finite) > 1 else None


def _read(examples: Examples, places: Sequence[int]) -> Any:
    parts = [jax.tree.map(np.array, examples.slice(place, place + 1)) for place in places]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _equal(first: Any, second: Any) -> bool:
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


def _is_finite(sample: Sample) -> bool:
    try:
        check_finite(sample.batch, 0, sample.name)
    except ValueError:
        return False
    return True
