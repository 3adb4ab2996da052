"""A parsed, validated view over a blob: what the bytes say, before what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from struct import unpack_from
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import Unsupported, WireError
from ..parts import flat
from .header import BlobHeader, Regions, parse_header, region_offsets
from .planes import BlobPlane, scan_planes
from .strings import BlobStrings, scan_strings

__all__ = ["BlobQuantization", "BlobView", "iter_blobs"]


# What this reader takes on. The format sets no such bounds, but Python objects are many times the size of
# the records that they stand for, and a forged count must not turn a megabyte of input into ten of memory.
MAX_NDIM = 64  # NumPy's own
MAX_PLANES = 64  # the kernel's graphics stack stops at 4
MAX_STRINGS_BYTES = 1 << 16


class BlobQuantization(NamedTuple):
    """The quantization regions as they stand: ``axis`` -2 is none, -1 per tensor, others per channel."""

    axis: int
    scales: npt.NDArray[np.float32]
    zero_points: npt.NDArray[np.int32]


class BlobView:
    """One blob, taken apart once by ``parse``; every accessor afterwards is constant time.

    Everything borrows from the buffer that was parsed. ``data`` is the blob itself, without what follows
    it in the buffer.
    """

    __slots__ = (
        "_quantization",
        "data",
        "header",
        "planes",
        "planes_end",
        "regions",
        "shape",
        "strides",
        "strings",
        "strings_end",
    )

    data: memoryview
    header: BlobHeader
    regions: Regions
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    strings: BlobStrings
    planes: tuple[BlobPlane, ...]
    strings_end: int
    planes_end: int

    @classmethod
    def parse(cls, blob: bytes | bytearray | memoryview) -> BlobView:
        """The blob at the start of ``blob``; bytes behind its ``size`` are not part of it.

        Raises one of the five kinds of WireError, checked in the order that spec/blob.md gives, and
        Unsupported past 64 dimensions, 64 planes or 64 KiB of strings.
        """
        buffer = flat(blob)
        self = cls.__new__(cls)
        self.header = header = parse_header(buffer)
        self.regions = regions = region_offsets(header)
        _check_bounds(header)
        self.data = buffer[: header.size]
        self.shape = unpack_from(f"<{header.ndim}Q", buffer, regions.shape)
        self.strides = unpack_from(f"<{header.strides_len}q", buffer, regions.strides)
        with _OffsetsFrom(regions.strings):
            self.strings, end = scan_strings(buffer[regions.strings : regions.planes])
        self.strings_end = regions.strings + end
        with _OffsetsFrom(regions.planes):
            self.planes, end = scan_planes(buffer[regions.planes : regions.end], header.plane_count)
        self.planes_end = min(regions.planes + end, regions.end)
        return self

    @property
    def quantization(self) -> BlobQuantization:
        """Axis, scales and zero points; the arrays borrow from the blob."""
        at = self.regions
        return BlobQuantization(
            self.header.quant_axis,
            np.ndarray((self.header.quant_scales_len,), "<f4", self.data, at.quant_scales),
            np.ndarray((self.header.quant_zero_points_len,), "<i4", self.data, at.quant_zero_points),
        )

    def __repr__(self) -> str:
        return f"<BlobView {self.header.size} bytes, shape {list(self.shape)}, {len(self.planes)} planes>"


def _check_bounds(header: BlobHeader) -> None:
    if header.ndim <= MAX_NDIM and header.plane_count <= MAX_PLANES and header.strings_bytes <= MAX_STRINGS_BYTES:
        return
    for field, bound in (("ndim", MAX_NDIM), ("plane_count", MAX_PLANES), ("strings_bytes", MAX_STRINGS_BYTES)):
        value = getattr(header, field)
        if value > bound:
            raise Unsupported(f"{field} {value} is more than the {bound} that are read here", field=field, value=value)


class _OffsetsFrom:
    """Makes the offsets in a region's errors count from the start of the blob."""

    __slots__ = ("start",)

    def __init__(self, start: int) -> None:
        self.start = start

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, WireError) and error.offset is not None:
            error.offset += self.start


def iter_blobs(buffer: bytes | bytearray | memoryview) -> Iterator[memoryview]:
    """Each of the blobs laid end to end in ``buffer``, as a view of exactly its ``size`` bytes.

    Only headers are read. Raises WireError at the first header that cannot be believed, with its offset
    counted from the start of ``buffer``; every blob before it has been yielded by then.
    """
    whole = flat(buffer)
    at = 0
    while at < len(whole):
        with _OffsetsFrom(at):
            try:
                size = parse_header(whole[at:]).size
            except WireError as error:
                error.offset = error.offset or 0
                raise
        yield whole[at : at + size]
        at += size
