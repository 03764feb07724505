"""Folders of images as arrays, read when they are needed; and small pictures of examples to look at."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nfk.cli.refusal import Refused, needs
from nfk.stream import Examples

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
LOADED_BYTES = 2**29  # below, all images are decoded once; above, in every pass
SHOWN_BYTES = 2**25
LARGE, SMALL = 64, 32  # pixels of a picture that is shown
Channels = Literal["last", "first"]


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images of one size, float32 in [0, 1], decoded slice by slice. Grey ones have one channel, others three."""

    files: Sequence[Path | bytes]
    pixels: tuple[int, int]  # height, width
    mode: Literal["L", "RGB"]
    channels: Channels
    labels: np.ndarray | None = None

    @classmethod
    def of(
        cls, files: Sequence[Path | bytes], size: int | None, channels: Channels, labels: np.ndarray | None = None
    ) -> Pictures:
        """Looks at the header of every file, and refuses those that cannot be read or differ in size."""
        shapes: dict[tuple[int, int], str] = {}
        grey = True
        for place, file in enumerate(files):
            with _opened(file, place) as image:
                shapes.setdefault((image.height, image.width), _name(file, place))
                if image.mode.startswith(("I", "F")):
                    raise Refused(f"{_name(file, place)} has more than 8 bits for each pixel: save it with 8")
                grey = grey and image.mode in ("L", "1")
        if size is None and len(shapes) > 1:
            (first, one), (second, other) = list(shapes.items())[:2]
            raise Refused(
                f"the images differ in size: {one} has {first[1]} x {first[0]} pixels, {other} {second[1]} x "
                f"{second[0]}; resize them all with --size {min(first)}"
            )
        shape = next(iter(shapes)) if size is None else (size, size)
        return cls(files, shape, "L" if grey else "RGB", channels, labels)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: slice) -> np.ndarray:
        places = range(*rows.indices(len(self)))
        pixels = np.stack([self._decoded(place, self.pixels) for place in places])
        scaled = pixels.astype(np.float32) / np.float32(255)
        return np.moveaxis(scaled, -1, 1) if self.channels == "first" else scaled

    def _decoded(self, place: int, shape: tuple[int, int]) -> np.ndarray:
        with _opened(self.files[place], place) as image:
            try:
                converted = image.convert(self.mode)
                resized = converted if image.size == shape[::-1] else converted.resize(shape[::-1])
            except (OSError, SyntaxError) as error:
                raise _unreadable(self.files[place], place, error) from error
            array = np.asarray(resized)
        return array[..., None] if array.ndim == 2 else array

    def loaded(self) -> Any:
        """All of them as an array, or, where that would be large, themselves."""
        depth = 1 if self.mode == "L" else 3
        return self if 4 * len(self) * depth * int(np.prod(self.pixels)) > LOADED_BYTES else self[:]

    def thumbnails(self) -> np.ndarray:
        """Small pictures of all, (n, height, width, channels) in 0 ... 255."""
        most = shown_pixels(len(self), 1 if self.mode == "L" else 3)
        factor = min(most / max(self.pixels), 1)
        small = (max(round(self.pixels[0] * factor), 1), max(round(self.pixels[1] * factor), 1))
        return np.stack([self._decoded(place, small) for place in range(len(self))])


def folder(path: Path, size: int | None, channels: Channels) -> Pictures:
    """Every image below the folder in order of its name; the names of its sub-folders are the labels."""
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise Refused(f"{path} holds no images ({', '.join(SUFFIXES)}) and is no Hugging Face data set")
    groups = [file.relative_to(path).parts[:-1] for file in files]
    if any(groups) and not all(groups):
        lone = next(file for file, group in zip(files, groups, strict=True) if not group)
        raise Refused(f"{path} has images in sub-folders and {lone.name} beside them: labels would be missing; move it")
    labels = np.array([group[0] for group in groups]) if all(groups) else None
    return Pictures.of(files, size, channels, labels)


def thumbnails(examples: Any) -> np.ndarray | None:
    """What to show of arrays: small pictures of images, short vectors as they are, and nothing of the rest."""
    sliced = Examples(examples)
    first = sliced.example()
    if not hasattr(first, "shape"):
        return None
    if first.ndim == 1 and first.dtype.kind in "fiu" and 4 * first.size * len(sliced) <= SHOWN_BYTES:
        return np.asarray(sliced.slice(0, len(sliced)))
    if first.ndim not in (2, 3) or min(first.shape[:2] if first.ndim == 2 else sorted(first.shape)[1:]) < 4:
        return None
    parts = [_small(sliced.slice(a, min(a + 256, len(sliced))), len(sliced)) for a in range(0, len(sliced), 256)]
    return _bytes(np.concatenate(parts))


def shown_pixels(count: int, depth: int) -> int:
    """Pixels along the longer side, so that all pictures fit in the room for them."""
    return LARGE if count * depth * LARGE**2 <= SHOWN_BYTES else SMALL


def _small(images: Any, count: int) -> np.ndarray:
    """Every so many pixels, channels last."""
    images = np.asarray(images)
    images = images[..., None] if images.ndim == 3 else images
    if images.shape[-1] not in (1, 3, 4) and images.shape[1] in (1, 3, 4):
        images = np.moveaxis(images, 1, -1)
    depth = images.shape[-1]
    images = images if depth in (1, 3) else images[..., :3] if depth == 4 else images.mean(axis=-1, keepdims=True)
    step = -(-max(images.shape[1:3]) // shown_pixels(count, images.shape[-1]))
    return images[:, ::step, ::step]


def _bytes(images: np.ndarray) -> np.ndarray:
    """0 ... 255, from bytes, from [0, 1], from [-1, 1], or stretched over what there is."""
    if images.dtype == np.uint8:
        return images
    low, high = float(images.min()), float(images.max())
    for left, right in ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)):
        if left <= low and high <= right:
            low, high = left, right
            break
    return np.round(255 * (images - low) / ((high - low) or 1)).astype(np.uint8)


def _opened(file: Path | bytes, place: int) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise needs("pillow", "reading images") from error
    try:
        return Image.open(io.BytesIO(file) if isinstance(file, bytes) else file)
    except (OSError, UnidentifiedImageError) as error:
        raise _unreadable(file, place, error) from error


def _unreadable(file: Path | bytes, place: int, error: Exception) -> Refused:
    return Refused(f"{_name(file, place)} cannot be read as an image ({error}): remove or repair it")


def _name(file: Path | bytes, place: int) -> str:
    return f"image {place}" if isinstance(file, bytes) else str(file)
