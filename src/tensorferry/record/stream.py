"""Streams of blobs (``.tblob``): blobs laid end to end and nothing else, read in place."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import overload

from ..errors import FerryError, Malformed
from .indexing import index_path, read_index, write_index
from .record import Damage, Record, Recording, TopicInfo
from .scanning import Span, blob_size, check_uncut, placed, read_blob, salvage
from .source import MappedFile, ReadFile

__all__ = ["BlobStream", "Records"]

_SIZE = Struct("<Q")


class Records(Sequence[Record]):
    """Some of a stream's records, loaded when they are asked for: what slicing a stream gives."""

    def __init__(self, stream: BlobStream, numbers: range) -> None:
        self._stream = stream
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, i: int) -> Record: ...
    @overload
    def __getitem__(self, i: slice) -> Records: ...
    def __getitem__(self, i: int | slice) -> Record | Records:
        if isinstance(i, slice):
            return Records(self._stream, self._numbers[i])
        return self._stream[self._numbers[i]]

    def __repr__(self) -> str:
        return f"<Records {self._numbers} of {self._stream!r}>"


class BlobStream(Recording):
    """A stream of blobs, open for reading. Its one topic is the file's stem; it has no times, they are 0.

    Iteration finds the blobs as it goes; ``rec[i]`` scans headers up to blob i, ``len`` to the end, once.
    Tensors are read-only and borrow: from the mapping, or from a copy of their blob's own with
    ``map=False``. ``index_note`` says what became of the index that ``index=True`` asked for.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, strict: bool = True, map: bool = True, index: bool = False
    ) -> None:
        """``record.open`` documents the arguments."""
        if index and not strict:
            raise ValueError("an index is of a sound stream: repair it first, or leave index=True away")
        self.path = Path(path)
        self.topic = self.path.stem
        self.index_note: str | None = None
        self._source: ReadFile = (MappedFile if map else ReadFile)(self.path)
        self._starts: array[int] = array("Q")
        self._ends: array[int] = array("Q")
        self._scanned = 0
        self._next_size: int | None = None  # of the blob at which the scan goes on, where that was looked at
        self._damage: list[Damage] = []
        self._salvage = None if strict else salvage(self._source)
        if index:
            try:
                self._use_index()
            except BaseException:
                self._source.close()
                raise

    # ---- reading ----

    def __iter__(self) -> Iterator[Record]:
        """Records from first to last. With ``strict``, WireError or Unsupported at the first that cannot be read."""
        i = let_go = 0
        while i < len(self._starts) or self._find_next():
            yield self._record(i)
            let_go = self._source.let_go(let_go, self._starts[i])
            i += 1

    def __len__(self) -> int:
        """Blobs in the stream; with ``strict``, WireError at the first header that cannot be believed."""
        while self._find_next():
            pass
        return len(self._starts)

    @overload
    def __getitem__(self, i: int) -> Record: ...
    @overload
    def __getitem__(self, i: slice) -> Records: ...
    def __getitem__(self, i: int | slice) -> Record | Records:
        """Record ``i``, counted from the end where negative, or a lazy sequence of some. IndexError past the last."""
        if isinstance(i, slice):
            return Records(self, range(len(self))[i])
        return self._record(self._number(i))

    def span(self, i: int) -> Span:
        """Where blob ``i`` stands in the file, in bytes."""
        i = self._number(i)
        return Span(self._starts[i], self._ends[i] - self._starts[i])

    @property
    def topics(self) -> list[TopicInfo]:
        """The one topic. Scans as ``len`` does."""
        return [TopicInfo(self.topic, len(self), "blob", "", None, None, None)]

    @property
    def damage(self) -> Sequence[Damage]:
        """What was passed over so far; complete once ``len`` was asked for. Empty with ``strict``, which raises."""
        return tuple(self._damage)

    def close(self) -> None:
        """Let the file go; its mapping goes with the last view of it. Closing twice is fine."""
        self._source.close()

    def __enter__(self) -> BlobStream:
        return self

    def __repr__(self) -> str:
        return f"<BlobStream {str(self.path)!r}, {self._source.size} bytes>"

    # ---- inside ----

    def _number(self, i: int) -> int:
        count = len(self) if i < 0 else None
        number = i if count is None else i + count
        while number >= len(self._starts) and self._find_next():
            pass
        if not 0 <= number < len(self._starts):
            raise IndexError(f"there is no blob {i}: {self.path} has {len(self._starts)}")
        return number

    def _record(self, i: int) -> Record:
        start, source = self._starts[i], self._source
        size = self._ends[i] - start
        try:
            data = source.lend(start, size)
            # A whole blob may stand there, but not the one that was scanned, or that the index promised.
            (claimed,) = _SIZE.unpack_from(data)
            if claimed != size:
                raise self._moved(size, claimed)
            tensor = read_blob(data)
        except FerryError as error:
            raise placed(error, source, start) from None
        return Record(self.topic, 0, 0, tensor)

    def _find_next(self) -> bool:
        """Scan on to the next blob; False where there is none."""
        at, source = self._scanned, self._source
        if at >= source.size:
            return False
        if self._salvage is not None:
            return self._salvage_next(self._salvage)
        try:
            size = self._next_size or blob_size(source, at)
            self._next_size = None
            self._next_size = check_uncut(source, at, size)
        except FerryError as error:
            raise placed(error, source, at) from None
        self._found(at, at + size)
        return True

    def _salvage_next(self, found: Iterator[Span | Damage]) -> bool:
        for what in found:
            if isinstance(what, Span):
                self._found(what.start, what.start + what.size)
                return True
            self._damage.append(what)
        self._scanned = self._source.size
        return False

    def _found(self, start: int, end: int) -> None:
        self._starts.append(start)
        self._ends.append(end)
        self._scanned = end

    def _moved(self, expected: int, claimed: int) -> Malformed:
        if self.index_note == "read":
            why = f"the index lies: delete {index_path(self.path)}"
        else:
            why = "the file has changed since it was scanned: open it again"
        return Malformed(
            f"it claims {claimed} bytes where {expected} were found: {why}", field="size", value=claimed, offset=0
        )

    def _use_index(self) -> None:
        ends, why_not = read_index(self._source)
        if why_not is None:
            self._ends = ends
            self._starts = array("Q", [0, *ends[:-1]] if ends else [])
            self._scanned = self._source.size
            self.index_note = "read"
            return
        len(self)
        try:
            write_index(self._source, self._ends)
            self.index_note = f"written: {why_not}"
        except OSError as error:  # a cache that cannot be kept is no reason not to read
            self.index_note = f"not written: {error.strerror or error}"
