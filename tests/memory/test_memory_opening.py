"""Memory from elsewhere: what a descriptor is decides what may be done with it, whatever anyone claims."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from descriptors import SEALS, memfd, none_left
from strategies import same_bits

import tensorferry as ferry
from tensorferry import ForgedLength, Malformed, PixelFormat, StorageKind, Unsupported
from tensorferry.memory import Nature, nature_of, opening


def values(count: int) -> bytes:
    return np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8).tobytes()


@contextmanager
def tmpfs_file(data: bytes) -> Iterator[int]:
    """A file in /dev/shm, as shm_open makes them."""
    path = Path(f"/dev/shm/tensorferry-test-{os.getpid()}")
    path.write_bytes(data)
    fd = os.open(path, os.O_RDWR)
    path.unlink()
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def regular_file(path: Path, data: bytes) -> Iterator[int]:
    path.write_bytes(data)
    fd = os.open(path, os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


# ---- what it is ----


@pytest.mark.parametrize(
    ("seals", "nature"),
    [
        (SEALS, Nature.SEALED),
        (fcntl.F_SEAL_SHRINK, Nature.SEALED),
        (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE, Nature.SEALED),
        (fcntl.F_SEAL_GROW, Nature.UNSEALED),
        (fcntl.F_SEAL_WRITE, Nature.UNSEALED),
        (fcntl.F_SEAL_SEAL, Nature.UNSEALED),
        (0, Nature.UNSEALED),
    ],
)
def test_only_a_memfd_sealed_against_shrinking_is_mapped(seals: int, nature: Nature) -> None:
    with memfd(b"abcd", seals=seals) as fd, none_left():
        assert nature_of(fd) is nature
        assert nature.mappable == (nature is Nature.SEALED)
        t = ferry.from_fd(fd, (4,), "uint8")
        assert t.storage == ("shm" if nature.mappable else "mem")
        assert (t.planes[0].handle is not None) == nature.mappable
        assert bytes(t.numpy()) == b"abcd"
        t.close()


def test_files(tmp_path: Path) -> None:
    with tmpfs_file(b"abcd") as tmpfs, regular_file(tmp_path / "x", b"abcd") as regular, none_left():
        assert nature_of(tmpfs) in (Nature.UNSEALED, Nature.FILE)
        assert nature_of(regular) in (Nature.UNSEALED, Nature.FILE)  # the temporary folder may be a tmpfs
        assert not nature_of(tmpfs).mappable
        assert not nature_of(regular).mappable
        for fd in (tmpfs, regular):
            t = ferry.from_fd(fd, (4,), "uint8")
            assert (bytes(t.numpy()), t.storage) == (b"abcd", "mem")


@contextmanager
def no_memory(kind: str, tmp_path: Path) -> Iterator[int]:
    ends: Sequence[int]
    if kind == "a pipe":
        ends = os.pipe()
    elif kind == "a socket":
        ends = [end.detach() for end in socket.socketpair()]
    elif kind == "a directory":
        ends = [os.open(tmp_path, os.O_RDONLY)]
    elif kind == "a character device":
        ends = [os.open("/dev/zero", os.O_RDWR)]
    else:
        ends = [os.eventfd(0)] if hasattr(os, "eventfd") else [os.pidfd_open(os.getpid())]
    try:
        yield ends[0]
    finally:
        for fd in ends:
            os.close(fd)


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a directory", "a character device", "no memory"])
@pytest.mark.parametrize("policy", ["read", "refuse"])
def test_what_is_no_memory_is_refused(kind: str, policy: str, tmp_path: Path) -> None:
    with no_memory(kind, tmp_path) as fd, none_left():
        assert nature_of(fd) is Nature.OTHER
        for count in (0, 4):
            with pytest.raises(Malformed, match=f"is {kind}") as caught:
                ferry.from_fd(fd, (count,), "uint8", policy=policy)
            assert (caught.value.field, caught.value.value) == ("handle", fd)
            del caught


def test_what_is_not_open() -> None:
    fd = os.dup(0)
    os.close(fd)
    for number in (fd, -1):
        with pytest.raises(Unsupported, match="is not open"):
            nature_of(number)
        with pytest.raises(Unsupported, match="is not open"):
            ferry.from_fd(number, (4,), "uint8")


def test_descriptors_that_may_not_be_read() -> None:
    """Opened for writing only, or only as a place: an error of ours, not the kernel's."""
    with memfd(b"abcd", seals=0) as unsealed, memfd(b"abcd") as sealed:
        for source in (unsealed, sealed):
            for flags in (os.O_WRONLY, os.O_PATH):
                fd = os.open(f"/proc/self/fd/{source}", flags)
                try:
                    with none_left(), pytest.raises(Unsupported):
                        ferry.from_fd(fd, (4,), "uint8")
                finally:
                    os.close(fd)


