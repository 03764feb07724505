"""How a module is called on one example: a tensor, or a dict of a tokenizer; and what is read of its output.

`transformers` looks at the values of a padding mask in Python, which vmap does not allow. It takes a mask of four axes
as it is, so that is what it gets here: 0 where a position may look, the lowest number where not.
"""

from __future__ import annotations

import inspect
from typing import Any

import jax
import torch
from torch import Tensor, nn

from nfk.model.interface import Example, NotAScore

TOKENS, MASK = "input_ids", "attention_mask"


def output(module: nn.Module, example: Example) -> Any:
    """What a module for batches returns for one example, with a batch axis of one; a dict goes in by its names.

    For functions of your own over models of `transformers`: a padding mask is passed in a form that can be vectorised.

    Args:
        module: the module, as a function of yours gets it.
        example: one example: a tensor, or a dict as a tokenizer returns it.
    """
    if isinstance(example, dict) and TOKENS in example:
        return module(**_arguments(module, example))
    return module(jax.tree.map(lambda leaf: leaf[None], example))


def logits(module: nn.Module, example: Example) -> Tensor:
    """The output of one example; of an output object of `transformers`, its logits."""
    result = output(module, example)
    return getattr(result, "logits", result)[0]


def tokens_and_mask(example: Example) -> tuple[Tensor, Tensor]:
    """The tokens of an example and which of them are not padding: of a dict, or of tokens alone."""
    if not isinstance(example, dict):
        return example, torch.ones_like(example)
    if TOKENS not in example:
        raise NotAScore(
            f"an example with {sorted(example)} has no {TOKENS!r}: pass tokens, or what a tokenizer returns"
        )
    tokens = example[TOKENS]
    return tokens, example.get(MASK, torch.ones_like(tokens))


def _arguments(module: nn.Module, example: dict) -> dict:
    """What the module takes of one example with its tokens, as a batch of one."""
    _, mask = tokens_and_mask(example)
    takes = inspect.signature(module.forward).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    arguments = {name: leaf[None] for name, leaf in example.items() if name in takes or anything}
    if MASK in takes:
        arguments[MASK] = _additive(mask, any(getattr(layer, "is_causal", False) for layer in module.modules()))
    if "position_ids" in takes:
        arguments.setdefault("position_ids", (mask.long().cumsum(0) - 1).clamp(min=0)[None])
    if "use_cache" in takes:
        arguments["use_cache"] = False
    return arguments


def _additive(mask: Tensor, causal: bool) -> Tensor:
    """A padding mask as (1, 1, T, T): what is added to the weight that one position gives to another."""
    allowed = (mask != 0)[None, :].expand(len(mask), len(mask))
    if causal:
        allowed = allowed & torch.ones_like(allowed).tril()
    return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)[None, None]
