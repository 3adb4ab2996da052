"""The formats that ``tensorferry convert`` reads and writes: two tables, one row a format."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from .. import blob, vlink
from ..arrays import flat_bytes
from ..dtypes import DType
from ..errors import Lossy, Malformed, Unsupported
from ..image import PixelFormat
from ..parts import Buffer
from ..tensor import Tensor
from .inputs import Input, pick

__all__ = ["READERS", "WRITERS", "Reader", "Writer", "Written", "read", "write"]

Array = npt.NDArray[Any]

NPY_MAGIC = b"\x93NUMPY"
# A view may stand for many more values than it has bytes; such a one is not written out.
_EXPANSION = 8
_SMALL = 1 << 26


class Reader(NamedTuple):
    """``magic`` is how the format's files start; ``read`` makes a tensor of one, borrowed."""

    magic: bytes
    read: Callable[[memoryview], Tensor]


class Writer(NamedTuple):
    """``what`` is one file of the format. ``write`` makes it, in pieces.

    It raises Lossy, naming everything, for what the format cannot say; its second argument lets labels and
    leftovers go. The function ``write`` sees to the rest.
    """

    what: str
    suffixes: tuple[str, ...]
    write: Callable[[Tensor, bool], Sequence[Buffer]]


def _read_npy(data: memoryview) -> Tensor:
    # numpy.load would copy, and would allocate whatever the header claims before it reads.
    stream = io.BytesIO(data[: 1 << 17])
    try:
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version[0]}.{version[1]} is for structured arrays")
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = header(stream)
    except (ValueError, EOFError) as error:
        raise Malformed(f"the npy header cannot be read: {' '.join(str(error).split())}", field="header") from None
    if dtype.hasobject:
        raise Unsupported("the npy file holds pickled Python objects: those are not read", field="dtype", value=dtype)
    start = stream.tell()
    size, have = math.prod(shape) * dtype.itemsize, len(data) - start
    if size != have:
        why = "it was cut short" if size > have else "something stands behind the array"
        raise Malformed(f"the npy header asks for {size:,} bytes of values, {have:,} are here: {why}", field="shape")
    array: Array = np.ndarray(shape, dtype, data, start, order="F" if fortran else "C")
    return Tensor.from_array(array, byteswap=True)


def _write_npy(tensor: Tensor, lossy: bool) -> Sequence[Buffer]:
    lost = ["dtype"] if tensor.dtype is DType.BFLOAT16 else []
    lost += [name for name in ("format", "colorimetry", "quantization") if getattr(tensor, name) is not None]
    if not lossy:
        if tensor.labels is not None:
            lost += [f"labels.{name}" for name in tensor.labels.said()]
        if tensor.carried is not None:
            lost += tensor.carried.fields
    if lost:
        raise Lossy(f"an npy file cannot carry {', '.join(lost)}", fields=tuple(lost))
    array = _dense(tensor)
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, npy.header_data_from_array_1_0(array))
    return [stream.getvalue(), flat_bytes(array)]


class Written(NamedTuple):
    """A file in pieces, the tensor that it holds, and what was left behind for it."""

    parts: Sequence[Buffer]
    tensor: Tensor
    lost: list[str]


READERS: dict[str, Reader] = {
    "npy": Reader(NPY_MAGIC, _read_npy),
}
"""Beside the two wire formats, which ``pieces`` knows."""

WRITERS: dict[str, Writer] = {
    "blob": Writer("a blob", (".blob", ".tblob"), lambda tensor, lossy: blob.export_parts(tensor, lossy=lossy)),
    "vlink": Writer("a VLink tensor", (".vlt",), lambda tensor, lossy: vlink.export_parts(tensor, lossy=lossy)),
    "npy": Writer("an npy file", (".npy",), _write_npy),
}


def read(input: Input, index: int | None) -> Tensor:
    """The tensor in a file, or number ``index`` of those in it. Raises as ``Reader.read`` and ``loads`` do."""
    for reader in READERS.values():
        if input.data[: len(reader.magic)] == reader.magic:
            return reader.read(input.data)
    return pick(input, index).load()


def write(tensor: Tensor, to: str, *, lossy: bool) -> Written:
    """``tensor`` as a file of format ``to``.

    Raises Lossy, naming everything, for what would be left behind without ``lossy``, and for what cannot be
    helped with it.
    """
    writer = WRITERS[to]
    try:
        return Written(writer.write(tensor, False), tensor, [])
    except Lossy as error:
        lost = error.fields
    if not lossy:
        named = ", ".join(_named(tensor, lost))
        raise Lossy(f"{writer.what} cannot carry {named}: --lossy leaves behind what can be", fields=lost)
    reduced, said = _reduced(tensor, lost)
    try:
        return Written(writer.write(reduced, True), reduced, said)
    except Lossy as error:
        named = ", ".join(_named(reduced, error.fields))
        raise Lossy(f"{writer.what} cannot carry {named}, and --lossy cannot help it", fields=error.fields) from None


def _named(tensor: Tensor, lost: Sequence[str]) -> list[str]:
    """What is lost, with what it says, for people."""
    names = [f"{name} ({getattr(tensor, name)})" if name in ("dtype", "format") else name for name in lost]
    if "format" in lost and isinstance(tensor.format, PixelFormat) and tensor.format.is_semi_planar:
        names.append("planes[1] (chroma)")
    return names


# What holds every value of an element type that a format has not.
_WIDER = {DType.BFLOAT16: DType.FLOAT32, DType.BOOL: DType.UINT8}


def _reduced(tensor: Tensor, lost: Sequence[str]) -> tuple[Tensor, list[str]]:
    """``tensor`` without what is ``lost``, as far as that can be done; and what that is, for people."""
    said = _named(tensor, lost)
    if "quantization" in lost:
        tensor = tensor.replace(quantization=None)
    if "colorimetry" in lost:
        tensor = tensor.replace(colorimetry=None)
    if "dtype" in lost and tensor.dtype in _WIDER:
        wider = _WIDER[tensor.dtype]
        said[lost.index("dtype")] = f"dtype ({tensor.dtype} became {wider}, the values are exact)"
        tensor = _plain(tensor, _dense(tensor).astype(wider.numpy))
    elif "format" in lost or "strides" in lost:
        tensor = _plain(tensor, _dense(tensor))
    return tensor, said


def _plain(tensor: Tensor, array: Array) -> Tensor:
    """``array``, meaning what ``tensor`` means apart from its pixel format."""
    return Tensor.from_array(array, quantization=tensor.quantization, labels=tensor.labels)


def _dense(tensor: Tensor) -> Array:
    """The values in C order: a view, or a copy where they stand otherwise. Of a semi-planar image, luma."""
    format = tensor.format
    if isinstance(format, PixelFormat) and format.is_planar:
        return np.stack([tensor.plane(i) for i in range(format.plane_count)])
    array = tensor.numpy()
    if array.nbytes > max(_EXPANSION * tensor.nbytes, _SMALL):
        raise Unsupported(
            f"its strides make {array.nbytes:,} bytes of values of {tensor.nbytes:,}: those are not written out",
            field="strides",
            value=tensor.strides,
        )
    return array if array.flags.c_contiguous else array.copy(order="C")
