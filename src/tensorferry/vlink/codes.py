"""The numbers that VLink gives to element types and devices."""

from __future__ import annotations

from enum import IntEnum

from ..dtypes import DType

__all__ = ["DTYPES", "DataType", "Device", "element_size_of"]

DTYPES: dict[int, DType] = {row.vlink: row for row in DType}
"""The row of each code; 0, unknown, has none."""

_SIZES = {code: row.size for code, row in DTYPES.items()}


class DataType(IntEnum):
    """Element types. The names are the published C++ ones, the second ones its Python binding's."""

    kUnknown = 0
    kBool = 1
    kInt8 = 2
    kUint8 = 3
    kInt16 = 4
    kUint16 = 5
    kInt32 = 6
    kUint32 = 7
    kInt64 = 8
    kUint64 = 9
    kFloat16 = 10
    kBfloat16 = 11
    kFloat32 = 12
    kFloat64 = 13

    kDataUnknown = 0
    Unknown = 0
    Bool = 1
    Int8 = 2
    Uint8 = 3
    Int16 = 4
    Uint16 = 5
    Int32 = 6
    Uint32 = 7
    Int64 = 8
    Uint64 = 9
    Float16 = 10
    Bfloat16 = 11
    Float32 = 12
    Float64 = 13


class Device(IntEnum):
    """Where the producer would like the elements to be; a hint only. Names as in DataType."""

    kCpu = 0
    kGpu = 1
    kNpu = 2
    kDsp = 3

    kDeviceCpu = 0
    kDeviceGpu = 1
    kDeviceNpu = 2
    kDeviceDsp = 3
    Cpu = 0
    Gpu = 1
    Npu = 2
    Dsp = 3


def element_size_of(dtype: int) -> int:
    """Bytes of one element of code ``dtype``; 0 for unknown and for codes that are none."""
    return _SIZES.get(dtype, 0)
