"""How `make docs` builds these pages: Markdown by MyST, the API from the docstrings."""

import re

import nfk

project = "nfk"
author = "the authors of nfk"
version = release = nfk.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "nfk"
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1a5fb4", "color-brand-content": "#1a5fb4"},
    "dark_css_variables": {"color-brand-primary": "#82b6ff", "color-brand-content": "#82b6ff"},
}

myst_enable_extensions = ["html_image"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # an included page may begin at a lower heading

smartquotes = False  # "logistic" is typed as it stands
default_role = "code"  # `fit` in a docstring is code
napoleon_google_docstring, napoleon_numpy_docstring = True, False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # shapes in the signatures are for the checker; the docstrings say what is meant
autodoc_preserve_defaults = True
autosummary_generate = False

SECTION = re.compile(r"(Args|Returns|Raises):$")


def as_text(app: object, what: str, name: str, item: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text with `code`: equations in them are no markup, and indented ones stand as they are."""
    if what in ("property", "attribute") and lines:
        lines[0] = lines[0].replace(": ", "; ", 1)  # before a colon napoleon expects a type
    result, section, before = [], False, ""
    for line in lines:
        indented = line.startswith("    ")
        section = bool(SECTION.match(line)) or (section and (indented or not line))
        literal = indented and not section
        if literal and not before and not (result and result[-1].startswith("    ")):
            result += ["::", ""]
        result.append(line if literal else _escaped(line))
        before = line
    lines[:] = result


def _escaped(line: str) -> str:
    """Signs that reStructuredText would read as markup, outside `code`, with a backslash."""
    parts = re.split(r"(`[^`]+`)", line)
    plain = [re.sub(r"([|*])|(?<=\w)(_)(?=\W|$)", lambda sign: "\\" + sign[0], part) for part in parts[::2]]
    code = [*parts[1::2], ""]
    return "".join(text + quoted for text, quoted in zip(plain, code, strict=True))


def setup(app: object) -> None:
    app.connect("autodoc-process-docstring", as_text, priority=400)  # before napoleon reads the arguments
