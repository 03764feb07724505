"""The API in the documentation: every public name is there, and every parameter is explained."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {
    "nfk": "nfk",
    "nfk.figures": "figures",
    "nfk.tasks": "tasks",
    "nfk.torch": "torch",
    "nfk.sklearn": "sklearn",
    "nfk.report": "report",
}
NAMES = {"nfk.sklearn": ["FisherEmbedding"], "nfk.figures": ["spectrum", "embedding_map", "leading_images"]}
METHODS = ("__call__", "decompose", "gram", "truncated", "save")


def public(module: str) -> dict[str, object]:
    if module == "nfk.torch":
        pytest.importorskip("torch", reason="PyTorch; pip install 'nfk[torch]' to run it")
    if module == "nfk.report":
        pytest.importorskip("jinja2", reason="the report; pip install 'nfk[report]' to run it")
    found = importlib.import_module(module)
    return {name: getattr(found, name) for name in NAMES.get(module) or found.__all__}


def explained(function: object) -> set[str]:
    """Names at the head of a line of the section "Args"."""
    text = inspect.getdoc(function) or ""
    section = re.search(r"^Args:\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
    return set(re.findall(r"^    (\w+): \S", section[1], re.MULTILINE)) if section else set()


def missing(function: object) -> set[str]:
    return {name for name in inspect.signature(function).parameters if name != "self"} - explained(function)


@pytest.mark.parametrize("module", PAGES)
def test_every_parameter_of_a_public_function_is_explained(module):
    functions = {name: item for name, item in public(module).items() if inspect.isfunction(item)}
    found = {name: missing(function) for name, function in functions.items()}
    assert not {name: names for name, names in found.items() if names}


def test_every_parameter_of_the_embedding_and_of_the_transformer_is_explained():
    from nfk import Embedding
    from nfk.sklearn import FisherEmbedding

    assert not missing(FisherEmbedding)
    methods = [getattr(Embedding, name) for name in METHODS]
    methods += [FisherEmbedding.fit, FisherEmbedding.fit_transform, FisherEmbedding.transform]
    for method in methods:
        assert not missing(method), method


@pytest.mark.parametrize("module", PAGES)
def test_every_public_name_is_on_the_page_of_its_module(module):
    text = (ROOT / "docs" / "api" / f"{PAGES[module]}.md").read_text()
    listed = re.findall(rf"^\.\. auto\w+:: {re.escape(module)}\.(\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(public(module))


def test_what_is_not_explained_is_found():
    def function(first, second, **options):
        """One line.

        Args:
            first: a number.
            options: those of another:

                - `second`: is not explained by this.
        """

    assert missing(function) == {"second"}
