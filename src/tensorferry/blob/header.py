"""The fixed header and the regions that it implies.

The table of the seed page, field for field; ``spec/blob.md`` settles that it is 72 bytes long.
"""

from __future__ import annotations

from struct import Struct, pack
from typing import NamedTuple

from ..errors import ForgedLength, Malformed, Truncated, UnsupportedRequirement

__all__ = [
    "HEADER_LEN",
    "HEADER_PID_OFFSET",
    "PLANE_RECORD_LEN",
    "SUPPORTED_REQUIRED_MASK",
    "BlobHeader",
    "Regions",
    "parse_header",
    "region_offsets",
]

# size, required_mask, planes_bytes | storage_kind, pid, fence_fd, dtype, quant_axis | the seven counts, reserved
HEADER = Struct("<QQQIIiIiIIIIIII")

HEADER_LEN = 72
HEADER_PID_OFFSET = 28
PLANE_RECORD_LEN = 56
SUPPORTED_REQUIRED_MASK = 0
"""No revision has yet changed what an existing field means, so no bit is understood."""

RESERVED_OFFSET = 68
_WORD = 8


def pack_dimensions(shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """The shape and the strides region."""
    return pack(f"<{len(shape)}Q{len(strides)}q", *shape, *strides)


def padding(length: int) -> int:
    """Bytes of zeros that bring ``length`` to a whole number of 8-byte words."""
    return -length % _WORD


class BlobHeader(NamedTuple):
    """The blob's fixed header. Lengths that end in ``_bytes`` and ``size`` are bytes, the others counts."""

    size: int
    required_mask: int
    planes_bytes: int
    storage_kind: int
    pid: int
    fence_fd: int
    dtype: int
    quant_axis: int
    ndim: int
    plane_count: int
    quant_scales_len: int
    quant_zero_points_len: int
    strings_bytes: int
    strides_len: int
    reserved: int

    @classmethod
    def empty(cls) -> BlobHeader:
        """A header with every length 0, no process, no fence and no quantization."""
        return cls(HEADER_LEN, 0, 0, 0, 0, -1, 0, -2, 0, 0, 0, 0, 0, 0, 0)

    def write_to(self, out: bytearray) -> None:
        """Append the 72 bytes of this header to ``out``. struct.error where a field does not fit."""
        out += HEADER.pack(*self)


class Regions(NamedTuple):
    """Where each variable region starts, in bytes from the start of the blob; ``end`` is past the planes.

    ``end`` may lie before the blob's ``size``: what stands between was appended by a later revision.
    """

    shape: int
    strides: int
    quant_scales: int
    quant_zero_points: int
    strings: int
    planes: int
    end: int


def parse_header(blob: memoryview | bytes | bytearray) -> BlobHeader:
    """The header at the start of ``blob``, which may be longer than the blob itself.

    Raises Truncated, UnsupportedRequirement, ForgedLength("size") or Malformed, in the order that
    spec/blob.md gives. The counts are not yet held against the size: ``region_offsets`` does that.
    """
    have = len(blob)
    if have < HEADER_LEN:
        raise Truncated(f"a blob has a header of {HEADER_LEN} bytes, only {have} are here", need=HEADER_LEN, have=have)
    header = BlobHeader._make(HEADER.unpack_from(blob))
    unknown = header.required_mask & ~SUPPORTED_REQUIRED_MASK
    if unknown:
        raise UnsupportedRequirement(
            f"required_mask {header.required_mask:#x} asks for what this version cannot honour"
            f" (bits {unknown:#x}): read it with a newer tensorferry",
            value=header.required_mask,
            offset=8,
        )
    if header.size < HEADER_LEN:
        raise ForgedLength(
            f"size {header.size} is smaller than the header's {HEADER_LEN} bytes",
            field="size",
            value=header.size,
            offset=0,
        )
    if header.size > have:
        raise Truncated(
            f"the blob claims {header.size} bytes, only {have} are here", need=header.size, have=have, offset=0
        )
    if header.reserved:
        raise Malformed(f"reserved must be 0, not {header.reserved:#x}", value=header.reserved, offset=RESERVED_OFFSET)
    return header


def region_offsets(header: BlobHeader) -> Regions:
    """Where each region of a blob with ``header`` starts; constant time.

    Raises ForgedLength, naming the count that does not fit into ``size``, or Malformed where the planes
    would not start on an 8-byte word.
    """
    if header.strides_len not in (0, header.ndim):
        raise _forged(header, "strides_len", 64, f"is neither 0 nor ndim ({header.ndim})")
    strides = HEADER_LEN + header.ndim * 8
    quant_scales = strides + header.strides_len * 8
    quant_zero_points = quant_scales + header.quant_scales_len * 4
    strings = quant_zero_points + header.quant_zero_points_len * 4
    planes = strings + header.strings_bytes
    regions = Regions(
        HEADER_LEN, strides, quant_scales, quant_zero_points, strings, planes, planes + header.planes_bytes
    )
    if regions.end > header.size:
        _refuse_overrun(header, regions)
    if planes % _WORD:
        raise Malformed(
            f"the planes start at byte {planes}, off the 8-byte words that they stand on", value=planes, offset=60
        )
    if regions.end > header.size:
        raise _forged(header, "planes_bytes", 16, f"runs to byte {regions.end} of a blob of {header.size}")
    if header.plane_count * PLANE_RECORD_LEN > header.planes_bytes:
        raise _forged(header, "plane_count", 48, f"needs more than the {header.planes_bytes} bytes of planes")
    return regions


def _refuse_overrun(header: BlobHeader, regions: Regions) -> None:
    """Name the first count before the planes that runs past ``size``, if one does."""
    for field, offset, end in (
        ("ndim", 44, regions.strides),
        ("strides_len", 64, regions.quant_scales),
        ("quant_scales_len", 52, regions.quant_zero_points),
        ("quant_zero_points_len", 56, regions.strings),
        ("strings_bytes", 60, regions.planes),
    ):
        if end > header.size:
            raise _forged(header, field, offset, f"runs to byte {end} of a blob of {header.size}")


def _forged(header: BlobHeader, field: str, offset: int, why: str) -> ForgedLength:
    value = getattr(header, field)
    return ForgedLength(f"{field} {value} {why}", field=field, value=value, offset=offset)
