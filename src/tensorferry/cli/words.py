"""Short words for what wire formats say in numbers, and for tensors."""

from __future__ import annotations

from datetime import datetime, timezone

from ..blob.codes import DTYPES as BLOB_DTYPES
from ..blob.codes import STORAGE_KINDS
from ..fields import UNREAD, Field
from ..image import PixelFormat
from ..tensor import Tensor
from ..vlink.codes import DTYPES as VLINK_DTYPES
from ..vlink.envelope import VERSION_MAJOR
from .ending import safe

__all__ = ["FORMATS", "counted", "described", "dimensions", "meaning", "number", "worded"]

_DEVICES = ("cpu", "gpu", "npu", "dsp")
FORMATS = {"blob": "tensor blob", "vlink": "VLink tensor"}
_HEXADECIMAL = ("magic_begin", "magic_end", "required_mask", "modifier", "data_", "reserved")
_TIMES = ("time_meas", "time_pub", "update_time_ns_")


def counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def dimensions(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def number(value: object) -> str:
    """A number for people: six significant digits of a float, every digit of an integer."""
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def worded(field: Field) -> str:
    """What ``field`` says, as one printable line."""
    value = field.value
    if field.name == UNREAD:
        return counted(field.length, "byte")
    if isinstance(value, str):
        return f'"{safe(value)}"' if value else "–"
    if isinstance(value, memoryview):
        return counted(len(value), "byte")
    if isinstance(value, int) and value and field.name.rpartition(".")[2] in _HEXADECIMAL:
        return f"{value:#x}"
    return number(value)


def described(tensor: Tensor) -> str:
    """A tensor in a few words."""
    parts = []
    if isinstance(tensor.format, PixelFormat):
        parts.append(f"{tensor.format} image {tensor.width}×{tensor.height} {tensor.dtype}")
    else:
        parts.append(f"{tensor.dtype}[{dimensions(tensor.shape)}]" if tensor.shape else f"{tensor.dtype} scalar")
        if tensor.format is not None:
            parts.append(f"pixel format {tensor.format!r}, unknown here")
    if len(tensor.planes) != 1:
        parts.append(counted(len(tensor.planes), "plane"))
    if tensor.quantization is not None:
        axis = tensor.quantization.axis
        parts.append("quantized" if axis is None else f"quantized along dimension {axis}")
    if tensor.labels is not None and tensor.labels.name:
        parts.append(repr(tensor.labels.name))
    return ", ".join(parts)


def meaning(format: str, field: Field) -> str:
    """What the number in ``field`` stands for; "" where it speaks for itself."""
    value = field.value
    if not isinstance(value, int):
        return ""
    name = field.name.rpartition(".")[2]
    return _blob_meaning(name, value) if format == "blob" else _vlink_meaning(name, value)


def _blob_meaning(name: str, value: int) -> str:
    if name == "storage_kind":
        return str(STORAGE_KINDS.get(value, "unknown here"))
    if name == "dtype":
        return str(BLOB_DTYPES.get(value, "unknown here"))
    if name == "quant_axis":
        return {-2: "not quantized", -1: "one scale for the tensor"}.get(
            value, f"one scale for each index of dimension {value}"
        )
    if name == "required_mask":
        return "asks for nothing special" if value == 0 else "asks for what this version does not know"
    if name == "pid" and value:
        return "the producer's process"
    if name == "fence_fd":
        return "no fence" if value == -1 else "somebody may still be writing"
    return ""


def _vlink_meaning(name: str, value: int) -> str:
    if name == "version":
        dotted = f"{value // 1_000_000}.{value // 1_000 % 1_000}.{value % 1_000}"
        return dotted if value // 1_000_000 == VERSION_MAJOR else f"{dotted}: this reads {VERSION_MAJOR}.x.x"
    if name == "dtype_":
        return "unknown" if value == 0 else str(VLINK_DTYPES.get(value, "unknown here"))
    if name == "device_":
        return _DEVICES[value] if value < len(_DEVICES) else "unknown here"
    if name == "data_":
        return "" if value == 0 else "the producer's pointer, never read"
    if name == "is_owner_":
        return "" if value == 0 else "never read"
    if name in _TIMES and value:
        # Whole seconds by datetime, the rest by hand: it has no nanoseconds.
        moment = datetime.fromtimestamp(value // 1_000_000_000, timezone.utc)
        return f"{moment:%Y-%m-%d %H:%M:%S}.{value % 1_000_000_000:09d} UTC"
    return ""
