"""Files of bare values or pixels, which say nothing: the caller has to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ...arrays import flat_bytes
from ...dtypes import DType
from ...errors import Malformed, Unsupported
from ...image import Colorimetry, PixelFormat
from ...parts import Buffer
from ...tensor import Tensor
from .entry import Entry, Format, Written, allocation, dense, unsaid

__all__ = ["RAW"]


def _read(
    data: memoryview,
    *,
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
    pixels: str | None = None,
    size: tuple[int, int] | None = None,
    stride: int | None = None,
    colorimetry: Colorimetry | None = None,
    many: bool = False,
) -> list[Entry]:
    """A tensor of ``shape`` and ``dtype``, or an image of format ``pixels`` and ``size`` (width, height), borrowed.

    Values are little-endian in C order; an image's planes stand one behind the other, rows ``stride`` bytes
    apart (by default as close as they can). The file has to have exactly the bytes; ``many`` allows several
    such tensors end to end. Malformed otherwise; ValueError for options that make no tensor.
    """
    row = DType.of(dtype or "uint8")
    if (shape is None) == (pixels is None) or (pixels is None) != (size is None):
        raise ValueError("raw values say nothing of themselves: give shape and dtype, or a pixel format and a size")
    if pixels is not None and size is not None:
        format = PixelFormat(pixels)
        if min(size) < 0:
            raise ValueError(f"an image of {size[0]} × {size[1]} pixels cannot be")
        one = sum(layout.size for layout in format.plane_table(*size, stride, row.size))

        def tensor(piece: memoryview) -> Tensor:
            return Tensor.image(format, *size, piece, stride=stride, dtype=row, colorimetry=colorimetry)

    else:
        assert shape is not None
        if dtype is None or stride is not None or colorimetry is not None or any(n < 0 for n in shape):
            raise ValueError("an array needs a shape of sizes from 0 on and a dtype; stride and colours are an image's")
        one = math.prod(shape) * row.size

        def tensor(piece: memoryview) -> Tensor:
            return Tensor.from_array(np.ndarray(shape, row.numpy, piece))

    _check(len(data), one, many)
    return [Entry("" if one == len(data) else str(i), tensor(piece)) for i, piece in enumerate(_pieces(data, one))]


def _check(have: int, one: int, many: bool) -> None:
    if have == one or (many and one and have and have % one == 0):
        return
    whole = f": exactly {have // one:,} of them, end to end (many=True)" if one and have and have % one == 0 else ""
    raise Malformed(f"what was asked for has {one:,} bytes, the file has {have:,}{whole}", field="size", value=have)


def _pieces(data: memoryview, one: int) -> Iterator[memoryview]:
    for start in range(0, max(len(data), 1), max(one, 1)):
        yield data[start : start + one]


def _write(entries: Sequence[Entry], *, stride: int | None = None) -> Written:
    parts: list[Buffer] = []
    held, lost = [], []
    for name, tensor in entries:
        if tensor.format is None:
            if stride is not None:
                raise ValueError("stride is an image's: this tensor has no pixel format")
            array = dense(tensor)
            parts.append(flat_bytes(array))
            bare = Tensor.from_array(array)
        else:
            bare = _paced(tensor, stride)
            parts += [plane.data for plane in bare.planes if plane.data is not None]
        lost += unsaid(tensor, keeps={"format", "planes[1]"})
        held.append(Entry(name, bare))
    return Written(parts, held, lost)


def _paced(tensor: Tensor, stride: int | None) -> Tensor:
    """An image with its rows ``stride`` bytes apart, planes end to end."""
    format = tensor.format
    if not isinstance(format, PixelFormat):
        raise Unsupported(f"pixel format {format!r} is unknown here: its rows cannot be told", field="format")
    memory = allocation(tensor, stride)
    return Tensor.image(format, tensor.width, tensor.height, memory, stride=stride, dtype=tensor.dtype)


RAW = Format("raw values", (".raw", ".bin", ".yuv"), lambda head, size: False, _read, _write, many=True)
