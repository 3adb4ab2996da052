"""tensorferry carries tensors between processes, hosts, files and vendor stacks without misreading one."""

from . import blob, vlink
from .dtypes import DType
from .errors import (
    Closed,
    FerryError,
    ForgedLength,
    InUse,
    InvalidUtf8,
    Lossy,
    Malformed,
    Truncated,
    Unsupported,
    UnsupportedRequirement,
    WireError,
)
from .image import Colorimetry, PixelFormat
from .labels import Device, Labels
from .quantization import Quantization
from .tensor import Plane, StorageKind, Tensor
from .wire import dumps, loads

__version__ = "0.1.0"

__all__ = [
    "Closed",
    "Colorimetry",
    "DType",
    "Device",
    "FerryError",
    "ForgedLength",
    "InUse",
    "InvalidUtf8",
    "Labels",
    "Lossy",
    "Malformed",
    "PixelFormat",
    "Plane",
    "Quantization",
    "StorageKind",
    "Tensor",
    "Truncated",
    "Unsupported",
    "UnsupportedRequirement",
    "WireError",
    "blob",
    "dumps",
    "loads",
    "vlink",
]
