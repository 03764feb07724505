"""Data sets: readers on small files of every form, damage that is named, downloads end to end, and the real thing."""

from __future__ import annotations

import gzip
import hashlib
import io
import mmap
import re
import shutil
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from server import Remote, serving
from sklearn.model_selection import StratifiedKFold

from reproduction import data, download, readers, sources
from reproduction.sources import File, Form, Part, Source

pytestmark = pytest.mark.reproduction
ROOT = Path(__file__).parents[1]
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (30, 32, 32, 3), dtype=np.uint8)
GREY = RANDOM.integers(0, 256, (30, 28, 28), dtype=np.uint8)
LABELS = (np.arange(30) % 10).astype(np.uint8)
MEMBERS = ("cifar-10-batches-bin/data_batch_1.bin", "cifar-10-batches-bin/data_batch_2.bin")
LINES = {"set/zero": "a caf\xe9 . \nb \x85 c \n", "set/one": "d\n"}

needs_data = pytest.mark.skipif(data.data_folder() is None, reason="set NFK_DATA to the folder of the data sets")


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No data on this machine; the cache in a new folder."""
    monkeypatch.delenv("NFK_DATA", raising=False)
    monkeypatch.setenv("NFK_CACHE", str(tmp_path / "cache"))
    return tmp_path


# Small files of every form


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_idx(folder: Path) -> list[Path]:
    paths = [folder / "images.gz", folder / "labels.gz"]
    for path, array in zip(paths, (GREY, LABELS), strict=True):
        path.write_bytes(gzip.compress(idx_bytes(array)))
    return paths


def webp_strip(images: np.ndarray) -> np.ndarray:
    stream = io.BytesIO()
    Image.fromarray(images.reshape(-1, 32, 3)).save(stream, "WEBP", lossless=True)
    return np.frombuffer(stream.getvalue(), np.uint8)


def write_webp(folder: Path) -> list[Path]:
    path = folder / "batch.npz"
    np.savez(path, labels=LABELS, webp_000=webp_strip(IMAGES[:20]), webp_001=webp_strip(IMAGES[20:]))
    return [path]


def records(images: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(len(images), -1)], 1).tobytes()


def write_tar(folder: Path, members: dict[str, bytes], level: int = 9) -> list[Path]:
    path = folder / "cifar.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=level) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return [path]


def write_cifar(folder: Path) -> list[Path]:
    first, second = records(IMAGES[:10], LABELS[:10]), records(IMAGES[10:], LABELS[10:])
    return write_tar(folder, {"../outside": b"x", MEMBERS[1]: second, MEMBERS[0]: first})


def write_mat(folder: Path, **changed: np.ndarray) -> list[Path]:
    path = folder / "svhn.mat"
    official = {"X": IMAGES.transpose(1, 2, 3, 0), "y": np.where(LABELS == 0, 10, LABELS)[:, None]}
    savemat(path, official | changed, do_compression=True)
    return [path]


def write_zip(folder: Path) -> list[Path]:
    path = folder / "set.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in LINES.items():
            archive.writestr(name, content.encode("latin-1"))
    return [path]


FORMS = {
    "idx": (write_idx, readers.idx, (), GREY[..., None]),
    "webp": (write_webp, readers.webp, (), IMAGES),
    "cifar": (write_cifar, readers.cifar, MEMBERS, IMAGES),
    "mat": (write_mat, readers.mat, (), IMAGES),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_reader_gives_back_what_was_written(form, tmp_path):
    write, read, members, expected = FORMS[form]
    images, labels = read(write(tmp_path), members)
    np.testing.assert_array_equal(images, expected)
    np.testing.assert_array_equal(labels, LABELS)


def test_nothing_of_an_archive_is_written(tmp_path):
    folder = tmp_path / "in" / "here"
    folder.mkdir(parents=True)
    readers.cifar(write_cifar(folder), MEMBERS)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["cifar.tar.gz"]


def test_lines_end_only_at_line_feeds(tmp_path):
    assert readers.lines(write_zip(tmp_path), tuple(LINES)) == [["a caf\xe9 .", "b \x85 c"], ["d"]]


# Damage


@pytest.mark.parametrize("kept", [0, 2, 40, 0.5, 0.97])
@pytest.mark.parametrize("form", [*FORMS, "lines"])
def test_a_truncated_file_is_named(form, kept, tmp_path):
    write, read, members, _ = {**FORMS, "lines": (write_zip, readers.lines, tuple(LINES), None)}[form]
    paths = write(tmp_path)
    whole = paths[0].read_bytes()
    paths[0].write_bytes(whole[: kept if kept > 1 else int(kept * len(whole))])
    sentence = re.escape(str(paths[0])) + r" cannot be read \(.+\): delete it and load again with download=True"
    with pytest.raises(ValueError, match=sentence):
        read(paths, members)


@pytest.mark.parametrize("form", [*FORMS, "lines"])
def test_a_page_in_place_of_a_file_is_named(form, tmp_path):
    """What a server that no longer has the file sends instead."""
    write, read, members, _ = {**FORMS, "lines": (write_zip, readers.lines, tuple(LINES), None)}[form]
    paths = write(tmp_path)
    paths[0].write_text("<!DOCTYPE html><html><body>Not here</body></html>\n" * 20)
    with pytest.raises(ValueError, match=r"cannot be read \(.+\): delete it"):
        read(paths, members)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx_bytes(GREY)[:-5], r"its header says \(30, 28, 28\), but 23,515 bytes follow"),
        (idx_bytes(GREY) + b"x", r"its header says \(30, 28, 28\), but 23,521 bytes follow"),
        (idx_bytes(LABELS), r"it does not begin like an idx file of 3-dimensional bytes"),
        (idx_bytes(GREY[:29]), r"there are 29 images and 30 labels"),
    ],
)
def test_an_idx_file_that_contradicts_itself(content, message, tmp_path):
    paths = write_idx(tmp_path)
    paths[0].write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=message):
        readers.idx(paths)


def test_a_missing_strip(tmp_path):
    path = tmp_path / "batch.npz"
    np.savez(path, labels=LABELS, webp_000=webp_strip(IMAGES[:20]))
    with pytest.raises(ValueError, match=r"batch.npz cannot be read \(there are 20 images and 30 labels\)"):
        readers.webp([path])
    np.savez(path, labels=LABELS)
    with pytest.raises(ValueError, match="it holds no strip webp_000"):
        readers.webp([path])


def test_an_archive_without_a_batch(tmp_path):
    paths = write_tar(tmp_path, {MEMBERS[0]: records(IMAGES, LABELS)})
    with pytest.raises(ValueError, match=f"it holds no {MEMBERS[1]}"):
        readers.cifar(paths, MEMBERS)
    paths = write_tar(tmp_path, {MEMBERS[0]: records(IMAGES, LABELS)[:-1]})
    with pytest.raises(ValueError, match=r"cannot be read \(.*3073"):
        readers.cifar(paths, MEMBERS[:1])


def test_a_mat_file_of_something_else(tmp_path):
    with pytest.raises(ValueError, match=r"X has shape \(30, 32, 32, 3\), expected \(32, 32, 3, images\)"):
        readers.mat(write_mat(tmp_path, X=IMAGES))
    with pytest.raises(ValueError, match="there are 30 images and 29 labels"):
        readers.mat(write_mat(tmp_path, y=LABELS[1:]))
    savemat(tmp_path / "svhn.mat", {"z": LABELS})
    with pytest.raises(ValueError, match="it holds no array X"):
        readers.mat([tmp_path / "svhn.mat"])


# Finding and downloading


@pytest.fixture
def published(nowhere, monkeypatch):
    """A small data set under the name of MNIST, on a server; yields its remotes."""
    monkeypatch.setattr(download, "WAIT_SECONDS", 0.001)
    contents = {path.name: path.read_bytes() for path in write_idx(nowhere)}
    remotes = {name: Remote(content) for name, content in contents.items()}
    with serving(**remotes) as base:
        files = tuple(
            File(name, len(content), hashlib.md5(content).hexdigest(), (base + name,))
            for name, content in contents.items()
        )
        form = Form(readers.idx, {"train": Part(30, files), "test": Part(30, files)})
        monkeypatch.setattr(sources, "SOURCES", {"mnist": Source("mnist", (form,))})
        monkeypatch.setattr(data, "SOURCES", sources.SOURCES)
        yield remotes


def test_a_download_is_made_once_and_found_afterwards(published):
    for name in ("first", "again"):
        split = data.load("mnist", download=name == "first")
        np.testing.assert_array_equal(split.images, (GREY[..., None] / 255).astype(np.float32))
        np.testing.assert_array_equal(split.labels, LABELS)
        assert (split.images.dtype, split.labels.dtype) == (np.float32, np.int64)
        assert split.images.flags.c_contiguous
    data.load("mnist", download=True)
    assert all(len(remote.asked) == 1 for remote in published.values())


@pytest.mark.parametrize("change", [lambda raw: raw[:-9], lambda raw: raw[:-9] + b"different"], ids=["cut", "changed"])
def test_a_damaged_file_in_the_cache_is_named_and_download_repairs_it(published, change):
    data.load("mnist", download=True)
    path = data.cache_folder() / "mnist" / "images.gz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(
        ValueError, match=r"images.gz has (md5 \w+|[\d,]+ bytes), expected .*: delete it and load again"
    ):
        data.load("mnist")
    assert len(data.load("mnist", download=True)) == 30
    assert [len(remote.asked) for remote in published.values()] == [2, 1]


def test_the_folder_comes_before_the_cache(published, nowhere, monkeypatch):
    monkeypatch.setenv("NFK_DATA", str(nowhere / "data"))
    (nowhere / "data" / "mnist").mkdir(parents=True)
    write_idx(nowhere / "data" / "mnist")
    assert len(data.load("mnist", download=True)) == 30
    assert not data.cache_folder().exists()


def test_the_original_comes_before_the_compact_form(nowhere, monkeypatch):
    """SVHN: the compact form is incomplete."""
    monkeypatch.setenv("NFK_DATA", str(nowhere))
    (nowhere / "svhn").mkdir()
    for name in ("train_32x32.mat", "train_first20000.npz"):
        (nowhere / "svhn" / name).touch()
    assert sources.find("svhn", "train").paths[0].name == "train_32x32.mat"


def test_the_splits_of_every_form_are_the_same():
    for source in sources.SOURCES.values():
        assert len({tuple(form.parts) for form in source.forms}) == 1
        assert all(file.urls for part in source.forms[0].parts.values() for file in part.files)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "svhn"])
def test_nothing_is_found(name, nowhere):
    with pytest.raises(FileNotFoundError) as raised:
        data.load(name)
    said = str(raised.value)
    assert said.startswith(
        f"{name}, split 'train', was not found: NFK_DATA is not set, the cache {nowhere}/cache lacks"
    )
    for remedy in ("pass download=True (", f"set NFK_DATA to a folder that holds {name}/", "digits()"):
        assert remedy in said


def test_a_missing_batch_is_named(nowhere, monkeypatch):
    monkeypatch.setenv("NFK_DATA", str(nowhere))
    (nowhere / "cifar10").mkdir()
    for batch in (1, 2, 4, 5):
        (nowhere / "cifar10" / f"data_batch_{batch}.npz").touch()
    with pytest.raises(FileNotFoundError, match=r"NFK_DATA=.* lacks cifar10/data_batch_3.npz, the cache"):
        data.cifar10()


def test_text_is_not_found(nowhere):
    for read in (lambda: data.sentences("polarity"), data.shakespeare):
        with pytest.raises(
            FileNotFoundError, match=r"lacks text/.*download=True \([\d.]+ [kM]B\), or set NFK_DATA"
        ) as raised:
            read()
        assert "digits" not in str(raised.value)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: data.load("imagenet"), r"name='imagenet' is not known: use one of 'mnist', .*'digits'"),
        (lambda: data.load("mnist", "valid"), r"split='valid' is not known: use one of 'train', 'test'"),
        (lambda: data.sentences("imdb"), r"name='imdb' is not known: use one of 'polarity', 'subjectivity'"),
        (lambda: data.sentences("polarity", "dev"), r"split='dev' is not known: use one of 'all', 'train', 'test'"),
        (lambda: data.held_out(data.Split(IMAGES, LABELS), 1.5), r"share=1.5 must lie between 0 and 1"),
        (lambda: data.held_out(data.Split(IMAGES, LABELS), 0.01), r"share=0.01 of 30 examples holds none out"),
    ],
)
def test_arguments(read, message):
    with pytest.raises(ValueError, match=message):
        read()


def test_the_cache_has_the_place_that_the_system_gives(monkeypatch, tmp_path):
    monkeypatch.delenv("NFK_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert data.cache_folder() == tmp_path / "nfk"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data.cache_folder() == tmp_path / ".cache" / "nfk"
    monkeypatch.setattr("sys.platform", "darwin")
    assert data.cache_folder() == tmp_path / "Library" / "Caches" / "nfk"


# Splits


def test_held_out_takes_its_share_of_every_class():
    labels = np.repeat(np.arange(3), [100, 60, 40])
    numbers = np.arange(200.0)[:, None, None, None]
    kept, held = data.held_out(data.Split(numbers, labels), 0.2, seed=3)
    assert np.bincount(held.labels).tolist() == [20, 12, 8]
    assert sorted([*kept.images.ravel(), *held.images.ravel()]) == list(range(200))
    again, _ = data.held_out(data.Split(numbers, labels), 0.2, seed=3)
    other, _ = data.held_out(data.Split(numbers, labels), 0.2, seed=4)
    assert (again.images == kept.images).all()
    assert (other.images != kept.images).any()
    assert (np.diff(kept.labels) < 0).any(), "the classes are mixed"


def test_digits_need_nothing(nowhere):
    assert data.load("digits", "test").images.shape == (1000, 28, 28, 1)


# The command


def test_the_command_downloads_and_says_where(published, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    data.main()
    assert re.search(r"mnist .* train .* 30 .* not here: --download", capsys.readouterr().out)
    data.main(("mnist",), download=True)
    assert re.search(rf"mnist .* test .* 30 .* {data.cache_folder()}/mnist", capsys.readouterr().out)
    (data.cache_folder() / "mnist" / "labels.gz").write_bytes(b"")
    data.main(("mnist",))
    assert "labels.gz has 0 bytes, expected" in capsys.readouterr().out


def test_the_command_ends_with_a_sentence(published):
    with pytest.raises(SystemExit, match="name='mnits' is not known: use one of 'mnist'"):
        data.main(("mnits",))
    for remote in published.values():
        remote.errors = [404]
    with pytest.raises(SystemExit, match=r"images.gz could not be downloaded:\s+http://.*: 404 "):
        data.main(download=True)


# The real thing

COUNTS = {
    ("mnist", "train"): [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    ("mnist", "test"): [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ("fashion_mnist", "train"): [6000] * 10,
    ("fashion_mnist", "test"): [1000] * 10,
    ("cifar10", "train"): [5000] * 10,
    ("cifar10", "test"): [1000] * 10,
}
SVHN_COUNTS = {
    5_000: [339, 988, 775, 561, 496, 450, 381, 376, 316, 318],
    26_032: [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595],
}


@needs_data
@pytest.mark.parametrize(("name", "split"), COUNTS)
def test_real_images(name, split):
    found = data.load(name, split)
    assert np.bincount(found.labels).tolist() == COUNTS[name, split]
    assert found.images.shape[1:] == ((32, 32, 3) if name == "cifar10" else (28, 28, 1))
    assert (found.images.min(), found.images.max()) == (0, 1)


@needs_data
def test_real_house_numbers():
    found = data.svhn("test")
    assert np.bincount(found.labels).tolist() == SVHN_COUNTS[len(found)]
    assert found.images.shape[1:] == (32, 32, 3)


@needs_data
def test_both_forms_of_cifar_agree(tmp_path):
    """The compact batch, written as the original archive, has the recorded md5 and reads as the same arrays."""
    images, labels = sources.find("cifar10", "test").read()
    stream = records(images, labels)
    assert hashlib.md5(stream).hexdigest() == "803d5f7f4d78ea53de84dbe85f74fb6d"
    member = sources.CIFAR.parts["test"].members
    again, same = readers.cifar(write_tar(tmp_path, {member[0]: stream}, level=1), member)
    assert (again == images).all()
    assert (same == labels).all()


@needs_data
@pytest.mark.parametrize(("name", "each"), [("polarity", 5331), ("subjectivity", 5000)])
def test_real_sentences(name, each):
    everything, train, test = (data.sentences(name, split) for split in ("all", "train", "test"))
    assert everything.labels.tolist() == [0] * each + [1] * each
    assert all(text and text == text.strip() and "\n" not in text for text in everything.texts)
    pairs = lambda part: zip(part.texts, part.labels.tolist(), strict=True)  # noqa: E731
    assert sorted([*pairs(train), *pairs(test)]) == sorted(pairs(everything))
    assert np.bincount(test.labels).tolist() == [round(each / 5)] * 2
    folds = StratifiedKFold(10, shuffle=True, random_state=0).split(everything.texts, everything.labels)
    assert all(len(everything.take(rows)) >= 1000 for _, rows in folds)


@needs_data
def test_real_plays():
    assert len(data.shakespeare()) == 1_115_394
    assert data.shakespeare().startswith("First Citizen:\nBefore we proceed any further, hear me speak.")


@needs_data
def test_one_bit_of_real_data_is_noticed(tmp_path, monkeypatch):
    source, copy = data.data_folder() / "mnist", tmp_path / "mnist"
    copy.mkdir()
    for path in source.glob("t10k-*"):
        shutil.copyfile(path, copy / path.name)
    monkeypatch.setenv("NFK_DATA", str(tmp_path))
    labels = copy / "t10k-labels-idx1-ubyte.gz"
    raw = bytearray(labels.read_bytes())
    raw[2000] ^= 1
    labels.write_bytes(raw)
    with pytest.raises(
        ValueError, match=r"labels-idx1-ubyte.gz has md5 \w{32}, expected ec29112dd5afa0611ce80d1b7f026"
    ):
        data.mnist("test")


# The page


@needs_data
def test_the_page_about_data_runs():
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "data.md").read_text(), re.DOTALL):
        exec(compile(block, "docs/data.md", "exec"), {})


def test_the_page_lists_every_data_set():
    page = (ROOT / "docs" / "data.md").read_text()
    for name, source in sources.SOURCES.items():
        assert f"`{name}`" in page
        for part in source.forms[0].parts.values():
            assert f"{part.examples:,}" in page


def test_the_peak_of_memory_sees_what_a_block_held():
    from reproduction.memory import Peak

    size, end = 40_000_000, time.monotonic() + 20
    with Peak() as peak, mmap.mmap(-1, size) as held:  # pages of its own: an array may take those that another left
        held.write(bytes(size))
        while peak.grown < size and time.monotonic() < end:
            time.sleep(0.01)
    assert size <= peak.grown <= peak.most
    with Peak() as at_the_end:
        held = mmap.mmap(-1, size)
        held.write(bytes(size))
    held.close()
    assert at_the_end.grown >= size
