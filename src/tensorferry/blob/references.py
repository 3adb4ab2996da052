"""Planes by reference: records whose bytes are in memory that a descriptor, or a foreign handle, leads to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import Malformed, Unsupported
from ..memory.foreign import ForeignPlane, open_foreign
from ..memory.opening import KeepRegion, OpenRegion, open_planes
from ..tensor import Carried, Description, Plane, StorageKind, Tensor
from .codes import STORAGE_KINDS
from .planes import D3D11_HANDLE_BYTES, BlobPlane, D3D11Handle
from .view import BlobView

__all__ = ["Reference", "malformed", "open_reference", "read_reference"]

CUDA_HANDLE_BYTES = 64

# Kinds that a descriptor leads to on Linux. What it really is, `memory` finds out: the claim is only a claim.
_BY_DESCRIPTOR = frozenset({StorageKind.MEM, StorageKind.SHM, StorageKind.DMA_BUF})


def malformed(field: str, value: object, message: str, offset: int | None = None) -> Malformed:
    """Malformed at ``field``."""
    return Malformed(message, field=field, value=value, offset=offset)


def field_offset(view: BlobView, i: int, at: int) -> int:
    """Where byte ``at`` of plane i's record stands in the blob."""
    return view.regions.planes + sum(record.encoded_len for record in view.planes[:i]) + at


class Reference(NamedTuple):
    """What a blob whose planes are all by reference says: believed, but its memory not yet looked for."""

    description: Description
    kind: StorageKind | int
    records: tuple[BlobPlane, ...]
    fence_fd: int
    pid: int
    appended: Carried | None


def read_reference(view: BlobView, description: Description, appended: Carried | None) -> Reference:
    """What the records say, checked as far as they tell by themselves."""
    records = view.planes
    kind = _kind(view.header.storage_kind, records)
    for i, record in enumerate(records):
        length = len(record.handle_bytes)
        if kind in _BY_DESCRIPTOR and length:
            raise malformed("handle_bytes", length, f"plane {i} is in {kind!s} memory and has handle bytes")
        if kind is StorageKind.CUDA and length not in (0, CUDA_HANDLE_BYTES):
            raise malformed(
                "handle_bytes", length, f"plane {i} has {length} handle bytes, a CUDA handle is {CUDA_HANDLE_BYTES}"
            )
        if kind is StorageKind.D3D11:
            D3D11Handle.unpack(record.handle_bytes)
    return Reference(description, kind, records, view.header.fence_fd, view.header.pid, appended)


def open_reference(
    reference: Reference,
    fds: Sequence[int],
    fence: str | None,
    policy: str,
    writable: bool,
    opener: OpenRegion,
    keep: KeepRegion,
) -> Tensor:
    """The tensor over the memory that ``reference`` leads to; ``blob.import_`` documents the arguments."""
    description, kind, records, fence_fd, pid, appended = reference
    if fence_fd >= 0 or fence is not None:
        _check_fence(fence_fd, fence)
    if kind not in _BY_DESCRIPTOR:
        foreign = tuple(open_foreign(_arrived(kind, record, fds, pid), writable=writable) for record in records)
        for plane, record in zip(foreign, records, strict=True):
            plane.used = record.used
        elsewhere = any(plane.handle is not None for plane in foreign)
        storage = kind if elsewhere and isinstance(kind, StorageKind) else StorageKind.MEM
        return Tensor(description, foreign, storage=storage, carried=appended)
    planes = []
    table = []
    for i, record in enumerate(records):
        if record.handle >= len(fds):
            raise malformed(
                "handle", record.handle, f"plane {i} is in descriptor {record.handle}, {len(fds)} came with the blob"
            )
        table.append(fds[record.handle])
        planes.append(
            Plane(None, record.stride, record.size, record.used, offset=record.offset, modifier=record.modifier)
        )
    tensor = open_planes(description, planes, table, writable=writable, policy=policy, opener=opener, keep=keep)
    tensor._carried = appended
    return tensor


def _check_fence(fence_fd: int, fence: str | None) -> None:
    if fence not in (None, "ignore"):
        raise ValueError(f"fence {fence!r} is neither None nor 'ignore'")
    if fence_fd >= 0 and fence is None:
        raise Unsupported(
            f"the blob has a fence (descriptor {fence_fd} of its producer): someone may still be writing;"
            " wait for it, then pass fence='ignore'",
            field="fence_fd",
            value=fence_fd,
        )


def _kind(code: int, records: Sequence[BlobPlane]) -> StorageKind | int:
    kind = STORAGE_KINDS.get(code, code)
    # Windows has no dma-bufs and reports its textures as such: their handle bytes tell them apart.
    if kind is StorageKind.DMA_BUF and all(len(record.handle_bytes) == D3D11_HANDLE_BYTES for record in records):
        return StorageKind.D3D11
    return kind


def _arrived(kind: StorageKind | int, record: BlobPlane, fds: Sequence[int], pid: int) -> ForeignPlane:
    # Handle bytes lead there without a descriptor, an IOSurface has an id, and of an unknown kind nothing is known.
    by_descriptor = isinstance(kind, StorageKind) and kind is not StorageKind.IO_SURFACE
    if by_descriptor and not len(record.handle_bytes) and record.handle >= len(fds):
        raise malformed(
            "handle", record.handle, f"descriptor {record.handle} did not come: {len(fds)} came with the blob"
        )
    return ForeignPlane(
        kind,
        bytes(record.handle_bytes),
        fds[record.handle] if record.handle < len(fds) else None,
        record.handle,
        record.offset,
        record.size,
        record.stride,
        record.modifier,
        pid,
    )
