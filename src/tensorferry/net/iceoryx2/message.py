"""What stands in a sample: the header beside the payload, an attachment, the payload itself."""

from __future__ import annotations

import ctypes
import functools
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import ForgedLength, Malformed, Unsupported
from ..attachment import MAX_BYTES as MAX_ATTACHMENT

__all__ = [
    "ALIGNMENT",
    "CODES",
    "HEADER",
    "Bytes",
    "Header",
    "MessageHeader",
    "array_over",
    "check_header",
    "read_bytes",
    "write_bytes",
]

ALIGNMENT = 64
"""The first plane's bytes stand at an address that this divides."""

Bytes = npt.NDArray[np.uint8]
_BYTE = np.dtype(np.uint8)

HEADER = Struct("<QQQIIII")
CODES = {"blob": 1, "vlink": 2}
"""What a header calls the formats."""


class Header(NamedTuple):
    """What is said beside a payload, in the order of HEADER. Offsets and lengths are bytes of the sample."""

    sequence: int
    """How many messages its publisher sent before."""
    log_time: int
    """Nanoseconds since the Unix epoch."""
    payload_bytes: int
    payload_offset: int
    attachment_bytes: int
    """At the start of the sample; 0 for none."""
    format: int
    """One of CODES."""
    head_bytes: int
    """Bytes of the payload before its first plane's; a hint, 0 for none."""


class MessageHeader(ctypes.Structure):
    """iceoryx2's user header of a message, as it wants it described; HEADER says what the words mean."""

    _fields_ = (("words", ctypes.c_uint64 * (HEADER.size // 8)),)

    @staticmethod
    def type_name() -> str:
        """What both sides of a service must call it."""
        return "tensorferry::MessageHeader"


def check_header(header: Header, have: int) -> None:
    """Hold ``header`` against the ``have`` bytes of its sample. ForgedLength, Malformed or Unsupported."""
    start, length, attached = header.payload_offset, header.payload_bytes, header.attachment_bytes
    if header.format not in CODES.values():
        raise Unsupported(
            f"format {header.format} is unknown to this version: read it with a newer tensorferry",
            field="format",
            value=header.format,
        )
    if start + length > have:
        raise ForgedLength(
            f"a payload of {length} bytes is said to start at byte {start} of a sample of {have}",
            field="payload_bytes",
            value=length,
            need=start + length,
            have=have,
        )
    if attached > min(start, MAX_ATTACHMENT):
        raise Malformed(
            f"an attachment of {attached} bytes does not fit before the payload, which starts at byte {start}",
            field="attachment_bytes",
            value=attached,
        )


# ---- memory by address ----


@functools.lru_cache(maxsize=256)
def _chars(size: int) -> Any:
    return ctypes.c_char * size


def read_bytes(address: int, size: int) -> bytes:
    """A copy of ``size`` bytes at ``address``."""
    data: bytes = _chars(size).from_address(address).raw
    return data


def write_bytes(address: int, data: bytes) -> None:
    """Write ``data`` to memory at ``address``."""
    _chars(len(data)).from_address(address).raw = data


def array_over(sample: Any, address: int, size: int, *, writable: bool) -> tuple[Bytes, Any]:
    """``size`` bytes of ``sample`` at ``address`` as an array; and their lender, whose ``keep`` is the sample.

    All views of the array keep it, and so the lender, and so the sample.
    """
    lender = _chars(size).from_address(address)
    lender.keep = sample
    # Over a memoryview that is read-only, since NumPy lets an array's own flag be set again.
    array: Bytes = np.frombuffer(lender if writable else memoryview(lender).toreadonly(), _BYTE)
    return array, lender
