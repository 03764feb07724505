"""Sentences as rows of word numbers with a mask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

END, UNKNOWN = 0, 1


@dataclass(frozen=True)
class Vocabulary:
    """The commonest words of some texts; number 0 ends a sentence, number 1 is every other word."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Sequence[str], size: int) -> Vocabulary:
        """The `size - 2` commonest words, ties in alphabetical order."""
        counts = Counter(word for text in texts for word in text.split())
        common = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(("<end>", "<unknown>", *common[: size - 2]))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, texts: Sequence[str], length: int) -> dict[str, np.ndarray]:
        """`tokens` and `mask`, each (n, length): a sentence, its end, and padding; cut where it is longer."""
        tokens = np.full((len(texts), length), END, np.int32)
        mask = np.zeros((len(texts), length), np.float32)
        for row, text in enumerate(texts):
            numbers = [self._numbers.get(word, UNKNOWN) for word in text.split()][: length - 1]
            tokens[row, : len(numbers)] = numbers
            mask[row, : len(numbers) + 1] = 1
        return {"tokens": tokens, "mask": mask}
