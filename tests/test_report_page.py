"""The report as a person meets it: opened in headless Chromium, pointed at, clicked, read with the keyboard."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jinja2", reason="the report; pip install 'nfk[report]' to run its tests")
pytest.importorskip("selenium", reason="the report in a browser; pip install 'nfk[test]' to run these tests")

from benchmarks.browser import Browser, chromium, open_browser
from nfk.report import Content, write_page
from nfk.report.gallery import gallery_of
from nfk.tasks import alignment

pytestmark = [
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium chromium-driver"),
]


def test_the_page_was_measured_to_open_in_under_two_seconds():
    results = json.loads((Path(__file__).parents[1] / "results" / "report_page.json").read_text())
    assert results["examples"] == 10_000
    assert max(page["worst_seconds_until_drawn"] for page in results["pages"].values()) < 2


EVIL = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>&amp;\u2028"
COUNT = 150


def fitted(name: str, seed: int, X=None, labels=None) -> Content:
    """A content with three groups; the same groups for every seed."""
    group = np.arange(COUNT) % 3
    rng = np.random.default_rng(seed)
    E = rng.standard_normal((COUNT, 8)) + 3 * np.eye(8)[group]
    U, values, _ = np.linalg.svd(E, full_matrices=False)
    shares = rng.dirichlet(np.ones(4), 8).T
    return Content(
        name=name, rows=(U * values).astype(np.float32), singular_values=values, residuals=np.full(8, 1e-4),
        trace=1.1 * float(np.sum(values**2)), layers={f"layer {i}": share for i, share in enumerate(shares)},
        labels=np.array(["ant", "bee", "cat"])[group] if labels is None else labels,
        gallery=None if X is None else gallery_of(X), seconds=1.5, passes=8, parameters=1234, story="a plan",
    )  # fmt: skip


def images() -> np.ndarray:
    return np.random.default_rng(7).integers(0, 255, (COUNT, 10, 8, 1)).astype(np.uint8)


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages about one run, two, and one whose every name is an attack."""
    folder = tmp_path_factory.mktemp("pages")
    evil = np.array([EVIL, "plain", "<b>bold</b>"])[np.arange(COUNT) % 3]
    return {
        "one": write_page([fitted("first", 0, images())], folder / "one.html"),
        "two": write_page([fitted("first", 0, images()), fitted("second", 1, images())], folder / "two.html"),
        "evil": write_page([fitted(EVIL, 0, [f"{i} {EVIL}" for i in range(COUNT)], evil)], folder / "evil.html"),
        "lines": write_page([fitted("lines", 0, np.random.default_rng(0).random((COUNT, 30)))], folder / "lines.html"),
    }


@pytest.fixture
def opened(browser: Browser, pages):
    """Open a page by its name; afterwards, nothing was printed and nothing asked for."""

    def go(name: str, **window) -> Browser:
        browser.show(**window)
        browser.open(pages[name])
        return browser

    yield go
    assert browser.messages() == []
    outside = [address for address in browser.requests() if not re.match("file:|data:|about:", address)]
    assert outside == []


def place_of(browser: Browser, place: int, run: int = 0) -> tuple[float, float]:
    """Where an example's dot is in the window."""
    browser.run(
        "document.querySelectorAll('.frame')[arguments[0]].scrollIntoView({block: 'center', behavior: 'instant'})", run
    )
    return browser.run(
        "const map = maps[arguments[0]], box = map.marks.getBoundingClientRect(), [x, y] = map.at(arguments[1]);"
        "return [box.x + x, box.y + y]", run, place,
    )  # fmt: skip


def far_from_others(browser: Browser) -> int:
    """An example whose dot no other covers."""
    dots = np.array(browser.run("return Array.from({length: maps[0].data.count}, (_, i) => maps[0].at(i))"))
    gaps = np.linalg.norm(dots[:, None] - dots[None], axis=-1) + 1e9 * np.eye(len(dots))
    return int(np.argmax(gaps.min(axis=1)))


def test_pointing_at_a_dot_shows_its_example(opened):
    browser = opened("one")
    place = far_from_others(browser)
    browser.point(*place_of(browser, place))
    assert browser.run("return document.querySelector('.tip p').textContent") == (
        f"Example {place}, label {['ant', 'bee', 'cat'][place % 3]}"
    )
    pixels = browser.run(
        "const canvas = document.querySelector('.tip canvas');"
        "return [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
    )
    np.testing.assert_array_equal(np.reshape(pixels, (10, 8, 4))[..., 0], images()[place, ..., 0])
    browser.point(2, 2)
    assert browser.run("return document.querySelector('.tip').hidden")


