"""A GPT-2 and some sentences of different lengths: which are alike, seen by the parameters that they pull on?

    python examples/gpt2.py [--smoke]

The weights here are random, so that it runs anywhere; with yours it is `GPT2LMHeadModel.from_pretrained(folder)`.
"""

import sys

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import nfk
import nfk.torch


def tokenized(count: int, words: int) -> dict:
    """What a tokenizer returns with padding=True: tokens, and a mask of what is not padding."""
    rng = np.random.default_rng(0)
    mask = (np.arange(16) < rng.integers(6, 17, (count, 1))).astype(np.int64)
    return {"input_ids": rng.integers(1, words, (count, 16)) * mask, "attention_mask": mask}


def main(smoke: bool) -> None:
    torch.manual_seed(0)
    words, width = (50, 16) if smoke else (5000, 256)
    config = GPT2Config(vocab_size=words, n_positions=32, n_embd=width, n_layer=2, n_head=2)
    module = GPT2LMHeadModel(config)
    data = tokenized(12 if smoke else 128, words)

    model = nfk.torch.language_model(module.eval())
    embedding = nfk.fit(model, data, rank=4 if smoke else 32)
    features = embedding(data)

    print(embedding.plan)  # it says which parameters take part
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    nearest = np.argmax(unit @ unit.T - 2 * np.eye(len(unit)), axis=1)
    print(f"the sentence nearest to sentence 0 is sentence {nearest[0]}")


if __name__ == "__main__":
    main("--smoke" in sys.argv)
