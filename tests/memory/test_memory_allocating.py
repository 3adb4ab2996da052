"""New tensors: where their memory is, what it holds, and who may change its size."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from descriptors import SEALS, none_left, os_error

import tensorferry as ferry
from tensorferry import DType, PixelFormat, StorageKind, Tensor, Unsupported
from tensorferry.memory import Region

STORAGES = ["mem", "shm"]
PITCHES = [0, 1, 7, 64]


def address(array: np.ndarray[Any, Any]) -> int:
    place: int = array.__array_interface__["data"][0]
    return place


def region_of(t: Tensor) -> Region:
    handle = t.planes[0].handle
    assert isinstance(handle, Region)
    return handle


def mappings(fd: int) -> int:
    """How often this process has mapped what ``fd`` refers to."""
    inode = str(os.fstat(fd).st_ino)
    return sum(line.split()[4] == inode for line in Path("/proc/self/maps").read_text().splitlines())


def spec_planes(format: PixelFormat, width: int, height: int, pitch: int) -> list[tuple[int, int]]:
    """(stride, bytes) of every plane, as the table of spec/blob.md has them."""
    luma = (pitch, pitch * height)
    if format in ("rgb8_planar", "rgba8_planar"):
        return [luma] * (3 if format == "rgb8_planar" else 4)
    if format.is_semi_planar:
        chroma = {"NV12": -(-height // 2), "NV16": height, "NV24": 2 * height}[format.value]
        return [luma, (pitch, pitch * chroma)]
    return [luma]


def least_pitch(format: PixelFormat, width: int) -> int:
    channels = {"rgb8": 3, "rgba8": 4, "bgra8": 4, "YUYV": 2, "VYUY": 2}.get(format.value, 1)
    return channels * (width + width % 2 if format.is_semi_planar else width)


# ---- bare tensors ----


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("row", DType)
@pytest.mark.parametrize("shape", [(), (5,), (3, 0, 2), (0,), (2, 3, 4)], ids=str)
def test_zeros_to_write_into(storage: str, row: DType, shape: tuple[int, ...]) -> None:
    with none_left():
        t = ferry.allocate(shape, row, storage=storage)
        assert (t.shape, t.dtype, t.storage, t.format) == (shape, row, storage, None)
        assert t.numpy().flags.c_contiguous
        assert t.numpy().flags.writeable
        assert not t.numpy().any()
        t.numpy()[...] = 1
        assert (t.numpy() == 1).all()  # the memory itself, not a copy of it
        assert t.nbytes == t.numpy().nbytes
        t.close()


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4095, 4096, 4097, 100_003])
def test_alignment(size: int) -> None:
    heap = [ferry.allocate(size, "uint8") for _ in range(20)]
    assert [address(t.numpy()) % 64 for t in heap if size] == [0] * (20 if size else 0)
    shared = [ferry.allocate(size, "uint8", storage="shm") for _ in range(3)]
    assert [address(t.numpy()) % mmap.PAGESIZE for t in shared] == [0, 0, 0]


def test_heap_tensors_own_their_bytes_alone() -> None:
    a, b = ferry.allocate(8, "uint8"), ferry.allocate(8, "uint8")
    assert not np.shares_memory(a.numpy(), b.numpy())
    assert a.planes[0].handle is None
    assert a.nbytes == 8


def test_what_is_written_is_in_the_memory_behind_the_descriptor() -> None:
    t = ferry.allocate((2, 3), "int16", storage="shm")
    t.numpy()[:] = [[1, 2, 3], [4, 5, 6]]
    assert os.pread(region_of(t).fileno(), 12, 0) == np.arange(1, 7, dtype=np.int16).tobytes()


def test_shared_memory_is_sealed_for_good() -> None:
    t = ferry.allocate(5000, "uint8", storage="shm")
    fd = os.dup(region_of(t).fileno())  # whoever has the descriptor
    try:
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == SEALS
        size = os.fstat(fd).st_size
        assert size == 8192
        for other in (0, size - 1, size + 1):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, other)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        os.close(fd)


@pytest.mark.parametrize("format", [None, "NV12", "rgba8_planar"])
def test_one_mapping_that_no_child_inherits(format: str | None) -> None:
    make = ferry.allocate if format is None else lambda *_, **__: ferry.allocate_image(format, 33, 17, storage="shm")
    t = make((7, 7), "float32", storage="shm")
    fd = region_of(t).fileno()
    assert mappings(fd) == 1
    assert len({id(plane.handle) for plane in t.planes}) == 1
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    keep = os.dup(fd)
    try:
        t.close()
        assert mappings(keep) == 0
    finally:
        os.close(keep)


def test_huge_pages_work_or_are_refused() -> None:
    """Whether any are set aside is the administrator's choice."""
    with none_left():
        try:
            t = ferry.allocate(100, "uint8", storage="shm", huge_pages=True)
        except Unsupported as refused:
            assert refused.field in ("fd", "storage")  # noqa: PT017  # either is right
            return
        assert address(t.numpy()) % (2 << 20) == 0
        t.numpy()[:] = 7
        assert os.fstat(region_of(t).fileno()).st_size == 2 << 20
        t.close()


