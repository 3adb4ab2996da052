"""Blobs by reference to test with: exported ones with their records or header changed."""

from __future__ import annotations

from collections.abc import Sequence

from tensorferry import Tensor, blob
from tensorferry.blob import BlobPlane, BlobView, TransportMode

__all__ = ["by_reference", "changed", "records"]


def by_reference(t: Tensor) -> tuple[bytes, list[int]]:
    return blob.export(t, TransportMode.REFERENCE)


def records(wire: bytes) -> list[BlobPlane]:
    """The plane records of ``wire``, to be changed and given to ``changed``."""
    return list(BlobView.parse(wire).planes)


def changed(wire: bytes, planes: Sequence[BlobPlane] | None = None, **header: int) -> bytes:
    """``wire`` with other plane records, and fields of its header replaced by name."""
    view = BlobView.parse(wire)
    out = bytearray(view.data[: view.regions.planes])
    planes = view.planes if planes is None else planes
    for plane in planes:
        blob.write_plane(out, plane)
    head = bytearray()
    lengths = {"size": len(out), "planes_bytes": len(out) - view.regions.planes, "plane_count": len(planes)}
    view.header._replace(**{**lengths, **header}).write_to(head)
    out[: len(head)] = head
    return bytes(out)
