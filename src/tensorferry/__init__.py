"""tensorferry carries tensors between processes, hosts, files and vendor stacks without misreading one."""

from . import blob, memory, vlink
from .dtypes import DType
from .errors import (
    Closed,
    Disconnected,
    EndOfStream,
    FerryError,
    FetchRefused,
    ForgedLength,
    InUse,
    InvalidUtf8,
    Lossy,
    Malformed,
    NoSuchDescriptor,
    ProcessGone,
    TimedOut,
    Truncated,
    Unsupported,
    UnsupportedRequirement,
    WireError,
)
from .image import Colorimetry, PixelFormat
from .labels import Device, Labels
from .memory import allocate, allocate_image, from_fd, from_shm, image_from_fd
from .quantization import Quantization
from .tensor import Plane, StorageKind, Tensor
from .wire import dumps, loads

__version__ = "0.1.0"

__all__ = [
    "Closed",
    "Colorimetry",
    "DType",
    "Device",
    "Disconnected",
    "EndOfStream",
    "FerryError",
    "FetchRefused",
    "ForgedLength",
    "InUse",
    "InvalidUtf8",
    "Labels",
    "Lossy",
    "Malformed",
    "NoSuchDescriptor",
    "PixelFormat",
    "Plane",
    "ProcessGone",
    "Quantization",
    "StorageKind",
    "Tensor",
    "TimedOut",
    "Truncated",
    "Unsupported",
    "UnsupportedRequirement",
    "WireError",
    "allocate",
    "allocate_image",
    "blob",
    "dumps",
    "from_fd",
    "from_shm",
    "image_from_fd",
    "loads",
    "memory",
    "vlink",
]
