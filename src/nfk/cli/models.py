"""Models by name: a factory of the caller's, one of the package, a folder of `transformers` or `timm`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nfk.cli import naming
from nfk.cli.refusal import Refused, needs
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
        return _from_folder(Path(name))
    raise Refused(
        f"{name}: no such model; name a function that returns one (FILE.py:FACTORY or PACKAGE.MODULE:FACTORY), a "
        f"folder of transformers or timm, or one of {', '.join(ZOO)}"
    )


def _made(name: str, factory: Any) -> Model:
    if isinstance(factory, Model):
        return factory
    if not callable(factory):
        raise Refused(f"{name} is a {type(factory).__name__}: name a function that returns an nfk model")
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


def tokenizer_folder(name: str) -> str | None:
    """The folder of a `transformers` model has its tokenizer, too."""
    files = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
    folder = Path(name)
    return name if folder.is_dir() and any((folder / file).is_file() for file in files) else None


def _from_folder(folder: Path) -> Model:
    path = folder / "config.json"
    if not path.is_file():
        raise Refused(f"{folder} has no config.json: it is not a model folder of transformers or timm")
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise Refused(f"{path} is not JSON: {error}") from error
    return _timm(folder, config) if "architecture" in config else _transformers(folder, config)


def _transformers(folder: Path, config: dict[str, Any]) -> Model:
    architecture = (config.get("architectures") or [""])[0]
    classifies = architecture.endswith("ForSequenceClassification") or architecture.endswith("ForImageClassification")
    if not classifies and not architecture.endswith(("ForCausalLM", "LMHeadModel")):
        raise Refused(
            f"{folder} holds {architecture or 'a model without its architecture'}: a classifier or a causal language "
            "model is needed; for another, write a function that returns an nfk model and name it as FILE.py:FACTORY"
        )
    try:
        import transformers
    except ImportError as error:
        raise needs("transformers", str(folder), "transformers torch") from error
    import nfk.torch

    try:
        # "eager": attention as plain matrix products, which can be differentiated example by example
        options: dict[str, Any] = {"local_files_only": True, "attn_implementation": "eager"}
        module = getattr(transformers, architecture).from_pretrained(folder, **options).eval()
    except Exception as error:
        raise Refused(f"{folder} could not be read by transformers: {error}") from error
    return nfk.torch.classifier(module) if classifies else nfk.torch.language_model(module)


def _timm(folder: Path, config: dict[str, Any]) -> Model:
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise needs("timm", str(folder)) from error
    import nfk.torch

    try:
        module = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    except Exception as error:
        raise Refused(f"{folder} could not be read by timm: {error}") from error
    return nfk.torch.classifier(module)
