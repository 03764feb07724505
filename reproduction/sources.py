"""Where the data sets come from: a table of their files, with sizes, checksums and addresses, and how one is found."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nfk.memory import human
from reproduction import readers
from reproduction.download import difference, fetch


@dataclass(frozen=True)
class File:
    """A file by its name, bytes and checksum; `urls` all serve the same bytes. None: it is not published like this."""

    name: str
    size: int
    md5: str
    urls: tuple[str, ...] = ()

    @property
    def checksum(self) -> str:
        return f"md5:{self.md5}"


@dataclass(frozen=True)
class Part:
    """One split: how many examples, in which files, in which members of an archive; all in their order."""

    examples: int
    files: tuple[File, ...]
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Form:
    """One way in which a data set is stored: its reader, and its splits."""

    read: Callable[[Sequence[Path], Sequence[str]], Any]
    parts: Mapping[str, Part]


@dataclass(frozen=True)
class Source:
    """A data set: the folder of its files, and its forms. The first form is the original, which can be downloaded."""

    folder: str
    forms: tuple[Form, ...]


@dataclass(frozen=True)
class Found:
    """The files of one split on this machine."""

    form: Form
    part: Part
    paths: tuple[Path, ...]

    def verify(self) -> None:
        """Every file has the bytes that the table says; a tenth of the time that decoding takes."""
        for file, path in zip(self.part.files, self.paths, strict=True):
            if wrong := difference(path, file.checksum, file.size):
                raise readers.damaged(path, wrong)

    def read(self) -> Any:
        """Verify, then decode."""
        self.verify()
        return self.form.read(self.paths, self.part.members)


def data_folder() -> Path | None:
    """The folder that the environment variable NFK_DATA names, where it exists."""
    folder = os.environ.get("NFK_DATA")
    return Path(folder) if folder and Path(folder).is_dir() else None


def cache_folder() -> Path:
    """Where downloads go: NFK_CACHE, else nfk/ in the folder that the system gives to caches."""
    if named := os.environ.get("NFK_CACHE"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "nfk"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "nfk"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nfk"


def find(name: str, split: str, *, download: bool = False) -> Found:
    """The files of one split: in NFK_DATA, else in the cache, else downloaded into it.

    `download=True` also replaces a file in the cache that is damaged; one that is there and whole is only verified.
    """
    found = _in_folder(data_folder(), name, split)
    if found is None and download:
        form = SOURCES[name].forms[0]
        for file in form.parts[split].files:
            fetch(file.urls, cache_folder() / SOURCES[name].folder / file.name, checksum=file.checksum, size=file.size)
    found = found or _in_folder(cache_folder(), name, split)
    if found is None:
        raise FileNotFoundError(_not_found(name, split))
    return found


def _in_folder(folder: Path | None, name: str, split: str) -> Found | None:
    for form in SOURCES[name].forms if folder else ():
        part = form.parts[split]
        paths = tuple(folder / SOURCES[name].folder / file.name for file in part.files)
        if all(path.is_file() for path in paths):
            return Found(form, part, paths)
    return None


def _not_found(name: str, split: str) -> str:
    source = SOURCES[name]
    named = os.environ.get("NFK_DATA")
    given = f"NFK_DATA={named} lacks {_lack(Path(named), name, split)}" if named else "NFK_DATA is not set"
    size = human(sum(file.size for file in source.forms[0].parts[split].files))
    fallback = ", or use digits(), which needs no file" if source.folder != "text" else ""
    return (
        f"{name}, split {split!r}, was not found: {given}, the cache {cache_folder()} lacks "
        f"{_lack(cache_folder(), name, split)}; pass download=True ({size}), "
        f"or set NFK_DATA to a folder that holds {source.folder}/{fallback}"
    )


def _lack(folder: Path, name: str, split: str) -> str:
    """The file that is missing: of the form that is there in part, else of the original."""
    source = SOURCES[name]
    missing = [
        [file.name for file in form.parts[split].files if not (folder / source.folder / file.name).is_file()]
        for form in source.forms
    ]
    in_part = [
        names for names, form in zip(missing, source.forms, strict=True) if len(names) < len(form.parts[split].files)
    ]
    return f"{source.folder}/{(in_part or missing)[0][0]}"


def _idx_form(bases: Sequence[str], train: Sequence[tuple[int, str]], test: Sequence[tuple[int, str]]) -> Form:
    def part(prefix: str, examples: int, facts: Sequence[tuple[int, str]]) -> Part:
        names = (f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz")
        files = (
            File(name, size, md5, tuple(base + name for base in bases))
            for name, (size, md5) in zip(names, facts, strict=True)
        )
        return Part(examples, tuple(files))

    return Form(readers.idx, {"train": part("train", 60_000, train), "test": part("t10k", 10_000, test)})


def _sentences(archive: str, size: int, md5: str, examples: int, members: tuple[str, str]) -> Source:
    url = f"https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/{archive}.zip"
    part = Part(examples, (File(f"{archive}.zip", size, md5, (url,)),), tuple(f"{archive}/{name}" for name in members))
    return Source("text", (Form(readers.lines, {"all": part}),))


MNIST = _idx_form(
    (
        # Copies of the same bytes first: the original site, the last of these, has often refused.
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    train=((9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"), (28_881, "d53e105ee54ea40749a09fcbcd1e9432")),
    test=((1_648_877, "9fb629c4189551a2d022fa330f9573f3"), (4_542, "ec29112dd5afa0611ce80d1b7f02629c")),
)

FASHION = _idx_form(
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    train=((26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"), (29_515, "25c81989df183df01b3e8a0aad5dffbe")),
    test=((4_422_102, "bef4ecab320f06d8554ea6380940ec79"), (5_148, "bb300cfdad3c16e7a12a480ee83cd310")),
)

CIFAR_TAR = File(
    "cifar-10-binary.tar.gz",
    170_052_171,
    "c32a1d4ab5d03f1284b67883e8d87530",
    (
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "https://cave.cs.toronto.edu/kriz/cifar-10-binary.tar.gz",
    ),
)
CIFAR = Form(
    readers.cifar,
    {
        "train": Part(
            50_000, (CIFAR_TAR,), tuple(f"cifar-10-batches-bin/data_batch_{batch}.bin" for batch in range(1, 6))
        ),
        "test": Part(10_000, (CIFAR_TAR,), ("cifar-10-batches-bin/test_batch.bin",)),
    },
)
CIFAR_COMPACT = Form(
    readers.webp,
    {
        "train": Part(
            50_000,
            (
                File("data_batch_1.npz", 16_459_490, "f9f113c6b988d37bded4a4279d75c24a"),
                File("data_batch_2.npz", 16_501_184, "7a27ee7c26d7b73698489ce765669cc3"),
                File("data_batch_3.npz", 16_506_198, "088ab4f4566d51886d99cedc13e0a569"),
                File("data_batch_4.npz", 16_483_518, "dd683cd9d65c9bb4a0a35cda390b515f"),
                File("data_batch_5.npz", 16_454_552, "0b591c4b8155af2fd7e34a3846810339"),
            ),
        ),
        "test": Part(10_000, (File("test_batch.npz", 16_489_326, "38705fa948f25370cd104430ba5c2e19"),)),
    },
)


def _svhn_file(name: str, size: int, md5: str) -> File:
    return File(name, size, md5, (f"http://ufldl.stanford.edu/housenumbers/{name}",))


SVHN = Form(
    readers.mat,
    {
        "train": Part(73_257, (_svhn_file("train_32x32.mat", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),)),
        "test": Part(26_032, (_svhn_file("test_32x32.mat", 64_275_384, "eb5a983be6a315427106f1b164d9cef3"),)),
    },
)
SVHN_FIRST = Form(
    readers.webp,
    {
        "train": Part(20_000, (File("train_first20000.npz", 23_113_968, "5ff31834be9fc5d4acaa0b996b6a72a4"),)),
        "test": Part(5_000, (File("test_first5000.npz", 5_382_060, "6d5a7e37e3e127ac212cc421199b520d"),)),
    },
)

PLAYS = File(
    "tinyshakespeare.txt",
    1_115_394,
    "6fb458f1232090904fb40fe944165e91",
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
)

SOURCES: Mapping[str, Source] = {
    "mnist": Source("mnist", (MNIST,)),
    "fashion_mnist": Source("fashion_mnist", (FASHION,)),
    "cifar10": Source("cifar10", (CIFAR, CIFAR_COMPACT)),
    "svhn": Source("svhn", (SVHN, SVHN_FIRST)),
    "polarity": _sentences(
        "sentence_polarity", 490_256, "5cdc0cae7f558040d050c90eb2b72e97", 10_662, ("rt-polarity.neg", "rt-polarity.pos")
    ),
    "subjectivity": _sentences(
        "subjectivity", 521_628, "a81a44513903ba6bb86f85aeff149561", 10_000, ("plot.tok.gt9.5000", "quote.tok.gt9.5000")
    ),
    "shakespeare": Source("text", (Form(readers.text, {"all": Part(1_115_394, (PLAYS,))}),)),
}
