"""The words of VLink's bags, and what they say of a topic's messages. Source: spec/vlink-tensor.md, "Recordings"."""

from __future__ import annotations

from ..errors import Unsupported
from .payloads import VLINK, VLINK_ENCODING, VLINK_TENSOR, Payload

__all__ = ["CHANNEL", "HEADER", "PROFILE", "integer", "payload_of", "refuse_packed"]

PROFILE = "vlink"
"""The MCAP profile that VLink writes, and asks for when it reads."""

HEADER = "VLinkHeader"
CHANNEL = "VLinkChannel_"
"""Before a channel's number, its index + 1, in the name of the metadata record about it."""

_PLAIN = frozenset({"", "none", "unknown"})


def payload_of(ser: str, encoding: str) -> Payload | None:
    """What messages of a serialization type are; None where the bytes must be asked."""
    if ser == VLINK_TENSOR:
        return VLINK
    if ser:
        return Payload(None, ser, why=f"{ser} is no tensor")
    if encoding in ("", VLINK_ENCODING):  # a bag that a crash left does not say more
        return None
    return Payload(None, encoding, why=f"{encoding} messages are no tensors")


def refuse_packed(compress: str, *, chunks: tuple[str, ...] = ()) -> None:
    """Unsupported for payloads that are compressed one by one. ``chunks``: what only MCAP's chunks are packed with."""
    if compress.lower() not in _PLAIN and compress not in chunks:
        raise Unsupported(
            f"the bag's payloads are compressed ({compress}), which is not read here: record without compression,"
            " or convert the bag with VLink's own tools",
            field="compress",
            value=compress,
        )


def integer(text: object) -> int:
    """A number as VLink writes it, in text or not; 0 where it is none, or below 0."""
    try:
        return max(int(str(text)), 0)
    except ValueError:
        return 0