def nearest(content: Content, place: int) -> list[int]:
    unit = content.rows / np.linalg.norm(content.rows, axis=1, keepdims=True)
    order = np.argsort(-(unit @ unit[place]), kind="stable")
    return [int(other) for other in order if other != place][:12]


def listed(browser: Browser, selector: str) -> list[int]:
    return browser.run(
        "return [...document.querySelectorAll(arguments[0] + ' .example')].map((one) => Number(one.dataset.place))",
        selector,
    )


def test_a_click_shows_the_nearest_neighbours(opened):
    browser = opened("one")
    place = far_from_others(browser)
    browser.point(*place_of(browser, place), click=True)
    assert browser.run("return document.querySelector('#detail strong').textContent") == f"Example {place}"
    found = listed(browser, "#detail")
    assert found == nearest(fitted("first", 0), place)
    browser.run("document.querySelector('#detail .example').click()")
    assert browser.run("return document.querySelector('#detail strong').textContent") == f"Example {found[0]}"


def test_an_example_worth_a_look_is_chosen_from_the_beginning(opened):
    browser = opened("one")
    begin = browser.run("return maps[0].chosen")
    assert (
        begin
        == listed(
            browser, "#labels" if browser.run("return !!document.querySelector('#labels .example')") else "#unusual"
        )[0]
    )
    assert listed(browser, "#detail") == nearest(fitted("first", 0), begin)


def test_two_runs_are_linked_by_example(opened):
    browser = opened("two")
    place = far_from_others(browser)
    browser.point(*place_of(browser, place), click=True)
    tips = browser.run("return [...document.querySelectorAll('.tip p')].map((one) => one.textContent)")
    assert len(tips) == 2
    assert tips[0] == tips[1] == f"Example {place}, label {['ant', 'bee', 'cat'][place % 3]}"
    expected = [nearest(fitted(name, seed), place) for name, seed in (("first", 0), ("second", 1))]
    assert listed(browser, "#detail .examples:nth-of-type(2)") == expected[0]
    assert listed(browser, "#detail") == [*expected[0], *expected[1]]
    said = browser.run("return document.querySelector('#alignment ~ .facts .value').textContent")
    assert said == f"{alignment(fitted('', 0).rows, fitted('', 1).rows).value:.3f}"
    assert browser.run("return document.querySelectorAll('[data-chart=eigenvalues] polyline').length") == 2


def test_names_labels_and_texts_stay_text(opened):
    browser = opened("evil")
    place = far_from_others(browser)
    browser.point(*place_of(browser, place), click=True)
    browser.run("document.querySelector('#components .example').click()")
    assert browser.run("return window.hacked ?? null") is None
    assert browser.run("return document.querySelectorAll('img, b').length") == 0
    assert browser.run("return document.querySelector('h1').textContent") == EVIL
    assert browser.run("return document.querySelector('#detail .text').textContent") == f"{place} {EVIL}"
    assert EVIL in browser.run("return [...document.querySelectorAll('#legend button')].map((one) => one.textContent)")


FOCUSED = """
const one = document.activeElement, style = getComputedStyle(one.type === 'radio' ? one.nextElementSibling : one);
return {name: (one.getAttribute('aria-label') || one.labels?.[0]?.textContent || one.textContent).trim(), id: one.id,
        kind: one.className.baseVal ?? one.className, tag: one.tagName, outline: parseFloat(style.outlineWidth),
        line: style.outlineStyle, top: one.getBoundingClientRect().top + scrollY}
"""


def test_the_keyboard_reaches_everything_and_shows_where_it_is(opened):
    browser = opened("one")
    reached = []
    while not reached or reached[-1]["tag"] not in ("BODY",):
        browser.press("Tab")
        reached.append(browser.run(FOCUSED))
        assert len(reached) < 400
    reached.pop()
    assert all(one["name"] for one in reached), [one for one in reached if not one["name"]]
    assert all(one["outline"] >= 2 and one["line"] != "none" for one in reached)
    assert [one["kind"] for one in reached].count("example") == browser.run(
        "return [...document.querySelectorAll('button.example')].filter((one) => one.checkVisibility()).length"
    )
    kinds = [one["id"] or one["kind"] or one["tag"] for one in reached]
    wanted = ["skip", "theme", "find-number", "marks", "example"]
    assert [kinds.index(one) for one in wanted] == sorted(kinds.index(one) for one in wanted)
    assert "svg" in [one["tag"] for one in reached]


