"""``.npy`` files: one array, with its type and its order, and nothing else. No pickle, ever."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from ...arrays import flat_bytes
from ...dtypes import DType
from ...errors import Malformed, Unsupported
from ...parts import Buffer
from ...tensor import Tensor
from .entry import Entry, Format, Written, unsaid, widened

__all__ = ["DTYPES", "NPY", "array_parts", "read_array"]

Array = npt.NDArray[Any]

DTYPES = frozenset(DType) - {DType.BFLOAT16}
"""What NumPy's own files have a name for."""

_LONGEST_HEADER = 1 << 16
_VERSIONS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_array(data: memoryview) -> Array:
    """The array in a whole npy file, borrowed read-only, in either byte order and either order of dimensions.

    Nothing is allocated: the header is held against the bytes in hand. Raises Malformed, or Unsupported for
    types that no tensor has.
    """
    shape, fortran, dtype, start = _header(data)
    if dtype.hasobject:
        raise Unsupported("the npy file holds pickled Python objects: those are not read", field="dtype", value=dtype)
    DType.of(dtype.newbyteorder("<"))
    size, have = math.prod(shape) * dtype.itemsize, len(data) - start
    if size != have:
        why = "it was cut short" if size > have else "something stands behind the array"
        raise Malformed(f"the npy header asks for {size:,} bytes of values, {have:,} are here: {why}", field="shape")
    try:
        array: Array = np.ndarray(shape, dtype, data, start, order="F" if fortran else "C")
    except (TypeError, ValueError, OverflowError) as error:
        raise Unsupported(f"NumPy has no array of this shape: {error}", field="shape", value=shape) from None
    return array


def _header(data: memoryview) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    stream = io.BytesIO(data[:_LONGEST_HEADER])
    try:
        version = npy.read_magic(stream)
        if version not in _VERSIONS:
            raise ValueError(f"version {version[0]}.{version[1]} is for structured arrays")
        shape, fortran, dtype = _VERSIONS[version](stream)
        if any(n < 0 for n in shape):
            raise ValueError(f"the shape {shape} has a negative dimension")
    # NumPy evaluates the header as a Python literal, which fails in as many ways as Python's parser has.
    except Exception as error:
        raise Malformed(f"the npy header cannot be read: {' '.join(str(error).split())}", field="header") from None
    return shape, fortran, dtype, stream.tell()


def array_parts(array: Array) -> list[Buffer]:
    """An npy file of ``array``, which is in C order: its header, and its own memory."""
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, npy.header_data_from_array_1_0(array))
    return [stream.getvalue(), flat_bytes(array)]


def _read(data: memoryview) -> list[Entry]:
    return [Entry("", Tensor.from_array(read_array(data), byteswap=True))]


def _write(entries: Sequence[Entry]) -> Written:
    ((name, tensor),) = entries
    array, lost = widened(tensor, DTYPES)
    return Written(array_parts(array), [Entry(name, Tensor.from_array(array))], lost + unsaid(tensor))


NPY = Format("an npy file", (".npy",), lambda head, size: head.startswith(b"\x93NUMPY"), _read, _write)
