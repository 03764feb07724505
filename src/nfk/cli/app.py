"""The command `nfk`: its words, its exit codes, and one sentence for whatever is wrong with the input."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Union

import tyro

import nfk
from nfk.cli.demo import demo
from nfk.cli.doctor import doctor
from nfk.cli.embed import embed
from nfk.cli.fit import fit
from nfk.cli.neighbours import neighbours
from nfk.cli.outliers import outliers
from nfk.cli.plan import plan
from nfk.cli.probe import probe
from nfk.cli.refusal import Refused
from nfk.cli.report import report
from nfk.cli.saying import warn
from nfk.cli.spectrum import spectrum

COMMANDS = {
    "demo": demo, "fit": fit, "embed": embed, "probe": probe, "neighbours": neighbours, "outliers": outliers,
    "spectrum": spectrum, "plan": plan, "doctor": doctor, "report": report,
}  # fmt: skip

DESCRIPTION = """What a trained network has learned about your data: k numbers for every example.

Begin with `nfk demo`, then `nfk fit MODEL DATA`, then `nfk report RUN`.
`nfk COMMAND --help` has an example of each. `nfk --version` prints the version.

Exit codes: 0 fine, 1 something was found (doctor, outliers --above), 2 bad input, 130 Ctrl-C.

Completion in this shell: source <(nfk --completion bash); or zsh, fish, tcsh.
"""

SHELLS = (["bash"], ["zsh"], ["fish"], ["tcsh"])
BAD_INPUT = (Refused, ValueError, TypeError, OSError, ImportError, MemoryError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:
        print(nfk.__version__)
        return 0
    if given[:1] == ["--completion"]:
        if given[1:] not in SHELLS:
            print("nfk --completion: name a shell, bash, zsh, fish or tcsh", file=sys.stderr)
            return 2
        given[0] = "--tyro-print-completion"
    with warnings.catch_warnings():
        warnings.filterwarnings("default", category=UserWarning)
        warnings.showwarning = _show_warning
        try:
            return tyro.cli(
                _commands(short=given[:1] in ([], ["-h"], ["--help"])), prog="nfk", description=DESCRIPTION,
                args=given or ["--help"], config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
            )  # fmt: skip
        except BrokenPipeError:  # whoever reads has seen enough, as in nfk ... | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except BAD_INPUT as error:
            print(f"nfk {given[0]}: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130


def _commands(short: bool) -> Any:
    """One of the commands, called with its options. In the list of them, each has one line."""

    def described(function: Callable[..., int]) -> str | None:
        return (inspect.getdoc(function) or "").splitlines()[0] if short else None

    return Union[  # noqa: UP007  (made of a list)
        tuple(
            Annotated[int, tyro.conf.subcommand(name, constructor=function, description=described(function))]
            for name, function in COMMANDS.items()
        )
    ]


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    warn(str(message))


if __name__ == "__main__":
    sys.exit(main())
