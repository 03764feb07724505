"""Python objects by name: `package.module:name`, or `file.py:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from nfk.cli.refusal import Refused


def is_reference(name: str) -> bool:
    """Whether it has the form of a name inside a module (and is not a file of that name)."""
    module, colon, attribute = name.rpartition(":")
    return bool(colon and module and attribute.replace(".", "").isidentifier()) and not Path(name).exists()


def find(name: str) -> Any:
    """The object that is called so. Imports its module, which runs it."""
    module_name, _, attribute = name.rpartition(":")
    module = _from_file(Path(module_name)) if module_name.endswith(".py") else _from_path(module_name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise Refused(f"{name}: {module_name} has no {attribute!r}{_others(module)}")
        found = getattr(found, part)
    return found


def _others(module: ModuleType) -> str:
    """What might have been meant: the functions that were written in that module."""
    functions = [
        name
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return f"; it has {', '.join(functions[:8])}" if functions else ""


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise Refused(f"{path}: there is no such file; name a model as FILE.py:FACTORY or PACKAGE.MODULE:FACTORY")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _put_first(str(path.resolve().parent))  # its own neighbours, as when it is run
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise Refused(f"{path} could not be imported: {type(error).__name__}: {error}") from error
    return module


def _from_path(name: str) -> ModuleType:
    _put_first(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise Refused(f"{name}: there is no such module here or among the installed packages") from error
        raise Refused(f"{name} could not be imported: {error}") from error
    except Exception as error:
        raise Refused(f"{name} could not be imported: {type(error).__name__}: {error}") from error


def _put_first(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)
