"""`nfk demo`: what this is about, in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from nfk.cli.options import Force, Seed, path_option
from nfk.cli.refusal import refuse_existing
from nfk.cli.words import option
from nfk.demo import show


def demo(
    output: Annotated[Path, path_option("A folder for the figures and the run.")] = Path("demo"),
    rank: Annotated[int, option("Numbers for each digit.", "K")] = 64,
    key: Seed = 0,
    force: Force = False,
) -> int:
    """See what this is about: real digits, a small trained network, a minute.

    4,000 digits are embedded, and the embedding is compared with PCA and with the pixels on 1,000 others.

    Example: nfk demo
    """
    refuse_existing(output, force)
    show(output, rank, key)
    return 0