# ---- mapping ----


def test_a_mapping_outlives_the_descriptor_that_it_came_by() -> None:
    with none_left():
        with memfd(b"abcd") as fd:
            t = ferry.from_fd(fd, (4,), "uint8")
            assert t.planes[0].handle is not None
            assert t.planes[0].handle.fileno() != fd
        assert bytes(t.numpy()) == b"abcd"
        t.close()


def test_mapped_read_only_unless_asked() -> None:
    with memfd(b"abcd") as fd, none_left():
        reader, writer = ferry.from_fd(fd, (4,), "uint8"), ferry.from_fd(fd, (4,), "uint8", writable=True)
        assert not reader.numpy().flags.writeable
        assert reader.planes[0].data is not None
        assert reader.planes[0].data.readonly
        with pytest.raises(ValueError, match="read-only"):
            reader.numpy()[0] = 1
        writer.numpy()[:] = list(b"wxyz")
        assert bytes(reader.numpy()) == b"wxyz"  # the other mapping of the same memory
        assert os.pread(fd, 4, 0) == b"wxyz"
        reader.close()
        writer.close()


def test_memory_sealed_against_writing() -> None:
    with memfd(b"abcd", seals=SEALS | fcntl.F_SEAL_WRITE) as fd, none_left():
        with pytest.raises(Unsupported, match="mapped for writing"):
            ferry.from_fd(fd, (4,), "uint8", writable=True)
        t = ferry.from_fd(fd, (4,), "uint8")
        assert (bytes(t.numpy()), t.storage) == (b"abcd", "shm")
        t.close()


def test_memory_sealed_against_writing_on_older_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.7 such memory cannot be shared even to read it."""
    import mmap

    real, tried = mmap.mmap, []

    def old_kernel(fd: int, size: int, flags: int, prot: int, **options: Any) -> mmap.mmap:
        tried.append((flags, prot))
        if flags == mmap.MAP_SHARED:
            raise PermissionError(1, "Operation not permitted")
        return real(fd, size, flags, prot, **options)

    with memfd(b"abcd", seals=SEALS | fcntl.F_SEAL_WRITE) as fd, none_left():
        with monkeypatch.context() as patched:
            patched.setattr(mmap, "mmap", old_kernel)
            t = ferry.from_fd(fd, (4,), "uint8")
        assert tried == [(mmap.MAP_SHARED, mmap.PROT_READ), (mmap.MAP_PRIVATE, mmap.PROT_READ)]
        assert bytes(t.numpy()) == b"abcd"
        t.close()


def test_a_descriptor_for_reading_cannot_be_mapped_for_writing() -> None:
    with memfd(b"abcd") as fd:
        reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        try:
            with none_left():
                with pytest.raises(Unsupported, match="mapped for writing"):
                    ferry.from_fd(reading, (4,), "uint8", writable=True)
                ferry.from_fd(reading, (4,), "uint8").close()
        finally:
            os.close(reading)


@pytest.mark.parametrize("seals", [SEALS, 0])
@pytest.mark.parametrize("offset", [0, 1, 4, 13])
def test_offsets_and_strides(seals: int, offset: int) -> None:
    data = values(200)
    flat = np.frombuffer(data, np.uint8)
    with memfd(data, seals=seals) as fd, none_left():
        for shape, strides, row in [
            ((3, 4), None, np.uint16),
            ((3, 4), (16, 4), np.uint16),
            ((3, 4), (2, 6), np.uint16),  # Fortran order
            ((2, 3), (0, 4), np.float32),  # one row, twice
            ((), None, np.float64),
            ((), (), np.float64),
            ((0, 4), None, np.uint8),
            ((1, 4), (-99, 1), np.uint8),  # a stride that leads nowhere
        ]:
            t = ferry.from_fd(fd, shape, row, offset=offset, strides=strides)
            dense = np.ndarray(shape, row, flat, offset, strides)  # NumPy's own idea of the same
            assert t.shape == shape
            assert same_bits(t.numpy(), dense)
            t.close()


def test_numbers_of_numpy_are_numbers() -> None:
    """Sizes as NumPy's integers must not overflow past the checks."""
    with memfd(bytes(64)) as fd, none_left():
        t = ferry.from_fd(fd, list(np.array([2, 3])), np.int16, offset=int(np.int64(2)))
        assert t.shape == (2, 3)
        t.close()
        with pytest.raises(ForgedLength):
            ferry.from_fd(fd, list(np.array([2**33, 2**33])), np.int16)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"shape": (2, -1)}, "negative dimension"),
        ({"shape": (2, 2), "strides": (1,)}, "1 strides for 2 dimensions"),
        ({"shape": (2, 2), "strides": (-1, 1)}, "before the first element"),
        ({"shape": (2,), "offset": -1}, "offset -1 lies before"),
        ({"shape": (2,), "policy": "copy"}, "none of 'read', 'refuse'"),
    ],
)
def test_what_addresses_nothing(options: dict[str, Any], match: str) -> None:
    with memfd(bytes(64)) as fd, none_left(), pytest.raises(ValueError, match=match):
        ferry.from_fd(fd, dtype="uint8", **options)


