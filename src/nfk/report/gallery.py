"""How examples are shown: images as thumbnails on a few large sheets, texts as text, other arrays as small lines."""

from __future__ import annotations

import base64
import hashlib
import io
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

EDGE = 48  # pixels of a thumbnail's longer side, at the most
SHEET_EDGE = 4096  # pixels of a sheet: what every browser decodes
LETTERS = 280  # of a text
POINTS = 48  # of a line
LOSSLESS_BYTES = 4_000_000  # thumbnails that need more as PNG are written as lossy WebP
CHANNELS = (1, 3, 4)
SMALLEST_IMAGE = 6

Kind = Literal["images", "texts", "lines"]


@dataclass(frozen=True, eq=False)
class Gallery:
    """Examples in one of three kinds: (n, height, width, channels) in 0 to 255, a list of texts, or (n, points)."""

    kind: Kind
    examples: Any

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def fingerprint(self) -> str:
        """Equal for equal examples: two fits on them can be compared example by example."""
        content = "\0".join(self.examples).encode() if self.kind == "texts" else self.examples.tobytes()
        return hashlib.sha256(content).hexdigest()

    def packed(self, rows: np.ndarray) -> dict[str, Any]:
        """The chosen examples as the page's script reads them."""
        if self.kind == "texts":
            return {"kind": "texts", "texts": [_shortened(self.examples[row]) for row in rows]}
        if self.kind == "lines":
            return _packed_lines(self.examples[rows])
        return _packed_images(self.examples[rows])


def gallery_of(X: Any) -> Gallery | None:
    """Examples as they can be shown: strings, images (channels first or last), or any arrays; None if there are none.

    Of a pytree the first array that holds images is shown, or else the first one.
    """
    if not isinstance(X, dict) and len(X) and all(isinstance(example, str) for example in X):
        return Gallery("texts", [str(example) for example in X])
    arrays = [array for array in _arrays(X) if array.ndim and array.dtype.kind in "fiub"]
    if not arrays:
        return None
    images = next((image for array in arrays if (image := _as_images(array)) is not None), None)
    return Gallery("images", images) if images is not None else Gallery("lines", _as_lines(arrays[0]))


def _arrays(X: Any) -> list[np.ndarray]:
    """The arrays of a pytree; a list holds examples, which are stacked."""
    if isinstance(X, list) and X and isinstance(X[0], (int, float, list)):
        return [np.asarray(X)]
    if isinstance(X, list) and X:
        X = jax.tree.map(lambda *parts: np.stack(parts), *X)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(X)]


def _as_images(array: np.ndarray) -> np.ndarray | None:
    """(n, height, width, channels) in 0 to 255, thinned to thumbnails; None where the shape is not that of images."""
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.shape[-1] not in CHANNELS:
        if array.ndim != 4 or array.shape[1] not in CHANNELS:
            return None
        array = np.moveaxis(array, 1, -1)
    if min(array.shape[1:3]) < SMALLEST_IMAGE:
        return None
    step = -(-max(array.shape[1:3]) // EDGE)
    array = _averaged(array, step)
    low, high = float(array.min()), float(array.max())
    if array.dtype == np.uint8:
        low, high = 0, 255
    elif low >= 0 and high <= 1:
        low, high = 0, 1
    return np.round((array - low) * (255 / ((high - low) or 1))).astype(np.uint8)


def _averaged(images: np.ndarray, step: int) -> np.ndarray:
    """Means over squares of `step` pixels: what the edge has beyond a whole square is left out."""
    if step == 1:
        return images
    n, height, width, channels = images.shape
    height, width = height // step, width // step
    cut = images[:, : height * step, : width * step].reshape(n, height, step, width, step, channels)
    return np.stack([part.mean(axis=(1, 3), dtype=np.float32).astype(images.dtype) for part in cut])


def _as_lines(array: np.ndarray) -> np.ndarray:
    """(n, points) in 0 to 1: each example as one row, thinned, on a scale that all share."""
    rows = array.reshape(len(array), -1).astype(np.float32)
    step = max(-(-rows.shape[1] // POINTS), 1)
    rows = rows[:, ::step]
    low, high = np.quantile(rows, [0.005, 0.995])
    return np.clip((rows - low) / ((high - low) or 1), 0, 1)


def _packed_lines(rows: np.ndarray) -> dict[str, Any]:
    return {"kind": "lines", "points": rows.shape[1], "values": packed(np.round(rows * 255).astype(np.uint8))}


def _packed_images(images: np.ndarray) -> dict[str, Any]:
    _, height, width, channels = images.shape
    columns, most_rows = SHEET_EDGE // width, SHEET_EDGE // height
    columns = min(columns, max(int(np.ceil(np.sqrt(len(images)))), 1))
    per_sheet = columns * min(most_rows, columns * max(width // height, 1))
    sheets = [_sheet(images[start : start + per_sheet], columns) for start in range(0, len(images), per_sheet)]
    encoded = [_encoded(sheet, "PNG") for sheet in sheets]
    form = "png"
    if sum(map(len, encoded)) > LOSSLESS_BYTES:
        encoded, form = [_encoded(sheet, "WEBP") for sheet in sheets], "webp"
    return {
        "kind": "images", "width": width, "height": height, "columns": columns, "perSheet": per_sheet,
        "ink": bool(channels == 1 and np.median(images) == images.min()),
        "sheets": [f"data:image/{form};base64,{base64.b64encode(sheet).decode()}" for sheet in encoded],
    }  # fmt: skip


def _sheet(images: np.ndarray, columns: int) -> np.ndarray:
    """Images in rows of `columns`, row after row."""
    n, height, width, channels = images.shape
    rows = -(-n // columns)
    padded = np.zeros((rows * columns, height, width, channels), np.uint8)
    padded[:n] = images
    grid = padded.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return grid.reshape(rows * height, columns * width, channels)


def _encoded(sheet: np.ndarray, form: str) -> bytes:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("thumbnails need pillow: pip install 'nfk[report]'") from error
    buffer = io.BytesIO()
    options = {"optimize": True} if form == "PNG" else {"quality": 78}
    Image.fromarray(sheet.squeeze(-1) if sheet.shape[-1] == 1 else sheet).save(buffer, form, **options)
    return buffer.getvalue()


def packed(array: np.ndarray) -> str:
    """The numbers of an array, little-endian, as base64."""
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def _shortened(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"
