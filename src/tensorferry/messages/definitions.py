"""The message types: their names, the package that speaks them, and their text in ROS 2's message language."""

from __future__ import annotations

import functools
from typing import Any

from ..errors import Unsupported

__all__ = ["KINDS", "STAMPED", "codec", "definition", "kind_of", "type_name"]

KINDS = ("Tensor", "TensorStamped", "CameraFrame")
"""What a message may be. The last two are laid out alike: a header, a sequence number, then the tensor."""

STAMPED = frozenset(KINDS[1:])

_PACKAGE = "edgefirst_msgs"
_PREFIXES = (f"{_PACKAGE}/msg/", f"{_PACKAGE}/", f"{_PACKAGE}::msg::dds_::")


def kind_of(name: str) -> str | None:
    """The kind that ``name`` stands for: short, or a ROS 2 type name; None for any other type."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    name = name.removesuffix("_") if name.removesuffix("_") in KINDS else name
    return name if name in KINDS else None


def checked_kind(name: str) -> str:
    """``kind_of``; ValueError where it is none."""
    kind = kind_of(name)
    if kind is None:
        raise ValueError(f"kind {name!r} is none of {', '.join(map(repr, KINDS))}")
    return kind


def type_name(kind: str) -> str:
    """ROS 2's name of a kind, such as ``edgefirst_msgs/msg/Tensor``. ValueError for no kind."""
    return f"{_PACKAGE}/msg/{checked_kind(kind)}"


@functools.cache
def codec() -> Any:
    """The module that writes and reads the bytes: ``edgefirst.schemas``. Unsupported where it is not installed."""
    try:
        import edgefirst.schemas as schemas
    except ImportError as error:
        raise Unsupported(
            f"EdgeFirst messages need the package edgefirst-schemas ({error}): install tensorferry[edgefirst]",
            field="edgefirst-schemas",
        ) from error
    return schemas


def definition(kind: str) -> str:
    """The message's definition in ``ros2msg`` form, with those of all that it holds: what an MCAP schema carries."""
    kind = checked_kind(kind)
    parts = [_TENSOR if kind == "Tensor" else _STAMPED]
    if kind in STAMPED:
        parts += [_nested("std_msgs/Header", _HEADER), _nested("builtin_interfaces/Time", _TIME)]
        parts += [_nested(f"{_PACKAGE}/Tensor", _TENSOR)]
    return "".join([*parts, _nested(f"{_PACKAGE}/TensorPlane", _PLANE)])


def _nested(name: str, text: str) -> str:
    return f"{'=' * 80}\nMSG: {name}\n{text}"


# The fields and their order are those of edgefirst-schemas 4; the words are ours.
_TENSOR = """\
uint32 storage_kind        # 0 heap, 1 shared memory, 2 dma-buf, 3 IOSurface, 4 PBO, 5 CUDA
uint32 pid                 # the process whose descriptors the planes name; 0 when inline
int32 fence_fd             # -1: nobody is writing any more
uint32 dtype               # 0 u8, 1 i8, 2 u16, 3 i16, 4 u32, 5 i32, 6 u64, 7 i64, 8 f16, 9 f32, 10 f64
int32 quant_axis           # -2 none, -1 per tensor, otherwise the channel dimension
uint64[] shape             # the grid that is addressed, outermost first
int64[] strides            # bytes; empty is dense C order
float32[] quant_scales
int32[] quant_zero_points  # empty is symmetric
string format              # a pixel format such as NV12; empty for a plain tensor
string color_space
string color_transfer
string color_encoding
string color_range
edgefirst_msgs/TensorPlane[] planes
"""
_PLANE = """\
int64 handle               # a descriptor of process pid, or -1: the bytes are in data
uint64 offset              # bytes, from the start of the handle's memory
uint64 stride              # bytes from row to row
uint64 size                # bytes
uint64 used                # bytes of them that carry content
uint64 modifier            # DRM tiling modifier, 0 for linear
uint8[] handle_bytes       # a handle that is no number
uint8[] data
"""
_STAMPED = """\
std_msgs/Header header
uint64 seq
edgefirst_msgs/Tensor tensor
"""
_HEADER = """\
builtin_interfaces/Time stamp
string frame_id
"""
_TIME = """\
int32 sec
uint32 nanosec
"""
