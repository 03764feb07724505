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
    """Modules of the package that a file imports, type hints included: `spaces.host`, `layout`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "nfk":
            inner = node.module.removeprefix("nfk").removeprefix(".")
            found |= {inner} if inner else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("nfk.") for alias in node.names if alias.name.startswith("nfk.")}
    return found


def files() -> list[tuple[str, Path]]:
    """Every file of the package, with the module of the table that it belongs to."""
    every = [(path.relative_to(SOURCE).parts[0].removesuffix(".py"), path) for path in SOURCE.rglob("*.py")]
    return [(module, path) for module, path in every if module != "__init__"]


def test_every_module_is_in_the_table_and_the_table_is_sorted():
    assert {module for module, _ in files()} == set(layers())
    assert list(layers().values()) == sorted(layers().values())


def test_imports_point_upwards_only():
    table = layers()
    for module, path in files():
        for name in {name.split(".")[0] for name in imports(path)} - {module}:
            if (module, name) == ("packing", "embedding"):
                continue  # a type hint: what is packed
            assert table[name] < table[module], f"{path} (layer {table[module]}) imports {name} ({table[name]})"


def test_the_solver_knows_operators_and_spaces_alone():
    for path in (SOURCE / "solve").glob("*.py"):
        assert {name.split(".")[0] for name in imports(path)} <= {"solve", "spaces"}, path


def test_tasks_know_arrays_and_nothing_of_where_they_came_from():
    for path in (SOURCE / "tasks").glob("*.py"):
        assert {name.split(".")[0] for name in imports(path)} <= {"tasks", "notebook"}, path


def test_where_arrays_live_is_known_in_one_place():
    """No flag, no test of an array's kind, no question for the backend outside `spaces`."""
    for module, path in files():
        if module not in ("spaces", "tasks"):
            found = re.search(
                r"on_host|default_backend\(|isinstance\([^)]*(np\.ndarray|jax\.Array)\)", path.read_text()
            )
            assert not found, f"{path}: {found}"


def test_only_public_jax_is_used():
    """`jax.extend` is public but moves faster than the rest: one module uses it, which rewrites traced programs."""
    for path in SOURCE.rglob("*.py"):
        found = set(re.findall(r"jax\._src|jax\.interpreters|jax\.core|jax\.extend", path.read_text()))
        assert found <= ({"jax.extend"} if path == SOURCE / "model" / "program.py" else set()), path
