"""What writes MCAP: a file beside its place, the mcap package's writer over it, and how tensors become messages."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .. import blob, messages, vlink
from ..errors import Closed, Unsupported
from ..tensor import Tensor
from .payloads import BLOB_ENCODING, VLINK_ENCODING, VLINK_TENSOR

__all__ = ["Encoder", "McapOutput", "encoders"]

PART = ".part"
_TIMES = 1 << 64
_LIBRARY = "tensorferry"

_BLOB_TEXT = """\
Each message is one tensor blob, inline. All numbers are little-endian.
A header of 72 bytes: u64 size, required_mask, planes_bytes; u32 storage_kind, pid; i32 fence_fd; u32 dtype;
i32 quant_axis; u32 ndim, plane_count, quant_scales_len, quant_zero_points_len, strings_bytes, strides_len, reserved.
Then u64 shape[ndim], i64 strides[strides_len] (bytes), f32 scales, i32 zero points, five strings (u32 length, UTF-8:
format, colour space, transfer, encoding, range; padded to 8 bytes), and the planes: a record of 56 bytes (i64 handle,
u64 offset, stride, size, used, modifier, u32 handle_bytes_len, data_len), then data_len bytes, padded to 8.
dtype: 0 u8, 1 i8, 2 u16, 3 i16, 4 u32, 5 i32, 6 u64, 7 i64, 8 f16, 9 f32, 10 f64.
"""
_VLINK_TEXT = """\
Each message is one VLink tensor envelope. All numbers are little-endian.
u32 0x98B7F19A, u32 version (2001000), a struct of 248 bytes, the elements (size_ bytes), u32 0x98B7F19F.
In the struct, at byte 48 u64 size_, 152 u32 shape_[8], 184 u32 strides_[8] (elements), 228 f32 quant_scale_, 232 i32
quant_zero_point_, 236 u8 dtype_, 237 u8 rank_. dtype_: 1 bool, 2 i8, 3 u8, 4 i16, 5 u16, 6 i32, 7 u32, 8 i64, 9 u64,
10 f16, 11 bf16, 12 f32, 13 f64.
"""


class Encoder(NamedTuple):
    """One way to write tensors: the function, and the names by which a reader can tell."""

    name: str
    encode: Callable[[Tensor, bool], bytes]
    message_encoding: str
    schema: tuple[str, str, bytes]
    """Name, encoding and text of the MCAP schema."""


def encoders(format: str) -> Encoder:
    """How ``format`` is written. ValueError for an unknown one."""
    found = _ENCODERS.get(format)
    if found is None:
        raise ValueError(f"format {format!r} is none of {', '.join(map(repr, _ENCODERS))}")
    return found


def _message(kind: str) -> Encoder:
    schema = messages.type_name(kind), "ros2msg", messages.definition(kind).encode()
    return Encoder(kind, lambda tensor, lossy: messages.encode(tensor, kind, lossy=lossy), "cdr", schema)


_ENCODERS = {
    "blob": Encoder(
        "blob",
        lambda tensor, lossy: b"".join(blob.export_parts(tensor, lossy=lossy)),
        BLOB_ENCODING,
        ("tensorferry/TensorBlob", "text/plain", _BLOB_TEXT.encode()),
    ),
    "vlink": Encoder(
        "vlink",
        lambda tensor, lossy: b"".join(vlink.export_parts(tensor, lossy=lossy)),
        VLINK_ENCODING,
        (VLINK_TENSOR, "text/plain", _VLINK_TEXT.encode()),
    ),
    **{kind: _message(kind) for kind in messages.KINDS},
}


class McapOutput:
    """An MCAP file that is being written beside its place."""

    def __init__(self, path: str | os.PathLike[str], *, compression: str, chunk_size: int) -> None:
        try:
            from mcap.writer import CompressionType, Writer
        except ImportError as error:
            raise Unsupported(
                f"MCAP files need the package mcap ({error}): install tensorferry[record]", field="mcap"
            ) from error
        names = {kind.name.lower(): kind for kind in CompressionType}
        if compression not in names:
            raise ValueError(f"compression {compression!r} is none of {', '.join(map(repr, names))}")
        self.path = Path(path)
        self.part = self.path.with_name(self.path.name + PART)
        try:
            self._file = self.part.open("xb")
        except FileExistsError:
            raise FileExistsError(
                f"{self.part} is there already, from another writer or a crash: open it to see what it holds,"
                " then move it away"
            ) from None
        self._writer: Any = Writer(self._file, chunk_size=chunk_size, compression=names[compression])
        self._schemas: dict[str, int] = {}
        self._sequences: dict[int, int] = {}

    def start(self, *, profile: str) -> None:
        """Write the file's head. Before anything else, and once."""
        from .. import __version__

        self._writer.start(profile=profile, library=f"{_LIBRARY} {__version__}")

    def add_channel(self, topic: str, encoder: Encoder) -> int:
        """A channel for messages of ``encoder`` under ``topic``, with a schema that says what they are."""
        schema = self._schemas.get(encoder.name)
        if schema is None:
            schema = self._writer.register_schema(*encoder.schema)
            self._schemas[encoder.name] = schema
        return self.add_bare_channel(topic, encoder.message_encoding, {}, schema)

    def add_bare_channel(self, topic: str, encoding: str, metadata: dict[str, str], schema: int = 0) -> int:
        """A channel with these words about it; ``schema`` 0 is none."""
        if self.closed:
            raise Closed(f"{self.path.name} was closed: open another writer")
        number: int = self._writer.register_channel(topic, encoding, schema, metadata)
        return number

    def add_message(self, channel: int, data: bytes, log_time: int, publish_time: int) -> None:
        """One message; its sequence number counts the channel's messages from 1."""
        if self.closed:
            raise Closed(f"{self.path.name} was closed: open another writer")
        sequence = self._sequences.get(channel, 0) + 1
        self._writer.add_message(channel, log_time, data, publish_time, sequence & 0xFFFFFFFF)
        self._sequences[channel] = sequence

    def add_metadata(self, name: str, words: dict[str, str]) -> None:
        self._writer.add_metadata(name, words)

    @staticmethod
    def check_times(*times: int) -> None:
        """ValueError for times that MCAP has no room for."""
        for time in times:
            if not 0 <= time < _TIMES:
                raise ValueError(f"time {time} ns does not fit 64 unsigned bits")

    def flush(self) -> None:
        """Write out the chunk that was begun."""
        self._writer.flush()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        """Finish, have it on the disk, and put it in its place. Closing twice is fine."""
        if self.closed:
            return
        with self._file:
            self._writer.finish()
            self._file.flush()
            os.fsync(self._file.fileno())
        self.part.replace(self.path)
