"""How long a report takes to open: pages with 10,000 examples in headless Chromium. Also takes the README's picture.

python -m benchmarks.report_page --output results/report_page.json
python -m benchmarks.report_page --picture docs/images/report.png
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks.browser import Browser, open_browser
from nfk.atomic import write_atomically
from nfk.demo import digits, digits_lenet
from nfk.fitting import fit
from nfk.report import Content, report, write_page
from nfk.report.gallery import gallery_of

REPEATS = 5
RANK = 64
SENTENCE = "a film moves through rain and cheap motels until someone laughs at the old joke about whales"

OPENING = """
const paint = performance.getEntriesByName('first-contentful-paint')[0];
return {drawn: performance.getEntriesByName('drawn')[0].startTime, paint: paint ? paint.startTime : null}
"""
POINTING = """
const map = maps[0], started = performance.now();
for (let i = 0; i < 100; i += 1) {
  map.marks.dispatchEvent(new PointerEvent('pointermove', {clientX: 100 + i, clientY: 100 + i}));
}
return (performance.now() - started) / 100
"""


def main(output: Path | None = None, picture: Path | None = None, examples: int = 10_000) -> None:
    """Measure, or take the picture.

    Args:
        output: a JSON file for the measurements.
        picture: a PNG file for the first screen of a report on 5,000 digits.
        examples: on each page.
    """
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        if picture is not None:
            take_picture(browser, Path(folder), picture)
        else:
            results = measure(browser, Path(folder), examples)
            print(json.dumps(results, indent=1))
            if output is not None:
                write_atomically(output, lambda partial: _write(partial, json.dumps(results, indent=1) + "\n"))


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def measure(browser: Browser, folder: Path, examples: int) -> dict[str, Any]:
    rows = {}
    for name, contents in pages(examples).items():
        started = time.perf_counter()
        page = write_page(contents, folder / "page.html")
        seconds = time.perf_counter() - started
        rows[name] = {
            "seconds_writing": round(seconds, 2), "megabytes": round(page.stat().st_size / 1e6, 2),
            **opening(browser, page),
        }  # fmt: skip
    machine = {
        "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 1), "python": platform.python_version()
    }  # fmt: skip
    version = browser.driver.capabilities["browserVersion"]
    return {"examples": examples, "repeats": REPEATS, "browser": version, "machine": machine, "pages": rows}


def opening(browser: Browser, page: Path) -> dict[str, float]:
    """Seconds from the start of the navigation until all is drawn, each time from the file; medians and the worst.

    On a busy machine the time until all is drawn is that of waiting for a core: the time that the main thread of the
    page has worked is beside it.
    """
    browser.show()
    found, busy = [], []
    for _ in range(REPEATS):
        browser.command("Performance.enable", timeDomain="threadTicks")
        browser.open(page)
        metrics = {one["name"]: one["value"] for one in browser.command("Performance.getMetrics")["metrics"]}
        busy.append(metrics["ThreadTime"])
        browser.command("Performance.disable")
        found.append(browser.run(OPENING))
    drawn = [one["drawn"] / 1000 for one in found]
    paint = [one["paint"] / 1000 for one in found if one["paint"]]
    return {
        "seconds_until_drawn": round(statistics.median(drawn), 3), "worst_seconds_until_drawn": round(max(drawn), 3),
        "seconds_of_the_main_thread": round(statistics.median(busy), 3),
        "seconds_until_first_paint": round(statistics.median(paint), 3) if paint else None,
        "milliseconds_of_pointing": round(browser.run(POINTING), 2),
    }  # fmt: skip


def table(results: dict[str, Any]) -> str:
    """results/report_page.json for docs/report.md."""
    cores, browser = results["machine"]["cores"], results["browser"].split(".")[0]
    lines = [
        f"Pages with {results['examples']:,} examples in headless Chromium {browser}, {cores} "
        f"core{'s' if cores > 1 else ''} of a CPU, median of",
        f"{results['repeats']}. `python -m benchmarks.report_page` writes `results/report_page.json`.",
        "",
        "| page | MB | seconds until the first paint | until all is drawn | at the worst | seconds to write it |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in results["pages"].items():
        lines.append(
            f"| {name} | {row['megabytes']:.1f} | {row['seconds_until_first_paint']:.2f} | "
            f"{row['seconds_until_drawn']:.2f} | {row['worst_seconds_until_drawn']:.2f} | "
            f"{row['seconds_writing']:.0f} |"
        )
    return "\n".join([*lines, ""])


def pages(examples: int) -> dict[str, list[Content]]:
    """Embeddings with ten groups, and examples of every kind: the digits are real, and shifted to make more of them."""
    rng = np.random.default_rng(0)
    train, test = digits()
    images, labels = np.concatenate([train.images, test.images]), np.concatenate([train.labels, test.labels])
    copies = -(-examples // len(images))
    images = np.concatenate([np.roll(images, copy, axis=2) for copy in range(copies)])[:examples]
    labels = np.tile(labels, copies)[:examples]
    colour = np.clip(
        images[:, :, :, :1] * rng.random((examples, 1, 1, 3)) + 0.1 * rng.random((examples, 28, 28, 3)), 0, 1
    )
    texts = [" ".join(rng.choice(SENTENCE.split(), 40)) for _ in range(examples)]
    series = np.cumsum(rng.standard_normal((examples, 100)), axis=1)
    return {
        "digits": [_content("digits", images, labels, 0)],
        "two runs on digits": [_content("first", images, labels, 0), _content("second", images, labels, 1)],
        "colour images": [_content("colour images", colour, labels, 0)],
        "texts": [_content("texts", texts, labels, 0)],
        "series": [_content("series", series, labels, 0)],
    }


def _content(name: str, X: Any, labels: np.ndarray, seed: int) -> Content:
    rng = np.random.default_rng(seed)
    E = 2 * rng.standard_normal((10, RANK))[labels] + rng.standard_normal((len(labels), RANK))
    left, values, _ = np.linalg.svd(E * np.linspace(3, 0.3, RANK), full_matrices=False)
    return Content(
        name=name, rows=(left * values).astype(np.float32), singular_values=values, residuals=np.full(RANK, 1e-4),
        trace=1.2 * float(np.sum(values**2)), labels=labels, gallery=gallery_of(X),
    )  # fmt: skip


def take_picture(browser: Browser, folder: Path, picture: Path) -> None:
    """A report on the 5,000 digits that need no download, with one of them chosen."""
    train, test = digits()
    images, labels = np.concatenate([train.images, test.images]), np.concatenate([train.labels, test.labels])
    started = time.perf_counter()
    embedding = fit(digits_lenet(), images, RANK)
    seconds = time.perf_counter() - started
    page = report(embedding, images, labels, folder / "report.html", name="LeNet-5 on 5,000 digits", seconds=seconds)
    browser.show(1280, 860)
    browser.open(page)
    picture.parent.mkdir(parents=True, exist_ok=True)
    browser.run(
        "scrollTo({top: document.getElementById('map-title').offsetTop - 78, behavior: 'instant'}); "
        "events.choose(maps[0], 100)"
    )
    browser.run("events.hover(maps[0], 250)")
    browser.picture(picture)
    _smaller(picture)


def _smaller(picture: Path) -> None:
    """The same picture in 256 colours."""
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").quantize(256).save(picture, optimize=True)


if __name__ == "__main__":
    tyro.cli(main)
