"""From a tensor to a blob, without copying a payload that need not be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum

from ..errors import Lossy, Unsupported
from ..parts import Buffer, write_parts
from ..quantization import Quantization
from ..tensor import Description, Plane, StorageKind, Tensor
from .codes import STORAGE_CODES, strings_of
from .header import HEADER, HEADER_LEN, pack_dimensions, padding
from .importing import Appended
from .planes import INLINE, RECORD
from .strings import write_strings

__all__ = ["TransportMode", "export", "export_into", "export_parts"]

_WITHOUT_DESCRIPTOR = frozenset({StorageKind.MEM, StorageKind.PBO, StorageKind.D3D11})
_MAX_INLINE = 2**32 - 1  # data_len is a u32
_NOTHING = Appended(b"", b"", b"")
_MAX_REMEMBERED = 256
_remembered: dict[tuple[Description, StorageKind, tuple[bytes, ...], int], bytes] = {}
_ZEROS = tuple(bytes(n) for n in range(8))


class TransportMode(Enum):
    """How a plane's bytes cross a boundary: in the blob itself, or by a handle that travels beside it."""

    INLINE = "inline"
    REFERENCE = "reference"


def export(
    tensor: Tensor, mode: TransportMode = TransportMode.INLINE, *, lossy: bool = False
) -> tuple[bytes, list[int]]:
    """``tensor`` as a blob, and the descriptor table that must travel beside it (empty inline).

    The descriptors are borrowed: they are the tensor's own, valid while it lives, and the caller closes
    none. Raises Lossy for an element type that the blob has no code for, and for labels unless ``lossy``
    drops them; Unsupported for planes that have no handle (by reference) or no bytes here (inline).
    Source: spec/blob.md, "Transport modes".
    """
    if mode is TransportMode.INLINE:
        return b"".join(export_parts(tensor, lossy=lossy)), []
    if tensor._carried is not None or tensor._labels is not None or tensor._description.dtype.blob is None:
        _refuse_losses(tensor, lossy)
    table: list[int] = []
    records = tuple(_reference(tensor, i, plane, table) for i, plane in enumerate(tensor.planes))
    # Tensors out of a pool say the same every time: nothing in their blob but the records tells them apart.
    key = (tensor._description, tensor._storage, records, os.getpid())
    data = _remembered.get(key) if tensor._carried is None else None
    if data is None:
        data = b"".join(_lay_out(tensor, records, [b""] * len(records), key[-1]))
        if tensor._carried is None:
            if len(_remembered) >= _MAX_REMEMBERED:
                _remembered.clear()
            _remembered[key] = data
    return data, table


def export_parts(tensor: Tensor, *, lossy: bool = False) -> list[Buffer]:
    """``tensor`` as an inline blob in pieces for writev, sendmsg and the like: joined, they are the blob.

    The planes are borrowed, not copied, and must not change until the pieces are written. An array that
    is not in C order is packed first: readers in the field take inline planes as C order whatever the
    strides say. Raises as ``export`` does.
    """
    if tensor._carried is not None or tensor._labels is not None or tensor._description.dtype.blob is None:
        _refuse_losses(tensor, lossy)
    tensor = tensor.packed()
    records, payloads = [], []
    for i, plane in enumerate(tensor.planes):
        data = _inline_bytes(tensor, i, plane)
        length = len(data)
        records.append(RECORD.pack(INLINE, 0, plane.stride, length, length, 0, 0, length))
        payloads.append(data)
    return _lay_out(tensor, records, payloads, 0)


def export_into(tensor: Tensor, buffer: bytearray | memoryview, *, lossy: bool = False) -> int:
    """Write ``tensor`` as an inline blob at the start of ``buffer``; returns its bytes.

    ``buffer`` is any writable buffer. ValueError, with nothing written, when it is too small.
    Otherwise raises as ``export`` does.
    """
    return write_parts(export_parts(tensor, lossy=lossy), buffer)


