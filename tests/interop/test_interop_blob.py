"""Ours beside the published library: each reads what the other wrote, and they mean the same.

What the published library does not take (see docs/blob.md, "Beside the published library") is tested by
reference where it takes that, and stated here where it does not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import published
import pytest
from published import Published, Refused

import tensorferry as ferry
from tensorferry import Colorimetry, DType, PixelFormat, Quantization, Tensor, blob

pytestmark = pytest.mark.skipif(
    not published.available(), reason="the published library has wheels for Linux on x86-64 and aarch64 only"
)

DTYPES = [row for row in DType if row.blob is not None]
INTEGERS = [row for row in DTYPES if row.numpy.kind in "iu"]
SHAPES = [(5,), (3, 8), (1, 3, 8, 8), (2, 2, 2, 2, 2), (1, 2, 1, 2, 1, 2, 1, 2), (4, 0, 3)]
COLOURS = [
    Colorimetry("srgb", "srgb", "bt601", "full"),
    Colorimetry("bt2020", "pq", "bt2020", "limited"),
    Colorimetry("smpte170m", "", "bt709", ""),
    Colorimetry("", "hlg", "", "full"),
    Colorimetry("bt709", "linear", "", "limited"),
]
QUANTIZATIONS: dict[str, Callable[[int, int], Quantization]] = {
    "tensor": lambda axis, n: Quantization.per_tensor(0.25),
    "tensor with zero point": lambda axis, n: Quantization.per_tensor(0.25, -7),
    "channel": lambda axis, n: Quantization.per_channel(axis, np.arange(1, n + 1) / 8),
    "channel with zero points": lambda axis, n: Quantization.per_channel(
        axis, np.arange(1, n + 1) / 8, np.arange(n) - 1
    ),
}


def values(shape: tuple[int, ...], row: DType) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape, dtype=int)) * row.size
    return np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8).view(row.numpy).reshape(shape)


def payload(t: Tensor) -> bytes:
    return b"".join(bytes(plane.data or b"") for plane in t.planes)


def said(q: Quantization | None) -> object:
    """As ``Published.quantization`` says it, where symmetric reads as zero points of 0."""
    if q is None:
        return None
    points = np.zeros(len(q.scales), int) if q.zero_points is None else q.zero_points
    return (-1 if q.axis is None else q.axis, q.scales.tolist(), points.tolist())


def agree(theirs: Published, ours: Tensor) -> None:
    """The published library understood the same as we say."""
    assert theirs.dtype == ours.dtype.blob
    assert theirs.format == (ours.format or "")
    assert theirs.plane_count == len(ours.planes)
    allocation: tuple[int, ...] = ours.shape
    if isinstance(ours.format, PixelFormat):
        allocation = ours.format.allocation(ours.width, ours.height)
    assert theirs.shape == allocation
    assert theirs.copy_out() == payload(ours)
    q = theirs.quantization
    assert (None if q is None else (q[0], list(q[1]), list(q[2] or []))) == said(ours.quantization)
    colours = ours.colorimetry or Colorimetry()
    assert theirs.colorimetry == (colours.space, colours.transfer, colours.encoding, colours.range)


def both_ways(ours: Tensor) -> None:
    """They import ours and export it to the same bytes; we import theirs to the same tensor."""
    wire = ferry.dumps(ours)
    with Published.imported(wire) as theirs:
        agree(theirs, ours)
        back = theirs.export()
    assert back == wire
    again = ferry.loads(back)
    assert (again.dtype, again.shape, again.strides, again.format) == (
        ours.dtype,
        ours.shape,
        ours.strides,
        ours.format,
    )
    assert again.quantization == ours.quantization
    assert payload(again) == payload(ours)


@pytest.mark.parametrize("row", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_element_type(row: DType, shape: tuple[int, ...]) -> None:
    both_ways(Tensor.from_array(values(shape, row)))


@pytest.mark.parametrize("row", INTEGERS)
@pytest.mark.parametrize("kind", QUANTIZATIONS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_quantization(row: DType, kind: str, axis: int) -> None:
    shape = (3, 4, 5)
    both_ways(Tensor.from_array(values(shape, row), quantization=QUANTIZATIONS[kind](axis, shape[axis])))


@pytest.mark.parametrize("row", DTYPES)
@pytest.mark.parametrize("format", PixelFormat)
@pytest.mark.parametrize(("width", "height"), [(64, 48), (32, 6), (34, 18)])
def test_every_even_sized_image_of_every_element_type(format: PixelFormat, row: DType, width: int, height: int) -> None:
    total = sum(p.size for p in format.plane_table(width, height, None, row.size))
    both_ways(Tensor.image(format, width, height, values((total,), DType.UINT8).tobytes(), dtype=row))


@pytest.mark.parametrize("row", INTEGERS)
@pytest.mark.parametrize("format", PixelFormat)
@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_every_quantization_of_images(format: PixelFormat, row: DType, kind: str) -> None:
    width, height = 64, 48
    axis = 0 if format.is_planar or format.is_semi_planar or format == "mono8" else 2
    if format.is_semi_planar and kind.startswith("channel"):
        axis = 1  # along rows the published library counts the allocation's, not the grid's
    total = sum(p.size for p in format.plane_table(width, height, None, row.size))
    quantization = QUANTIZATIONS[kind](axis, format.grid(width, height)[axis])
    memory = values((total,), DType.UINT8).tobytes()
    both_ways(Tensor.image(format, width, height, memory, dtype=row, quantization=quantization))


@pytest.mark.parametrize("format", PixelFormat)
@pytest.mark.parametrize("colours", COLOURS, ids=str)
def test_every_colour(format: PixelFormat, colours: Colorimetry) -> None:
    total = sum(p.size for p in format.plane_table(64, 48))
    both_ways(Tensor.image(format, 64, 48, values((total,), DType.UINT8), colorimetry=colours))


@pytest.mark.parametrize("format", [f for f in PixelFormat if not f.is_semi_planar])
def test_odd_sizes(format: PixelFormat) -> None:
    total = sum(p.size for p in format.plane_table(33, 17))
    both_ways(Tensor.image(format, 33, 17, values((total,), DType.UINT8)))


@pytest.mark.parametrize("row", DTYPES)
def test_theirs_from_their_builder(row: DType) -> None:
    data = values((3, 8), row).tobytes()
    assert row.blob is not None
    with published.build((3, 8), row.blob, data) as theirs:
        wire = theirs.export()
    ours = ferry.loads(wire)
    assert (ours.dtype, ours.shape, payload(ours)) == (row, (3, 8), data)
    assert ferry.dumps(ours) == wire


@pytest.mark.parametrize("format", PixelFormat)
@pytest.mark.parametrize("row", [DType.UINT8, DType.INT8, DType.UINT16, DType.FLOAT16, DType.FLOAT32])
def test_theirs_from_their_image_allocator(format: PixelFormat, row: DType) -> None:
    assert row.blob is not None
    with published.image(format.value, 64, 48, lambda n: values((n,), DType.UINT8).tobytes(), row.blob) as theirs:
        wire = theirs.export()
        ours = ferry.loads(wire)
        agree(theirs, ours)
    assert (ours.width, ours.height, ours.format) == (64, 48, format)
    assert ferry.dumps(ours) == wire


# ---- what only the reference mode of the published library takes ----


@pytest.mark.parametrize(
    ("format", "width", "height", "pitch"),
    [("NV12", 33, 17, 34), ("NV12", 33, 17, 64), ("NV16", 33, 17, 64), ("NV24", 33, 17, 64), ("rgb8", 33, 17, 128),
     ("mono8", 33, 17, 64), ("rgb8_planar", 33, 17, 64), ("NV12", 64, 48, 128)],
)  # fmt: skip
def test_odd_and_wide_images_by_reference(format: str, width: int, height: int, pitch: int) -> None:
    """Our plane records in the published library's hands, over a memfd made here."""
    total = sum(p.size for p in PixelFormat(format).plane_table(width, height, pitch))
    memory = values((total,), DType.UINT8).tobytes()
    wire = by_reference(Tensor.image(format, width, height, memory, stride=pitch))
    descriptor = os.memfd_create("frame")
    try:
        os.write(descriptor, memory)
        with Published.imported(wire, [descriptor]) as theirs:
            assert theirs.shape == PixelFormat(format).allocation(width, height)
            assert theirs.format == format
            assert theirs.copy_out()[:total] == memory
    finally:
        os.close(descriptor)


def by_reference(t: Tensor) -> bytes:
    """``t`` with its planes one behind the other in descriptor 0: as a blob of SHM memory has them."""
    view = blob.BlobView.parse(ferry.dumps(t))
    out = bytearray(view.data[: view.regions.planes])
    offset = 0
    for plane in view.planes:
        blob.write_plane(out, blob.BlobPlane(0, offset, plane.stride, plane.size, plane.used))
        offset += plane.size
    head = bytearray()
    planes_bytes = len(out) - view.regions.planes
    view.header._replace(size=len(out), planes_bytes=planes_bytes, storage_kind=1, pid=os.getpid()).write_to(head)
    out[: len(head)] = head
    return bytes(out)


def test_where_the_published_library_reads_less_than_the_format() -> None:
    """Facts about it, so that a later version that reads more is noticed."""
    for t in (
        Tensor.from_array(np.float32(1)),  # no dimensions
        Tensor.image("NV12", 33, 17, bytes(34 * 26)),  # odd width, inline
        Tensor.image("rgb8", 33, 17, bytes(128 * 17), stride=128),  # a pitch wider than the row, inline
    ):
        with pytest.raises(Refused):
            Published.imported(ferry.dumps(t))
