"""An image over somebody's memory: which of its bytes are which plane, at which pitch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import borrow, flat_bytes, spanning_bytes
from .dtypes import DType
from .image import PixelFormat, PlaneLayout

__all__ = ["Lent", "lend_image"]

Array = npt.NDArray[Any]
_Part = tuple[memoryview, int, bool]  # bytes, stride, loose


class Lent(NamedTuple):
    """An image's planes in borrowed memory: (bytes, stride in bytes) each.

    ``loose`` says that the memory has gaps that are not the image's.
    """

    dtype: DType
    planes: list[tuple[memoryview, int]]
    loose: bool


def lend_image(
    format: PixelFormat,
    width: int,
    height: int,
    given: object,
    stride: int | Sequence[int] | None,
    dtype: DType | npt.DTypeLike | None,
) -> Lent:
    """Find the planes of an image in ``given``: one array or buffer, or one for each plane.

    ValueError where shape, stride or size contradict the format.
    """
    if width < 0 or height < 0:
        raise ValueError(f"an image of {width} × {height} pixels cannot be: give sizes of 0 or more")
    pieces = [borrow(piece) for piece in given] if isinstance(given, (list, tuple)) else [borrow(given)]
    count = format.plane_count
    if len(pieces) not in (1, count):
        raise ValueError(f"{format} has {count} planes: give {count}, or one array of the whole; {len(pieces)} came")
    row = DType.of(pieces[0].dtype if dtype is None else dtype)
    strides = _strides(stride, count)
    if len(pieces) > 1:
        parts = [_part(format, width, height, i, row, piece, strides[i]) for i, piece in enumerate(pieces)]
    else:
        parts = _split(format, width, height, row, pieces[0], strides[0])
    return Lent(row, [(data, stride) for data, stride, _ in parts], any(loose for _, _, loose in parts))


def _strides(stride: int | Sequence[int] | None, count: int) -> Sequence[int | None]:
    if stride is None or isinstance(stride, int):
        return (stride,) * count
    if len(stride) != count:
        raise ValueError(f"{len(stride)} strides for {count} planes: give one each, or one number for all")
    return stride


def _part(
    format: PixelFormat, width: int, height: int, i: int, dtype: DType, piece: Array, stride: int | None
) -> _Part:
    """Plane ``i`` over ``piece``, and whether its memory has gaps that are not the image's."""
    tight = format.plane_table(width, height, None, dtype.size)[i]
    # Rows as the plane has them; or, for NV24's chroma, as the allocation counts them: two strides a row.
    lines = {tight.rows: tight.pitch // (tight.stride or 1), tight.size // (tight.stride or 1): 1}
    rows = _Rows(format, piece, lines, tight.row_bytes)
    layout = format.plane_table(width, height, rows.stride if stride is None else stride, dtype.size)[i]
    return _cut(format, layout, rows, i, 0)


def _split(format: PixelFormat, width: int, height: int, dtype: DType, piece: Array, stride: int | None) -> list[_Part]:
    """Every plane from one allocation, in which they stand one behind the other."""
    tight = format.plane_table(width, height, None, dtype.size)
    lines = {sum(layout.size // (layout.stride or 1) for layout in tight): 1}
    if piece.ndim == 3 and piece.nbytes and piece.shape != format.grid(width, height):
        format.extent(piece.shape)  # says what the grid must be where it is none at all
        raise ValueError(f"an array of shape {list(piece.shape)} is no {format} image of {width} × {height}")
    rows = _Rows(format, piece, lines, tight[0].row_bytes)
    planes, offset = [], 0
    table = format.plane_table(width, height, rows.stride if stride is None else stride, dtype.size)
    for i, layout in enumerate(table):
        planes.append(_cut(format, layout, rows, i, offset))
        offset += layout.size
    return planes


class _Rows:
    """How a lent array's rows stand in memory.

    ``stride`` is the bytes between two lines (None for flat bytes, which say nothing), ``data`` the memory,
    ``loose`` whether it has gaps that are not the array's. ``lines`` maps each row count that the array may
    have to the strides in such a row.
    """

    def __init__(self, format: PixelFormat, piece: Array, lines: dict[int, int], row_bytes: int) -> None:
        self.stride: int | None = None
        self.loose = not piece.flags.c_contiguous
        if piece.ndim < 2 or piece.nbytes == 0:
            piece = np.ascontiguousarray(piece) if piece.nbytes == 0 else piece
            if not piece.flags.c_contiguous:
                raise ValueError("flat bytes with gaps hold no rows: give numpy.ascontiguousarray of them")
            self.data, self.loose = flat_bytes(piece), False
            return
        lead = 2 if format.is_planar and piece.ndim == 3 else 1
        count = math.prod(piece.shape[:lead])
        row = piece[(0,) * lead]
        pitch = piece.strides[lead - 1]
        needed = row_bytes * lines.get(count, 0) // max(lines.values())
        if count not in lines or row.nbytes < needed:
            raise ValueError(
                f"an array of shape {list(piece.shape)} ({piece.dtype}) has {count} rows of {row.nbytes} bytes:"
                f" {format} needs {' or '.join(map(str, lines))} rows of at least {needed or row_bytes}"
            )
        even = lead == 1 or piece.strides[0] == pitch * piece.shape[1]
        if not (row.flags.c_contiguous and even) or (pitch < row.nbytes and count > 1):
            raise ValueError(
                f"an array of shape {list(piece.shape)} and strides {list(piece.strides)} has no evenly spaced"
                " rows of dense samples: give numpy.ascontiguousarray of it"
            )
        self.stride = max(pitch, row.nbytes) // lines[count]
        self.data = spanning_bytes(piece).data if self.loose else flat_bytes(piece)


def _cut(format: PixelFormat, layout: PlaneLayout, rows: _Rows, i: int, offset: int) -> _Part:
    end = needed = offset + layout.size
    if rows.loose and layout.rows:
        # The last row of a view ends with its last sample: the gap behind it is not there to borrow.
        needed = offset + (layout.rows - 1) * layout.pitch + layout.row_bytes
    if needed > len(rows.data):
        raise ValueError(
            f"plane {i} of {format} ends at byte {needed}, but {len(rows.data)} bytes were given:"
            f" its {layout.rows} rows stand {layout.pitch} bytes apart"
        )
    return rows.data[offset:end], layout.stride, rows.loose
