"""The message as a blob: what the importer of blobs checks, it checks of messages too.

A blob's regions are laid out from the message's fields, except that the bytes of inline planes stay where they
are: a view takes its planes from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..blob.header import HEADER, BlobHeader, pack_dimensions, region_offsets
from ..blob.planes import BlobPlane, write_plane
from ..blob.strings import BlobStrings, scan_strings, write_strings
from ..blob.view import MAX_NDIM, MAX_PLANES, MAX_STRINGS_BYTES, BlobView
from ..errors import Unsupported
from ..parts import Buffer

__all__ = ["blob_by_reference", "head_of", "planes_of", "view_over"]


def head_of(message: Any, planes: Sequence[BlobPlane]) -> bytearray:
    """A blob of ``message``'s fields up to where its planes begin; its header counts ``planes`` in.

    Unsupported past the bounds that are set to blobs.
    """
    shape, strides = tuple(message.shape), tuple(message.strides)
    scales = np.array(message.quant_scales, "<f4")
    points = np.array(message.quant_zero_points, "<i4")
    strings = BlobStrings(*(getattr(message, field) for field in BlobStrings._fields))
    _check_bounds(shape, strings)
    out = bytearray(HEADER.size)
    out += pack_dimensions(shape, strides)
    out += scales.tobytes()
    out += points.tobytes()
    strings_at = len(out)
    write_strings(out, strings)
    planes_bytes = sum(plane.encoded_len for plane in planes)
    header = BlobHeader(
        size=len(out) + planes_bytes,
        required_mask=0,
        planes_bytes=planes_bytes,
        storage_kind=message.storage_kind,
        pid=message.pid,
        fence_fd=message.fence_fd,
        dtype=message.dtype,
        quant_axis=message.quant_axis,
        ndim=len(shape),
        plane_count=len(planes),
        quant_scales_len=len(scales),
        quant_zero_points_len=len(points),
        strings_bytes=len(out) - strings_at,
        strides_len=len(strides),
        reserved=0,
    )
    HEADER.pack_into(out, 0, *header)
    return out


def view_over(head: Buffer, planes: Sequence[BlobPlane]) -> BlobView:
    """What ``BlobView.parse`` would give of the blob that starts with ``head``, over planes that lie elsewhere.

    ``head`` holds everything before the first plane record. Raises as ``region_offsets`` does.
    """
    view = BlobView.__new__(BlobView)
    view.header = header = BlobHeader._make(HEADER.unpack_from(head))
    view.regions = regions = region_offsets(header)
    # As far as the first plane's bytes: by this prefix the importer remembers what it has believed.
    prefix = bytes(head[: regions.planes]) + b"".join(plane.scalars() for plane in planes[:1])
    view.data = memoryview(prefix)
    view.shape = tuple(np.frombuffer(prefix, "<u8", header.ndim, regions.shape).tolist())
    view.strides = tuple(np.frombuffer(prefix, "<i8", header.strides_len, regions.strides).tolist())
    view.strings, end = scan_strings(view.data[regions.strings : regions.planes])
    view.strings_end = regions.strings + end
    view.planes = tuple(planes)
    view.planes_end = regions.end
    return view


def blob_by_reference(message: Any, planes: Sequence[BlobPlane]) -> bytes:
    """``message`` as a whole blob, its planes by reference."""
    out = head_of(message, planes)
    for plane in planes:
        write_plane(out, plane)
    return bytes(out)


def _check_bounds(shape: tuple[int, ...], strings: BlobStrings) -> None:
    if len(shape) > MAX_NDIM:
        raise Unsupported(f"{len(shape)} dimensions are more than the {MAX_NDIM} read here", field="shape")
    if sum(map(len, strings)) > MAX_STRINGS_BYTES:
        raise Unsupported(f"the strings are more than the {MAX_STRINGS_BYTES} bytes read here", field="format")


def planes_of(message: Any) -> list[BlobPlane]:
    """The message's plane records. Inline bytes are borrowed from it. Unsupported for more than 64."""
    count = message.num_planes
    if count > MAX_PLANES:
        raise Unsupported(f"{count} planes are more than the {MAX_PLANES} read here", field="planes", value=count)
    return [
        BlobPlane(
            plane.handle,
            plane.offset,
            plane.stride,
            plane.size,
            plane.used,
            plane.modifier,
            plane.handle_bytes,
            memoryview(message.plane_data(i).view()),
        )
        for i, plane in enumerate(message.planes)
    ]
