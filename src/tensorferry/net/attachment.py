"""What travels beside a payload: when it was published, its labels, and where descriptors are to be had.

The attachment is four bytes of magic and then records: a u16 that says what it is, a u16 of bytes that follow.
All numbers are little-endian. A record of an unknown kind is skipped, one that comes twice is refused.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ..errors import ForgedLength, InvalidUtf8, Malformed, Truncated, Unsupported
from ..labels import Device, Labels

__all__ = ["MAGIC", "MAX_BYTES", "Attachment", "DescriptorId", "References", "read_attachment", "write_attachment"]

MAGIC = b"TFa1"
MAX_BYTES = 1 << 18
"""More than three records can fill: a longer attachment is refused before it is copied."""

_RECORD = Struct("<HH")
_LOG_TIME, _LABELS, _REFERENCES = 1, 2, 3
_TIME = Struct("<Q")
_NUMBERS = Struct("<QQQIIIIB?2x")
_TEXT = Struct("<H")
_TEXTS = ("name", "model_id", "layout", "frame_id")
_DESCRIPTOR = Struct("<iQQ")
HOST_BYTES = 16
_MAX_RECORD = 0xFFFF
_KNOWN_DEVICES = tuple(Device)


class DescriptorId(NamedTuple):
    """A descriptor of the publisher's process, and the memory that it must lead to."""

    fd: int
    device: int
    inode: int


class References(NamedTuple):
    """The descriptor table of a blob by reference; the blob itself says whose descriptors they are."""

    host: bytes
    """16 bytes that only processes with the same pids in view share."""
    descriptors: tuple[DescriptorId, ...]


class Attachment(NamedTuple):
    """What an attachment says; the defaults are what a missing one says."""

    log_time: int = 0
    """Nanoseconds since the Unix epoch, 0 unsaid."""
    labels: Labels | None = None
    references: References | None = None


def write_attachment(attachment: Attachment) -> bytes:
    """The bytes of ``attachment``. Unsupported where labels or descriptors are too many for a record."""
    out = bytearray(MAGIC)
    if attachment.log_time:
        out += _RECORD.pack(_LOG_TIME, _TIME.size) + _TIME.pack(attachment.log_time)
    if attachment.labels is not None:
        _append(out, _LABELS, "labels", _pack_labels(attachment.labels))
    if attachment.references is not None:
        table = b"".join(_DESCRIPTOR.pack(*one) for one in attachment.references.descriptors)
        _append(out, _REFERENCES, "references", attachment.references.host + table)
    return bytes(out)


def _append(out: bytearray, tag: int, field: str, content: bytes) -> None:
    if len(content) > _MAX_RECORD:
        raise Unsupported(
            f"{field} take {len(content)} bytes, an attachment has room for {_MAX_RECORD}: shorten them",
            field=field,
            value=len(content),
        )
    out += _RECORD.pack(tag, len(content))
    out += content


def _pack_labels(labels: Labels) -> bytes:
    out = bytearray(
        _NUMBERS.pack(
            labels.time_meas,
            labels.time_pub,
            labels.update_time_ns,
            labels.seq,
            labels.channel,
            labels.freq,
            labels.batch_size or 0,
            labels.device,
            labels.batch_size is not None,
        )
    )
    for field in _TEXTS:
        text = getattr(labels, field).encode()
        if len(text) > _MAX_RECORD:
            raise Unsupported(f"labels.{field} has {len(text)} bytes, too many to travel", field=field, value=len(text))
        out += _TEXT.pack(len(text)) + text
    return bytes(out)


def read_attachment(data: bytes) -> Attachment:
    """What ``data`` says. Bytes that do not start with the magic are somebody else's, and say nothing.

    Raises WireError for bytes that do, and cannot be believed.
    """
    if data[: len(MAGIC)] != MAGIC:
        return Attachment()
    records = _records(data)
    log_time = 0
    if (time := records.get(_LOG_TIME)) is not None:
        if len(time) != _TIME.size:
            raise _wrong_size("log_time", len(time))
        (log_time,) = _TIME.unpack(time)
    labels, references = records.get(_LABELS), records.get(_REFERENCES)
    return Attachment(
        log_time,
        None if labels is None else _read_labels(labels),
        None if references is None else _read_references(references),
    )


def _records(data: bytes) -> dict[int, bytes]:
    """The content of each record by what it is, checked to lie within ``data``."""
    records: dict[int, bytes] = {}
    at = len(MAGIC)
    while at < len(data):
        if len(data) - at < _RECORD.size:
            raise Truncated(
                f"the attachment ends {len(data) - at} bytes into a record's head of {_RECORD.size}",
                field="attachment",
                offset=at,
                need=_RECORD.size,
                have=len(data) - at,
            )
        tag, length = _RECORD.unpack_from(data, at)
        start = at + _RECORD.size
        if length > len(data) - start:
            raise ForgedLength(
                f"record {tag} of the attachment claims {length} bytes, {len(data) - start} are left",
                field="attachment",
                value=length,
                offset=at,
                need=length,
                have=len(data) - start,
            )
        if tag in records:
            raise Malformed(f"record {tag} comes twice in the attachment", field="attachment", value=tag, offset=at)
        records[tag] = data[start : start + length]
        at = start + length
    return records


def _read_labels(content: bytes) -> Labels:
    if len(content) < _NUMBERS.size:
        raise _wrong_size("labels", len(content))
    time_meas, time_pub, update_time_ns, seq, channel, freq, batch_size, device, batched = _NUMBERS.unpack_from(content)
    texts = {}
    at = _NUMBERS.size
    for field in _TEXTS:
        if len(content) - at < _TEXT.size:
            raise _wrong_size("labels", len(content))
        (length,) = _TEXT.unpack_from(content, at)
        at += _TEXT.size
        text = content[at : at + length]
        if len(text) != length:
            raise _wrong_size("labels", len(content))
        try:
            texts[field] = text.decode()
        except UnicodeDecodeError as error:
            raise InvalidUtf8(
                f"labels.{field} is not UTF-8: {error.reason} at byte {error.start} of {text!r}",
                field=field,
                value=text,
            ) from None
        at += length
    if at != len(content):
        raise _wrong_size("labels", len(content))
    return Labels(
        seq=seq,
        time_meas=time_meas,
        time_pub=time_pub,
        update_time_ns=update_time_ns,
        channel=channel,
        freq=freq,
        batch_size=batch_size if batched else None,
        device=_KNOWN_DEVICES[device] if device < len(_KNOWN_DEVICES) else device,
        **texts,
    )


def _read_references(content: bytes) -> References:
    table = content[HOST_BYTES:]
    if len(content) < HOST_BYTES or len(table) % _DESCRIPTOR.size:
        raise _wrong_size("references", len(content))
    return References(content[:HOST_BYTES], tuple(DescriptorId(*one) for one in _DESCRIPTOR.iter_unpack(table)))


def _wrong_size(field: str, size: int) -> Malformed:
    return Malformed(f"the attachment's {field} record has {size} bytes, which is no size it can have", field=field)
