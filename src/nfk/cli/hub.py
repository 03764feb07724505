"""Model folders of `transformers` and `timm` as nfk models. From files on disk alone; no code in them is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nfk.cli.refusal import Refused, needs
from nfk.model import Model


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
    kinds = {
        "ForSequenceClassification": _of_texts, "ForImageClassification": _of_images,
        "ForCausalLM": _language_model, "LMHeadModel": _language_model,
    }  # fmt: skip
    build = next((build for ending, build in kinds.items() if architecture.endswith(ending)), None)
    if build is None:
        raise Refused(
            f"{folder} holds {architecture or 'a model without its architecture'}: a classifier or a causal language "
            "model is needed; for another, write a function that returns an nfk model and name it as FILE.py:FACTORY"
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
    return build(module)


def _of_texts(module: Any) -> Model:
    """One text after another: the masks of these networks ask for their values, which vectorising forbids."""
    import nfk.torch

    return nfk.torch.classifier(module, _text_logits, vectorised=False)


def _text_logits(module: Any, example: Any) -> Any:
    return module(**{name: part[None] for name, part in example.items()}).logits[0]


def _of_images(module: Any) -> Model:
    import nfk.torch

    return nfk.torch.classifier(module, lambda module, image: module(pixel_values=image[None]).logits[0])


def _language_model(module: Any) -> Model:
    import nfk.torch

    return nfk.torch.density(module, _log_probability)


def _log_probability(module: Any, example: Any) -> Any:
    """log p(text) = sum over t of log p(token t | those before), padding left out.

    Padding stands behind the text, where no token of it looks.
    """
    import torch

    tokens = example["input_ids"]
    # What each token may look at, in full: the networks would make it in a way that vectorising forbids.
    ahead = torch.full((len(tokens), len(tokens)), torch.finfo(module.dtype).min).triu(1)
    logits = module(input_ids=tokens[None], attention_mask=ahead[None, None], use_cache=False).logits[0, :-1]
    each = logits.log_softmax(dim=-1).gather(1, tokens[1:, None])[:, 0]
    return (each * example["attention_mask"][1:]).sum()


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
