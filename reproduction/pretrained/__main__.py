"""`python -m reproduction.pretrained [NAMES] [--download]`: what is where on this machine, and fetching it."""

from __future__ import annotations

import sys
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Column, Table

from reproduction.download import DownloadError
from reproduction.pretrained.files import ORIGINS, WeightsError, find, read
from reproduction.pretrained.networks import NETWORKS, known


def main(names: Annotated[tuple[str, ...], tyro.conf.Positional] = (), download: bool = False) -> int:
    """Say where the weights of each network are, verified, and fetch those that are missing.

    Args:
        names: of networks; all of them by default.
        download: fetch what is not found.
    """
    table = Table("network", "data", "kind", Column("parameters", justify="right"), "licence", Column("where"))
    try:
        for name in names or NETWORKS:
            network = known(name)
            facts = (network.data, network.kind, f"{network.parameters:,}", ORIGINS[name].licence)
            table.add_row(name, *facts, _place(name, download))
    except (WeightsError, DownloadError) as error:
        print(error, file=sys.stderr)
        return 2
    Console().print(table)
    return 0


def _place(name: str, download: bool) -> str:
    try:
        read(name, download=download)
    except FileNotFoundError:
        return "not here: --download"
    return str(find(name).parent)


if __name__ == "__main__":
    sys.exit(tyro.cli(main, prog="python -m reproduction.pretrained"))
