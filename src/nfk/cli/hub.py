"""Model folders of `transformers` and `timm` as nfk models. From files on disk alone; no code in them is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nfk.cli.refusal import Refused, needs
from nfk.model import Model

# The end of the name of an architecture, and the function of nfk.torch that reads it; the first that fits.
KINDS = {
    "ForSequenceClassification": "classifier", "ForImageClassification": "classifier",
    "ForCausalLM": "language_model", "LMHeadModel": "language_model", "Model": "encoder",
}  # fmt: skip


def model_in(folder: Path) -> Model:
    path = folder / "config.json"
    if not path.is_file():
        raise Refused(f"{folder} has no config.json: it is not a model folder of transformers or timm")
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise Refused(f"{path} is not JSON: {error}") from error
    return _timm(folder) if "architecture" in config else _transformers(folder, config)


def _transformers(folder: Path, config: dict[str, Any]) -> Model:
    architecture = (config.get("architectures") or [""])[0]
    build = next((build for ending, build in KINDS.items() if architecture.endswith(ending)), None)
    if build is None:
        raise Refused(
            f"{folder} holds {architecture or 'a model without its architecture'}: a classifier, a causal language "
            "model or an encoder is needed; for another, write a function that returns an nfk model and name it as "
            "FILE.py:FACTORY"
        )
    try:
        import transformers
    except ImportError as error:
        raise needs("transformers", str(folder), "transformers torch") from error
    transformers.logging.disable_progress_bar()
    try:
        # "eager": attention as plain matrix products, which can be differentiated example by example
        options: dict[str, Any] = {"local_files_only": True, "attn_implementation": "eager"}
        module = getattr(transformers, architecture).from_pretrained(folder, **options).eval()
    except Exception as error:
        raise Refused(f"{folder} could not be read by transformers: {error}") from error
    import nfk.torch

    return getattr(nfk.torch, build)(module)


def _timm(folder: Path) -> Model:
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
