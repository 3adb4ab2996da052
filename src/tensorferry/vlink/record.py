"""The 248-byte struct, field for field, and how one field of it is read and written.

The table of the seed page. Everything is little-endian; the struct has no padding of its own, so one
precompiled Struct covers it, the envelope's two leading words included.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Any, Generic, Protocol, TypeVar, overload

__all__ = ["HEADER_LEN", "MAX_RANK", "RECORD", "STRUCT_LEN", "U32S", "Number", "Text", "text_of", "utf8_prefix"]

HEADER_LEN = 40
STRUCT_LEN = 248
MAX_RANK = 8

RECORD = Struct(
    "<II"  # the envelope: magic_begin, version
    "16sIIQQ"  # header: frame_id, seq, reserved, time_meas, time_pub
    "QQQQ"  # data_, size_, update_time_ns_, num_elements_
    "32s32s16s"  # name_, model_id_, layout_
    "32s32s"  # shape_, strides_: eight u32 each, of which rank_ count
    "III4si"  # channel_, freq_, batch_size_, quant_scale_ (f32, its bits kept), quant_zero_point_
    "BBBBB"  # dtype_, rank_, device_, is_owner_, element_size_
    "BHI"  # reserved_buf_, reserved_buf2_, reserved_buf3_
)

U32S = tuple(Struct(f"<{rank}I") for rank in range(MAX_RANK + 1))
"""``U32S[rank]`` reads and writes the part of shape_ or strides_ that counts."""

_LONGEST_UTF8 = 4
N = TypeVar("N", int, float)


class _Struct(Protocol):
    """An object over the bytes of a struct."""

    _image: bytearray


class Number(Generic[N]):
    """One number of the struct: a descriptor, or ``read`` and ``write`` over the struct's bytes.

    ``code`` is the struct module's. ``write`` raises ValueError for what the field cannot hold.
    """

    __slots__ = ("_struct", "name", "offset")

    def __init__(self, name: str, offset: int, code: str) -> None:
        self.name = name
        self.offset = offset
        self._struct = Struct("<" + code)

    def read(self, image: bytearray) -> N:
        number: N = self._struct.unpack_from(image, self.offset)[0]
        return number

    def write(self, image: bytearray, value: N) -> None:
        try:
            packed = self._struct.pack(value)  # not pack_into, which has zeroed the field by the time it fails
        except (error, OverflowError):
            bits = self._struct.size * 8
            kind = {"f": "float", "i": "signed integer"}.get(self._struct.format[-1], "unsigned integer")
            raise ValueError(f"{self.name} = {value!r} is no {bits}-bit {kind}") from None
        image[self.offset : self.offset + len(packed)] = packed

    @overload
    def __get__(self, of: None, kind: Any = None) -> Number[N]: ...
    @overload
    def __get__(self, of: _Struct, kind: Any = None) -> N: ...
    def __get__(self, of: _Struct | None, kind: Any = None) -> Number[N] | N:
        return self if of is None else self.read(of._image)

    def __set__(self, of: _Struct, value: N) -> None:
        self.write(of._image, value)


class Text:
    """One char array of the struct, ``length`` bytes of which a writer fills ``keep``; used as Number is.

    Text is UTF-8, read up to the first NUL or the whole field. Bytes that are no UTF-8 come through as
    surrogate escapes and go back the same. What is longer than ``keep`` bytes is cut between characters.
    """

    __slots__ = ("keep", "length", "offset")

    def __init__(self, offset: int, length: int, keep: int) -> None:
        self.offset = offset
        self.length = length
        self.keep = keep

    def read(self, image: bytearray) -> str:
        raw = image[self.offset : self.offset + self.length]
        return text_of(raw).decode("utf-8", "surrogateescape")

    def write(self, image: bytearray, text: str) -> None:
        kept = utf8_prefix(text.encode("utf-8", "surrogateescape"), self.keep)
        image[self.offset : self.offset + self.length] = kept.ljust(self.length, b"\0")

    @overload
    def __get__(self, of: None, kind: Any = None) -> Text: ...
    @overload
    def __get__(self, of: _Struct, kind: Any = None) -> str: ...
    def __get__(self, of: _Struct | None, kind: Any = None) -> Text | str:
        return self if of is None else self.read(of._image)

    def __set__(self, of: _Struct, text: str) -> None:
        self.write(of._image, text)


def text_of(raw: bytes | bytearray) -> bytes | bytearray:
    """The part of a char array that is its text: all before the first NUL."""
    end = raw.find(0)
    return raw if end < 0 else raw[:end]


def utf8_prefix(text: bytes, limit: int) -> bytes:
    """As much of ``text`` as fits ``limit`` bytes without cutting a character in two."""
    if len(text) <= limit:
        return text
    # The byte behind the cut must start a character. No character is longer than four bytes: where none
    # starts that near, this is no UTF-8, and the cut may as well stay where it is.
    for cut in range(limit, max(limit - _LONGEST_UTF8, -1), -1):
        if text[cut] & 0xC0 != 0x80:
            return text[:cut]
    return text[:limit]
