"""`nfk demo`: what this is about, in a minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from nfk.cli.options import Force, Seed, path_option
from nfk.cli.refusal import refuse_existing
from nfk.cli.saying import Saying, Spoken
from nfk.cli.words import option
from nfk.demo import Shown, show


def demo(
    output: Annotated[Path, path_option("A folder for the figures and the run.")] = Path("demo"),
    rank: Annotated[int, option("Numbers for each digit.", "K")] = 64,
    key: Seed = 0,
    force: Force = False,
    saying: Spoken = Saying(),  # noqa: B008
) -> int:
    """See it work on real digits, in a minute.

    A small trained network embeds 4,000 digits. The embedding is compared with PCA and with the pixels on 1,000 others.

    Example: nfk demo
    """
    refuse_existing(output, force)
    shown = show(output, rank, key, Console(stderr=saying.as_json))
    if saying.as_json:
        print(json.dumps(_facts(shown)))
    return 0


def _facts(shown: Shown) -> dict[str, Any]:
    embedding, worth = shown.embedding, shown.worth
    return {
        "run": str(shown.run), "figures": [str(path) for path in shown.figures], "seconds": shown.seconds,
        "examples": len(embedding.left), "rank": embedding.rank, "passes": embedding.passes,
        "explained_variance": float(embedding.explained_variance_ratio.sum()),
        "largest_residual": float(embedding.residuals.max()),
        "accuracy": {
            "embedding": worth.embedded.accuracy.value, "pca": worth.pca.accuracy.value,
            "pixels": worth.pixels.accuracy.value, "network": worth.network,
        },
    }  # fmt: skip
