"""The words of the command line that several commands share."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import tyro

from nfk.cli.reading import KINDS
from nfk.cli.words import option
from nfk.planning import MethodName

ModelName = Annotated[
    str,
    tyro.conf.Positional,
    option(
        "FILE.py:FACTORY or PACKAGE.MODULE:FACTORY (a function that returns an nfk model), a folder of transformers "
        "or timm, or digits-lenet.",
        "MODEL",
    ),
]
DataName = Annotated[str, tyro.conf.Positional, option(f"{KINDS[0].upper()}{KINDS[1:]}.", "DATA")]
RunFolder = Annotated[Path, tyro.conf.Positional, option("A folder that nfk fit wrote.", "RUN")]
OtherData = Annotated[str | None, option("Other data than those of the fit, read as they were.", "DATA")]
RunModel = Annotated[
    str | None, option("The network of the run, where it is not found by the name it had then.", "MODEL")
]
Seed = Annotated[int, option("Seed of all that is random.", "N")]
Memory = Annotated[
    str | None, option("A budget that is kept, such as 4GB; half of the free memory by default.", "SIZE")
]
Scratch = Annotated[
    Path | None,
    option("A folder on a disk with room, for what does not fit in memory; that of the system by default.", "FOLDER"),
]
Method = Annotated[MethodName, option("How the components are found; auto chooses.")]
Count = Annotated[int, option("How many to show.", "N")]
Force = Annotated[bool, option("Overwrite what is there.")]


def path_option(help: str) -> Any:
    return option(help, "PATH", aliases=("-o",))


def command_line(command: str, *names: str, **options: Any) -> str:
    """The command that says the same again."""
    words = ["nfk", command, *names]
    for name, value in options.items():
        if value is not None and value is not False:
            several = value if isinstance(value, tuple) else (value,)
            words += [f"--{name.replace('_', '-')}", *([] if value is True else map(str, several))]
    return shlex.join(words)
