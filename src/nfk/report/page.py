"""Contents in, the text of an HTML page out. Everything a user named is escaped, in the markup and in the data."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from nfk.memory import human
from nfk.report import analysis
from nfk.report.analysis import Extremes, Labelling, Map, Suspect
from nfk.report.content import Content
from nfk.report.gallery import Gallery, packed
from nfk.tasks import alignment, spectrum

SCRIPTS = ("examples.js", "charts.js", "map.js", "main.js")
LAYERS = 24
BLOCKS = 16  # of a network with more layers than that
LAYER_COMPONENTS = 32
TEXTS_AT_AN_END = 4
HEADLINE = 4  # facts in large type
DEEP = 0.64  # of a layer's share: from here on, writing on its colour changes from dark to light, or back


@dataclass(frozen=True, eq=False)
class Data:
    """Examples that are shown, which several runs may share: places in `rows` are what the page counts by."""

    number: int
    total: int
    rows: np.ndarray
    labelling: Labelling | None
    gallery: Gallery | None

    @property
    def kind(self) -> str:
        return self.gallery.kind if self.gallery else "none"

    def label(self, place: int) -> str | None:
        return self.labelling.names[self.labelling.codes[place]] if self.labelling else None

    def text(self, place: int) -> str:
        return self.gallery.examples[self.rows[place]] if self.kind == "texts" else ""


@dataclass(frozen=True, eq=False)
class Section:
    """All that the page says of one run."""

    number: int
    content: Content
    data: Data
    maps: list[Map]
    around: analysis.Neighbourhood
    extremes: list[Extremes]
    strangeness: np.ndarray
    outliers: list[int]
    suspects: list[Suspect]
    layers: list[tuple[str, list[float]]]
    probe: list[tuple[int, float, float, float]]

    def how_unusual(self, place: int) -> str | None:
        """The share of an example that the components leave out, with its label; None where it is not known."""
        if self.content.outside is None:
            return None
        said = [self.data.label(place), percent(float(self.strangeness[place]))]
        return " · ".join(part for part in said if part is not None)

    @property
    def begin(self) -> int:
        """The example that is chosen when the page opens: the first that deserves a look."""
        return self.suspects[0].row if self.suspects else self.outliers[0]


def page_of(contents: Sequence[Content], most: int) -> str:
    """The page as text, complete in itself."""
    sections = _sections(contents, most)
    script = "\n".join(["'use strict';", *map(_asset, SCRIPTS)])
    return _template().render(
        title=" and ".join(content.name for content in contents),
        sections=sections,
        facts=_facts(sections),
        alignments=_alignments(sections),
        datasets=_datasets(sections),
        colours=range(10),
        style=_asset("style.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        payload=json_for_html(_payload(sections)),
        suspects_shown=analysis.SUSPECTS,
        headline=HEADLINE,
        deep=DEEP,
        accuracies=_accuracies(sections),
        texts_shown=TEXTS_AT_AN_END,
    )


def json_for_html(value: Any) -> str:
    """JSON that no text in it can end: inside a script element, `<` is the one character that could."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _asset(name: str) -> str:
    return resources.files("nfk.report").joinpath("assets", name).read_text("utf-8")


@cache
def _template() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("a report needs jinja2: pip install 'nfk[report]'") from error
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"percent": percent, "number": lambda value: f"{value:,}"}
    return environment.from_string(_asset("page.html"))


def _sections(contents: Sequence[Content], most: int) -> list[Section]:
    shared: dict[Any, Data] = {}
    return [_section(number, content, _data(content, shared, most)) for number, content in enumerate(contents)]


def _data(content: Content, shared: dict[Any, Data], most: int) -> Data:
    """The examples of a run: those of an earlier one, where they are the same."""
    shown = content.gallery.fingerprint if content.gallery else None
    labels = None if content.labels is None else tuple(content.labels.tolist())
    key = (content.examples, shown, labels)
    if key not in shared:
        rows = analysis.shown_rows(content.examples, most)
        labelling = analysis.labelling_of(None if content.labels is None else content.labels[rows])
        shared[key] = Data(len(shared), content.examples, rows, labelling, content.gallery)
    return shared[key]


