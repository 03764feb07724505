"""Arrays in a safetensors file, larger than memory if need be: written as they are, and read as memory maps.

The `safetensors` package copies every array on its way out and in. The format itself is simple: the length of a header
in eight bytes, the header as JSON, the numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
CODES = {np.dtype(name): code for code, name in NAMES.items()}
LARGE = 64 * 2**20  # bytes from which on an array stays in the file
LONGEST_HEADER = 100 * 2**20


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Arrays by name; those of wide numbers first, so that each stands where its numbers may stand in memory."""
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header, place = {}, 0
    for name, array in ordered:
        header[name] = {
            "dtype": CODES[array.dtype], "shape": list(array.shape), "data_offsets": [place, place + array.nbytes],
        }  # fmt: skip
        place += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in ordered:
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def read(path: Path) -> dict[str, np.ndarray]:
    """The arrays by name: small ones in memory, large ones as memory maps, of which a change stays in memory. A
    `ValueError` where it is no such file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(size - 8, LONGEST_HEADER):
            raise ValueError("its header has no plausible length")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {name: _array(path, 8 + length, size, facts) for name, facts in header.items()}


def _array(path: Path, start: int, size: int, facts: dict) -> np.ndarray:
    try:
        dtype, shape = np.dtype(NAMES[facts["dtype"]]), tuple(map(int, facts["shape"]))
        begin, end = map(int, facts["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its header is damaged at {error}") from error
    if end - begin != math.prod(shape) * dtype.itemsize or not 0 <= begin <= end <= size - start:
        raise ValueError("its header names numbers that are not there")
    if begin == end:
        return np.zeros(shape, dtype)
    mapped = np.memmap(path, dtype, "c", offset=start + begin, shape=shape)
    return mapped if mapped.nbytes >= LARGE else np.array(mapped)
