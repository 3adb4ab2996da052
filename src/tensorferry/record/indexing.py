"""Where the blobs of a stream stand, kept beside it so that opening it again needs no scan.

The file is a cache and is believed only as far as it can be held against the stream: by the stream's size,
modification time and its first and last header when it is opened, by each blob's own size when it is used.
"""

from __future__ import annotations

import zlib
from array import array
from pathlib import Path
from struct import Struct

import numpy as np

from ..blob.header import HEADER_LEN
from .beside import written_beside
from .source import ReadFile

__all__ = ["index_path", "read_index", "write_index"]

# magic, version, CRC-32 of all that follows it | the stream's size in bytes, its mtime in ns, blobs in it
_HEAD = Struct("<8sII")
_FACTS = Struct(f"<QqQ{HEADER_LEN}s{HEADER_LEN}s")
_SIZE = Struct("<Q")
_MAGIC = b"TBLOBIDX"
_VERSION = 1


def index_path(path: Path) -> Path:
    """Where the index of the stream at ``path`` is."""
    return path.with_name(f"{path.name}.index")


def read_index(source: ReadFile) -> tuple[array[int], str | None]:
    """The byte at which each blob ends, and None; or nothing, and why the index is not to be believed."""
    path = index_path(source.path)
    nothing: array[int] = array("Q")
    if not path.is_file():
        return nothing, "there was none"
    data = path.read_bytes() if path.stat().st_size <= _most(source) else b""
    if len(data) < _HEAD.size + _FACTS.size or data[: len(_MAGIC)] != _MAGIC:
        return nothing, "it was no index"
    _, version, crc = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if version != _VERSION:
        return nothing, f"it was of version {version}"
    if zlib.crc32(body) != crc:
        return nothing, "it was damaged"
    size, mtime, count, first, last = _FACTS.unpack_from(body)
    if (size, mtime) != (source.size, source.status.st_mtime_ns):
        return nothing, "the stream has changed since"
    entries = body[_FACTS.size :]
    ends: array[int] = array("Q")
    if len(entries) == count * ends.itemsize:
        ends.frombytes(entries)
        if _plausible(ends, size) and (first, last) == _headers(source, ends) and _sized(ends, first, last):
            return ends, None
    return nothing, "it did not fit the stream"


def write_index(source: ReadFile, ends: array[int]) -> None:
    """Write the index of a stream whose blobs end at ``ends``, none missing. OSError where that cannot be."""
    facts = _FACTS.pack(source.size, source.status.st_mtime_ns, len(ends), *_headers(source, ends))
    body = facts + ends.tobytes()
    with written_beside(index_path(source.path)) as file:
        file.write(_HEAD.pack(_MAGIC, _VERSION, zlib.crc32(body)) + body)


def _most(source: ReadFile) -> int:
    """Bytes of the largest index that the stream can have."""
    return _HEAD.size + _FACTS.size + source.size // HEADER_LEN * array("Q").itemsize


def _plausible(ends: array[int], size: int) -> bool:
    """Whether blobs that end there cover a stream of ``size`` bytes."""
    if not ends:
        return size == 0
    steps = np.diff(np.frombuffer(ends, np.uint64).astype(np.int64), prepend=0)
    return ends[-1] == size and int(steps.min()) >= HEADER_LEN


def _sized(ends: array[int], first: bytes, last: bytes) -> bool:
    """Whether the first and the last blob have the sizes that their headers say."""
    if not ends:
        return True
    begin = ends[-2] if len(ends) > 1 else 0
    return _SIZE.unpack_from(first) == (ends[0],) and _SIZE.unpack_from(last) == (ends[-1] - begin,)


def _headers(source: ReadFile, ends: array[int]) -> tuple[bytes, bytes]:
    if not ends:
        return bytes(HEADER_LEN), bytes(HEADER_LEN)
    last = ends[-2] if len(ends) > 1 else 0
    return source.read(0, HEADER_LEN), source.read(last, HEADER_LEN)
