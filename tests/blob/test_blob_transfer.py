"""Tensors to blobs and back."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import BLOB_DTYPES, bare_tensors, damaged, images, same_pixels

from tensorferry import (
    Colorimetry,
    DType,
    FerryError,
    Labels,
    Lossy,
    Plane,
    Quantization,
    StorageKind,
    Tensor,
    Unsupported,
    WireError,
    blob,
)
from tensorferry.blob import BlobPlane, BlobView, TransportMode
from tensorferry.tensor import Description


@given(bare_tensors(BLOB_DTYPES) | images())
def test_any_tensor_that_a_blob_can_carry_goes_round(t: Tensor) -> None:
    wire, fds = blob.export(t)
    assert fds == []
    back = blob.import_(wire)
    assert same_pixels(back, t)
    assert blob.export(back) == (wire, [])
    view = BlobView.parse(wire)
    assert view.header.size == len(wire)
    assert len(wire) % 8 == 0
    assert (view.header.pid, view.header.fence_fd) == (0, -1)
    for plane in view.planes:
        assert plane.is_inline
        assert plane.offset == 0
        assert plane.size == plane.used == len(plane.data)


@given(bare_tensors(BLOB_DTYPES) | images())
def test_parts_join_to_the_blob_and_borrow_the_planes(t: Tensor) -> None:
    parts = blob.export_parts(t)
    wire = blob.export(t)[0]
    assert b"".join(parts) == wire
    out = bytearray(b"\xee" * (len(wire) + 5))
    assert blob.export_into(t, out) == len(wire)
    assert out == wire + b"\xee" * 5
    if len(wire) > 1:
        with pytest.raises(ValueError, match="do not fit"):
            blob.export_into(t, bytearray(len(wire) - 1))


def test_parts_copy_no_payload() -> None:
    a = np.arange(6, dtype=np.float32)
    payload = blob.export_parts(Tensor.from_array(a))[1]
    assert np.shares_memory(np.frombuffer(payload, np.float32), a)


def test_planes_borrow_from_the_blob_read_only() -> None:
    wire = bytearray(blob.export(Tensor.from_array(np.arange(4, dtype=np.int32)))[0])
    for _ in range(2):  # the second time the layout is a remembered one
        t = blob.import_(wire)
        view = t.numpy()
        assert view.tolist() == [0, 1, 2, 3]
        assert not view.flags.writeable
        wire[-16] += 1
        assert view[0] == 1
        wire[-16] -= 1
        with pytest.raises(BufferError):
            wire.append(0)
        del t, view


@given(st.data())
@settings(max_examples=300)
def test_damage_is_refused_with_an_error_of_ours(data: st.DataObject) -> None:
    t = data.draw(bare_tensors(BLOB_DTYPES) | images())
    wire = data.draw(damaged(blob.export(t)[0]))
    look(wire)


@given(st.binary(max_size=400))
def test_any_bytes_at_all(wire: bytes) -> None:
    look(wire)


def look(wire: bytes) -> None:
    """Read ``wire`` and all that it says: a tensor, or an error of ours, in bounded memory."""
    tracemalloc.start()
    try:
        t = blob.import_(wire)
        for i in range(len(t.planes)):
            try:
                t.plane(i)
            except FerryError:
                continue
        t.numpy()
    except (WireError, Unsupported):
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 * len(wire) + 2**20


@pytest.mark.parametrize(
    "field",
    [
        "ndim",
        "plane_count",
        "quant_scales_len",
        "quant_zero_points_len",
        "strings_bytes",
        "strides_len",
        "planes_bytes",
        "size",
    ],
)
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 1000, 10_000, 2**20, 2**32 - 1, 2**63, 2**64 - 1])
def test_forged_counts_cost_no_memory(field: str, count: int) -> None:
    wire = bytearray(blob.export(Tensor.from_array(np.zeros(600_000, np.uint8)))[0])
    header = BlobView.parse(wire).header
    width = "Q" if field in ("planes_bytes", "size") else "I"
    offset = {
        "ndim": 44,
        "plane_count": 48,
        "quant_scales_len": 52,
        "quant_zero_points_len": 56,
        "strings_bytes": 60,
        "strides_len": 64,
        "planes_bytes": 16,
        "size": 0,
    }[field]
    struct.pack_into(f"<{width}", wire, offset, count % (1 << (64 if width == "Q" else 32)))
    if field == "ndim":
        struct.pack_into("<I", wire, 64, count % 2**32)
    assert header.size == len(wire)
    look(bytes(wire))


def test_empty_strides_stay_empty() -> None:
    """Empty strides are a value of their own on the wire: dense C order, unsaid."""
    unsaid = Tensor(Description(DType.INT16, (2, 3)), (Plane(memoryview(bytes(12)), 12),))
    wire = blob.export(unsaid)[0]
    assert BlobView.parse(wire).header.strides_len == 0
    for _ in range(2):
        back = blob.import_(wire)
        assert back.strides == (6, 2)
        assert not back.strides_given
        assert blob.export(back)[0] == wire
    assert Tensor.from_array(np.zeros((2, 3), np.int16)).strides_given


def test_strides_that_came_over_the_wire_stay() -> None:
    padded = Tensor(Description(DType.INT16, (2, 3), (8, 2)), (Plane(memoryview(bytes(range(14))), 14),))
    wire = blob.export(padded)[0]
    back = blob.import_(wire)
    assert back.strides == (8, 2)
    assert back.numpy().tolist() == [[256, 770, 1284], [2312, 2826, 3340]]
    assert blob.export(back)[0] == wire


@pytest.mark.parametrize(
    "a",
    [
        np.arange(12, dtype=np.int16).reshape(3, 4).T,
        np.arange(12, dtype=np.int16)[::-1],
        np.arange(12, dtype=np.int16)[::3],
        np.broadcast_to(np.int16(7), (2, 3)),
    ],
)
def test_arrays_not_in_c_order_travel_in_c_order(a: np.ndarray[Any, Any]) -> None:
    """Readers in the field take an inline plane for C order whatever its strides say; and gaps stay at home."""
    wire = blob.export(Tensor.from_array(a))[0]
    assert wire == blob.export(Tensor.from_array(np.ascontiguousarray(a)))[0]


def test_a_blob_in_the_middle_of_a_buffer_and_bytes_behind_it() -> None:
    t = Tensor.from_array(np.arange(5, dtype=np.uint8))
    wire = blob.export(t)[0]
    for buffer in (memoryview(b"xyz" + wire + b"more")[3:], memoryview(bytearray(wire + b"more"))):
        assert blob.import_(buffer).numpy().tolist() == [0, 1, 2, 3, 4]
    as_words = memoryview(wire).cast("Q")
    assert blob.import_(as_words).numpy().tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="gaps"):
        blob.import_(memoryview(wire)[::2])


@pytest.mark.parametrize("where", ["strings", "planes", "end"])
def test_what_a_later_revision_appends_is_kept(where: str) -> None:
    t = Tensor.image("NV12", 4, 2, bytes(range(12)), colorimetry=Colorimetry("bt709"))
    wire = bytearray(blob.export(t)[0])
    regions = BlobView.parse(wire).regions
    extra = b"appended" * 3
    at = {"strings": regions.planes, "planes": regions.end, "end": len(wire)}[where]
    wire[at:at] = extra
    struct.pack_into("<Q", wire, 0, len(wire))
    if where == "strings":
        struct.pack_into("<I", wire, 60, regions.planes - regions.strings + len(extra))
    if where == "planes":
        struct.pack_into("<Q", wire, 16, regions.end - regions.planes + len(extra))
    back = blob.import_(wire)
    assert same_pixels(back, t)
    assert blob.export(back)[0] == wire
    assert blob.export(back.replace(colorimetry=Colorimetry("bt709")))[0] == wire
    assert extra in blob.export(back.replace(colorimetry=None))[0]


def test_a_stream_of_one_layout_is_checked_every_time() -> None:
    """What stands before the payload is remembered; the payload's presence and the values are not."""
    frames = [blob.export(Tensor.from_array(np.full(9, i, np.float32)))[0] for i in range(5)]
    assert [blob.import_(frame).numpy()[8] for frame in frames] == [0, 1, 2, 3, 4]
    for cut in (1, 8, 40, len(frames[0]) - 72):
        with pytest.raises(blob.BlobError) as caught:
            blob.import_(frames[0][:-cut])
        assert type(caught.value).__name__ == "Truncated"
    for i in range(600):  # more layouts than are remembered
        assert blob.import_(blob.export(Tensor.from_array(np.zeros(i, np.uint8)))[0]).shape == (i,)


