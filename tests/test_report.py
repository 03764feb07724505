"""The report without a browser: what is shown is right, and what cannot be shown is said."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
import types

import numpy as np
import pytest
from registry import mlp, mlp_params

pytest.importorskip("jinja2", reason="the report; pip install 'nfk[report]' to run its tests")

import nfk
from nfk.report import Content, analysis, page, report, write_page, write_report
from nfk.report.gallery import gallery_of
from nfk.report.page import json_for_html
from nfk.runs import Spec, write_run


def plain(rows: np.ndarray, **more) -> Content:
    values = np.sort(np.linalg.norm(rows, axis=0))[::-1]
    return Content("plain", rows, values, np.zeros(len(values)), float(np.sum(values**2)), **more)


def payload(page) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)[1])


def unpacked(text: str, dtype) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


def test_neighbours_are_the_nearest_by_cosine_and_never_the_example_itself():
    rng = np.random.default_rng(0)
    features = np.concatenate([rng.standard_normal((40, 5)), np.ones((20, 5))])  # twenty copies of one example
    found = analysis.neighbourhood(features, 12)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    best = -np.sort(-cosines, axis=1)[:, :12]
    np.testing.assert_allclose(found.similarities, best, atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(cosines, found.rows, axis=1), best, atol=1e-6)
    assert not (found.rows == np.arange(60)[:, None]).any()
    assert all(len(set(row)) == 12 for row in found.rows.tolist())


def test_wrong_labels_are_found_and_right_ones_are_not():
    rng = np.random.default_rng(1)
    true = np.arange(90) % 3
    features = 10 * np.eye(3)[true] + rng.standard_normal((90, 3))
    codes = true.copy()
    codes[[4, 50]] = (true[[4, 50]] + 1) % 3
    found = analysis.suspects(codes, analysis.neighbourhood(features))
    assert {suspect.row for suspect in found} == {4, 50}
    for suspect in found:
        assert (suspect.label, suspect.proposed) == (codes[suspect.row], true[suspect.row])
        assert suspect.votes >= 9


def test_the_ends_of_a_component_are_its_extreme_examples():
    rows = np.random.default_rng(2).standard_normal((60, 4)).astype(np.float32)
    for found in analysis.extremes(plain(rows), np.arange(60)):
        order = np.argsort(rows[:, found.component])
        assert found.smallest == order[:10].tolist()
        assert found.largest == order[::-1][:10].tolist()


def test_a_lone_example_is_the_strangest():
    rng = np.random.default_rng(3)
    features = rng.standard_normal((80, 6)) * 0.1 + np.ones(6)
    features[33] = [5, -4, 3, -4, 5, -5]
    assert np.argmax(analysis.neighbourhood(features).strangeness) == 33


def test_of_several_outputs_all_rows_count_for_their_example():
    rows = np.random.default_rng(4).standard_normal((60, 3))
    content = plain(rows, outputs=2)
    assert content.examples == 30
    np.testing.assert_array_equal(content.features[5], rows[10:12].T.reshape(-1))
    assert analysis.extremes(content, np.arange(30))[0].largest[0] == np.argmax(rows[:, 0]) // 2


def test_thumbnails_hold_the_pixels_of_their_examples():
    from PIL import Image

    images = np.random.default_rng(5).integers(0, 255, (50, 9, 7, 3)).astype(np.uint8)
    rows = np.array([3, 41, 8])
    for given in (images, np.moveaxis(images, -1, 1), images / 255):
        packed = gallery_of(given).packed(rows)
        sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(packed["sheets"][0].split(",")[1]))))
        for place, row in enumerate(rows):
            top, left = divmod(place, packed["columns"])
            np.testing.assert_array_equal(sheet[9 * top : 9 * top + 9, 7 * left : 7 * left + 7], images[row])


@pytest.mark.parametrize(
    ("X", "kind"),
    [
        (["a", "b", "c"], "texts"),
        (np.zeros((3, 28, 28)), "images"),
        (np.zeros((3, 300, 200, 3), np.uint8), "images"),
        ({"image": np.zeros((3, 8, 8, 1)), "mask": np.zeros((3, 4))}, "images"),
        ([np.zeros(5), np.zeros(5), np.zeros(5)], "lines"),
        ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "lines"),
        (np.zeros((3, 2, 4, 4, 4)), "lines"),
        (np.arange(3), "lines"),
    ],
)
def test_every_kind_of_example_is_shown(X, kind, tmp_path):
    gallery = gallery_of(X)
    assert gallery.kind == kind
    assert len(gallery) == 3
    page = write_page([plain(np.eye(3, dtype=np.float32), gallery=gallery)], tmp_path / "report.html")
    assert payload(page)["datasets"][0]["gallery"]["kind"] == kind


def test_lists_of_numbers_and_lists_of_pytrees_are_examples_one_by_one():
    np.testing.assert_allclose(gallery_of([[0.0, 1.0], [0.5, 0.25]]).examples, [[0, 1], [0.5, 0.25]], atol=0.02)
    image = np.arange(64, dtype=np.uint8).reshape(8, 8)
    shown = gallery_of([{"image": image}, {"image": image + 1}])
    np.testing.assert_array_equal(shown.examples[..., 0], [image, image + 1])


def test_large_images_are_averaged_to_thumbnails():
    images = np.kron(np.array([[0, 100], [200, 40]], np.uint8), np.ones((60, 60), np.uint8))[None, :, :, None]
    (thumbnail,) = gallery_of(images).examples
    assert thumbnail.shape == (40, 40, 1)
    assert (thumbnail[0, 0, 0], thumbnail[0, -1, 0], thumbnail[-1, 0, 0], thumbnail[-1, -1, 0]) == (0, 100, 200, 40)


def test_many_examples_are_drawn_and_keep_their_numbers(tmp_path):
    rows = np.random.default_rng(6).standard_normal((500, 4)).astype(np.float32)
    page = write_page([plain(rows, labels=np.arange(500) // 250)], tmp_path / "report.html", most=100)
    data = payload(page)["datasets"][0]
    kept = unpacked(data["rows"], np.uint32)
    assert len(np.unique(kept)) == data["count"] == 100
    np.testing.assert_array_equal(unpacked(data["labels"]["codes"], np.uint32), kept // 250)
    assert "100 examples, drawn at random from the 500" in page.read_text("utf-8")


def test_json_inside_a_page_cannot_end_its_element():
    value = {"name": "</script><!-- <script>", "text": "a & b > c \u2028"}
    text = json_for_html(value)
    assert not re.search(r"[<>&]", text)
    assert json.loads(text) == value


def embedding():
    X = np.random.default_rng(0).standard_normal((60, 30)).astype(np.float32)
    return nfk.fit(nfk.classifier(mlp, mlp_params(np.float32, 30, 20, 5)), X, rank=6), X


def test_a_report_of_an_embedding_and_of_its_run_say_the_same(tmp_path):
    fitted, X = embedding()
    labels = np.arange(60) % 4
    direct = report(fitted, X, labels, tmp_path / "sub" / "direct.html", name="mine", seconds=2)
    folder = write_run(tmp_path / "mine", fitted, spec=Spec(seconds=2), labels=labels, examples=X)
    from_run = write_report([folder], tmp_path / "run.html")
    first, second = payload(direct), payload(from_run)
    assert first == second
    np.testing.assert_allclose(first["runs"][0]["eigenvalues"], fitted.eigenvalues)
    text = from_run.read_text("utf-8")
    assert f"{100 * fitted.explained_variance_ratio.sum():.1f}\u00a0%" in text
    for layer in fitted.layer_shares():
        assert f'<th scope="row">{layer}</th>' in text


def test_measured_squares_decide_what_is_unusual(tmp_path):
    fitted, X = embedding()
    squares = fitted.decompose(X).total
    squares[20] *= 1000
    folder = write_run(tmp_path / "run", fitted, squares=squares)
    text = write_report([folder], tmp_path / "run.html").read_text("utf-8")
    unusual = text[text.index('<section id="unusual"') :]
    assert re.search(r'data-place="(\d+)"', unusual)[1] == "20"


def test_runs_of_one_name_are_told_apart(tmp_path):
    fitted, _ = embedding()
    folders = [write_run(tmp_path / part / "run", fitted) for part in ("a", "b")]
    names = [run["name"] for run in payload(write_report(folders, tmp_path / "r.html"))["runs"]]
    assert names == ["a/run", "b/run"]


def test_bad_input_is_answered_with_the_remedy(tmp_path):
    fitted, X = embedding()
    with pytest.raises(ValueError, match=r"labels has length 59, but mine was fitted on 60 examples: pass the labels"):
        report(fitted, X, np.zeros(59), tmp_path / "r.html", name="mine")
    with pytest.raises(ValueError, match=r"X has length 7, but embedding was fitted on 60 examples"):
        report(fitted, X[:7], output=tmp_path / "r.html")
    with pytest.raises(ValueError, match=r"labels has shape \(60, 2\), but must hold one label per example"):
        report(fitted, X, np.zeros((60, 2)), tmp_path / "r.html")
    with pytest.raises(ValueError, match="name at least one run"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(TypeError, match="is one folder: pass a list"):
        write_report(str(tmp_path), tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_labels_are_classes_numbers_or_names():
    rng = np.random.default_rng(0)
    assert analysis.labelling_of(np.arange(500) % 7).kind == "classes"
    assert analysis.labelling_of(rng.random(500)).kind == "numbers"
    assert analysis.labelling_of(np.arange(5000)).kind == "numbers"
    assert analysis.labelling_of(np.array([f"file {i}" for i in range(5000)])).kind == "names"
    assert analysis.labelling_of(np.array(["a", None, "a"], object)).names == ["None", "a"]


def test_the_classifier_gets_better_with_components_that_tell_the_classes():
    rng = np.random.default_rng(0)
    codes = np.arange(600) % 4
    rows = rng.standard_normal((600, 8))
    rows[:, 4:8] += 6 * np.eye(4)[codes]
    curve = analysis.probe_curve(plain(rows), codes)
    assert [k for k, *_ in curve] == [1, 2, 4, 8]
    assert curve[2][1] < 0.5
    assert curve[3][1] > 0.95
    assert all(low <= value <= high for _, value, low, high in curve)
    assert analysis.probe_curve(plain(rows), np.arange(600)) == []


def test_of_many_layers_those_that_begin_alike_are_one():
    names = [f"encoder/layer/{block}/{part}/{kind}" for block in range(6) for part in "abcdef" for kind in ("w", "b")]
    shares = np.random.default_rng(0).dirichlet(np.ones(len(names)), 3).T
    rows = np.random.default_rng(1).standard_normal((20, 3)).astype(np.float32)
    found = dict(page._layers(plain(rows, layers=dict(zip(names, shares, strict=True)))))
    assert list(found) == [f"encoder/layer/{block}" for block in range(6)]
    np.testing.assert_allclose(list(found.values()), shares.reshape(6, 12, 3).sum(axis=1))


def test_how_unusual_an_example_is_stands_under_it(tmp_path):
    rows = np.random.default_rng(2).standard_normal((30, 3)).astype(np.float32)
    outside = np.linspace(0, 0.5, 30)
    text = write_page([plain(rows, outside=outside, labels=np.arange(30) % 2)], tmp_path / "r.html").read_text("utf-8")
    unusual = text[text.index('id="unusual"') :]
    assert unusual.index("1 · 50.0\u00a0%") < unusual.index("0 · 48.3\u00a0%")


def test_umap_is_the_first_map_where_it_is_installed_and_its_failure_a_warning(monkeypatch):
    """By a stand-in: it is asked with cosine distances and a seed."""
    asked = []

    class Umap:
        def __init__(self, **options):
            asked.append(options)

        def fit_transform(self, features):
            return features[:, :2]

    features = np.random.default_rng(0).standard_normal((30, 4))
    monkeypatch.setattr(analysis, "version", lambda name: "0.5")
    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=Umap))
    first, second = analysis.maps_of(features)
    assert (first.name, second.name, asked) == ("UMAP", "PCA", [{"metric": "cosine", "random_state": 0}])
    np.testing.assert_array_equal(first.positions, features[:, :2])
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.warns(UserWarning, match="umap-learn is installed but cannot be imported"):
        assert [found.name for found in analysis.maps_of(features)] == ["PCA"]