def _section(number: int, content: Content, data: Data) -> Section:
    features = content.features[data.rows]
    around = analysis.neighbourhood(features)
    classes = data.labelling is not None and data.labelling.kind == "classes"
    every = analysis.labelling_of(content.labels)
    strangeness = around.strangeness if content.outside is None else analysis.by_example(content)[data.rows]
    return Section(
        number=number,
        content=content,
        data=data,
        maps=analysis.maps_of(features),
        around=around,
        extremes=analysis.extremes(content, data.rows),
        strangeness=strangeness,
        outliers=np.argsort(-strangeness, kind="stable")[: analysis.OUTLIERS].tolist(),
        suspects=analysis.suspects(data.labelling.codes, around) if classes else [],
        layers=_layers(content),
        probe=analysis.probe_curve(content, every.codes) if classes else [],
    )


def _layers(content: Content) -> list[tuple[str, list[float]]]:
    """Shares of the first components by layer, in the network's order; small layers are summed as "others"."""
    shares = _by_block({name: np.asarray(share)[:LAYER_COMPONENTS] for name, share in content.layers.items()})
    if len(shares) <= LAYERS:
        return [(name, share.tolist()) for name, share in shares.items()]
    large = set(sorted(shares, key=lambda name: -shares[name].sum())[: LAYERS - 1])
    others = np.sum([share for name, share in shares.items() if name not in large], axis=0)
    kept = [(name, share.tolist()) for name, share in shares.items() if name in large]
    return [*kept, (f"{len(shares) - len(kept)} others", others.tolist())]


