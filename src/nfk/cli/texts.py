"""Texts as arrays of tokens, by a tokenizer of `transformers` or a function of the caller's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nfk.cli import naming
from nfk.cli.refusal import Refused, needs


def lines(path: Path) -> list[str]:
    """A text for every line that is not blank."""
    try:
        found = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read as UTF-8: {error}") from error
    return [line for line in found if line]


def tokenizer_folder(name: str) -> str | None:
    """The folder of a `transformers` model has its tokenizer, too."""
    files = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
    folder = Path(name)
    return name if folder.is_dir() and any((folder / file).is_file() for file in files) else None


def tokens(texts: list[str], tokenizer: str | None, length: int, name: str) -> Any:
    """{"input_ids", "attention_mask"}, both (n, length), or what the caller's function makes of the texts."""
    if tokenizer is None:
        raise Refused(f"{name} holds texts: say how they become numbers with --tokenizer FOLDER or FILE.py:FUNCTION")
    if naming.is_reference(tokenizer):
        return _by_function(texts, tokenizer)
    if tokenizer_folder(tokenizer) is None:
        raise Refused(
            f"--tokenizer {tokenizer}: there is no tokenizer in such a folder, and it is not FILE.py:FUNCTION"
        )
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise needs("transformers", f"--tokenizer {tokenizer}") from error
    try:
        loaded = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True, padding_side="right")
    except Exception as error:
        raise Refused(f"--tokenizer {tokenizer} could not be read by transformers: {error}") from error
    if loaded.pad_token is None:
        loaded.pad_token = loaded.eos_token  # its places are masked, so that any token will do
    found = loaded(texts, padding="max_length", truncation=True, max_length=length, return_tensors="np")
    return {part: np.asarray(found[part]) for part in ("input_ids", "attention_mask")}


def _by_function(texts: list[str], name: str) -> Any:
    function = naming.find(name)
    try:
        return function(texts)
    except Exception as error:
        raise Refused(f"{name} failed on {len(texts)} texts: {type(error).__name__}: {error}") from error