def _lay_out(tensor: Tensor, records: Sequence[bytes], planes: Sequence[Buffer], pid: int) -> list[Buffer]:
    """The blob's regions around ``planes``: the first part ends where the first plane's bytes start."""
    description = tensor._description
    appended = tensor._carried if isinstance(tensor._carried, Appended) else _NOTHING
    shape, quantization = description.shape, description.quantization
    strides = description.strides if description.strides_given else ()
    scales, points = _quantization_counts(quantization)
    out = bytearray(HEADER_LEN)
    out += pack_dimensions(shape, strides)
    if quantization is not None:
        out += quantization.scales.tobytes()
        out += b"" if quantization.zero_points is None else quantization.zero_points.tobytes()
    strings_at = len(out)
    write_strings(out, strings_of(description), appended.strings)
    strings_bytes = len(out) - strings_at
    planes_at = len(out)
    parts: list[Buffer] = [out]
    planes_bytes = 0
    tail = b""
    for record, data in zip(records, planes, strict=True):
        if planes_bytes == 0:
            out += record
        else:
            parts.append(tail + record)
        parts.append(data)
        length = len(record) + len(data)
        tail = _ZEROS[padding(length)]
        planes_bytes += length + len(tail)
    tail += appended.planes + appended.end
    if tail:
        parts.append(tail)
    planes_bytes += len(appended.planes)
    HEADER.pack_into(
        out,
        0,
        planes_at + planes_bytes + len(appended.end),
        0,
        planes_bytes,
        STORAGE_CODES[tensor._storage],
        pid,
        -1,
        description.dtype.blob,
        -2 if quantization is None else -1 if quantization.axis is None else quantization.axis,
        len(shape),
        len(records),
        scales,
        points,
        strings_bytes,
        len(strides),
        0,
    )
    return parts


def _quantization_counts(quantization: Quantization | None) -> tuple[int, int]:
    if quantization is None:
        return 0, 0
    points = quantization.zero_points
    return len(quantization.scales), 0 if points is None else len(points)


def _inline_bytes(tensor: Tensor, i: int, plane: Plane) -> memoryview:
    if plane.data is None or plane.modifier:
        what = "is tiled" if plane.modifier else f"lives in {tensor.storage} memory that this process cannot read"
        raise Unsupported(
            f"plane {i} {what}: export it by reference (mode=TransportMode.REFERENCE)",
            field="modifier" if plane.modifier else "storage",
            value=plane.modifier or tensor.storage,
        )
    if len(plane.data) > _MAX_INLINE:
        raise Unsupported(
            f"plane {i} has {len(plane.data)} bytes, a record counts at most {_MAX_INLINE} inline:"
            " split the tensor, or export it by reference",
            field="data_len",
            value=len(plane.data),
        )
    return plane.data


def _reference(tensor: Tensor, i: int, plane: Plane, table: list[int]) -> bytes:
    """The record of a plane by reference; planes of one allocation share an entry of ``table``."""
    fileno = getattr(plane.handle, "fileno", None)
    if fileno is None or tensor._storage in _WITHOUT_DESCRIPTOR:
        raise Unsupported(
            f"plane {i} lives in {tensor.storage} memory, which has no handle to pass on:"
            " export it inline, or allocate it with storage='shm'",
            field="storage",
            value=tensor.storage,
        )
    descriptor = fileno()
    if descriptor not in table:
        table.append(descriptor)
    return RECORD.pack(
        table.index(descriptor), plane.offset, plane.stride, plane.size, plane.used, plane.modifier, 0, 0
    )


def _refuse_losses(tensor: Tensor, lossy: bool) -> None:
    """Lossy, naming all that a blob cannot say of ``tensor``; ``lossy`` lets labels and the like go."""
    lost = [] if tensor.dtype.blob is not None else ["dtype"]
    if not lossy:
        if tensor.labels is not None:
            lost += [f"labels.{name}" for name in tensor.labels.said()]
        if tensor.carried is not None and not isinstance(tensor.carried, Appended):
            lost += tensor.carried.fields
    if not lost:
        return
    advice = []
    if "dtype" in lost:
        advice.append(f"the blob has no code for {tensor.dtype}: convert the values first (astype)")
    if lost != ["dtype"]:
        advice.append("pass lossy=True to leave the labels behind")
    raise Lossy(f"a blob cannot carry {', '.join(lost)}; {'; '.join(advice)}", fields=tuple(lost))
