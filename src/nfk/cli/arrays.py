"""Arrays in .npy and .npz files, and labels in files of their own. Nothing is unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from nfk.cli.refusal import Refused

EXAMPLES, LABELS = ("X", "x", "examples", "images", "data", "features"), ("y", "Y", "labels", "targets")


def array(path: Path) -> np.ndarray:
    """The array of a .npy file, as a memory map."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise Refused(f"{path} cannot be read: {_plainly(error, path)}") from error
    return _numbers(found, str(path))


def archive(path: Path, labels: str | None) -> tuple[np.ndarray, np.ndarray | None]:
    """(examples, labels) of an .npz file: by their usual names, or the only array that it has."""
    try:
        with np.load(path, allow_pickle=False) as found:
            names = found.files
            chosen = next((name for name in EXAMPLES if name in names), names[0] if len(names) == 1 else None)
            if chosen is None:
                raise Refused(
                    f"{path} holds {', '.join(names) or 'nothing'}: save the examples as {EXAMPLES[0]!r} and the "
                    f"labels as {LABELS[0]!r}"
                )
            label = labels if labels in names else next((name for name in LABELS if name in names), None)
            return _numbers(found[chosen], f"{path}[{chosen!r}]"), None if label is None else found[label]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise Refused(f"{path} cannot be read: {_plainly(error, path)}") from error


def label_file(path: Path) -> np.ndarray:
    """Labels from an array, or from a text file with a label in each line."""
    if path.suffix == ".npy":
        found = array_of_labels(path)
        if found.ndim != 1:
            raise Refused(f"{path} has shape {found.shape}: labels are one number or word for each example")
        return found
    try:
        return as_labels(path.read_text("utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read: {error}") from error


def array_of_labels(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise Refused(f"{path} cannot be read: {_plainly(error, path)}") from error


def as_labels(words: list) -> np.ndarray:
    """Whole numbers where all of them are, else words."""
    try:
        return np.array([int(word) for word in words])
    except (ValueError, TypeError):
        return np.array([str(word) for word in words])


def _numbers(found: np.ndarray, name: str) -> np.ndarray:
    if found.dtype.kind not in "iufb" or found.ndim == 0:
        raise Refused(f"{name} has dtype {found.dtype} and shape {found.shape}: an array of examples is needed")
    return found


def _plainly(error: Exception, path: Path) -> str:
    with path.open("rb") as file:
        known = file.read(6) in (b"\x93NUMPY", b"PK\x03\x04\x14\x00", b"PK\x03\x04\x2d\x00")
    if not known:
        return "it is not a file that numpy wrote; save the array with numpy.save"
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return "it holds Python objects, which are not loaded; save an array of numbers"
    return str(error)
