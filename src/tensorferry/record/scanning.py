"""Where blobs stand in a file of blobs laid end to end, and where they go on behind damage.

Two kinds of looking. ``blob_size`` reads a header and believes its size if nothing in it contradicts that:
enough to walk over a sound stream. ``salvage`` checks every blob in full and finds the next one behind
what cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..blob.header import HEADER, HEADER_LEN, PLANE_RECORD_LEN, BlobHeader, parse_header, region_offsets
from ..blob.importing import import_
from ..blob.view import BlobView
from ..errors import Closed, FerryError, ForgedLength, Truncated, WireError
from ..tensor import Tensor
from .record import Damage
from .source import ReadFile

__all__ = ["Span", "blob_size", "check_uncut", "find_blob", "header_at", "placed", "read_blob", "salvage"]

_WINDOW = 4 << 20
_WORD = 8
_MAX_APPENDED = 4096  # bytes of a later revision that a blob behind damage may have: checking it must stay cheap
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_LEAST_STRINGS = 20  # bytes: five lengths
_Error = TypeVar("_Error", bound=FerryError)


class Span(NamedTuple):
    """Where a whole blob stands: both are bytes, ``start`` from the beginning of the file."""

    start: int
    size: int


def header_at(source: ReadFile, at: int) -> BlobHeader:
    """The header at ``at``, nothing in which contradicts the rest of it; the file may still end inside the blob.

    WireError with its offset counted from ``at``.
    """
    head = source.read(at, HEADER_LEN)
    if len(head) == HEADER_LEN:
        header = BlobHeader._make(HEADER.unpack(head))
        if header.size > HEADER_LEN:
            # parse_header holds the size against the bytes in hand, which here are the header's only.
            head = HEADER_LEN.to_bytes(_WORD, "little") + head[_WORD:]
        parse_header(head)
        region_offsets(header)
        return header
    parse_header(head)
    raise AssertionError("parse_header refuses what is shorter than a header")


def blob_size(source: ReadFile, at: int) -> int:
    """Bytes of the blob whose header stands at ``at``; only the header is looked at.

    WireError, its offset counted from ``at``, for a header that cannot be believed: one that runs past the
    file, and one that runs over a whole blob where its own regions end, included.
    """
    head = source.read(at, HEADER_LEN)
    if len(head) == HEADER_LEN:
        size, mask, planes, _, _, _, _, _, ndim, _, scales, points, strings, strides, reserved = HEADER.unpack(head)
        end: int = HEADER_LEN + _WORD * (ndim + strides) + 4 * (scales + points) + strings + planes
        if end == size and not mask and not reserved and size <= source.size - at and strides in (0, ndim):
            return end
    header = header_at(source, at)
    left = source.size - at
    if header.size > left:
        raise Truncated(
            f"the blob claims {header.size} bytes, only {left} are left in the file", need=header.size, have=left
        )
    end = region_offsets(header).end
    if end < header.size and _whole_at(source, at + end):
        raise ForgedLength(
            f"size {header.size} runs over another blob, which stands where this one's regions end, {end} bytes in",
            field="size",
            value=header.size,
            offset=0,
        )
    return header.size


def read_blob(data: memoryview) -> Tensor:
    """The tensor of the blob in ``data``, which came out of a file; borrowed. Raises as ``import_`` does."""
    return import_(data, references=False)


def placed(error: _Error, source: ReadFile, at: int) -> _Error:
    """``error`` about the blob at ``at``, saying which file and byte; a WireError's offset counts from the file's."""
    if isinstance(error, Closed):
        return error
    if isinstance(error, WireError):
        error.offset = at + (error.offset or 0)
    error.args = (f"{source.path}: the blob at byte {at}: {error}",)
    return error


def salvage(source: ReadFile) -> Iterator[Span | Damage]:
    """All that is in the file, end to end: where whole blobs stand, and what cannot be read between them."""
    at = 0
    while at < source.size:
        try:
            size = blob_size(source, at)
            read_blob(source.lend(at, size))
            check_uncut(source, at, size)
        except FerryError as error:
            end = _resume(source, at)
            yield Damage(at, end - at, placed(error, source, at))
            at = end
        else:
            yield Span(at, size)
            at += size


def check_uncut(source: ReadFile, at: int, size: int) -> int | None:
    """Truncated where the blob at ``at`` was cut short and others put behind it; else the next blob's size, if sound.

    Such a blob looks whole, with the beginning of another one as the end of its payload. It shows only where the
    next header should be: none is there, and a blob inside this one runs over its end.
    """
    end = at + size
    try:
        return blob_size(source, end) if end < source.size else None
    except FerryError:
        inner = find_blob(source, at + 1, end)
        while inner < end:
            past = inner + header_at(source, inner).size
            if past > end:
                raise Truncated(
                    f"it was cut short: another blob stands {inner - at} bytes into its {size} and runs over its end",
                    need=size,
                    have=inner - at,
                ) from None
            inner = find_blob(source, past, end)
        return None


def find_blob(source: ReadFile, at: int, stop: int | None = None) -> int:
    """The first byte from ``at`` on, before ``stop``, at which a whole blob stands; the file's size where none does.

    Blobs start on 8-byte words as long as all before them are whole words; a later revision's and garbage
    need not be, so every byte is a candidate. Bytes are read, whatever way the file was opened.
    """
    stop = source.size - HEADER_LEN + 1 if stop is None else min(stop, source.size - HEADER_LEN + 1)
    while at < stop:
        window = source.read(at, min(_WINDOW, stop - at + HEADER_LEN - 1))
        if len(window) < HEADER_LEN:  # the file has shrunk
            break
        for candidate in _candidates(window, source.size - at):
            if _whole_at(source, at + candidate):
                return at + candidate
        at += len(window) - HEADER_LEN + 1
    return source.size


def _resume(source: ReadFile, at: int) -> int:
    """Where to go on behind the damaged blob at ``at``: where it claims to end, if a blob stands there, or is sought.

    The end by the counts comes first: it is right when the size is wrong.
    """
    head = source.read(at, HEADER_LEN)
    if len(head) == HEADER_LEN:
        header = BlobHeader._make(HEADER.unpack(head))
        counted = HEADER_LEN + _WORD * (header.ndim + header.strides_len) + header.strings_bytes + header.planes_bytes
        counted += 4 * (header.quant_scales_len + header.quant_zero_points_len)
        for size in (counted, header.size):
            if size >= HEADER_LEN and (at + size == source.size or _whole_at(source, at + size)):
                return at + size
    return find_blob(source, at + 1)


def _whole_at(source: ReadFile, at: int) -> bool:
    """Whether a blob stands at ``at`` that can be read from its first byte to its last."""
    if source.size - at < HEADER_LEN:
        return False
    try:
        header = header_at(source, at)
        if header.size > source.size - at or header.size - region_offsets(header).end > _MAX_APPENDED:
            return False
        view = BlobView.parse(source.lend(at, header.size))
        if header.size - view.planes_end > _MAX_APPENDED:
            return False
        import_(view, references=False)
    except FerryError:
        return False
    return True


def _candidates(window: bytes, left: int) -> list[int]:
    """Where in ``window`` a header may stand of a blob of at most ``left`` bytes; a quick look at six fields."""
    found: list[int] = []
    for phase in range(_WORD):
        count = (len(window) - phase) // _WORD
        if count * _WORD < HEADER_LEN:
            break
        words: npt.NDArray[np.uint64] = np.frombuffer(window, "<u8", count, phase)
        heads = count - HEADER_LEN // _WORD + 1
        # size is not 0, required_mask is: few places of most payloads are left for the rest.
        places = np.flatnonzero((words[:heads] != 0) & (words[1 : heads + 1] == 0))
        size, planes, records, strings, last = (words[places + i] for i in (0, 2, 6, 7, 8))
        likely = (size >= HEADER_LEN) & (size <= left) & (planes >= PLANE_RECORD_LEN) & (planes <= size)
        likely &= (records & _LOW != 0) & (strings >> _HALF >= _LEAST_STRINGS) & (last >> _HALF == 0)
        found += (places[likely] * _WORD + phase).tolist()
    found.sort()
    return found