def _by_block(shares: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of too many layers, sums over those whose names begin alike: as many parts of the names as keeps them few."""
    if len(shares) <= LAYERS:
        return shares
    for depth in range(max((name.count("/") for name in shares), default=0) + 1, 0, -1):
        blocks: dict[str, np.ndarray] = {}
        for name, share in shares.items():
            block = "/".join(name.split("/")[:depth])
            blocks[block] = blocks.get(block, 0) + share
        if len(blocks) <= BLOCKS:
            return blocks
    return shares


# --- what is said in words


def percent(share: float) -> str:
    """0.8137 -> '81.4 %' with a space that never breaks; more digits where the share is near 0 or 1."""
    digits = 1 if 0.001 <= share <= 0.999 or share in (0, 1) else 3
    return f"{100 * share:.{digits}f}\u00a0%"


def _facts(sections: Sequence[Section]) -> list[tuple[str, str, list[str]]]:
    """Name, meaning, and the value for each run; what no run knows is left out."""
    table = [_facts_of(section.content) for section in sections]
    names = list(dict.fromkeys(name for facts in table for name in facts))
    return [(name, MEANINGS[name], [facts.get(name, "not known") for facts in table]) for name in names]


MEANINGS = {
    "Variance explained": "of everything in which the network's gradients differ between examples",
    "Certificate": "how far an eigenvalue can be from a true one, relative to it",
    "Effective components": "how many equal components would spread the variance as much",
    "Time": "of the fit",
    "Memory": "at the peak of the fit, at the most",
    "Passes": "over the data",
    "Examples": "in the fit",
    "Components": "numbers for each example",
    "Parameters": "of the network that take part",
    "Model": "how the network was read",
    "Data": "that was fitted",
}


def _facts_of(content: Content) -> dict[str, str]:
    effective = None
    if content.trace > 0:
        effective = spectrum(content.eigenvalues, content.trace, len(content.rows)).effective_rank
    facts = {
        "Variance explained": percent(float(content.shares.sum())),
        "Certificate": _certificate(float(np.max(content.residuals, initial=0))),
        "Effective components": effective and f"{effective.value:,.1f}",
        "Time": content.seconds and duration(content.seconds),
        "Memory": content.peak_bytes and human(content.peak_bytes),
        "Passes": content.passes and f"{content.passes:,}",
        "Examples": f"{content.examples:,}",
        "Components": f"{content.rank:,}",
        "Parameters": content.parameters and f"{content.parameters:,}",
        "Model": content.model,
        "Data": content.data,
    }
    return {name: value for name, value in facts.items() if value}


def _certificate(bound: float) -> str:
    return f"±\u2009{100 * bound:.2g}\u00a0%" if bound > 1e-5 else "below 0.001\u00a0%"


def duration(seconds: float) -> str:
    """0.42 -> '0.42 s', 95 -> '95 s', 4000 -> '1 h 7 min'."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def _accuracies(sections: Sequence[Section]) -> list[tuple[int, list[tuple[str, str]]]]:
    """(k, [(accuracy, interval) of every run that has a probe]), an empty pair where a run has no such k."""
    probes = [{k: rest for k, *rest in section.probe} for section in sections if section.probe]
    ranks = sorted({k for probe in probes for k in probe})
    return [(k, [_accuracy(*probe[k]) if k in probe else ("", "") for probe in probes]) for k in ranks]


def _accuracy(value: float, low: float, high: float) -> tuple[str, str]:
    return percent(value), f"{100 * low:.1f} to {100 * high:.1f}"


def _alignments(sections: Sequence[Section]) -> list[tuple[str, str, str, str]]:
    """(first, second, CKA, interval) for every two runs on the same examples; an interval needs forty."""
    pairs = [
        (first, second)
        for first in sections
        for second in sections[first.number + 1 :]
        if first.data is second.data and len(first.data.rows) >= 40
    ]
    found = []
    for first, second in pairs:
        rows = first.data.rows
        value = alignment(first.content.features[rows], second.content.features[rows])
        interval = f"{value.low:.3f} to {min(value.high, 1):.3f}"
        found.append((first.content.name, second.content.name, f"{value.value:.3f}", interval))
    return found


# --- what the script reads


def _datasets(sections: Sequence[Section]) -> list[Data]:
    return list(dict.fromkeys(section.data for section in sections))


def _payload(sections: Sequence[Section]) -> dict[str, Any]:
    return {
        "datasets": [_packed_data(data) for data in _datasets(sections)],
        "runs": [_packed_run(section) for section in sections],
    }


def _packed_data(data: Data) -> dict[str, Any]:
    result: dict[str, Any] = {"count": len(data.rows), "rows": packed(data.rows.astype(np.uint32))}
    if data.labelling is not None:
        codes = packed(data.labelling.codes.astype(np.uint32))
        result["labels"] = {"kind": data.labelling.kind, "names": data.labelling.names, "codes": codes}
    if data.gallery is not None:
        result["gallery"] = data.gallery.packed(data.rows)
    return result


def _packed_run(section: Section) -> dict[str, Any]:
    content, around = section.content, section.around
    return {
        "name": content.name,
        "data": section.data.number,
        "eigenvalues": content.eigenvalues.tolist(),
        "shares": content.shares.tolist(),
        "residuals": content.residuals.tolist(),
        "probe": section.probe,
        "begin": section.begin,
        "maps": [{"name": map_.name, "positions": _packed_positions(map_.positions)} for map_ in section.maps],
        "neighbours": packed(around.rows.astype(np.uint32)),
        "similarities": packed(np.round(255 * np.clip(around.similarities, 0, 1)).astype(np.uint8)),
        "neighbourCount": around.rows.shape[1],
        "strangeness": packed(_ranks(section.strangeness)),
    }


def _packed_positions(positions: np.ndarray) -> str:
    """Both coordinates on one scale from 0 to 65,535, the middle of either in the middle."""
    low, high = positions.min(axis=0), positions.max(axis=0)
    size = float((high - low).max()) or 1.0
    centred = (positions - (low + high) / 2) / size + 0.5
    return packed(np.round(np.clip(centred, 0, 1) * 65535).astype(np.uint16))


def _ranks(values: np.ndarray) -> np.ndarray:
    """0 for the smallest to 255 for the largest."""
    order = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return (255 * order // max(len(values) - 1, 1)).astype(np.uint8)
