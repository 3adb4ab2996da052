"""The strings region: the pixel format and four words about colour."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ..errors import ForgedLength, InvalidUtf8, Truncated
from .header import padding

__all__ = ["BlobStrings", "parse_strings", "strings_encoded_len", "write_strings"]

_LENGTH = Struct("<I")


class BlobStrings(NamedTuple):
    """The blob's five strings, in wire order. "" is unspecified."""

    format: str = ""
    color_space: str = ""
    color_transfer: str = ""
    color_encoding: str = ""
    color_range: str = ""


# Most tensors are no images: five times the length 0.
_SILENT = BlobStrings()
_SILENCE = bytes(len(_SILENT) * _LENGTH.size)


def parse_strings(region: memoryview | bytes) -> BlobStrings:
    """The five strings at the start of ``region``; what follows them in it is not looked at.

    Raises Truncated where a length does not fit, ForgedLength or InvalidUtf8 naming the string otherwise.
    Offsets in errors count from the region's start.
    """
    return scan_strings(region)[0]


def scan_strings(region: memoryview | bytes) -> tuple[BlobStrings, int]:
    """The five strings, and the byte at which they end."""
    if region[: len(_SILENCE)] == _SILENCE:
        return _SILENT, len(_SILENCE)
    have = len(region)
    at = 0
    texts = []
    for field in BlobStrings._fields:
        start = at + _LENGTH.size
        if start > have:
            raise Truncated(
                f"the strings end at byte {have}, inside the length of {field}", need=start, have=have, offset=at
            )
        (length,) = _LENGTH.unpack_from(region, at)
        end = start + length
        if end > have:
            raise ForgedLength(
                f"{field} claims {length} bytes, {have - start} are left in the strings",
                field=field,
                value=length,
                offset=at,
            )
        try:
            texts.append(str(region[start:end], "utf-8"))
        except UnicodeDecodeError as error:
            raise InvalidUtf8(
                f"{field} is not UTF-8: {error.reason}", field=field, value=bytes(region[start:end]), offset=start
            ) from None
        at = end
    return BlobStrings._make(texts), at


def strings_encoded_len(strings: BlobStrings, start: int) -> int:
    """Bytes of a strings region that starts ``start`` bytes into its blob, padding included."""
    length = sum(_LENGTH.size + len(text.encode()) for text in strings)
    return length + padding(start + length)


def write_strings(out: bytearray, strings: BlobStrings, appended: bytes = b"") -> None:
    """Append the strings region to ``out``, which holds the blob from its first byte, and pad it.

    ``appended`` is what a later revision had put behind the five strings.
    """
    if strings == _SILENT:
        out += _SILENCE
    else:
        for text in strings:
            encoded = text.encode()
            out += _LENGTH.pack(len(encoded))
            out += encoded
    out += appended
    out += bytes(padding(len(out)))
