"""``.npz`` files: npy files by name in a zip archive. No pickle, ever."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Sequence

from ...errors import Malformed, Unsupported
from ...parts import Buffer
from ...tensor import Tensor
from .entry import Entry, Format, Loss, Written, named, unsaid, widened
from .npy import DTYPES, array_parts, read_array

__all__ = ["NPZ"]

_SUFFIX = ".npy"
_UNNAMED = re.compile(r"arr_\d+\Z")  # what numpy.savez calls arrays that nobody named
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same tensors make the same file

_LOCAL_HEADER = 30
_STORED_UP_TO = 1 << 16
# Compressed arrays may be this much larger than the file, or this large: beyond is a bomb until the caller says not.
_RATIO = 64
_HARMLESS = 1 << 28


def _read(data: memoryview, *, name: str | None = None, limit: int | None = None) -> list[Entry]:
    """Every array, or the one called ``name``.

    What is stored is borrowed, what is compressed is read, ``limit`` bytes at most together (by default 256 MiB
    or 64 times the file).
    """
    allowed = max(_HARMLESS, _RATIO * len(data)) if limit is None else limit
    try:
        archive = zipfile.ZipFile(_View(data))
        members = [member for member in archive.infolist() if not member.is_dir()]
    # zipfile meets hostile numbers with half of Python's exceptions.
    except Exception as error:
        raise Malformed(f"the zip archive cannot be read: {error}", field="archive") from None
    entries: dict[str, Entry] = {}
    for member in members:
        key = member.filename.removesuffix(_SUFFIX)
        if name is not None and key != name:
            continue
        if key == member.filename:
            raise Unsupported(f"the archive holds {key!r}, which is no npy file", field="name", value=key)
        if key in entries:
            raise Malformed(f"the archive has two arrays called {key!r}", field="name", value=key)
        if member.compress_type != zipfile.ZIP_STORED:
            allowed -= member.file_size
            if allowed < 0:
                raise Unsupported(
                    f"the archive of {len(data):,} bytes unpacks to more than {member.file_size - allowed:,}:"
                    " it may be a bomb; pass limit= (bytes) to allow that much",
                    field="file_size",
                    value=member.file_size,
                )
        array = read_array(_member(archive, member, data))
        labels = None if _UNNAMED.match(key) else named(key)
        entries[key] = Entry(key, Tensor.from_array(array, labels=labels, byteswap=True))
    if name is not None and not entries:
        raise Unsupported(f"the archive has no array {name!r}", field="name", value=name)
    return list(entries.values())


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, data: memoryview) -> memoryview:
    """The bytes of one file of the archive, with their checksum checked: borrowed where they are stored."""
    if member.flag_bits & 1:
        raise Unsupported(f"{member.filename!r} is encrypted: decrypt the archive first", field="flag_bits")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Unsupported(
            f"{member.filename!r} is compressed in a way that npz files are not (method {member.compress_type})",
            field="compress_type",
            value=member.compress_type,
        )
    if member.compress_type == zipfile.ZIP_STORED:
        head = data[member.header_offset :][:_LOCAL_HEADER]
        start = member.header_offset + _LOCAL_HEADER
        start += sum(int.from_bytes(head[at : at + 2], "little") for at in (26, 28))
        body = data[start : start + member.file_size]
        whole = bytes(head[:4]) == b"PK\x03\x04" and len(body) == member.file_size == member.compress_size
        if not whole or zlib.crc32(body) != member.CRC:
            raise Malformed(f"{member.filename!r} is damaged: its checksum is wrong", field="CRC")
        return body
    try:
        return memoryview(archive.read(member))
    except Exception as error:
        raise Malformed(f"{member.filename!r} cannot be unpacked: {error}", field="archive") from None


class _View(io.RawIOBase):
    """Borrowed bytes as a file."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if start + offset < 0:
            raise OSError("a negative place in the archive")  # which zipfile expects
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else self._at + size
        piece = bytes(self._data[self._at : end])
        self._at += len(piece)
        return piece


class _Pieces(io.RawIOBase):
    """A file in pieces: what is written large is borrowed, not copied.

    A header that is written again, as zipfile does once it knows a checksum, takes the first one's place.
    """

    def __init__(self) -> None:
        self.parts: list[Buffer] = []
        self._starts: dict[int, int] = {}
        self._at = self._end = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (self._end if whence == io.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, data: Buffer) -> int:  # type: ignore[override]  # all that zipfile writes
        length = len(data)
        part = data if isinstance(data, bytes) or length > _STORED_UP_TO else bytes(data)
        if self._at == self._end:
            self._starts[self._at] = len(self.parts)
            self.parts.append(part)
            self._end += length
        else:
            index = self._starts[self._at]
            assert len(self.parts[index]) == length
            self.parts[index] = part
        self._at += length
        return length


def _write(entries: Sequence[Entry], *, compress: bool = False) -> Written:
    pieces = _Pieces()
    held: dict[str, Entry] = {}
    lost: list[Loss] = []
    with zipfile.ZipFile(pieces, "w") as archive:
        for i, (name, tensor) in enumerate(entries):
            label = "" if tensor.labels is None else tensor.labels.name
            key = name or label or f"arr_{i}"
            if "\0" in key or key in held:
                why = "has a NUL in it" if "\0" in key else "is there twice"
                raise ValueError(f"the name {key!r} {why}: an npz file needs one name for each tensor")
            array, became = widened(tensor, DTYPES)
            lost += became + unsaid(tensor, keeps={"labels.name"} if key == label else ())
            held[key] = Entry(key, Tensor.from_array(array, labels=named(label)))
            parts = array_parts(array)
            member = zipfile.ZipInfo(f"{key}{_SUFFIX}", _EPOCH)
            member.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
            member.file_size = sum(map(len, parts))
            member.external_attr = 0o644 << 16
            with archive.open(member, "w") as file:
                for part in parts:
                    file.write(part)
    return Written(pieces.parts, list(held.values()), lost)


NPZ = Format(
    "an npz file",
    (".npz",),
    lambda head, size: head.startswith((b"PK\x03\x04", b"PK\x05\x06")),
    _read,
    _write,
    many=True,
)
