"""Files to arrays: each reader takes the paths of one split and returns 8-bit pixels (n, height, width, channels) and
labels, or text. Nothing in a file is executed, nothing is written; a file that cannot be decoded is named."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from reproduction.refusal import Refused

Pixels = tuple[np.ndarray, np.ndarray]

CIFAR_RECORD = 1 + 3 * 32 * 32


def damaged(path: Path, what: str) -> Refused:
    return Refused(f"{path} {what}: delete it and load again with download=True")


@contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Whatever a decoder says about damaged bytes becomes a sentence with the file's name and the remedy."""
    try:
        yield
    except (MemoryError, ImportError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        said = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise damaged(path, f"cannot be read ({said})") from error


def idx(paths: Sequence[Path], members: Sequence[str] = ()) -> Pixels:
    """The two gzip files of MNIST's format: images and labels."""
    images, labels = _idx_array(paths[0], 3), _idx_array(paths[1], 1)
    with decoding(paths[1]):
        _paired(images, labels)
    return images[..., None], labels


def _idx_array(path: Path, dimensions: int) -> np.ndarray:
    with decoding(path), gzip.open(path) as stream:
        raw = stream.read()
        # Two zero bytes, 8 for unsigned bytes, the number of dimensions; then each dimension in four bytes.
        if raw[:4] != bytes([0, 0, 8, dimensions]):
            raise ValueError(f"it does not begin like an idx file of {dimensions}-dimensional bytes")
        shape = np.frombuffer(raw, ">u4", count=dimensions, offset=4).astype(int)
        body = len(raw) - 4 - 4 * dimensions
        if body != shape.prod():
            raise ValueError(f"its header says {tuple(map(int, shape))}, but {body:,} bytes follow")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def webp(paths: Sequence[Path], members: Sequence[str] = ()) -> Pixels:
    """The compact form: npz files of labels and lossless WebP strips, 32 x 32 images from top to bottom."""
    parts = [_webp_array(path) for path in paths]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _webp_array(path: Path) -> Pixels:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"{path.name} holds WebP images: pip install pillow") from error

    with decoding(path), path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        strips = sorted(name for name in archive.files if name.startswith("webp_"))
        if not strips:
            raise ValueError("it holds no strip webp_000")
        pixels = [np.asarray(Image.open(io.BytesIO(archive[name].tobytes()))) for name in strips]
        images = np.concatenate(pixels).reshape(-1, 32, 32, 3)
        return _paired(images, archive["labels"])


def cifar(paths: Sequence[Path], members: Sequence[str]) -> Pixels:
    """CIFAR-10's binary tar: records of one label and 32 x 32 pixels in three planes. One pass over the archive."""
    (path,) = paths
    found = {}
    with decoding(path), tarfile.open(path, "r|gz") as archive:
        for entry in archive:
            if entry.name in members and entry.isfile():
                found[entry.name] = archive.extractfile(entry).read()
        missing = [name for name in members if name not in found]
        if missing:
            raise ValueError(f"it holds no {missing[0]}")
        records = np.frombuffer(b"".join(found[name] for name in members), np.uint8).reshape(-1, CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]


def mat(paths: Sequence[Path], members: Sequence[str] = ()) -> Pixels:
    """SVHN's MATLAB file: X (32, 32, 3, n) and y (n, 1), which writes the digit 0 as 10."""
    from scipy.io import loadmat

    (path,) = paths
    with decoding(path):
        stored = loadmat(path, variable_names=["X", "y"])
        missing = [name for name in ("X", "y") if name not in stored]
        if missing:
            raise ValueError(f"it holds no array {missing[0]}")
        images, labels = stored["X"], stored["y"]
        if images.ndim != 4 or images.shape[:3] != (32, 32, 3):
            raise ValueError(f"X has shape {images.shape}, expected (32, 32, 3, images)")
        return _paired(images.transpose(3, 0, 1, 2), labels.ravel() % 10)


def lines(paths: Sequence[Path], members: Sequence[str]) -> list[list[str]]:
    """The lines of each member of a zip, Latin-1, without the spaces at their ends."""
    (path,) = paths
    with decoding(path), zipfile.ZipFile(path) as archive:
        # Not splitlines: it also breaks at \x85, which Latin-1 has inside sentences.
        texts = [archive.read(member).decode("latin-1").rstrip("\n").split("\n") for member in members]
    return [[line.strip() for line in text] for text in texts]


def text(paths: Sequence[Path], members: Sequence[str] = ()) -> str:
    (path,) = paths
    with decoding(path):
        return path.read_bytes().decode("ascii")


def _paired(images: np.ndarray, labels: np.ndarray) -> Pixels:
    if len(images) != len(labels):
        raise ValueError(f"there are {len(images):,} images and {len(labels):,} labels")
    return images, labels
