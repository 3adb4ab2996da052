"""The envelope around the struct and its elements: two magic words, a version, one honest length."""

from __future__ import annotations

from struct import Struct
from typing import Any

from ..errors import ForgedLength, Malformed, Truncated, UnsupportedRequirement
from .record import RECORD, STRUCT_LEN

__all__ = [
    "MAGIC_BEGIN",
    "MAGIC_BEGIN_BYTES",
    "MAGIC_END",
    "MAGIC_END_BYTES",
    "OVERHEAD",
    "PAYLOAD_OFFSET",
    "SIZE_OFFSET",
    "STRUCT_OFFSET",
    "VERSION",
    "VERSION_MAJOR",
    "read_record",
]

MAGIC_BEGIN = 0x98B7F19A
MAGIC_END = 0x98B7F19F
MAGIC_BEGIN_BYTES = MAGIC_BEGIN.to_bytes(4, "little")
MAGIC_END_BYTES = MAGIC_END.to_bytes(4, "little")

VERSION = 2_001_000
"""Written into every envelope: major * 1,000,000 + minor * 1,000 + patch."""
VERSION_MAJOR = VERSION // 1_000_000

STRUCT_OFFSET = 8
PAYLOAD_OFFSET = STRUCT_OFFSET + STRUCT_LEN
OVERHEAD = PAYLOAD_OFFSET + 4
"""Bytes of an envelope beside its elements."""
SIZE_OFFSET = STRUCT_OFFSET + 48

_U32 = Struct("<I")
_VERSION_OFFSET = 4
_SIZE = 8  # the place of size_ among RECORD's fields


def read_record(envelope: memoryview) -> tuple[Any, ...]:
    """The fields of RECORD, once ``envelope`` is known to be whole; what they say is not judged.

    Raises Truncated below 260 bytes, Malformed for either magic word, UnsupportedRequirement for
    another major version and ForgedLength where size_ is not what is here, checked in the order of
    spec/vlink-tensor.md, "Envelope".
    """
    length = len(envelope)
    if length < OVERHEAD:
        raise Truncated(
            f"an envelope has at least {OVERHEAD} bytes, {length} are here: wait for the rest",
            need=OVERHEAD,
            have=length,
        )
    fields = RECORD.unpack_from(envelope)
    if fields[0] != MAGIC_BEGIN:
        raise _no_magic("magic_begin", fields[0], MAGIC_BEGIN, 0)
    if fields[1] // 1_000_000 != VERSION_MAJOR:
        raise UnsupportedRequirement(
            f"version {_dotted(fields[1])} of the envelope was written, this reads {VERSION_MAJOR}.x.x"
            f" (and writes {_dotted(VERSION)}): the struct may differ between majors, so ask for that major",
            field="version",
            value=fields[1],
            offset=_VERSION_OFFSET,
        )
    (end,) = _U32.unpack_from(envelope, length - 4)
    if end != MAGIC_END:
        raise _no_magic("magic_end", end, MAGIC_END, length - 4)
    if length != OVERHEAD + fields[_SIZE]:
        raise ForgedLength(
            f"size_ says {fields[_SIZE]} bytes of elements, so {OVERHEAD + fields[_SIZE]} in all; {length} are here",
            field="size_",
            value=fields[_SIZE],
            offset=SIZE_OFFSET,
            need=OVERHEAD + fields[_SIZE],
            have=length,
        )
    return fields


def _no_magic(field: str, value: int, wanted: int, offset: int) -> Malformed:
    return Malformed(
        f"{field} is {value:#010x}, not {wanted:#010x}: these are no VLink envelope's bytes, or not all of them",
        field=field,
        value=value,
        offset=offset,
    )


def _dotted(version: int) -> str:
    return f"{version // 1_000_000}.{version // 1_000 % 1_000}.{version % 1_000}"
