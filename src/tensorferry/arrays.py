"""Other people's arrays as bytes to borrow: NumPy, DLPack, the buffer protocol.

Nothing here copies, except byte-swapping on request. What comes back is an ndarray or a memoryview that
keeps the lender's memory alive.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import dlpack
from .errors import Unsupported

__all__ = [
    "HEAP_ALIGNMENT",
    "Span",
    "aligned_zeros",
    "borrow",
    "dense_strides",
    "flat_bytes",
    "reach",
    "spanning_bytes",
    "view",
]

Array = npt.NDArray[Any]
_BYTE = np.dtype(np.uint8)

HEAP_ALIGNMENT = 64
"""Bytes: a cache line, the widest vector registers, and what JAX asks of memory that it borrows."""


def borrow(obj: object, *, byteswap: bool = False) -> Array:
    """An ndarray over the memory of ``obj``, which lends it: no copy.

    ``obj`` is an ndarray, has ``__dlpack__`` and lives where the CPU can read it, has ``__array_interface__``,
    or speaks the buffer protocol. A big-endian array is copied into little-endian order with ``byteswap``,
    and otherwise left for the caller to refuse. TypeError for anything else.
    """
    if isinstance(obj, np.ndarray):
        array: Array = obj
    elif hasattr(obj, "__dlpack__"):
        array = dlpack.borrow(obj)
    elif hasattr(obj, "__array_interface__") or isinstance(obj, np.generic):
        array = np.asarray(obj)
    else:
        try:
            array = np.asarray(memoryview(obj))  # type: ignore[arg-type]  # TypeError is the answer sought
        except TypeError:
            raise TypeError(
                f"{type(obj).__name__} lends no memory: it is no array, has no __dlpack__ and no buffer;"
                " make an array of it with numpy.asarray"
            ) from None
    if byteswap and array.dtype.byteorder == ">":
        return array.astype(array.dtype.newbyteorder("<"))
    return array


@functools.lru_cache(maxsize=256)
def dense_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The byte strides of C order: each the plain product of the dimensions behind it and ``itemsize``."""
    strides = []
    step = itemsize
    for dimension in reversed(shape):
        strides.append(step)
        step *= dimension
    strides.reverse()
    return tuple(strides)


def reach(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    """Bytes from element 0 to the end of the last one that ``shape`` and ``strides`` (bytes) address.

    ValueError where a stride leads before element 0, or there are not as many strides as dimensions.
    """
    if len(shape) != len(strides):
        raise ValueError(f"{len(strides)} strides for {len(shape)} dimensions")
    if any(n < 0 for n in shape):
        raise ValueError(f"shape {list(shape)} has a negative dimension")
    if 0 in shape:
        return 0
    total = itemsize
    for dimension, stride in zip(shape, strides, strict=True):
        if stride < 0 and dimension > 1:
            raise ValueError(f"stride {stride} addresses bytes before the first element")
        total += (dimension - 1) * stride
    return total


def flat_bytes(array: Array) -> memoryview:
    """The bytes of a C-contiguous ``array`` as a flat memoryview over the same memory."""
    if array.size and array.dtype.kind in "fiu":
        return array.data.cast("B")
    # Through a view as uint8: memoryview.cast knows neither bfloat16 nor zero-sized shapes.
    return array.reshape(-1).view(_BYTE).data


class Span(NamedTuple):
    """The stretch of memory that a strided array touches, and where element 0 stands in it, in bytes."""

    data: memoryview
    origin: int


def spanning_bytes(array: Array) -> Span:
    """Every byte from the lowest to the highest that ``array`` touches, borrowed; gaps included."""
    if array.size == 0:
        return Span(memoryview(b""), 0)
    reach = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low = sum(step for step in reach if step < 0)
    high = sum(step for step in reach if step > 0) + array.itemsize
    corner = tuple(slice(n - 1, n) if step < 0 else slice(0, 1) for n, step in zip(array.shape, reach, strict=True))
    whole = np.lib.stride_tricks.as_strided(
        array[corner].reshape(1).view(_BYTE), (high - low,), (1,), writeable=array.flags.writeable
    )
    return Span(whole.data, -low)


def aligned_zeros(size: int) -> npt.NDArray[np.uint8]:
    """``size`` zeroed bytes on the heap, from a 64-byte boundary on."""
    memory = np.zeros(size + HEAP_ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % HEAP_ALIGNMENT
    return memory[start : start + size]


def view(
    shape: tuple[int, ...], dtype: np.dtype[Any], data: memoryview, offset: int, strides: tuple[int, ...]
) -> Array:
    """An ndarray over ``data`` (offset and strides in bytes), read-only where the memory is.

    Raises Unsupported where NumPy has no such array: more than 64 dimensions, or more elements than an
    index can count.
    """
    try:
        array: Array = np.ndarray(shape, dtype, data, offset, strides)
        return array
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        raise Unsupported(
            f"NumPy has no array of {len(shape)} dimensions over {len(data)} bytes"
            f" (shape {list(shape[:8])}, strides {list(strides[:8])}): {error}",
            field="shape",
            value=shape,
        ) from None
