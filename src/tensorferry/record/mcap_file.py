"""An MCAP file as it lies in memory: its records, walked without copying, and its summary where it has one.

Framing, chunks and messages are read here, with every length held against the bytes in hand; the smaller records
are read by the classes of the ``mcap`` package. Source: https://mcap.dev/spec.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from struct import Struct, error
from typing import NamedTuple, TypeVar

import lz4.frame
import numpy as np
import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import EndOfFile
from mcap.opcode import Opcode
from mcap.records import Channel, ChunkIndex, Footer, Header, Metadata, MetadataIndex, Schema, Statistics

from ..errors import FerryError, ForgedLength, Malformed, Truncated, Unsupported, WireError
from .source import MappedFile

__all__ = ["McapFile", "Message", "OnDamage", "Tally", "sum_tallies"]

MAGIC = b"\x89MCAP0\r\n"
MAX_CHUNK = 1 << 32
"""Bytes of an unpacked chunk, at most: the mcap package's own bound."""

_FRAME = Struct("<BQ")  # opcode, content bytes
_MESSAGE = Struct("<HIQQ")  # channel, sequence, log time, publish time
_CHUNK = Struct("<QQQII")  # first time, last time, unpacked bytes, their CRC, bytes of the compression's name
_INDEX = Struct("<HI")  # channel, bytes of entries
_U64 = Struct("<Q")
_FOOTER_CONTENT = 20
_TAIL = _FRAME.size + _FOOTER_CONTENT + len(MAGIC)
_LONGEST_NAME = 64  # of a compression
# What a byte can unpack to at the very most: a run of 128 KiB in 4 bytes, a match length that grows by 255 a byte.
_MOST = {"zstd": 1 << 15, "lz4": 255}
_SLACK = 1 << 17

R = TypeVar("R")
OnDamage = Callable[[int, int, FerryError], None]
"""Told of bytes that cannot be read, (offset, length, error): raises, or returns to have them passed over."""


class Message(NamedTuple):
    """One message. ``data`` borrows from the file, or from its chunk where that was compressed.

    ``offset`` is where the payload stands in the file, or the compressed chunk that holds it (``exact`` False).
    """

    channel: Channel
    log_time: int
    publish_time: int
    data: memoryview
    offset: int
    exact: bool


class Tally(NamedTuple):
    """Messages of one channel, and the least and greatest log time among them."""

    messages: int
    first: int
    last: int


class _Exact(ReadDataStream):
    """The mcap package takes fewer bytes than it asked for without a word; this does not."""

    def read(self, length: int) -> bytes:
        data: bytes = super().read(length)
        if len(data) != length:
            raise EndOfFile
        return data


