"""A map of bytes: which field of a wire format each byte belongs to."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from .errors import FerryError
from .parts import Buffer, flat

__all__ = ["UNREAD", "Field", "Walk", "refusal_in"]

UNREAD = "unread"
"""The name of a last field that was not read: its value is the error that says why."""

# A forged count may ask for as many numbers as there are bytes; so many are told apart, the rest is one field.
_TOLD_APART = 64


class Field(NamedTuple):
    """``length`` bytes at ``offset`` that are one field.

    ``name`` is the format's own, with an index (``shape[0]``) or its owner in front (``planes[1].stride``).
    ``value`` is a number, a text, or, for bytes that are neither, a view of them.

    A format's fields cover its bytes from the first to the last, each byte once. The last field may be
    ``UNREAD``, and 0 bytes long where the bytes end too early at the end of a field.
    """

    offset: int
    length: int
    name: str
    value: object


def refusal_in(fields: list[Field]) -> FerryError | None:
    """Why ``fields`` stop before the end of their format; None when all was read."""
    last = fields[-1].value if fields and fields[-1].name == UNREAD else None
    return last if isinstance(last, FerryError) else None


class Walk:
    """Collects fields from the first byte of ``data`` on.

    Each method takes the next bytes and says whether all that it was asked for is there. ``stop`` is the
    byte that no field may reach past.
    """

    __slots__ = ("at", "data", "fields", "stop")

    def __init__(self, data: Buffer) -> None:
        self.data = flat(data)
        self.at = 0
        self.stop = len(self.data)
        self.fields: list[Field] = []

    def raw(self, name: str, length: int) -> bool:
        """The next ``length`` bytes as one field, as no field when there are none."""
        end = self.at + length
        return end <= self.stop and self._add(name, length, self.data[self.at : end])

    def text(self, name: str, length: int, decode: Callable[[bytes], str] = bytes.decode) -> bool:
        """The next ``length`` bytes as text, UTF-8 unless ``decode`` does otherwise; False when they are none."""
        end = self.at + length
        if end > self.stop:
            return False
        try:
            return self._add(name, length, decode(bytes(self.data[self.at : end])))
        except UnicodeDecodeError:
            return False

    def number(self, name: str, layout: Struct) -> bool:
        """The next number."""
        if self.at + layout.size > self.stop:
            return False
        return self._add(name, layout.size, layout.unpack_from(self.data, self.at)[0])

    def numbers(self, name: str, layout: Struct, count: int) -> bool:
        """The next ``count`` numbers, the first of them told apart as ``name[i]``."""
        few = min(count, _TOLD_APART)
        if not all(self.number(f"{name}[{i}]", layout) for i in range(few)):
            return False
        return self.raw(f"{name}[{few}:{count}]", (count - few) * layout.size)

    def finish(self, refusal: FerryError | None) -> list[Field]:
        """The fields; what is left of the bytes was not read, because of ``refusal``."""
        left = len(self.data) - self.at
        if refusal is not None or left:
            self.fields.append(Field(self.at, left, UNREAD, refusal and refusal.with_traceback(None)))
        return self.fields

    def _add(self, name: str, length: int, value: object) -> bool:
        if length:
            self.fields.append(Field(self.at, length, name, value))
            self.at += length
        return True
