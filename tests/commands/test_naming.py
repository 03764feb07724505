"""Models and data by name: what is read is what was written, and what cannot be read is one sentence."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest

import nfk
from nfk.cli import pictures
from nfk.cli.models import model_named
from nfk.cli.reading import Reading, read
from nfk.cli.refusal import Refused


class TestModels:
    @pytest.mark.parametrize("name", ["mine.py:model", "mine.py:ready", "./mine.py:model", "digits-lenet"])
    def test_a_model_by_name(self, name, here):
        assert model_named(name).family == "classifier"

    def test_a_model_of_a_module_beside(self, here, monkeypatch):
        (here / "package").mkdir()
        (here / "package" / "inside.py").write_text((here / "mine.py").read_text())
        monkeypatch.syspath_prepend(str(here))
        assert model_named("package.inside:several").family == "network"

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("nothing", r"nothing: no such model; name a function that returns one \(FILE.py:FACTORY"),
            ("yours.py:model", "yours.py: there is no such file"),
            ("mine.py:mode", "mine.py:mode: mine.py has no 'mode'; it has logits, model, several"),
            ("no_such_package.inside:model", "no_such_package.inside: there is no such module"),
            ("mine.py:nothing", r"mine.py:nothing\(\) returned a str, not an nfk model: return nfk.classifier"),
            ("mine.py:broken", r"mine.py:broken\(\) failed: KeyError: 'weights'"),
            ("mine.py:number", "mine.py:number is no function but of type int: name one that returns an nfk model"),
            ("damaged.py:model", "damaged.py could not be imported: SyntaxError"),
            ("empty", "empty has no config.json: it is not a model folder"),
            ("strange", "strange holds Whisper: a classifier, a causal language model or an encoder is needed"),
            ("torn", "torn/config.json is not JSON"),
        ],
    )
    def test_what_is_no_model_is_refused(self, name, sentence, here):
        (here / "damaged.py").write_text("def (")
        for folder, text in (("empty", None), ("strange", json.dumps({"architectures": ["Whisper"]})), ("torn", "{")):
            (here / folder).mkdir()
            if text:
                (here / folder / "config.json").write_text(text)
        with pytest.raises(Refused, match=sentence):
            model_named(name)

    def test_a_package_that_is_missing_inside_is_named(self, here):
        (here / "needy.py").write_text("import a_package_that_nobody_has")
        with pytest.raises(Refused, match=r"needy.py could not be imported: .*a_package_that_nobody_has"):
            model_named("needy.py:model")

    def test_a_folder_of_timm(self, here, monkeypatch):
        """By a stand-in for timm: it is asked for the folder, and its module becomes a classifier."""
        torch = pytest.importorskip("torch")
        asked = []

        def create_model(name, pretrained):
            asked.append((name, pretrained))
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))

        monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
        (here / "net").mkdir()
        (here / "net" / "config.json").write_text(json.dumps({"architecture": "resnet18"}))
        assert model_named("net").family == "torch.classifier"
        assert asked == [("local-dir:net", True)]


def images(folder, sizes, mode="RGB"):
    """Random images of these sizes, in sub-folders by turns; the pixels of each."""
    from PIL import Image

    rng = np.random.default_rng(0)
    made = []
    for place, size in enumerate(sizes):
        path = folder / ("cat", "dog")[place % 2] / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (*size, 3) if mode == "RGB" else size, dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        made.append(pixels)
    return made


class TestImages:
    @pytest.mark.parametrize("mode", ["RGB", "L"])
    def test_a_folder_of_images_has_its_labels_from_its_sub_folders(self, mode, here):
        made = images(here / "pets", [(5, 4)] * 6, mode)
        data = read("pets", Reading())
        expected = np.stack([*made[0::2], *made[1::2]]).reshape(6, 5, 4, -1)
        np.testing.assert_allclose(data.examples, expected / 255, atol=1e-6)
        np.testing.assert_array_equal(data.shown, expected)
        assert data.labels.tolist() == ["cat"] * 3 + ["dog"] * 3

    def test_channels_first_and_another_size(self, here):
        images(here / "pets", [(5, 4), (9, 12)])
        assert read("pets", Reading(size=8, channels="first")).examples.shape == (2, 3, 8, 8)

    def test_a_pytorch_model_gets_its_channels_first_unless_told_otherwise(self, here):
        torch = pytest.importorskip("torch")
        import nfk.torch

        network = nfk.torch.classifier(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 3)).eval())
        assert Reading().suited_to(network).channels == "first"
        assert Reading(channels="last").suited_to(network).channels == "last"
        assert Reading().suited_to(model_named("mine.py:model")) == Reading()

    def test_a_large_folder_is_read_slice_by_slice_and_gives_the_same(self, here, monkeypatch):
        images(here / "pets", [(5, 4)] * 6)
        whole = read("pets", Reading()).examples
        monkeypatch.setattr(pictures, "LOADED_BYTES", 10)
        lazy = read("pets", Reading()).examples
        assert not hasattr(lazy, "shape")
        np.testing.assert_array_equal(lazy[1:4], whole[1:4])
        model = model_named("mine.py:model")
        np.testing.assert_allclose(nfk.fit(model, lazy, 2).eigenvalues, nfk.fit(model, whole, 2).eigenvalues, rtol=1e-5)

    def test_mixed_sizes_are_refused_with_the_remedy(self, here):
        images(here / "pets", [(5, 4), (6, 4)])
        sentence = (
            r"differ in size: pets/cat/0.png has 4 x 5 pixels, pets/dog/1.png 4 x 6; resize them all with --size 4"
        )
        with pytest.raises(Refused, match=sentence):
            read("pets", Reading())

    def test_a_file_that_is_no_image_is_named(self, here):
        images(here / "pets", [(5, 4)] * 2)
        (here / "pets" / "cat" / "9.png").write_text("not a picture")
        with pytest.raises(Refused, match=r"pets/cat/9.png cannot be read as an image"):
            read("pets", Reading())

    def test_an_image_that_is_cut_off_is_named(self, here):
        images(here / "pets", [(50, 40)] * 2)
        path = here / "pets" / "cat" / "0.png"
        path.write_bytes(path.read_bytes()[:2000])
        with pytest.raises(Refused, match=r"pets/cat/0.png cannot be read as an image"):
            read("pets", Reading())

    def test_pixels_of_sixteen_bits_would_be_clipped(self, here):
        from PIL import Image

        (here / "deep").mkdir()
        Image.fromarray(np.full((5, 4), 60_000, np.uint16)).save(here / "deep" / "0.png")
        with pytest.raises(Refused, match=r"deep/0.png has more than 8 bits for each pixel: save it with 8"):
            read("deep", Reading())

    def test_images_beside_sub_folders_would_have_no_label(self, here):
        images(here / "pets", [(5, 4)] * 2)
        (here / "pets" / "cat" / "0.png").rename(here / "pets" / "lone.png")
        with pytest.raises(Refused, match=r"pets has images in sub-folders and lone.png beside them"):
            read("pets", Reading())

    def test_a_folder_without_images(self, here):
        (here / "empty").mkdir()
        with pytest.raises(Refused, match="empty holds no images"):
            read("empty", Reading())

    def test_thumbnails_of_arrays(self):
        grey = np.linspace(0, 1, 3 * 100 * 80, dtype="float32").reshape(3, 100, 80)
        assert pictures.thumbnails(grey).shape == (3, 50, 40, 1)
        first = np.moveaxis(np.full((2, 10, 10, 3), -1.0), -1, 1)
        assert pictures.thumbnails(first).shape == (2, 10, 10, 3)
        assert pictures.thumbnails(first).max() == 0
        assert pictures.thumbnails({"tokens": np.ones((4, 3))}) is None


class TestTables:
    CSV = "size,weight,kind,text\n1,2.5,cat,a b\n3,4,dog,c\n"

    def test_numbers_and_labels_of_a_csv_file(self, here):
        (here / "t.csv").write_text(self.CSV)
        data = read("t.csv", Reading(labels="kind", columns=("weight", "size")))
        np.testing.assert_array_equal(data.examples, np.array([[2.5, 1], [4, 3]], "float32"))
        assert data.labels.tolist() == ["cat", "dog"]

    def test_a_csv_file_without_a_header(self, here):
        (here / "t.csv").write_text("1,2\n3,4\n")
        data = read("t.csv", Reading(labels="1"))
        assert (data.examples.tolist(), data.labels.tolist()) == ([[1], [3]], [2, 4])

    def test_texts_of_a_table(self, here):
        (here / "t.csv").write_text(self.CSV)
        data = read("t.csv", Reading(text="text", tokenizer="mine.py:tokens", labels="kind"))
        assert data.shown == ["a b", "c"]
        assert data.examples.tolist() == [[1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]

    def test_parquet_with_lists_of_numbers(self, here):
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]}), "t.parquet")
        data = read("t.parquet", Reading(labels="y"))
        assert (data.examples.tolist(), data.labels.tolist()) == ([[1, 2], [3, 4]], [0, 1])

    def test_a_hugging_face_data_set_on_disk(self, here):
        datasets = pytest.importorskip("datasets")
        datasets.disable_progress_bars()
        made = images(here / "pets", [(5, 4)] * 3)
        table = datasets.Dataset.from_dict({"image": [pixels for pixels in made], "kind": [2, 0, 1]})
        table = table.cast_column("image", datasets.Array3D((5, 4, 3), "uint8"))
        datasets.DatasetDict({"train": table.select([1, 2])}).save_to_disk("saved")
        data = read("saved/train", Reading(labels="kind"))
        np.testing.assert_array_equal(data.examples, np.stack(made[1:]))
        assert data.labels.tolist() == [0, 1]
        with pytest.raises(Refused, match=r"saved holds train: name one of them, such as saved/train"):
            read("saved", Reading())

    def test_encoded_pictures_of_a_table(self, here):
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        made = images(here / "pets", [(5, 4)] * 2)
        files = [(here / "pets" / name).read_bytes() for name in ("cat/0.png", "dog/1.png")]
        parquet.write_table(pyarrow.table({"image": [{"bytes": file, "path": None} for file in files]}), "t.parquet")
        np.testing.assert_allclose(read("t.parquet", Reading()).examples, np.stack(made) / 255, atol=1e-6)

    @pytest.mark.parametrize(
        ("text", "reading", "sentence"),
        [
            (CSV, Reading(), r"t.csv: column 'kind' holds 'cat', which is no number; name it with --labels"),
            (CSV, Reading(labels="colour"), "t.csv has no column 'colour': it has size, weight, kind, text"),
            (CSV, Reading(text="text"), "t.csv holds texts: say how they become numbers with --tokenizer"),
            ("1,2\n3\n", Reading(), "t.csv: row 2 has 1 cells, but there are 2 columns"),
            ("", Reading(), "t.csv is empty"),
        ],
    )
    def test_what_is_wrong_with_a_table_is_said(self, text, reading, sentence, here):
        (here / "t.csv").write_text(text)
        with pytest.raises(Refused, match=sentence):
            read("t.csv", reading)


class TestArrays:
    def test_an_archive_by_its_usual_names(self, here):
        np.savez("a.npz", X=np.ones((3, 2)), y=[1, 2, 3], other=[0])
        data = read("a.npz", Reading())
        assert (data.examples.shape, data.labels.tolist()) == ((3, 2), [1, 2, 3])
        assert read("a.npz", Reading(limit=2)).labels.tolist() == [1, 2]

    @pytest.mark.parametrize(("name", "count"), [("digits", 4000), ("digits-test", 1000)])
    def test_a_data_set_by_name(self, name, count):
        data = read(name, Reading())
        assert (len(data), len(data.labels), data.shown.dtype) == (count, count, np.uint8)
        assert read(name, Reading(channels="first")).examples.shape[1:] == (1, 28, 28)

    @pytest.mark.parametrize(
        ("name", "reading", "sentence"),
        [
            ("none.npy", Reading(), r"none.npy: there is no such file or data set; DATA is a file \(.npy"),
            ("mine.py", Reading(), "mine.py: files that end in '.py' are not known"),
            ("text.npy", Reading(), "text.npy cannot be read: it is not a file that numpy wrote; save the array with"),
            ("text.npz", Reading(), "text.npz cannot be read: it is not a file that numpy wrote; save the array with"),
            ("nothing.npy", Reading(), "nothing.npy holds no examples"),
            ("objects.npy", Reading(), "objects.npy cannot be read: it holds Python objects, which are not loaded"),
            ("words.npy", Reading(), r"words.npy has dtype <U1 and shape \(2,\): an array of examples is needed"),
            ("several.npz", Reading(), "several.npz holds a, b: save the examples as 'X'"),
            ("x.npy", Reading(labels="z.npy"), "--labels z.npy: x.npy has nothing of that name, and there is no such"),
            ("new.npy", Reading(labels="y.npy"), "new.npy has 7 examples, but there are 40 labels: give one for each"),
            ("x.npy", Reading(limit=0), "--limit 0: take one example at least"),
            ("lines.txt", Reading(), "lines.txt holds texts: say how they become numbers with --tokenizer"),
            ("lines.txt", Reading(tokenizer="nowhere"), "--tokenizer nowhere: there is no tokenizer in such a folder"),
            ("lines.txt", Reading(tokenizer="mine.py:letters"), "mine.py:letters failed on 2 texts: ZeroDivisionError"),
        ],
    )
    def test_what_cannot_be_read_is_said(self, name, reading, sentence, here):
        for name_of_text in ("text.npy", "text.npz"):
            (here / name_of_text).write_text("hello")
        np.save("nothing.npy", np.zeros((0, 6)))
        np.save("objects.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
        np.save("words.npy", np.array(["a", "b"]))
        np.savez("several.npz", a=[1], b=[2])
        (here / "lines.txt").write_text("one two\n\nthree\n")
        with pytest.raises(Refused, match=sentence):
            read(name, reading)

    def test_a_text_file_is_a_line_an_example(self, here):
        (here / "lines.txt").write_text("one three\n\nabc\n")
        data = read("lines.txt", Reading(tokenizer="mine.py:tokens"))
        assert data.shown == ["one three", "abc"]
        assert data.examples.tolist() == [[3, 5, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0]]
