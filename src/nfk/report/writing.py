"""From fits to a file: the functions that people call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nfk.atomic import write_atomically
from nfk.embedding import Embedding
from nfk.report.content import Content, content_of_embedding
from nfk.report.page import page_of

MOST = 10_000


def report(
    embedding: Embedding,
    X: Any = None,
    labels: Any = None,
    output: str | Path = "report.html",
    *,
    name: str = "embedding",
    seconds: float | None = None,
    most: int = MOST,
) -> Path:
    """Write a page about an embedding that was just fitted, and return its path.

    No pass over the data: the embedding of the fit's examples is in it. n^2 k operations for the neighbours of n shown
    examples, and a few linear classifiers where there are labels: seconds for 10,000.

    Args:
        embedding: what `nfk.fit` returned.
        X: what to show of each example of the fit, in their order: images, strings, or other arrays.
        labels: one for each example; they colour the map, and wrong ones are looked for.
        output: the file to write. An existing one is replaced, whole.
        name: the title of the page.
        seconds: how long the fit took, if it is to be said.
        most: examples on the page; of more, as many are drawn at random.
    """
    return write_page([content_of_embedding(embedding, X, labels, name, seconds)], Path(output), most)


def write_page(contents: Sequence[Content], output: Path, most: int = MOST) -> Path:
    """Write one page about all of them, side by side."""
    if not contents:
        raise ValueError("there is nothing to report: name at least one run")
    page = page_of(contents, most)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, lambda partial: partial.write_text(page, "utf-8") and None)
    return output
