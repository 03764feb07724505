"""How the source reads, in numbers, for one or more revisions.

`python -m benchmarks.code_metrics --revisions 0.3.0=37e3203 redesign=007f9f7 "working tree" --output results/code.json`
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tyro
from radon.complexity import cc_visit
from radon.raw import analyze

ROOT = Path(__file__).parents[1]
TREE = "working tree"
# Words that say on which device an array lives: code that has many of them cannot be read without knowing it.
PLACES = {
    "on_host": r"\bon_host\b",
    "default_backend()": r"\bdefault_backend\(\)",
    "isinstance(..., np.ndarray)": r"\bisinstance\([^\n]*?np\.ndarray",
}
# Around the library: the experiments (up to 0.3), and what came after 0.3 to show, watch and keep results.
SHELLS = tuple(f"src/nfk/{name}" for name in ("lab", "cli", "demo", "doctor", "report", "runs.py", "__main__.py"))
Sources = Mapping[str, str]  # the text of every module, by its path


def sources(revision: str, paths: tuple[str, ...], without: tuple[str, ...], root: Path = ROOT) -> Sources:
    """The Python files under `paths` but not under `without`, as they are in a commit or on the disk."""
    if revision == TREE:
        named = sorted({file for path in paths for file in (root / path).rglob("*.py")})
        texts = {file.relative_to(root).as_posix(): file.read_text() for file in named}
    else:
        names = _git(root, "ls-tree", "-r", "--name-only", revision, "--", *paths).splitlines()
        texts = {name: _git(root, "show", f"{revision}:{name}") for name in names if name.endswith(".py")}
    return {name: text for name, text in texts.items() if not any(Path(name).is_relative_to(path) for path in without)}


def metrics(files: Sources) -> dict[str, Any]:
    """Lines of code (without blank lines, comments and docstrings), the worst functions, and words that are counted."""
    bodies = [(length, f"{path}:{name}") for path, text in files.items() for name, length in body_lengths(text)]
    blocks = [(block.complexity, f"{path}:{_name(block)}") for path, text in files.items() for block in _blocks(text)]
    places = {path: counted for path, text in files.items() if (counted := _counts(text, PLACES))}
    return {
        "modules": len(files),
        "lines": sum(analyze(text).sloc for text in files.values()),
        "longest_body": _worst("lines", bodies),
        "worst_complexity": _worst("complexity", blocks),
        "mentions_of_any": sum(len(re.findall(r"\bAny\b", text)) for text in files.values()),
        "mentions_of_a_place": sum(sum(counted.values()) for counted in places.values()),
        "places": places,
    }


def body_lengths(text: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function: from the first statement after its docstring to the last line."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            name = f"{prefix}{child.name}." if named else prefix
            if named and not isinstance(child, ast.ClassDef):
                body = child.body[1:] if ast.get_docstring(child) is not None else child.body
                yield name[:-1], body[-1].end_lineno - body[0].lineno + 1 if body else 0
            yield from visit(child, name)

    return visit(ast.parse(text), "")


def _blocks(text: str) -> list[Any]:
    """Functions and methods; a class has a complexity of its own in radon, which is a mean."""
    return [block for block in cc_visit(text) if block.letter != "C"]


def _name(block: Any) -> str:
    return f"{block.classname}.{block.name}" if getattr(block, "classname", None) else block.name


def _worst(what: str, found: list[tuple[int, str]]) -> dict[str, Any]:
    value, name = max(found, default=(0, ""))
    return {what: value, "name": name}


def _counts(text: str, patterns: Mapping[str, str]) -> dict[str, int]:
    counts = {name: len(re.findall(pattern, text)) for name, pattern in patterns.items()}
    return {name: count for name, count in counts.items() if count}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def main(
    revisions: tuple[str, ...] = (TREE,),
    paths: tuple[str, ...] = ("src/nfk",),
    without: tuple[str, ...] = SHELLS,
    output: Path | None = None,
) -> None:
    """Print the metrics of every revision as JSON.

    Args:
        revisions: commits, tags or branches, as NAME=REVISION to be shown under a name; the files on the disk when
            there are none.
        paths: files and folders to count.
        without: those among them to leave out: what stands around the library, by default.
        output: a file for the same JSON.
    """
    named = {revision.split("=")[0]: revision.split("=")[-1] for revision in revisions}
    found = {name: metrics(sources(revision, paths, without)) for name, revision in named.items()}
    text = json.dumps({"paths": paths, "without": without, "revisions": found}, indent=1) + "\n"
    print(text, end="")
    if output is not None:
        output.write_text(text)


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.code_metrics")
