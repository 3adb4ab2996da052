"""Plane records: where each plane's bytes are, inline behind the record or by a handle."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ..errors import ForgedLength, Malformed, Truncated
from .header import PLANE_RECORD_LEN, padding

__all__ = ["D3D11_HANDLE_BYTES", "INLINE", "BlobPlane", "D3D11Handle", "parse_planes", "write_plane"]

# handle, offset, stride, size, used, modifier, handle_bytes_len, data_len
RECORD = Struct("<qQQQQQII")

INLINE = -1
"""The ``handle`` of a plane whose bytes follow its record."""

D3D11_HANDLE_BYTES = 24
_D3D11 = Struct("<QQQ")
_EMPTY = memoryview(b"")


class BlobPlane:
    """One plane record, borrowed from its buffer. All numbers but ``handle`` and ``modifier`` are bytes.

    ``handle`` is -1 for inline ``data``, otherwise an index into the descriptor table beside the blob.
    ``handle_bytes`` carries what no index can (a D3D11 texture, a CUDA IPC handle).
    """

    __slots__ = ("data", "handle", "handle_bytes", "modifier", "offset", "size", "stride", "used")

    def __init__(
        self,
        handle: int = INLINE,
        offset: int = 0,
        stride: int = 0,
        size: int = 0,
        used: int = 0,
        modifier: int = 0,
        handle_bytes: memoryview | bytes = _EMPTY,
        data: memoryview | bytes = _EMPTY,
    ) -> None:
        self.handle = handle
        self.offset = offset
        self.stride = stride
        self.size = size
        self.used = used
        self.modifier = modifier
        self.handle_bytes = handle_bytes
        self.data = data

    @property
    def is_inline(self) -> bool:
        """Whether the plane's bytes follow the record."""
        return self.handle == INLINE

    @property
    def encoded_len(self) -> int:
        """Bytes that the record takes on the wire, payloads and padding included."""
        length = PLANE_RECORD_LEN + len(self.handle_bytes) + len(self.data)
        return length + padding(length)

    def scalars(self) -> bytes:
        """The record's 56 bytes, before its payloads."""
        return RECORD.pack(
            self.handle,
            self.offset,
            self.stride,
            self.size,
            self.used,
            self.modifier,
            len(self.handle_bytes),
            len(self.data),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlobPlane):
            return NotImplemented
        return self.scalars() == other.scalars() and (self.handle_bytes, self.data) == (other.handle_bytes, other.data)

    def __repr__(self) -> str:
        where = "inline" if self.is_inline else f"handle={self.handle}, offset={self.offset}"
        return f"BlobPlane({where}, stride={self.stride}, size={self.size}, used={self.used})"


def parse_planes(region: memoryview, count: int) -> tuple[BlobPlane, ...]:
    """``count`` plane records from ``region``, which starts on an 8-byte word; they borrow from it.

    Raises Truncated where the region ends inside a record, ForgedLength("handle_bytes_len") or
    ForgedLength("data_len") where a payload runs past it. Offsets in errors count from the region's start.
    """
    return scan_planes(region, count)[0]


def scan_planes(region: memoryview, count: int) -> tuple[tuple[BlobPlane, ...], int]:
    """``count`` plane records, and the byte at which the last one's padding ends."""
    have = len(region)
    at = 0
    planes = []
    for i in range(count):
        start = at + PLANE_RECORD_LEN
        if start > have:
            raise Truncated(
                f"the planes end at byte {have}, inside the record of plane {i} of {count}",
                need=start,
                have=have,
                offset=at,
            )
        handle, offset, stride, size, used, modifier, handle_bytes_len, data_len = RECORD.unpack_from(region, at)
        data_start = start + handle_bytes_len
        end = data_start + data_len
        if data_start > have:
            raise _forged("handle_bytes_len", i, handle_bytes_len, have - start, at + 48)
        if end > have:
            raise _forged("data_len", i, data_len, have - data_start, at + 52)
        payloads = region[start:data_start], region[data_start:end]
        planes.append(BlobPlane(handle, offset, stride, size, used, modifier, *payloads))
        at = end + padding(end)
    return tuple(planes), at


def _forged(field: str, plane: int, value: int, left: int, offset: int) -> ForgedLength:
    return ForgedLength(
        f"{field} of plane {plane} claims {value} bytes, {left} are left in the planes",
        field=field,
        value=value,
        offset=offset,
    )


def write_plane(out: bytearray, plane: BlobPlane) -> None:
    """Append ``plane`` to ``out`` (from an 8-byte word on), padded so that the next record stands on one."""
    out += plane.scalars()
    out += plane.handle_bytes
    out += plane.data
    out += bytes(plane.encoded_len - PLANE_RECORD_LEN - len(plane.handle_bytes) - len(plane.data))


class D3D11Handle(NamedTuple):
    """The 24 bytes that stand for a Windows D3D11 texture: two NT handles, and the fence's last value.

    ``fence`` 0 is no fence; then ``fence_value`` must be 0 too.
    """

    texture: int
    fence: int = 0
    fence_value: int = 0

    def pack(self) -> bytes:
        """The bytes for ``BlobPlane.handle_bytes``. Malformed for a fence value without a fence."""
        self._check()
        return _D3D11.pack(*self)

    @classmethod
    def unpack(cls, handle_bytes: memoryview | bytes) -> D3D11Handle:
        """The handle in ``handle_bytes``. Malformed unless it is 24 bytes, with a fence for its value."""
        if len(handle_bytes) != D3D11_HANDLE_BYTES:
            raise Malformed(
                f"a D3D11 handle is {D3D11_HANDLE_BYTES} bytes, not {len(handle_bytes)}",
                field="handle_bytes",
                value=bytes(handle_bytes),
            )
        handle = cls._make(_D3D11.unpack(handle_bytes))
        handle._check()
        return handle

    def _check(self) -> None:
        if self.fence_value and not self.fence:
            raise Malformed(
                f"fence value {self.fence_value} without a fence: nothing says when the texture is written",
                field="handle_bytes",
                value=self.fence_value,
            )