def test_what_cannot_be_asked_for() -> None:
    with none_left():
        for kind in (StorageKind.CUDA, "pbo", "iosurface", "d3d11"):
            with pytest.raises(Unsupported, match="use 'mem', 'shm' or 'dmabuf'"):
                ferry.allocate(1, "uint8", storage=kind)
        with pytest.raises(ValueError, match="nonsense"):
            ferry.allocate(1, "uint8", storage="nonsense")
        with pytest.raises(ValueError, match="negative"):
            ferry.allocate((2, -1), "uint8", storage="shm")
        with pytest.raises(Unsupported):
            ferry.allocate(1, "complex64")


@pytest.mark.parametrize("size", [2**62, 2**63 - 1, 2**63, 2**70])
def test_more_than_there_is(size: int) -> None:
    with none_left(), pytest.raises(Unsupported):
        ferry.allocate(size, "uint8", storage="shm")


def test_elsewhere_than_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for storage in ("shm", "dmabuf"):
        with pytest.raises(Unsupported, match="needs Linux; this is darwin"):
            ferry.allocate(1, "uint8", storage=storage)
    assert ferry.allocate(1, "uint8").shape == (1,)


# ---- images ----


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("format", PixelFormat)
@pytest.mark.parametrize(("width", "height"), [(33, 17), (1, 1), (2, 3), (64, 48), (0, 4), (4, 0)])
def test_every_image_format(storage: str, format: PixelFormat, width: int, height: int) -> None:
    with none_left():
        for extra in PITCHES:
            pitch = least_pitch(format, width) + extra
            t = ferry.allocate_image(format, width, height, storage=storage, stride=pitch if extra else None)
            assert (t.width, t.height, t.format, t.storage) == (width, height, format, storage)
            wanted = spec_planes(format, width, height, pitch)
            assert [(p.stride, p.size) for p in t.planes] == wanted
            assert [p.offset for p in t.planes] == [sum(size for _, size in wanted[:i]) for i in range(len(wanted))]
            fill_and_check(t)
            t.close()


def fill_and_check(t: Tensor) -> None:
    """Each plane written through its own view holds its own values: no two overlap, gaps stay zero."""
    for i in range(len(t.planes)):
        assert not t.plane(i).any()
        t.plane(i)[:] = i + 1
    for i, plane in enumerate(t.planes):
        assert plane.data is not None
        everything = np.frombuffer(plane.data, np.uint8)
        assert np.count_nonzero(everything == i + 1) == t.plane(i).size
        assert np.count_nonzero(everything) == t.plane(i).size
    t.numpy()[...] = 9
    assert (t.plane(0) == 9).all()


@pytest.mark.parametrize("storage", STORAGES)
def test_first_rows_are_aligned(storage: str) -> None:
    t = ferry.allocate_image("NV12", 33, 17, storage=storage, stride=64)
    assert address(t.plane(0)) % 64 == 0
    assert address(t.plane(1)) % 64 == 0  # since the pitch is


def test_samples_of_more_bytes_and_colours() -> None:
    colours = ferry.Colorimetry("bt2020", "pq")
    t = ferry.allocate_image("rgb8", 5, 3, dtype="uint16", stride=32, storage="shm", colorimetry=colours)
    assert (t.dtype, t.shape, t.strides, t.colorimetry) == (DType.UINT16, (3, 5, 3), (32, 6, 2), colours)


def test_images_that_cannot_be() -> None:
    with none_left():
        for bad in ((-1, 4), (4, -1)):
            with pytest.raises(ValueError, match="cannot be"):
                ferry.allocate_image("rgb8", *bad, storage="shm")
        with pytest.raises(ValueError, match="below the 34 bytes"):
            ferry.allocate_image("NV12", 33, 17, stride=33, storage="shm")
        with pytest.raises(ValueError, match="P010"):
            ferry.allocate_image("P010", 4, 4)


# ---- when the kernel says no ----


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("os.memfd_create", "ENOSYS"),
        ("os.memfd_create", "EMFILE"),
        ("os.ftruncate", "ENOSPC"),
        ("fcntl.fcntl", "EINVAL"),
        ("os.fstat", "EIO"),
        ("mmap.mmap", "ENOMEM"),
        ("mmap.mmap", "EMFILE"),
    ],
)
def test_failures_leave_nothing_open(monkeypatch: pytest.MonkeyPatch, call: str, error: str) -> None:
    with none_left(), monkeypatch.context() as patched:
        patched.setattr(call, failing(os_error(error)))
        for _ in range(50):
            with pytest.raises(Unsupported) as caught:
                ferry.allocate_image("NV12", 33, 17, storage="shm")
            if error == "EMFILE":
                assert caught.value.field == "RLIMIT_NOFILE"
            del caught


def test_running_out_of_memory_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with none_left(), monkeypatch.context() as patched:
        patched.setattr("mmap.mmap", failing(MemoryError()))
        with pytest.raises(MemoryError):
            ferry.allocate(4, "uint8", storage="shm")


def test_thousands_of_rounds() -> None:
    with none_left():
        for i in range(3000):
            ferry.allocate(i, "uint8", storage="shm").close()
        for _ in range(1000):
            ferry.allocate(10, "uint8", storage="shm")  # never closed: it goes with the object
