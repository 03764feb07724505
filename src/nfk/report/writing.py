"""From fits to a file: the functions that people call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nfk.atomic import write_atomically
from nfk.embedding import Embedding
from nfk.report.content import Content, content_of_embedding, content_of_run
from nfk.report.page import page_of
from nfk.runs import read_run

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


def write_report(folders: Sequence[str | Path], output: str | Path = "report.html", most: int = MOST) -> Path:
    """Write one page about the runs in these folders, side by side where there are several, and return its path.

    Runs on the same examples share their thumbnails, and their maps are linked. Reads no model and runs none.

    Args:
        folders: what `nfk fit` wrote, a list of folders.
        output: the file to write. An existing one is replaced, whole.
        most: examples on the page; of more, as many are drawn at random.
    """
    if isinstance(folders, (str, Path)):
        raise TypeError(f"folders={folders!r} is one folder: pass a list of them, [{str(folders)!r}]")
    names = _names([Path(folder) for folder in folders])
    contents = [content_of_run(read_run(folder), name) for folder, name in zip(folders, names, strict=True)]
    return write_page(contents, Path(output), most)


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, with as many more as tell the folders apart."""
    parts = [folder.resolve().parts[1:] or ("/",) for folder in folders]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return names


def write_page(contents: Sequence[Content], output: Path, most: int = MOST) -> Path:
    """Write one page about all of them, side by side.

    Args:
        contents: one `Content` for each fit.
        output: the file to write.
        most: examples on the page; of more, as many are drawn at random.
    """
    if not contents:
        raise ValueError("there is nothing to report: name at least one run")
    page = page_of(contents, most)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, lambda partial: _write_text(partial, page))
    return output


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