def test_the_map_and_the_dialog_work_with_the_keyboard(opened):
    browser = opened("one")
    browser.run("document.querySelector('.marks').focus()")
    browser.press("ArrowRight")
    first = browser.run("return document.querySelector('.tip p').textContent")
    browser.press("ArrowRight")
    assert browser.run("return document.querySelector('.tip p').textContent") != first
    browser.press("Enter")
    assert len(listed(browser, "#detail")) == 12
    browser.press("Escape")
    assert listed(browser, "#detail") == []

    browser.run("document.querySelector('#unusual .example').focus()")
    browser.press("Enter")
    assert browser.run("return document.getElementById('dialog').open")
    assert len(listed(browser, "#dialog")) == 12
    browser.press("Escape")
    assert not browser.run("return document.getElementById('dialog').open")
    assert browser.run("return document.activeElement === document.querySelector('#unusual .example')")

    browser.run("document.querySelector('.chart svg').focus()")
    browser.press("ArrowRight")
    assert "component 1: eigenvalue" in browser.run("return document.querySelector('.readout').textContent")


def test_an_example_is_found_by_its_number_and_a_label_stands_alone(opened):
    browser = opened("one")
    browser.run("document.getElementById('find-number').value = '17'; document.querySelector('#find button').click()")
    assert browser.run("return document.querySelector('#detail strong').textContent") == "Example 17"
    browser.run("document.querySelector('#legend button').click()")
    x, y = place_of(browser, 17)
    browser.point(x, y)
    assert browser.run("return maps[0].hovered === null || maps[0].hovered % 3 === 0")  # 17 is a cat, not an ant


@pytest.mark.parametrize("name", ["one", "two", "evil", "lines"])
def test_a_narrow_screen_needs_no_scrolling_aside(opened, name):
    browser = opened(name, width=360, height=740)
    assert browser.run("return document.documentElement.scrollWidth") <= 360


CONTRAST = """
const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
const mixed = (colours) => {
  canvas.clearRect(0, 0, 1, 1);
  for (const one of colours) { canvas.fillStyle = one; canvas.fillRect(0, 0, 1, 1); }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const poor = [];
let seen = 0;
while (walker.nextNode()) {
  const parent = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
  if (!text || !parent.checkVisibility({opacityProperty: true}) || parent.closest('script, style')) continue;
  const back = [];
  for (let one = parent; one; one = one.parentElement) back.unshift(getComputedStyle(one).backgroundColor);
  const under = mixed(['white', getComputedStyle(document.body).backgroundColor, ...back]);
  const style = getComputedStyle(parent);
  const over = mixed([`rgb(${under})`, parent.namespaceURI.endsWith('svg') ? style.fill : style.color]);
  const [a, b] = [light(under), light(over)].sort((x, y) => y - x);
  seen += 1;
  const contrast = (a + 0.05) / (b + 0.05);
  if (contrast < 4.5) poor.push([text.slice(0, 30), contrast]);
}
return [seen, poor];
"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_in_light_and_dark(opened, dark):
    browser = opened("two", dark=dark)
    seen, poor = browser.run(CONTRAST)
    assert seen > 100
    assert poor == []


APART = """
const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
const lab = (name) => {
  canvas.fillStyle = colour(name);
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const l = Math.cbrt(0.4122 * r + 0.5363 * g + 0.0514 * b), m = Math.cbrt(0.2119 * r + 0.6807 * g + 0.1074 * b);
  const s = Math.cbrt(0.0883 * r + 0.2817 * g + 0.63 * b);
  return [[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    .map(([x, y, z]) => x * l + y * m + z * s);
};
const labs = [...Array(10).keys()].map((i) => lab(`--class-${i}`));
return labs.flatMap((one, i) => labs.slice(i + 1).map((other) => Math.hypot(...one.map((v, k) => v - other[k]))));
"""


@pytest.mark.parametrize("dark", [False, True])
def test_the_ten_colours_of_labels_are_told_apart(opened, dark):
    """By their distance in OKLab; two greens of the old page were 0.07 apart."""
    assert min(opened("one", dark=dark).run(APART)) > 0.12


def test_the_theme_follows_the_system_until_it_is_switched(opened):
    browser = opened("one", dark=True)

    def darkness():
        return int(re.search(r"\d+", browser.run("return getComputedStyle(document.body).backgroundColor"))[0])

    assert darkness() < 60
    browser.run("document.getElementById('theme').click()")
    assert darkness() > 200
    browser.run("localStorage.clear()")