# ---- what a blob cannot say ----


def test_losses_are_named() -> None:
    labelled = Tensor.from_array(np.zeros(2, np.float32), labels=Labels(name="x", seq=3))
    with pytest.raises(Lossy) as caught:
        blob.export(labelled)
    assert caught.value.fields == ("labels.name", "labels.seq")
    assert "lossy=True" in str(caught.value)
    assert blob.import_(blob.export(labelled, lossy=True)[0]).labels is None
    assert blob.export(labelled.replace(labels=Labels()))[0] == blob.export(labelled, lossy=True)[0]
    for row in (DType.BOOL, DType.BFLOAT16):
        t = Tensor.from_array(np.zeros(2, row.numpy), labels=Labels(name="x"))
        for lossy in (False, True):
            with pytest.raises(Lossy) as caught:
                blob.export(t, lossy=lossy)
            assert caught.value.fields == (("dtype",) if lossy else ("dtype", "labels.name"))
            assert str(row) in str(caught.value)


def test_planes_that_cannot_go_inline() -> None:
    away = Tensor(Description(DType.UINT8, (6,)), (Plane(None, 6, 6),), storage=StorageKind.DMA_BUF)
    tiled = Tensor(Description(DType.UINT8, (6,)), (Plane(memoryview(bytes(6)), 6, modifier=1),))
    for t, field in ((away, "storage"), (tiled, "modifier")):
        with pytest.raises(Unsupported, match="by reference") as caught:
            blob.export(t)
        assert caught.value.field == field


