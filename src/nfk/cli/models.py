"""Models by name: a factory of the caller's, one of the package, a folder of `transformers` or `timm`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nfk.cli import hub, naming
from nfk.cli.refusal import Refused
from nfk.demo.lenet import digits_lenet
from nfk.model import Model

ZOO: dict[str, Callable[[], Model]] = {"digits-lenet": digits_lenet}


def model_named(name: str) -> Model:
    """The model that is meant; a factory is called without arguments."""
    if name in ZOO:
        return ZOO[name]()
    if naming.is_reference(name):
        return _made(name, naming.find(name))
    if Path(name).is_dir():
        return hub.model_in(Path(name))
    raise Refused(
        f"{name}: no such model; name a function that returns one (FILE.py:FACTORY or PACKAGE.MODULE:FACTORY), a "
        f"folder of transformers or timm, or one of {', '.join(ZOO)}"
    )


def _made(name: str, factory: Any) -> Model:
    if isinstance(factory, Model):
        return factory
    if not callable(factory):
        raise Refused(f"{name} is no function but of type {type(factory).__name__}: name one that returns an nfk model")
    try:
        made = factory()
    except Exception as error:
        raise Refused(f"{name}() failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, Model):
        raise Refused(
            f"{name}() returned a {type(made).__name__}, not an nfk model: return nfk.classifier(apply, params), "
            "nfk.torch.classifier(module) or another of them"
        )
    return made
