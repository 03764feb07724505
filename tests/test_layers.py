"""The table in CONTRIBUTING.md is the architecture: modules import only from the layers above their own row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "nfk"


def layers() -> dict[str, int]:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    return {module: int(layer) for layer, module in rows}


def imports(path: Path) -> set[str]:
    """Modules of the package that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "nfk":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("nfk.")}
    return found


def test_every_module_is_in_the_table():
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"} | {"lab", "tasks", "torch"}
    assert modules == set(layers())


def test_imports_point_upwards_only():
    table = layers()
    for path in SOURCE.rglob("*.py"):
        module = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if module in ("__init__", "lab"):
            continue
        for name in imports(path) - {module}:
            assert table[name] < table[module], f"{path} (layer {table[module]}) imports {name} ({table[name]})"


def test_tasks_know_arrays_and_nothing_of_where_they_came_from():
    for path in (SOURCE / "tasks").glob("*.py"):
        assert imports(path) <= {"tasks"}, path


def test_only_public_jax_is_used():
    for path in SOURCE.rglob("*.py"):
        assert not re.search(r"jax\._src|jax\.interpreters|jax\.core|jax\.extend", path.read_text()), path