# ---- extents ----


@pytest.mark.parametrize("seals", [SEALS, 0])
def test_extents_are_held_against_the_memory(seals: int) -> None:
    with memfd(values(100), seals=seals) as fd, none_left():
        ferry.from_fd(fd, (100,), "uint8").close()
        ferry.from_fd(fd, (30,), "uint8", offset=70).close()
        ferry.from_fd(fd, (0,), "uint8", offset=100).close()
        ferry.from_fd(fd, (2,), "uint8", strides=(99,)).close()
        for shape, offset, strides in [
            ((101,), 0, None),
            ((30,), 71, None),
            ((0,), 101, None),
            ((2,), 0, (100,)),
            ((2**63,), 0, None),
            ((1,), 2**64 - 1, None),
            ((2**62, 2**62), 0, None),
        ]:
            with pytest.raises(ForgedLength) as caught:
                ferry.from_fd(fd, shape, "uint8", offset=offset, strides=strides)
            assert caught.value.field == "size"
            del caught


@pytest.mark.parametrize("size", [0, 7])
def test_nothing_is_mapped_of_memory_that_is_too_small(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with memfd(size=size) as fd, none_left(), monkeypatch.context() as patched:
        patched.setattr("mmap.mmap", lambda *_, **__: pytest.fail("mapped"))
        with pytest.raises(ForgedLength):
            ferry.from_fd(fd, (8,), "uint8")


def test_an_extent_ends_where_the_file_ends_not_where_the_page_does() -> None:
    with memfd(size=10) as fd, pytest.raises(ForgedLength):
        ferry.from_fd(fd, (11,), "uint8")


# ---- reading out ----


def test_memory_that_may_shrink_is_copied() -> None:
    with memfd(b"abcd", seals=0) as fd, none_left():
        t = ferry.from_fd(fd, (4,), "uint8", writable=True)
        os.pwrite(fd, b"wxyz", 0)
        os.ftruncate(fd, 0)
        assert bytes(t.numpy()) == b"abcd"
        assert not t.numpy().flags.writeable
        t.close()


def test_memory_that_may_shrink_can_be_refused(tmp_path: Path) -> None:
    with memfd(b"abcd", seals=0) as fd, regular_file(tmp_path / "x", b"abcd") as file, none_left():
        for other in (fd, file):
            with pytest.raises(Unsupported, match="F_SEAL_SHRINK") as caught:
                ferry.from_fd(other, (4,), "uint8", policy="refuse")
            assert caught.value.field == "policy"
            del caught
    with memfd(b"abcd") as fd:
        ferry.from_fd(fd, (4,), "uint8", policy="refuse").close()


@pytest.mark.parametrize("left", [0, 1, 99])
def test_truncation_while_it_is_read(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size was checked, then somebody truncates: an error, not a SIGBUS and not zeros."""
    real = os.preadv

    def racing(fd: int, buffers: Sequence[Any], offset: int, *flags: int) -> int:
        os.ftruncate(fd, left)
        return real(fd, buffers, offset, *flags)

    with memfd(values(100), seals=0) as fd, none_left():
        monkeypatch.setattr(os, "preadv", racing)
        with pytest.raises(ForgedLength, match=f"ends at byte {left}, {100 - left} bytes early"):
            ferry.from_fd(fd, (100,), "uint8")


def test_reads_that_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:7]], offset))
    with memfd(values(100), seals=0) as fd:
        assert bytes(ferry.from_fd(fd, (90,), "uint8", offset=10).numpy()) == values(100)[10:]


def test_a_sparse_file_costs_no_memory(tmp_path: Path) -> None:
    with regular_file(tmp_path / "sparse", b"x") as fd, none_left():
        os.ftruncate(fd, 1 << 40)
        tracemalloc.start()
        with pytest.raises(Unsupported, match="F_SEAL_SHRINK") as caught:
            ferry.from_fd(fd, ((1 << 30) + 1,), "uint8")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()
        assert caught.value.field == "size"
        del caught
        # What is asked for counts, not how large the file is.
        assert bytes(ferry.from_fd(fd, (3,), "uint8").numpy()) == b"x\0\0"


def test_the_bound_holds_for_all_planes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile blob has many planes over one sparse file, or over many."""
    monkeypatch.setattr(opening, "MAX_READ_OUT", 23)
    with memfd(bytes(24), seals=0) as a, memfd(bytes(24), seals=0) as b, none_left():
        for fds in (a, [a, a], [a, b]):
            with pytest.raises(Unsupported, match="more than the 23"):
                ferry.image_from_fd(fds, "NV12", 4, 4)
    monkeypatch.setattr(opening, "MAX_READ_OUT", 24)
    with memfd(bytes(24), seals=0) as a, memfd(bytes(24), seals=0) as b:
        ferry.image_from_fd([a, b], "NV12", 4, 4)


# ---- images ----


@pytest.mark.parametrize("seals", [SEALS, 0])
@pytest.mark.parametrize("format", PixelFormat)
@pytest.mark.parametrize(("width", "height"), [(33, 17), (1, 1), (4, 2)])
def test_every_image_format(seals: int, format: PixelFormat, width: int, height: int) -> None:
    for pitch in (None, 192):
        table = format.plane_table(width, height, pitch)
        data = values(8 + sum(layout.size for layout in table))
        same = ferry.Tensor.image(format, width, height, memoryview(data)[8:], stride=pitch)
        with memfd(data, seals=seals) as fd, none_left():
            t = ferry.image_from_fd(fd, format, width, height, offset=8, stride=pitch)
            assert (t.width, t.height, t.format, t.strides) == (width, height, format, same.strides)
            assert [bytes(p.data or b"") for p in t.planes] == [bytes(p.data or b"") for p in same.planes]
            for i in range(len(t.planes)):
                assert np.array_equal(t.plane(i), same.plane(i))
            t.close()
            with pytest.raises(ForgedLength):
                ferry.image_from_fd(fd, format, width, height, offset=9, stride=pitch)


def test_planes_of_an_image_in_memories_of_their_own() -> None:
    with memfd(values(40)) as luma, memfd(values(30), seals=0) as chroma, none_left():
        t = ferry.image_from_fd([luma, chroma], "NV12", 4, 4, offset=[3, 5])
        assert bytes(t.plane(0)) == values(40)[3:19]
        assert bytes(t.plane(1)) == values(30)[5:13]
        assert [p.handle is not None for p in t.planes] == [True, False]  # the second is a copy
        t.close()
        t = ferry.image_from_fd([luma, chroma], "NV12", 4, 4, offset=2)  # each from byte 2 of its own
        assert bytes(t.plane(1)) == values(30)[2:10]
        t.close()


def test_images_that_contradict_their_format() -> None:
    with memfd(bytes(100)) as fd, none_left():
        for fds, offset in (([fd], 0), ([fd] * 3, 0), (fd, [0]), ([fd, fd], [0, 1, 2]), (fd, [])):
            with pytest.raises(ValueError, match="NV12 has 2 planes"):
                ferry.image_from_fd(fds, "NV12", 4, 4, offset=offset)
        with pytest.raises(ValueError, match="lies before the memory"):
            ferry.image_from_fd(fd, "NV12", 4, 4, offset=-16)
        with pytest.raises(ValueError, match="lies before the memory"):
            ferry.image_from_fd(fd, "NV12", 4, 4, offset=[16, -8])
        with pytest.raises(ValueError, match="below the 4 bytes"):
            ferry.image_from_fd(fd, "NV12", 4, 4, stride=3)


def test_a_second_memory_that_is_refused_lets_go_of_the_first() -> None:
    with memfd(bytes(16)) as good, memfd(bytes(7)) as small, none_left():
        reading, writing = os.pipe()
        for bad, error in ((small, ForgedLength), (reading, Malformed), (10_000, Unsupported)):
            with pytest.raises(error):
                ferry.image_from_fd([good, bad], "NV12", 4, 4)
        with pytest.raises(Unsupported), memfd(bytes(8), seals=0) as unsealed:
            ferry.image_from_fd([good, unsealed], "NV12", 4, 4, policy="refuse")
        os.close(reading)
        os.close(writing)


# ---- POSIX shared memory ----


def test_shared_memory_by_name() -> None:
    shm = SharedMemory(create=True, size=100)
    try:
        memoryview(shm.buf or b"")[:4] = b"abcd"
        with none_left():
            for name in (shm.name, "/" + shm.name.lstrip("/")):
                t = ferry.from_shm(name, (2, 2), "uint8")
                assert (bytes(t.numpy()), t.storage) == (b"abcd", "mem")
                t = ferry.from_shm(name, (2,), "uint8", offset=1, strides=(2,))
                assert bytes(np.ascontiguousarray(t.numpy())) == b"bd"
            with pytest.raises(ForgedLength):
                ferry.from_shm(shm.name, (2**20,), "uint8")
            with pytest.raises(Unsupported, match=r"not sealed|regular file"):
                ferry.from_shm(shm.name, (4,), "uint8", policy="refuse")
    finally:
        shm.close()
        shm.unlink()
    assert t.numpy().tolist() == list(b"bd")  # a copy, there after all else is gone


def test_shared_memory_that_is_not_there() -> None:
    with none_left(), pytest.raises(Unsupported, match="cannot be opened: No such file") as caught:
        ferry.from_shm("tensorferry-no-such-name", (4,), "uint8")
    assert caught.value.field == "name"


@pytest.mark.parametrize("name", ["", "/", "..", ".", "/..", "a/b", "../shm/x", "//x"])
def test_names_that_are_none(name: str) -> None:
    with none_left(), pytest.raises(ValueError, match="no name of shared memory"):
        ferry.from_shm(name, (4,), "uint8")


@pytest.mark.parametrize("kind", ["pipe", "directory", "link"])
def test_names_of_other_things(kind: str) -> None:
    """A pipe put there by somebody does not make the reader wait for a writer."""
    path = Path(f"/dev/shm/tensorferry-test-{kind}-{os.getpid()}")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/etc/passwd")
    try:
        with none_left(), pytest.raises((Malformed, Unsupported)):
            ferry.from_shm(path.name, (4,), "uint8")
    finally:
        path.rmdir() if kind == "directory" else path.unlink()


# ---- the proof that no reader dies ----

READER = """
import os, sys
import tensorferry as ferry
fd = int(sys.argv[1])
t = ferry.from_fd(fd, (1 << 16,), "uint8")
os.close(fd)
print(t.storage, flush=True)
sys.stdin.readline()
print(int(t.numpy().sum(dtype=int)), flush=True)
"""


@pytest.mark.parametrize(("seals", "storage"), [(SEALS, "shm"), (0, "mem")])
def test_no_reader_dies_of_a_sender_that_truncates(seals: int, storage: str) -> None:
    """Sealed, it cannot; unsealed, the reader has its copy. A mapping would be the end of it: SIGBUS."""
    with memfd(b"\1" * (1 << 16), seals=seals) as fd:
        reader = subprocess.Popen(
            [sys.executable, "-c", READER, str(fd)],
            pass_fds=[fd],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with reader:
            assert reader.stdout is not None
            assert reader.stdin is not None
            assert reader.stdout.readline() == f"{storage}\n"
            if seals:
                with pytest.raises(PermissionError):
                    os.ftruncate(fd, 0)
            else:
                os.ftruncate(fd, 0)
            reader.stdin.write("go\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == f"{1 << 16}\n"
        assert reader.returncode == 0


def test_storage_says_where_the_planes_are() -> None:
    with memfd(bytes(4)) as fd, ferry.from_fd(fd, (4,), "uint8") as t:
        assert t.storage is StorageKind.SHM
