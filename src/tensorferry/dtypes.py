"""The element types of both formats, one row each."""

from __future__ import annotations

from enum import Enum

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .errors import Unsupported

__all__ = ["DType"]


class DType(str, Enum):
    """An element type: its NumPy dtype, its code in each wire format, its size in bytes.

    A member is also the string of its name, so ``t.dtype == "float32"`` holds. ``blob`` is None where the
    tensor blob has no code for the type (spec page blob.md, Codes); every type has a ``vlink`` code
    (vlink-tensor.md, Codes). NumPy dtypes are little-endian, as both formats are on every host.
    """

    numpy: np.dtype[np.generic]
    blob: int | None
    vlink: int
    size: int

    def __new__(cls, name: str, element: npt.DTypeLike, blob: int | None, vlink: int) -> DType:
        self = str.__new__(cls, name)
        self._value_ = name
        self.numpy = np.dtype(element)
        self.blob = blob
        self.vlink = vlink
        self.size = self.numpy.itemsize
        return self

    #          name        NumPy              blob  vlink
    BOOL = "bool", np.bool_, None, 1
    INT8 = "int8", "<i1", 1, 2
    UINT8 = "uint8", "<u1", 0, 3
    INT16 = "int16", "<i2", 3, 4
    UINT16 = "uint16", "<u2", 2, 5
    INT32 = "int32", "<i4", 5, 6
    UINT32 = "uint32", "<u4", 4, 7
    INT64 = "int64", "<i8", 7, 8
    UINT64 = "uint64", "<u8", 6, 9
    FLOAT16 = "float16", "<f2", 8, 10
    BFLOAT16 = "bfloat16", ml_dtypes.bfloat16, None, 11
    FLOAT32 = "float32", "<f4", 9, 12
    FLOAT64 = "float64", "<f8", 10, 13

    __str__ = str.__str__

    @classmethod
    def of(cls, dtype: DType | npt.DTypeLike) -> DType:
        """The row for a DType, a full name ("float32"), a NumPy dtype or a scalar type.

        Raises Unsupported for any other element type, for a big-endian one, and for short names such as
        "u8": NumPy counts bytes in them and the blob's page counts bits, so they would be misread.
        """
        if isinstance(dtype, np.dtype):
            known = _BY_NUMPY.get(dtype)
            if known is not None:
                return known
        if isinstance(dtype, cls):
            return dtype
        if isinstance(dtype, str):
            row = _BY_NAME.get(dtype)
            if row is None:
                raise Unsupported(
                    f"dtype {dtype!r} is not one of {', '.join(_BY_NAME)}; give the full name",
                    field="dtype",
                    value=dtype,
                )
            return row
        given = np.dtype(dtype)
        try:
            return _BY_NUMPY[given]
        except KeyError:
            hint = (
                "it is big-endian: pass byteswap=True to copy it into little-endian order"
                if given.byteorder == ">" and given.newbyteorder("<") in _BY_NUMPY
                else f"convert it to one of {', '.join(_BY_NAME)} first"
            )
            raise Unsupported(f"dtype {given} cannot be carried: {hint}", field="dtype", value=given) from None


_BY_NAME: dict[str, DType] = {row.value: row for row in DType}
_BY_NUMPY: dict[np.dtype[np.generic], DType] = {row.numpy: row for row in DType}
