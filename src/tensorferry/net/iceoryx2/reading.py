"""From a sample to a tensor over its memory, believing nothing that its publisher could still change.

The publisher has the memory mapped too, and a hostile one may write to it while it is read here. So all that is
parsed (header, attachment, and the payload apart from the planes' bytes) is copied first, and only the copy is
looked at. The planes' bytes are values: whatever they become, they lead nowhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ... import blob, vlink
from ...blob.header import HEADER_LEN, PLANE_RECORD_LEN, padding, parse_header, region_offsets
from ...blob.planes import INLINE, RECORD
from ...blob.view import MAX_PLANES
from ...errors import Unsupported
from ...memory.region import Hold, look_through
from ...tensor import Description, Plane, Tensor
from ..arrivals import Received
from ..attachment import read_attachment
from ..payloads import checked_format
from .message import CODES, Header, array_over, check_header, read_bytes

__all__ = ["Reader"]

_BLOB = CODES["blob"]
_NAMES = {code: name for name, code in CODES.items()}
_MAGIC_END_LEN = 4
_MAX_HEAD = 1024
_MAX_KNOWN = 256


class _Known(NamedTuple):
    """What a blob said whose head was believed: its one plane, and how many bytes the blob has."""

    description: Description
    size: int
    stride: int
    used: int
    blob_bytes: int

    def over(self, sample: Any, address: int) -> Tensor:
        """The same over the plane at ``address``, in ``sample``."""
        root, _ = array_over(sample, address, self.size, writable=False)
        return Tensor(self.description, (Plane(root.data, self.stride, self.size, self.used),), hold=Hold(root))


class Reader:
    """Reads samples as one subscriber wants them. For one thread at a time."""

    def __init__(self, topic: str, format: str | None) -> None:
        self._topic = topic
        self._only = None if format is None else checked_format(format)
        self._copy = memoryview(bytearray())
        self._known: dict[bytes, _Known] = {}

    def read(self, sample: Any, header: tuple[int, ...], have: int) -> Received:
        """The tensor in the ``have`` bytes of ``sample``, in place. WireError and Unsupported are its refusals."""
        _, log_time, length, start, attached, format, head = header
        base = sample.payload_ptr
        tensor = None
        # Frames of a stream differ in nothing but their plane's bytes: what stands before them was believed already.
        # Whatever is claimed of its length, the same bytes mean the same.
        if format == _BLOB and head <= length and head <= _MAX_HEAD and start + length <= have:
            known = self._known.get(read_bytes(base + start, head))
            if known is not None and known.blob_bytes <= length:
                tensor = known.over(sample, base + start + head)
        if tensor is None or attached:
            check_header(Header._make(header), have)
        if tensor is None:
            tensor = self._parsed(sample, base + start, length, format)
        if attached:
            tensor._labels = read_attachment(read_bytes(base, attached)).labels or tensor._labels
        return Received(self._topic, log_time, tensor)

    def _parsed(self, sample: Any, address: int, length: int, format: int) -> Tensor:
        if self._only not in (None, _NAMES[format]):
            raise Unsupported(
                f"a {_NAMES[format]} came, only {self._only!r} is taken here (format=)",
                field="format",
                value=_NAMES[format],
            )
        root, _ = array_over(sample, address, length, writable=False)
        payload = root.data
        copy = self._room(len(payload))
        if format == _BLOB:
            places = _copy_blob(payload, copy)
            tensor = blob.import_(copy)
        else:
            places = _copy_vlink(payload, copy)
            tensor = vlink.import_(copy)
        if None in places:
            tensor.close()
            raise Unsupported("a plane by reference came, and no descriptors come with a sample", field="handle")
        for plane, place in zip(tensor.planes, places, strict=True):
            plane.offset = place or 0
        look_through(tensor.planes, root)
        tensor._hold = Hold(root)
        if format == _BLOB:
            self._remember(tensor, copy)
        return tensor

    def _remember(self, tensor: Tensor, copy: memoryview) -> None:
        plane, *others = tensor.planes
        if others or tensor.carried is not None or plane.offset > _MAX_HEAD:
            return
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        blob_bytes = parse_header(copy).size
        known = _Known(tensor._description, plane.size, plane.stride, plane.used, blob_bytes)
        self._known[bytes(copy[: plane.offset])] = known

    def _room(self, size: int) -> memoryview:
        """``size`` bytes to copy to, used again and again: what is not written to costs no memory."""
        if len(self._copy) < size:
            self._copy = np.zeros(size, np.uint8).data
        return self._copy[:size]


def _copy_blob(payload: memoryview, copy: memoryview) -> list[int | None]:
    """Copy all of a blob but its planes' bytes; returns where those start, None for a plane by reference.

    Raises WireError as far as it looks, and leaves the rest to the import: what that reads was copied here.
    """
    copy[:HEADER_LEN] = payload[:HEADER_LEN]
    header = parse_header(copy)
    regions = region_offsets(header)
    places: list[int | None] = []
    at, end = HEADER_LEN, regions.planes
    for _ in range(header.plane_count if header.plane_count <= MAX_PLANES else 0):
        record = end + PLANE_RECORD_LEN
        if record > regions.end:
            break
        copy[at:record] = payload[at:record]
        handle, *_, handle_bytes, data_bytes = RECORD.unpack_from(copy, end)
        first = min(record + handle_bytes, regions.end)
        copy[record:first] = payload[record:first]
        places.append(first if handle == INLINE else None)
        at = min(first + data_bytes, regions.end)
        end = at + padding(at - regions.planes)
    copy[at : header.size] = payload[at : header.size]
    return places


def _copy_vlink(payload: memoryview, copy: memoryview) -> list[int | None]:
    """The same for an envelope, whose elements stand before its last four bytes."""
    first = vlink.OVERHEAD - _MAGIC_END_LEN
    last = max(len(payload) - _MAGIC_END_LEN, 0)
    copy[:first] = payload[:first]
    copy[last:] = payload[last:]
    return [first]
