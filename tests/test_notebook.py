"""How values look in a notebook, and the figures that people restyle."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
import pytest
from registry import mlp, mlp_params

import nfk
from nfk import tasks
from nfk.notebook import Shown, card, described

EVIL = "</td><script>alert(1)</script>&"


@pytest.fixture(scope="module")
def fitted():
    X = np.random.default_rng(0).standard_normal((60, 30)).astype(np.float32)
    model = nfk.classifier(mlp, mlp_params(np.float32, 30, 20, 5))
    return nfk.fit(model, X, rank=6), nfk.plan(model, X, rank=6), X


def read(html: str) -> dict[str, str]:
    """The rows of a card, read by a parser that takes well-formed markup alone."""
    root = ElementTree.fromstring(html)
    assert root.find(".//script") is None
    return {row[0].text: row[1].text for row in root.iter("tr")}


def test_a_card_escapes_all_that_is_on_it():
    assert read(card(EVIL, {EVIL: EVIL})) == {EVIL: EVIL}
    assert ElementTree.fromstring(card(EVIL, {}))[0].text == EVIL


def test_an_embedding_and_a_plan_say_what_matters(fitted):
    embedding, plan, X = fitted
    facts = read(embedding._repr_html_())
    assert facts["components"] == "6"
    assert facts["explained variance"].startswith(f"{embedding.explained_variance_ratio.sum():.2%}")
    assert f"{embedding.residuals.max():.1e}" in facts["certificate"]
    curve = ElementTree.fromstring(embedding._repr_html_()).find(".//polyline").get("points").split()
    heights = [(40 - float(point.split(",")[1])) / 40 for point in curve]
    np.testing.assert_allclose(heights, np.cumsum(embedding.explained_variance_ratio), atol=2e-3)
    assert "60 examples" in read(plan._repr_html_())["of"]
    assert read(embedding.decompose(X)._repr_html_())["embedding"] == "float32 array, 60 by 6"


def test_every_result_of_the_tasks_has_a_card():
    results = [getattr(tasks, name) for name in tasks.__all__ if isinstance(getattr(tasks, name), type)]
    assert len(results) >= 12
    assert [result.__name__ for result in results if not issubclass(result, Shown)] == []


def test_a_probe_shows_its_accuracy():
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 2
    features = rng.standard_normal((80, 4)) + 3 * labels[:, None]
    found = tasks.probe(features, labels, features, labels)
    facts = read(found._repr_html_())
    assert facts["accuracy"] == str(found.accuracy)
    assert facts["features"] == "4"


def test_values_in_few_words():
    @dataclass(frozen=True)
    class Pair(Shown):
        a: int
        b: float

    assert described(1234567) == "1,234,567"
    assert described(np.float32(0.123456)) == "0.1235"
    assert described(True) == "True"
    assert described({0.1: 2, "x": [1, 2]}) == "0.1: 2, x: 1, 2"
    assert described(np.zeros((1000, 3))) == "float64 array, 1,000 by 3"
    assert len(described("long " * 100)) == 120
    assert described(Pair(1, 2.5)) == "a 1, b 2.5"


def test_a_plane_keeps_angles_that_lie_in_it():
    turned, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 2)))
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = tasks.plane((np.arange(1, 41)[:, None] * circle) @ turned.T)  # lengths do not count
    assert found.share == pytest.approx(1)
    np.testing.assert_allclose(found.positions @ found.positions.T, circle @ circle.T, atol=1e-9)
    assert tasks.plane(np.ones((3, 1))).positions.shape == (3, 2)


def test_figures_draw_on_the_axes_they_are_given(fitted):
    figure_module = pytest.importorskip("matplotlib.figure", reason="figures; pip install 'nfk[figures]' to run this")
    from nfk import figures

    embedding, _, _ = fitted
    left, right = figures.spectrum(embedding, figure_module.Figure().subplots(1, 2))
    np.testing.assert_allclose(left.lines[0].get_ydata(), embedding.eigenvalues)
    np.testing.assert_allclose(right.lines[0].get_ydata(), 100 * np.cumsum(embedding.explained_variance_ratio))

    axes = figure_module.Figure().subplots()
    labels = np.arange(60) % 3
    assert figures.embedding_map(embedding.training, labels, axes) is axes
    drawn = np.concatenate([np.asarray(dots.get_offsets()) for dots in axes.collections])
    expected = tasks.plane(embedding.training).positions
    np.testing.assert_allclose(drawn, np.concatenate([expected[labels == label] for label in range(3)]))

    images = np.arange(60.0)[:, None, None] * np.ones((4, 4)) / 60
    figure = figure_module.Figure(figsize=(7, 2), layout="constrained")
    grid = figures.leading_images(embedding.training, images, 2, 3, figure.subplots(2, 7))
    figure.draw_without_rendering()
    lefts = [axis.get_position().x0 for axis in grid[0]]
    np.testing.assert_allclose(np.diff(lefts), lefts[1] - lefts[0], rtol=1e-3)  # no image stands apart
    order = np.argsort(embedding.training[:, 1])
    shown = [axis.images[0].get_array()[0, 0] for axis in grid[1] if axis.images]
    np.testing.assert_allclose(shown, images[[*order[::-1][:3], *order[:3]], 0, 0])