def test_a_plane_longer_than_its_record_can_count() -> None:
    t = Tensor.from_array(np.zeros(2**32, np.uint8))  # pages that nobody touches
    with pytest.raises(Unsupported, match="by reference") as caught:
        blob.export_parts(t)
    assert caught.value.field == "data_len"


def test_heap_memory_has_no_handle() -> None:
    with pytest.raises(Unsupported, match="no handle to pass on") as caught:
        blob.export(Tensor.from_array(np.zeros(2)), mode=TransportMode.REFERENCE)
    assert caught.value.field == "storage"


# ---- reference records ----


def rewritten(planes: list[BlobPlane], format: str = "") -> bytes:
    """A blob of uint8 [2, 4] with ``planes`` in place of its own."""
    out = bytearray(blob.HEADER_LEN) + struct.pack("<2Q2q", 2, 4, 4, 1)
    strings_at = len(out)
    blob.write_strings(out, blob.BlobStrings(format))
    planes_at = len(out)
    for plane in planes:
        blob.write_plane(out, plane)
    head = bytearray()
    blob.BlobHeader.empty()._replace(
        size=len(out),
        planes_bytes=len(out) - planes_at,
        storage_kind=1,
        ndim=2,
        plane_count=len(planes),
        strings_bytes=planes_at - strings_at,
        strides_len=2,
    ).write_to(head)
    out[: len(head)] = head
    return bytes(out)


def reference(handle: int = 0, **fields: Any) -> BlobPlane:
    return BlobPlane(handle, **{"stride": 8, "size": 8, "used": 8, **fields})


inline = BlobPlane(data=bytes(8), size=8, used=8, stride=8)


@pytest.mark.parametrize(
    ("planes", "format", "field"),
    [
        ([reference(data=bytes(8))], "", "data"),
        ([reference(-2)], "", "handle"),
        ([reference(0)], "", "handle"),  # no descriptor came along
        ([inline, reference(0)], "NV12", "handle"),
        ([reference(0), inline], "NV12", "handle"),
        ([reference(0, used=9)], "", "used"),
        ([], "", "plane_count"),
        ([inline, inline], "", "plane_count"),
        ([inline], "NV12", "plane_count"),
        ([inline], "rgb8", "shape"),
        ([], "a format from tomorrow", "plane_count"),
        ([BlobPlane(data=bytes(7), size=7, used=7)], "", "size"),
        ([BlobPlane(data=bytes(8), size=8, used=8), BlobPlane(data=bytes(3), size=3)], "NV12", "size"),
    ],
)
def test_records_that_contradict_each_other(planes: list[BlobPlane], format: str, field: str) -> None:
    with pytest.raises(blob.BlobError) as caught:
        blob.import_(rewritten(planes, format))
    assert type(caught.value).__name__ == "Malformed"
    assert caught.value.field == field


def test_an_unknown_format_is_carried_with_its_planes() -> None:
    wire = rewritten([inline, inline, inline], "P010")
    t = blob.import_(wire)
    assert t.format == "P010"
    assert [bytes(p.data or b"") for p in t.planes] == [bytes(8)] * 3
    with pytest.raises(Unsupported, match="'P010' is unknown here"):
        t.numpy()
    again = blob.import_(blob.export(t)[0])
    assert (again.format, len(again.planes)) == ("P010", 3)


def test_what_an_unknown_format_addresses_is_not_guessed() -> None:
    """NV12 under a name from tomorrow: its chroma is smaller than the grid, and comes through untouched."""
    wire = bytearray(blob.export(Tensor.image("NV12", 4, 2, bytes(range(12))))[0])
    wire[wire.index(b"NV12") : wire.index(b"NV12") + 4] = b"NV21"
    t = blob.import_(wire)
    assert [bytes(p.data or b"") for p in t.planes] == [bytes(range(8)), bytes(range(8, 12))]
    assert blob.export(t)[0] == wire


def test_quantization_of_an_image() -> None:
    t = Tensor.image("rgb8_planar", 4, 2, bytes(24), dtype="int8", quantization=Quantization.per_channel(0, [1, 2, 3]))
    assert blob.import_(blob.export(t)[0]).quantization == t.quantization
