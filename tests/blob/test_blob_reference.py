"""Blobs by reference: records and a descriptor table, and what is believed of either."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from descriptors import SEALS, memfd, none_left, refers_to
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from references import by_reference, changed, records
from strategies import BLOB_DTYPES, INTEGERS, bare_tensors, colours, damaged, images, quantizations, same_pixels

import tensorferry as ferry
from tensorferry import (
    DType,
    ForgedLength,
    Labels,
    Lossy,
    Malformed,
    PixelFormat,
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

SHM, DMA_BUF = 1, 2


@st.composite
def shared_tensors(draw: st.DrawFn) -> Tensor:
    """Any tensor that a blob can carry, in shared memory."""
    like = draw(bare_tensors(BLOB_DTYPES) | images())
    if isinstance(like.format, PixelFormat):
        stride = like.planes[0].stride
        t = ferry.allocate_image(
            like.format, like.width, like.height, storage="shm", stride=stride, dtype=like.dtype,
            colorimetry=like.colorimetry,
        )  # fmt: skip
        for i in range(len(t.planes)):
            t.plane(i)[:] = like.plane(i)
    else:
        t = ferry.allocate(like.shape, like.dtype, storage="shm")
        t.numpy()[...] = like.numpy()
    return t.replace(quantization=like.quantization)


# ---- there and back ----


@given(shared_tensors())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_tensor_goes_round(t: Tensor) -> None:
    with none_left(quick=True):
        wire, fds = by_reference(t)
        assert len(fds) == 1
        back = blob.import_(wire, fds)
        assert same_pixels(back, t)
        assert (back.strides, back.strides_given, back.storage) == (t.strides, t.strides_given, "shm")
        again, table = by_reference(back)
        assert again == wire  # and the table is its own
        assert [refers_to(fd) for fd in table] == [refers_to(fd) for fd in fds]
        assert table != fds
        view = BlobView.parse(wire)
        assert (view.header.pid, view.header.fence_fd) == (os.getpid(), -1)
        assert view.header.storage_kind == SHM
        assert len(wire) == view.header.size
        assert not any(record.is_inline or len(record.data) or len(record.handle_bytes) for record in view.planes)
        back.close()


@pytest.mark.parametrize("format", PixelFormat)
@pytest.mark.parametrize(("width", "height"), [(33, 17), (1, 1), (64, 48)])
@pytest.mark.parametrize("stride", [None, 320])
def test_planes_of_one_allocation_share_an_entry(
    format: PixelFormat, width: int, height: int, stride: int | None
) -> None:
    with none_left():
        t = ferry.allocate_image(format, width, height, storage="shm", stride=stride)
        t.numpy()[...] = 3
        wire, fds = by_reference(t)
        assert len(fds) == 1
        offset = 0
        for record, plane in zip(records(wire), t.planes, strict=True):
            assert (record.handle, record.offset, record.size, record.used) == (0, offset, plane.size, plane.size)
            assert (record.stride, record.modifier) == (plane.stride, 0)
            offset += record.size
        back = blob.import_(wire, fds)
        assert same_pixels(back, t)
        back.close()
        t.close()


def test_quantization_and_colours_travel() -> None:
    t = ferry.allocate_image(
        "rgb8", 5, 3, storage="shm", dtype="int8", colorimetry=ferry.Colorimetry("srgb", "", "", "full")
    )
    t = t.replace(quantization=Quantization.per_channel(2, [1, 2, 3], [4, 5, 6]))
    back = blob.import_(*by_reference(t))
    assert (back.quantization, back.colorimetry) == (t.quantization, t.colorimetry)


@contextmanager
def memories(*contents: bytes, seals: int = SEALS) -> Iterator[list[int]]:
    with ExitStack() as stack:
        yield [stack.enter_context(memfd(data, seals=seals)) for data in contents]


def test_several_descriptors_in_one_tensor() -> None:
    with none_left():
        with memories(b"\1" * 20, b"\2" * 20) as fds:
            t = ferry.image_from_fd(fds, "NV12", 4, 4, offset=[4, 6])
        wire, table = by_reference(t)
        assert [(r.handle, r.offset) for r in records(wire)] == [(0, 4), (1, 6)]
        assert len(set(table)) == 2
        back = blob.import_(wire, table)
        t.close()
        assert [set(back.plane(i).ravel()) for i in range(2)] == [{1}, {2}]
        # The table's order is what the records say: swapped, the planes are.
        wire, table = by_reference(back)
        swapped = blob.import_(wire, table[::-1])
        assert [set(swapped.plane(i).ravel()) for i in range(2)] == [{2}, {1}]
        swapped.close()
        back.close()


def test_planes_of_two_allocations_in_any_order() -> None:
    """Four planes in two memories, turn about: two entries."""
    with none_left(), memories(bytes(range(8)), bytes(range(100, 108))) as (a, b):
        t = ferry.image_from_fd([a, b, a, b], "rgba8_planar", 2, 2, offset=[0, 0, 4, 4])
        wire, table = by_reference(t)
        assert [(r.handle, r.offset) for r in records(wire)] == [(0, 0), (1, 0), (0, 4), (1, 4)]
        assert len(table) == 2
        back = blob.import_(wire, table)
        assert [int(back.plane(i)[0, 0]) for i in range(4)] == [0, 100, 4, 104]
        back.close()
        t.close()


def test_a_table_with_more_than_is_needed_and_with_the_same_twice() -> None:
    with none_left(), memories(b"....", b"abcdef") as (other, fd):
        wire = changed(by_reference(ferry.allocate(6, "uint8", storage="shm"))[0], [BlobPlane(2, 0, 6, 6, 6)])
        with blob.import_(wire, [other, other, fd, fd]) as t:
            assert bytes(t.numpy()) == b"abcdef"


# ---- whose descriptors they are ----


def test_borrowed_on_export() -> None:
    with none_left():
        t = ferry.allocate(6, "uint8", storage="shm")
        handle = t.planes[0].handle
        assert handle is not None
        for _ in range(3):
            assert by_reference(t)[1] == [handle.fileno()]
        assert os.fstat(handle.fileno())
        t.close()


def test_duplicated_on_import() -> None:
    with none_left():
        t = ferry.allocate(6, "uint8", storage="shm")
        t.numpy()[:] = range(6)
        wire, fds = by_reference(t)
        back = blob.import_(wire, fds)
        t.close()
        assert back.numpy().tolist() == [0, 1, 2, 3, 4, 5]
        assert not os.get_inheritable(by_reference(back)[1][0])
        back.close()


def test_the_producer_writes_and_the_receiver_sees() -> None:
    t = ferry.allocate(6, "uint8", storage="shm")
    back = blob.import_(*by_reference(t))
    t.numpy()[:] = 9
    assert back.numpy().tolist() == [9] * 6
    with pytest.raises(ValueError, match="read-only"):
        back.numpy()[0] = 1
    writable = blob.import_(*by_reference(t), writable=True)
    writable.numpy()[:] = 4
    assert t.numpy().tolist() == back.numpy().tolist() == [4] * 6


def test_the_pid_is_the_exporters_after_a_fork_too() -> None:
    """The blob is remembered, with the pid in it; a forked child has another."""
    t = ferry.allocate(6, "uint8", storage="shm")
    assert BlobView.parse(by_reference(t)[0]).header.pid == os.getpid()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "getpid", lambda: 4242)
        assert BlobView.parse(by_reference(t)[0]).header.pid == 4242
    assert BlobView.parse(by_reference(t)[0]).header.pid == os.getpid()


# ---- what is not exported ----


def test_memory_without_a_descriptor_is_refused_never_inlined() -> None:
    heap = [ferry.allocate(6, "uint8"), Tensor.from_array(np.zeros(6)), ferry.allocate_image("NV12", 4, 4)]
    pbo = Tensor(Description(DType.UINT8, (6,)), (Plane(None, 6, 6),), storage=StorageKind.PBO)
    shm = ferry.allocate(6, "uint8", storage="shm")
    over_array = Tensor.from_array(shm.numpy())  # its array has no descriptor, whatever it is in
    for t in (*heap, pbo, over_array):
        with pytest.raises(Unsupported, match="no handle to pass on") as caught:
            by_reference(t)
        assert caught.value.field == "storage"
        assert "export it inline" in str(caught.value)


def test_memory_that_was_read_out_is_heap_memory() -> None:
    with memories(b"abcdef", seals=0) as fds:
        t = blob.import_(changed(by_reference(ferry.allocate(6, "uint8", storage="shm"))[0]), fds)
    assert t.storage == "mem"
    with pytest.raises(Unsupported, match="no handle"):
        by_reference(t)
    assert bytes(blob.import_(blob.export(t)[0]).numpy()) == b"abcdef"


def test_losses_by_reference() -> None:
    t = ferry.allocate(2, "bool", storage="shm")
    with pytest.raises(Lossy, match="dtype"):
        by_reference(t)
    t = ferry.allocate(2, "uint8", storage="shm").replace(labels=Labels(name="x"))
    with pytest.raises(Lossy, match=r"labels\.name"):
        by_reference(t)
    wire, fds = blob.export(t, TransportMode.REFERENCE, lossy=True)
    assert blob.import_(wire, fds).labels is None


def test_shared_tensors_go_inline_when_asked() -> None:
    t = ferry.allocate_image("NV12", 33, 17, storage="shm")
    t.plane(1)[:] = 7
    back = blob.import_(blob.export(t)[0])
    assert same_pixels(back, t)
    assert back.storage == "mem"


# ---- what is believed ----


def six(**header: int) -> tuple[bytes, BlobPlane]:
    """A blob of uint8 [6] by reference, and its record to be changed."""
    wire, _ = by_reference(ferry.allocate(6, "uint8", storage="shm"))
    wire = changed(wire, None, **header)
    return wire, records(wire)[0]


def refused(wire: bytes, fds: Sequence[int], error: type[Exception], field: str, **options: Any) -> None:
    """The same refusal every time: that a blob is remembered changes nothing."""
    with none_left():
        for _ in range(3):
            with pytest.raises(error) as caught:
                blob.import_(wire, fds, **options)
            assert type(caught.value) is error
            assert getattr(caught.value, "field", None) == field
            del caught


@pytest.mark.parametrize("first_believed", [False, True])
@pytest.mark.parametrize(
    ("change", "fds", "error", "field"),
    [
        ({"handle": 1}, 1, Malformed, "handle"),
        ({"handle": 0}, 0, Malformed, "handle"),
        ({"handle": 2**63 - 1}, 1, Malformed, "handle"),
        ({"handle": -2}, 1, Malformed, "handle"),
        ({"handle_bytes": b"12345678"}, 1, Malformed, "handle_bytes"),
        ({"data": bytes(6)}, 1, Malformed, "data"),
        ({"used": 7}, 1, Malformed, "used"),
        ({"size": 5, "used": 5}, 1, Malformed, "size"),
        ({"size": 7}, 1, ForgedLength, "size"),
        ({"offset": 1}, 1, ForgedLength, "size"),
        ({"offset": 2**64 - 1}, 1, ForgedLength, "size"),
        ({"size": 2**64 - 1, "used": 0}, 1, ForgedLength, "size"),
        ({"offset": 2**64 - 6}, 1, ForgedLength, "size"),
    ],
)
def test_records_that_are_refused(
    first_believed: bool, change: dict[str, Any], fds: int, error: type[Exception], field: str
) -> None:
    wire, record = six()
    for name, value in change.items():
        setattr(record, name, value)
    with memories(b"abcdef") as table:
        if first_believed:
            blob.import_(wire, table).close()
        refused(changed(wire, [record]), table[:fds], error, field)


@pytest.mark.parametrize("size", [0, 1, 5])
def test_memory_smaller_than_claimed_is_refused_before_it_is_mapped(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wire, _ = six()
    with memories(b"abcdef") as good, memories(bytes(size)) as small:
        blob.import_(wire, good).close()  # from here on the blob is a remembered one
        with monkeypatch.context() as patched:
            patched.setattr("mmap.mmap", lambda *_, **__: pytest.fail("mapped"))
            refused(wire, small, ForgedLength, "size")
        blob.import_(wire, good).close()


def test_what_a_descriptor_is_counts_not_what_the_blob_says() -> None:
    """MEM, SHM or DMA_BUF: the descriptor leads to what it leads to."""
    with memories(b"abcdef") as sealed, memories(b"abcdef", seals=0) as unsealed, none_left():
        for kind in (0, SHM, DMA_BUF):
            wire, _ = six(storage_kind=kind)
            for fds, storage in ((sealed, "shm"), (unsealed, "mem")):
                t = blob.import_(wire, fds)
                assert (bytes(t.numpy()), t.storage) == (b"abcdef", storage)
                t.close()


def test_no_memory_is_refused_the_second_time_too(tmp_path: Any) -> None:
    wire, _ = six()
    with memories(b"abcdef") as good:
        reading, writing = os.pipe()
        folder = os.open(tmp_path, os.O_RDONLY)
        for _ in range(2):
            refused(wire, [reading], Malformed, "handle")
            refused(wire, [folder], Malformed, "handle")
            refused(wire, [], Malformed, "handle")
            refused(wire, [10_000], Unsupported, "fd")
            with none_left():
                blob.import_(wire, good).close()
        for fd in (reading, writing, folder):
            os.close(fd)


def test_policies() -> None:
    wire, _ = six()
    with memories(b"abcdef") as sealed, memories(b"abcdef", seals=0) as unsealed:
        refused(wire, unsealed, Unsupported, "policy", policy="refuse")
        blob.import_(wire, sealed, policy="refuse").close()
        with none_left(), pytest.raises(ValueError, match="none of 'read', 'refuse'"):
            blob.import_(wire, sealed, policy="map")
        t = blob.import_(wire, unsealed, writable=True)
        os.ftruncate(unsealed[0], 0)
        assert bytes(t.numpy()) == b"abcdef"
        assert not t.numpy().flags.writeable


@pytest.mark.parametrize("fence_fd", [0, 3, 2**31 - 1])
def test_a_fence_is_refused_unless_the_caller_has_waited(fence_fd: int) -> None:
    wire, _ = six(fence_fd=fence_fd)
    with memories(b"abcdef") as fds:
        for _ in range(2):
            refused(wire, fds, Unsupported, "fence_fd")
            blob.import_(wire, fds, fence="ignore").close()
        with pytest.raises(ValueError, match="neither None nor 'ignore'"):
            blob.import_(wire, fds, fence="wait")
    without, _ = six()
    with memories(b"abcdef") as fds, none_left():
        blob.import_(without, fds, fence="ignore").close()


def test_tiled_memory_is_carried_and_not_read_as_rows() -> None:
    wire, record = six()
    record.modifier = 0x0100000000000001
    with memories(b"abcdef") as fds, none_left():
        t = blob.import_(changed(wire, [record]), fds)
        with pytest.raises(Unsupported, match="tiled"):
            t.numpy()
        assert records(by_reference(t)[0])[0].modifier == 0x0100000000000001
        t.close()


def test_used_and_offset_go_on_as_they_came() -> None:
    wire, record = six()
    record.used, record.offset = 3, 2
    with memories(b"..abcdef") as fds, none_left():
        t = blob.import_(changed(wire, [record]), fds)
        (again,) = records(by_reference(t)[0])
        assert (again.used, again.offset, again.size) == (3, 2, 6)
        assert bytes(t.numpy()) == b"abcdef"
        t.close()


def test_an_unknown_format_is_carried_by_reference() -> None:
    """Its planes, as many as came, in as many memories."""
    described = Description(DType.UINT8, (6,), (1,), format="P010")
    inline = Tensor(described, tuple(Plane(memoryview(bytes(6)), 6) for _ in range(3)))
    wire = changed(blob.export(inline)[0], [BlobPlane(i % 2, i, 6, 6, 6) for i in range(3)], storage_kind=SHM)
    with memories(bytes(range(9)), bytes(range(100, 109))) as fds, none_left():
        t = blob.import_(wire, fds)
        assert [bytes(p.data or b"")[:1] for p in t.planes] == [b"\0", b"e", b"\2"]
        again, table = by_reference(t)
        assert BlobView.parse(again).strings.format == "P010"
        assert len(table) == 2
        t.close()


def test_an_unknown_element_type_is_unsupported() -> None:
    wire, _ = six(dtype=200)
    with memories(b"abcdef") as fds:
        refused(wire, fds, Unsupported, "dtype")


@pytest.mark.parametrize("where", ["strings", "planes", "end"])
def test_what_a_later_revision_appends_is_kept(where: str) -> None:
    t = ferry.allocate_image("NV12", 4, 2, storage="shm")
    wire, fds = by_reference(t)
    plain, out = wire, bytearray(wire)
    regions = BlobView.parse(wire).regions
    extra = b"appended" * 3
    at = {"strings": regions.planes, "planes": regions.end, "end": len(wire)}[where]
    out[at:at] = extra
    struct.pack_into("<Q", out, 0, len(out))
    if where == "strings":
        struct.pack_into("<I", out, 60, regions.planes - regions.strings + len(extra))
    if where == "planes":
        struct.pack_into("<Q", out, 16, regions.end - regions.planes + len(extra))
    with none_left():
        for _ in range(3):
            back = blob.import_(bytes(out), fds)
            assert same_pixels(back, t)
            assert by_reference(back)[0] == out
            other = blob.import_(plain, fds)
            assert by_reference(other)[0] == plain  # the one does not rub off on the other
            back.close()
            other.close()


def test_bytes_behind_the_blob_are_not_part_of_it() -> None:
    wire, _ = six()
    with memories(b"abcdef") as fds, none_left():
        for data in (wire + b"more", bytearray(wire + b"more"), memoryview(b"xy" + wire + b"more")[2:]):
            for _ in range(2):
                with blob.import_(data, fds) as t:
                    assert bytes(t.numpy()) == b"abcdef"


def test_remembered_blobs_keep_nothing_of_the_callers_buffer() -> None:
    wire, _ = six()
    buffer = bytearray(wire)
    with memories(b"abcdef") as fds:
        t = blob.import_(buffer, fds)
        buffer += b"grown"  # a BufferError if it were borrowed
        buffer[:8] = bytes(8)
        assert bytes(blob.import_(wire, fds).numpy()) == b"abcdef"
        assert t.shape == (6,)


def test_more_blobs_than_are_remembered() -> None:
    with memories(bytes(4096)) as fds, none_left():
        for _ in range(2):
            for offset in range(600):
                wire, record = six()
                record.offset = offset
                t = blob.import_(changed(wire, [record]), fds)
                assert t.planes[0].offset == offset
                t.close()


@given(st.data())
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
def test_damage_is_refused_with_an_error_of_ours(data: st.DataObject) -> None:
    """With a real table beside it: a tensor whose every byte is there, or a refusal; and no descriptor left."""
    t = data.draw(shared_tensors())
    wire = data.draw(damaged(by_reference(t)[0]))
    seals = data.draw(st.sampled_from([SEALS, 0]))
    with memories(bytes(4096), bytes(64), seals=seals) as fds, none_left(quick=True):
        table = fds[: data.draw(st.integers(0, 2))]
        for _ in range(2):
            look(wire, table, writable=data.draw(st.booleans()))


@given(shared_tensors(), st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_records_are_refused_with_an_error_of_ours(t: Tensor, data: st.DataObject) -> None:
    wire, _ = by_reference(t)
    numbers = st.integers(0, 2**64 - 1) | st.integers(0, 5000) | st.sampled_from([2**63, 2**64 - 1, 4096, 4095])
    planes = records(wire)
    for plane in planes:
        for name in data.draw(st.sets(st.sampled_from(["offset", "size", "used", "stride", "modifier"]), max_size=2)):
            setattr(plane, name, data.draw(numbers))
        plane.handle = data.draw(st.sampled_from([0, 0, 1, 2, 2**31, 2**62]))
        plane.handle_bytes = data.draw(st.sampled_from([b"", b"", b"", bytes(24), bytes(64), b"xyz"]))
    kind = data.draw(st.sampled_from([SHM, SHM, DMA_BUF, 0, 3, 4, 5, 6, 2**32 - 1]))
    with memories(bytes(4096), bytes(64)) as fds, none_left(quick=True):
        for _ in range(2):
            look(changed(wire, planes, storage_kind=kind), fds)


def look(wire: bytes, fds: Sequence[int], **options: Any) -> None:
    """Import and read all that there is to read."""
    try:
        with blob.import_(wire, fds, **options) as t:
            for plane in t.planes:
                assert plane.data is not None
                assert len(plane.data) == plane.size
                bytes(plane.data)
            for i in range(len(t.planes)):
                try:
                    t.plane(i).sum()
                except (WireError, Unsupported):
                    continue
            t.numpy().sum()
    except (WireError, Unsupported):
        pass


@given(shared_tensors(), quantizations((3,)), colours)
@settings(max_examples=30)
def test_replaced_tensors_go_by_reference_over_the_same_memory(t: Tensor, q: Quantization | None, c: Any) -> None:
    other = t.replace(colorimetry=c, quantization=q if t.shape == (3,) and t.dtype in INTEGERS else None)
    back = blob.import_(*by_reference(other))
    assert back.colorimetry == other.colorimetry
    assert by_reference(other)[1] == by_reference(t)[1]