class McapFile:
    """An MCAP file, mapped. ``channels`` and ``schemas`` grow as the file is walked where it has no summary.

    ``complete`` says that the file ends as it should: without, a crash cut it short. ``indexed`` that it has a
    summary that can be believed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises OSError, Unsupported for what is no regular file, and WireError for what is no MCAP file."""
        self.path = Path(path)
        self.channels: dict[int, Channel] = {}
        self.schemas: dict[int, Schema] = {}
        self.statistics: Statistics | None = None
        self.chunks: dict[int, ChunkIndex] = {}
        self._metadata_at: list[tuple[str, int]] = []
        self._source = MappedFile(self.path)
        try:
            self.data_end = len(self.data)
            self._check_magic()
            footer = self._footer()
            self.complete = footer is not None
            self.indexed = footer is not None and footer.summary_start != 0 and self._read_summary(footer)
        except BaseException:
            self.close()
            raise

    @property
    def data(self) -> memoryview:
        """All of the file's bytes. Closed after ``close``, Truncated once somebody has cut the file."""
        return self._source.lend(0, self._source.size)

    def close(self) -> None:
        """Let the file go; its mapping goes with the last view of it."""
        self._source.close()

    # ---- what the file says of itself ----

    def profile(self) -> str:
        """The profile in the header; "" where there is none."""
        with suppress(WireError):
            opcode, start, end = self._frame(len(MAGIC), self.data_end)
            if opcode == Opcode.HEADER:
                header: Header = self._parse(Header.read, start, end)
                return str(header.profile)
        return ""

    def metadata(self) -> dict[str, dict[str, str]]:
        """Every metadata record that can be read, by its name."""
        found: dict[str, dict[str, str]] = {}
        places = self._metadata_at if self.indexed else self._scan_for_metadata()
        for name, at in places:
            with suppress(WireError):
                opcode, start, end = self._frame(at, len(self.data))
                if opcode == Opcode.METADATA:
                    found[name] = self._parse(Metadata.read, start, end).metadata
        return found

    def tallies(self) -> dict[int, Tally] | None:
        """Messages by channel as the summary and the message indexes count them; None where they do not tell."""
        if not self.indexed or self.statistics is None:
            return None
        found: dict[int, Tally] = {}
        try:
            for chunk in self.chunks.values():
                for channel, at in chunk.message_index_offsets.items():
                    times = self._index_times(channel, at)
                    if len(times):
                        tally = Tally(len(times), int(times.min()), int(times.max()))
                        found[channel] = sum_tallies(found[channel], tally) if channel in found else tally
        except WireError:
            return None
        if sum(tally.messages for tally in found.values()) != self.statistics.message_count:
            return None  # messages outside of chunks, or chunks without indexes
        return found if found.keys() <= self.channels.keys() else None

    # ---- its messages ----

    def messages(
        self,
        on_damage: OnDamage,
        on_end: OnDamage,
        *,
        channels: Callable[[Channel], bool] | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Message]:
        """Messages in the file's order: of channels that ``channels`` takes, logged from ``start`` to before ``end``.

        ``on_end`` is told of a tail that a crash left, after which nothing comes.
        """
        wanted = _Wanted(channels, start, end)
        at, let_go = len(MAGIC), 0
        while at < self.data_end:
            let_go = self._source.let_go(let_go, at)
            try:
                opcode, begin, stop = self._frame(at, self.data_end)
            except WireError as cut:
                if not self.complete:
                    yield from self._tail(at, wanted)
                    on_end(at, self.data_end - at, cut)
                    return
                following = min((place for place in self.chunks if place > at), default=self.data_end)
                on_damage(at, following - at, cut)
                at = following
                continue
            if opcode in (Opcode.DATA_END, Opcode.FOOTER):
                return
            try:
                yield from self._record(opcode, at, begin, stop, wanted)
            except _Damaged as damaged:
                on_damage(at, stop - at, damaged.error)
            at = stop
        if not self.complete:
            on_end(self.data_end, 0, self._no_footer())

    def _no_footer(self) -> Truncated:
        return Truncated(
            f"{self.path.name} ends after {self.data_end} bytes without a footer: its writer was not closed",
            have=self.data_end,
            offset=self.data_end,
        )

    def _record(self, opcode: int, at: int, begin: int, stop: int, wanted: _Wanted) -> Iterator[Message]:
        """The messages of one record of the data section. _Damaged where it cannot be read."""
        try:
            if opcode == Opcode.CHUNK:
                chunk = self._chunk(begin, stop)
                if self.indexed and self._skips(at, chunk, wanted):
                    return
                exact = not chunk.compression
                content = chunk.unpacked()
                base = chunk.start if exact else at
            elif opcode in (Opcode.MESSAGE, Opcode.SCHEMA, Opcode.CHANNEL):
                exact, content, base = True, self.data[at:stop], at
            else:
                return
        except FerryError as error:
            raise _Damaged(_placed(error, at, exact=False)) from None
        yield from self._content(content, base, exact, wanted)

    def _content(self, content: memoryview, base: int, exact: bool, wanted: _Wanted) -> Iterator[Message]:
        """The messages among the records in ``content``, which stands at ``base`` of the file if ``exact``."""
        at = 0
        while at < len(content):
            try:
                opcode, begin, stop = _frame(content, at, len(content))
                message = None
                if opcode == Opcode.MESSAGE:
                    message = self._message(content, begin, stop, base, exact)
                elif opcode == Opcode.CHANNEL:
                    channel = _parse(Channel.read, content, begin, stop)
                    self.channels[channel.id] = channel
                elif opcode == Opcode.SCHEMA:
                    schema = _parse(Schema.read, content, begin, stop)
                    self.schemas[schema.id] = schema
            except WireError as error:
                raise _Damaged(_placed(error, base, exact=exact)) from None
            if message is not None and wanted.takes(message):
                yield message
            at = stop

    def _message(self, content: memoryview, begin: int, stop: int, base: int, exact: bool) -> Message:
        start = begin + _MESSAGE.size
        if start > stop:
            raise Malformed(f"a message record has {stop - begin} bytes", field="message", value=stop - begin)
        number, _, log_time, publish_time = _MESSAGE.unpack_from(content, begin)
        channel = self.channels.get(number)
        if channel is None:
            raise Malformed(
                f"a message is of channel {number}, which was not introduced",
                field="channel_id",
                value=number,
                offset=begin,
            )
        return Message(channel, log_time, publish_time, content[start:stop], base + start if exact else base, exact)

    def _tail(self, at: int, wanted: _Wanted) -> Iterator[Message]:
        """Whole messages of a chunk that a crash cut short: no checksum covers them any more."""
        data = self.data
        if at + _FRAME.size > len(data) or data[at] != Opcode.CHUNK:
            return
        with suppress(FerryError, _Damaged):
            chunk = self._chunk(at + _FRAME.size, len(data), whole=False)
            content = chunk.unpacked(whole=False)
            exact = not chunk.compression
            yield from self._content(content, chunk.start if exact else at, exact, wanted)

    def _skips(self, at: int, chunk: _Chunk, wanted: _Wanted) -> bool:
        """Whether a chunk, by what the summary and its own head say, has nothing that is wanted."""
        if wanted.start is not None and chunk.last < wanted.start:
            return True
        if wanted.end is not None and chunk.first >= wanted.end:
            return True
        index = self.chunks.get(at)
        if wanted.channels is None or index is None or not index.message_index_offsets:
            return False
        known = [self.channels.get(number) for number in index.message_index_offsets]
        return all(channel is not None and not wanted.channels(channel) for channel in known)

    def _chunk(self, begin: int, stop: int, *, whole: bool = True) -> _Chunk:
        """The head of the chunk whose content is at ``begin``. WireError where it does not fit."""
        data = self.data
        at = begin + _CHUNK.size
        if at > stop:
            raise Malformed(f"a chunk has {stop - begin} bytes, too few for its head", field="chunk", offset=begin)
        first, last, size, crc, length = _CHUNK.unpack_from(data, begin)
        if length > _LONGEST_NAME or at + length + _U64.size > stop:
            raise ForgedLength(f"the compression's name claims {length} bytes", field="compression", value=length)
        compression = bytes(data[at : at + length]).decode("utf-8", "replace")
        (packed,) = _U64.unpack_from(data, at + length)
        start = at + length + _U64.size
        if whole and start + packed != stop:
            raise ForgedLength(
                f"a chunk claims {packed} bytes of records, {stop - start} are here", field="records", value=packed
            )
        return _Chunk(first, last, size, crc, compression, start, data[start : min(start + packed, stop)])

    # ---- reading it ----

    def _check_magic(self) -> None:
        head = bytes(self.data[: len(MAGIC)])
        if head == MAGIC:
            return
        if MAGIC.startswith(head):
            raise Truncated(
                f"{self.path.name} has {len(head)} bytes, an MCAP file starts with {len(MAGIC)}",
                need=len(MAGIC),
                have=len(head),
            )
        raise Malformed(
            f"{self.path.name} is no MCAP file: it starts {head.hex(' ')}", field="magic", value=head, offset=0
        )

    def _footer(self) -> Footer | None:
        data = self.data
        at = len(data) - _TAIL
        if at < len(MAGIC) or data[-len(MAGIC) :] != MAGIC:
            return None
        with suppress(WireError):
            opcode, start, end = self._frame(at, len(data) - len(MAGIC))
            if opcode == Opcode.FOOTER and end == len(data) - len(MAGIC):
                self.data_end = at
                footer: Footer = self._parse(Footer.read, start, end)
                return footer
        return None

    def _read_summary(self, footer: Footer) -> bool:
        """Whether there is a summary, and it can be believed; what it says is kept only then."""
        at, stop = footer.summary_start, self.data_end
        if not len(MAGIC) <= at <= stop:
            return False
        if footer.summary_crc and zlib.crc32(self.data[at : len(self.data) - len(MAGIC) - 4]) != footer.summary_crc:
            return False
        try:
            while at < stop:
                opcode, begin, at = self._frame(at, stop)
                self._summary_record(opcode, begin, at)
        except WireError:
            self.channels, self.schemas, self.chunks, self._metadata_at = {}, {}, {}, []
            self.statistics = None
            return False
        return True

    def _summary_record(self, opcode: int, begin: int, end: int) -> None:
        if opcode == Opcode.SCHEMA:
            schema = self._parse(Schema.read, begin, end)
            self.schemas[schema.id] = schema
        elif opcode == Opcode.CHANNEL:
            channel = self._parse(Channel.read, begin, end)
            self.channels[channel.id] = channel
        elif opcode == Opcode.STATISTICS:
            self.statistics = self._parse(Statistics.read, begin, end)
        elif opcode == Opcode.CHUNK_INDEX:
            index = self._parse(ChunkIndex.read, begin, end)
            self.chunks[index.chunk_start_offset] = index
        elif opcode == Opcode.METADATA_INDEX:
            entry = self._parse(MetadataIndex.read, begin, end)
            self._metadata_at.append((entry.name, entry.offset))

    def _scan_for_metadata(self) -> list[tuple[str, int]]:
        found = []
        at = len(MAGIC)
        with suppress(WireError):
            while at < self.data_end:
                opcode, begin, stop = self._frame(at, self.data_end)
                if opcode == Opcode.METADATA:
                    found.append((self._parse(Metadata.read, begin, stop).name, at))
                at = stop
        return found

    def _index_times(self, channel: int, at: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """The log times in the message index at ``at``. WireError where none of ``channel`` is there."""
        opcode, begin, stop = self._frame(at, self.data_end)
        if opcode != Opcode.MESSAGE_INDEX or stop - begin < _INDEX.size:
            raise Malformed("there is no message index where the summary has one", field="message_index", offset=at)
        number, length = _INDEX.unpack_from(self.data, begin)
        if number != channel or length != stop - begin - _INDEX.size or length % 16:
            raise Malformed("a message index is not what the summary says", field="message_index", offset=at)
        entries: np.ndarray[tuple[int], np.dtype[np.uint64]] = np.frombuffer(
            self.data, "<u8", length // 8, begin + _INDEX.size
        )
        return entries[::2]

    def _frame(self, at: int, stop: int) -> tuple[int, int, int]:
        return _frame(self.data, at, stop)

    def _parse(self, read: Callable[[ReadDataStream], R], begin: int, end: int) -> R:
        return _parse(read, self.data, begin, end)


class _Wanted(NamedTuple):
    channels: Callable[[Channel], bool] | None
    start: int | None
    end: int | None

    def takes(self, message: Message) -> bool:
        if self.start is not None and message.log_time < self.start:
            return False
        if self.end is not None and message.log_time >= self.end:
            return False
        return self.channels is None or self.channels(message.channel)


class _Damaged(Exception):
    """A record that cannot be read, for the walker, which knows where the next one starts."""

    def __init__(self, error: FerryError) -> None:
        super().__init__(str(error))
        self.error = error


class _Chunk(NamedTuple):
    """A chunk's head. ``start`` is where its records stand in the file, ``packed`` they themselves."""

    first: int
    last: int
    size: int
    crc: int
    compression: str
    start: int
    packed: memoryview

    def unpacked(self, *, whole: bool = True) -> memoryview:
        """The chunk's records: the file's own bytes where they are not compressed.

        WireError where they do not unpack to what the head says. Without ``whole``, as much of them as there is.
        """
        if self.compression == "":
            content = self.packed
        else:
            self._check_size()
            try:
                content = memoryview(_UNPACK[self.compression](self.packed, self.size, whole))
            except (zstandard.ZstdError, RuntimeError, ValueError) as error:
                raise Malformed(f"a chunk does not unpack ({self.compression}): {error}", field="compression") from None
        if not whole:
            return content
        if len(content) != self.size:
            raise ForgedLength(
                f"a chunk claims {self.size} bytes of records and has {len(content)}",
                field="uncompressed_size",
                value=self.size,
            )
        if self.crc and zlib.crc32(content) != self.crc:
            raise Malformed(
                f"a chunk's checksum is {zlib.crc32(content):#010x}, {self.crc:#010x} was written: its bytes changed",
                field="uncompressed_crc",
                value=self.crc,
            )
        return content

    def _check_size(self) -> None:
        most = _MOST.get(self.compression)
        if most is None:
            raise Unsupported(
                f"a chunk is compressed with {self.compression!r}: zstd and lz4 are read here; recompress the file",
                field="compression",
                value=self.compression,
            )
        if self.size > len(self.packed) * most + _SLACK:
            raise ForgedLength(
                f"a chunk claims to unpack from {len(self.packed)} bytes to {self.size}, more than can be",
                field="uncompressed_size",
                value=self.size,
            )
        if self.size > MAX_CHUNK:
            raise Unsupported(
                f"a chunk unpacks to {self.size} bytes, more than the {MAX_CHUNK} read here",
                field="uncompressed_size",
                value=self.size,
            )


def _unpack_zstd(packed: memoryview, size: int, whole: bool) -> bytes:
    if not whole:
        data: bytes = zstandard.ZstdDecompressor().stream_reader(packed).read(size)
        return data
    # The frame has a claim of its own, by which memory would be taken.
    claimed = zstandard.frame_content_size(packed)
    if claimed > size:
        raise ValueError(f"its frame claims {claimed} bytes, the chunk {size}")
    result: bytes = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
    return result


def _unpack_lz4(packed: memoryview, size: int, whole: bool) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    data: bytes = unpacker.decompress(packed, max_length=size)
    return data


_UNPACK: dict[str, Callable[[memoryview, int, bool], bytes]] = {"zstd": _unpack_zstd, "lz4": _unpack_lz4}


def _frame(data: memoryview, at: int, stop: int) -> tuple[int, int, int]:
    """(opcode, where the content begins, where it ends) of the record at ``at``, which must end by ``stop``."""
    begin = at + _FRAME.size
    if begin > stop:
        raise Truncated(
            f"{stop - at} bytes are left at byte {at}, a record has at least {_FRAME.size}",
            need=_FRAME.size,
            have=stop - at,
            offset=at,
        )
    opcode, length = _FRAME.unpack_from(data, at)
    if opcode == 0:
        raise Malformed(f"the record at byte {at} has opcode 0, which is none", field="opcode", value=0, offset=at)
    if length > stop - begin:
        raise Truncated(
            f"the record at byte {at} (opcode {opcode}) has {length} bytes, {stop - begin} are left",
            need=length,
            have=stop - begin,
            offset=at,
        )
    return opcode, begin, begin + length


def _parse(read: Callable[[ReadDataStream], R], data: memoryview, begin: int, end: int) -> R:
    try:
        return read(_Exact(BytesIO(data[begin:end])))
    except (EndOfFile, error, UnicodeDecodeError) as refused:
        what = type(refused).__name__
        raise Malformed(f"the record at byte {begin - _FRAME.size} cannot be read: {what}", offset=begin) from None


def _placed(error: FerryError, base: int, *, exact: bool) -> FerryError:
    """``error`` with its offset counted from the start of the file."""
    if isinstance(error, WireError):
        error.offset = base + (error.offset or 0) if exact else base
    return error


def sum_tallies(one: Tally, other: Tally) -> Tally:
    """Both together."""
    return Tally(one.messages + other.messages, min(one.first, other.first), max(one.last, other.last))
