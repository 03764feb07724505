"""How much a linear probe reads out of a contestant's embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nfk import tasks


def accuracy(embeddings: Path, labels: dict[str, np.ndarray]) -> dict[str, Any]:
    """Test accuracy with its 95 % interval, of the probe that `nfk.tasks` has for any features."""
    with np.load(embeddings) as archive:
        train, test = archive["train"], archive["test"]
    found = tasks.probe(train, labels["train"], test, labels["test"]).accuracy
    return {"accuracy": found.value, "low": found.low, "high": found.high, "numbers": train.shape[1]}
