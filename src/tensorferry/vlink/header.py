"""The 40 bytes that every VLink message starts with: which one it is, and when."""

from __future__ import annotations

from .record import HEADER_LEN, Number, Text

__all__ = ["NEW_FRAME_ID", "Header"]

NEW_FRAME_ID = b"unknown".ljust(16, b"\0")


class Header:
    """Where and when a message was measured, and its place in a sequence.

    ``time_meas`` and ``time_pub`` are nanoseconds since the Unix epoch. ``frame_id`` keeps 16 bytes of
    UTF-8. A container's header stands in the container's own struct: setting a field of it changes that.
    ValueError for numbers that do not fit: 32 bits for ``seq`` and ``reserved``, 64 for the times.
    """

    __slots__ = ("_image",)

    _image: bytearray

    frame_id = Text(0, 16, keep=16)
    seq = Number[int]("seq", 16, "I")
    reserved = Number[int]("reserved", 20, "I")
    time_meas = Number[int]("time_meas", 24, "Q")
    time_pub = Number[int]("time_pub", 32, "Q")

    def __init__(self) -> None:
        self._image = bytearray(HEADER_LEN)
        self._image[: len(NEW_FRAME_ID)] = NEW_FRAME_ID

    @classmethod
    def over(cls, image: bytearray) -> Header:
        """The header at the start of ``image``, not copied."""
        self = cls.__new__(cls)
        self._image = image
        return self

    def to_bytes(self) -> bytes:
        """The 40 bytes as they stand on the wire."""
        return bytes(self._image[:HEADER_LEN])

    def __eq__(self, other: object) -> bool:
        return self.to_bytes() == other.to_bytes() if isinstance(other, Header) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return (
            f"Header(frame_id={self.frame_id!r}, seq={self.seq}, time_meas={self.time_meas}, time_pub={self.time_pub})"
        )
