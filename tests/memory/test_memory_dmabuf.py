"""dma-bufs: what the kernel is asked for, and the brackets around access by the CPU.

Few machines that run tests have dma heaps. What the kernel would be asked is compared with its own headers, by
compiling them; the heap itself is stood in for by a file and an ioctl that answers as the kernel does.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from descriptors import memfd, none_left, os_error

import tensorferry as ferry
from tensorferry import Plane, StorageKind, Tensor, Unsupported, memory
from tensorferry.memory import Nature, Region, dmabuf, nature_of
from tensorferry.tensor import Description

HEADERS = [Path("/usr/include/linux/dma-buf.h"), Path("/usr/include/linux/dma-heap.h")]

PROGRAM = r"""
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <linux/dma-buf.h>
#include <linux/dma-heap.h>

int main(void) {
    struct dma_heap_allocation_data *a = 0;
    struct dma_buf_sync *s = 0;
    printf("DMA_HEAP_IOCTL_ALLOC %lu\n", (unsigned long)DMA_HEAP_IOCTL_ALLOC);
    printf("DMA_BUF_IOCTL_SYNC %lu\n", (unsigned long)DMA_BUF_IOCTL_SYNC);
    printf("DMA_BUF_SYNC_READ %lu\n", (unsigned long)DMA_BUF_SYNC_READ);
    printf("DMA_BUF_SYNC_WRITE %lu\n", (unsigned long)DMA_BUF_SYNC_WRITE);
    printf("DMA_BUF_SYNC_START %lu\n", (unsigned long)DMA_BUF_SYNC_START);
    printf("DMA_BUF_SYNC_END %lu\n", (unsigned long)DMA_BUF_SYNC_END);
    printf("allocation %zu %zu %zu %zu %zu\n", sizeof(*a), offsetof(struct dma_heap_allocation_data, len),
           offsetof(struct dma_heap_allocation_data, fd), offsetof(struct dma_heap_allocation_data, fd_flags),
           offsetof(struct dma_heap_allocation_data, heap_flags));
    printf("field sizes %zu %zu %zu %zu\n", sizeof(a->len), sizeof(a->fd), sizeof(a->fd_flags), sizeof(a->heap_flags));
    printf("sync %zu %zu %zu\n", sizeof(*s), offsetof(struct dma_buf_sync, flags), sizeof(s->flags));
    printf("VALID_FD_FLAGS %lu\n", (unsigned long)DMA_HEAP_VALID_FD_FLAGS);
    return 0;
}
"""


@pytest.mark.skipif(
    not all(map(Path.exists, HEADERS)), reason="the kernel's headers are not installed (linux-libc-dev)"
)
def test_numbers_are_those_of_the_kernel_headers(tmp_path: Path) -> None:
    """A machine with the headers must have a compiler: without one this fails, and does not pass by."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "the kernel's headers are here and no C compiler: install one (cc)"
    source, program = tmp_path / "numbers.c", tmp_path / "numbers"
    source.write_text(PROGRAM)
    subprocess.run([compiler, "-o", str(program), str(source)], check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    said = {name: numbers[0] for name, *numbers in map(str.split, printed.splitlines()) if len(numbers) == 1}
    ours = {name: str(getattr(dmabuf, name)) for name in said if name != "VALID_FD_FLAGS"}
    assert len(ours) == 6
    assert ours == {name: said[name] for name in ours}
    assert f"allocation {dmabuf._ALLOCATION.size} 0 8 12 16\n" in printed
    assert dmabuf._ALLOCATION.format == "=QIIQ"
    assert "field sizes 8 4 4 8\n" in printed
    assert f"sync {dmabuf._SYNC.size} 0 8\n" in printed
    assert (os.O_RDWR | os.O_CLOEXEC) & ~int(said["VALID_FD_FLAGS"]) == 0


# ---- allocating ----


@pytest.fixture
def heaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of /dev/dma_heap."""
    monkeypatch.setattr(dmabuf, "HEAPS", str(tmp_path))
    return tmp_path


def test_a_machine_without_heaps_says_so(heaps: Path) -> None:
    heaps.rmdir()
    assert memory.heaps() == []
    with none_left():
        for heap in (None, "reserved"):
            with pytest.raises(
                Unsupported, match=r"no dma-buf can be had: .*No such file.*; use storage='shm'"
            ) as caught:
                ferry.allocate_image("NV12", 4, 4, storage="dmabuf", heap=heap)
            assert caught.value.field == "storage"
            del caught


def test_heaps_are_listed_system_first(heaps: Path) -> None:
    for name in ("linux,cma", "zone", "system", "reserved"):
        (heaps / name).touch()
    assert memory.heaps() == ["system", "linux,cma", "reserved", "zone"]


def test_what_the_kernel_is_asked_for(heaps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heap answers with a descriptor, here one of sealed memory, which is then the tensor's own."""
    (heaps / "linux,cma").touch()
    asked = []

    def ioctl(fd: int, request: int, argument: bytearray) -> int:
        assert os.readlink(f"/proc/self/fd/{fd}") == str(heaps / "linux,cma")
        length, zero, fd_flags, heap_flags = struct.unpack("=QIIQ", argument)
        asked.append((request, length, zero, fd_flags, heap_flags))
        with memfd(size=length) as given:
            struct.pack_into("=I", argument, 8, os.dup(given))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with none_left():
        t = ferry.allocate((3, 5), "float32", storage="dmabuf")
        t.numpy()[:] = 2
        t.close()
        image = ferry.allocate_image("NV12", 3, 3, storage="dmabuf", heap="linux,cma")
        image.close()
        ferry.allocate((0,), "uint8", storage="dmabuf").close()
    flags = os.O_RDWR | os.O_CLOEXEC
    assert asked == [(0xC0184800, size, 0, flags, 0) for size in (60, 4 * 5, 1)]


@pytest.mark.parametrize(("error", "match"), [("ENOMEM", "gives no 60 bytes"), ("EMFILE", "RLIMIT_NOFILE")])
def test_a_heap_that_refuses(heaps: Path, monkeypatch: pytest.MonkeyPatch, error: str, match: str) -> None:
    (heaps / "system").touch()

    def ioctl(*_: object) -> int:
        raise os_error(error)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with none_left(), pytest.raises(Unsupported, match=match):
        ferry.allocate((3, 5), "float32", storage="dmabuf")


def test_a_heap_without_permission(heaps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (heaps / "system").touch()

    def refuse(*_: object) -> int:
        raise os_error("EACCES")

    monkeypatch.setattr(os, "open", refuse)
    with none_left(), pytest.raises(Unsupported, match="check its permissions"):
        ferry.allocate(1, "uint8", storage="dmabuf")


@pytest.mark.skipif(not memory.heaps(), reason="this machine has no /dev/dma_heap")
def test_a_real_dma_buf() -> None:
    with none_left():
        t = ferry.allocate_image("NV12", 33, 17, storage="dmabuf")
        assert t.storage == "dmabuf"
        with t.cpu_access("readwrite"):
            t.plane(0)[:] = 5
            assert (t.plane(0) == 5).all()
        handle = t.planes[0].handle
        assert handle is not None
        assert nature_of(handle.fileno()) is Nature.DMA_BUF
        t.close()


# ---- telling one ----


FACTS = b"pos:\t0\nflags:\t02000002\nmnt_id:\t13\nino:\t5\nsize:\t4096\ncount:\t2\nexp_name:\tsystem\n"


def test_a_dma_buf_is_told_by_what_the_kernel_says_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = open

    def facts(path: Any, *arguments: Any, **options: Any) -> Any:
        return (
            io.BytesIO(FACTS) if str(path).startswith("/proc/self/fdinfo/") else real_open(path, *arguments, **options)
        )

    with memfd(b"x", seals=0) as fd:
        monkeypatch.setattr(os, "readlink", lambda _: "anon_inode:dmabuf")  # before Linux 5.3
        assert nature_of(fd) is Nature.DMA_BUF
        monkeypatch.setattr(os, "readlink", lambda _: "/dmabuf:")
        monkeypatch.setattr("builtins.open", facts)
        assert nature_of(fd) is Nature.DMA_BUF


@pytest.mark.parametrize("name", ["/dmabuf:", "/dmabuf:camera", "/anon_inode:dmabuf"])
def test_a_file_that_is_named_like_a_dma_buf_is_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """A sender with a root folder of its own names its files as it likes; mapped, they could be truncated."""
    file = tmp_path / "x"
    file.write_bytes(bytes(8))
    fd = os.open(file, os.O_RDONLY)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "readlink", lambda _: name)
            nature = nature_of(fd)
        assert not nature.mappable
    finally:
        os.close(fd)


# ---- access by the CPU ----

READ, WRITE, END = 1, 2, 4


class Bracketed:
    """A handle that notes its brackets."""

    def __init__(self, name: str, notes: list[str], fail: bool = False) -> None:
        self.name, self.notes, self.fail = name, notes, fail

    def fileno(self) -> int:
        return -1

    def cpu_access(self, *, begin: bool, read: bool, write: bool) -> None:
        if self.fail:
            raise OSError("no")
        self.notes.append(f"{'begin' if begin else 'end'} {self.name} {'r' * read}{'w' * write}")


def over(*handles: object) -> Tensor:
    planes = []
    for handle in handles:
        held: Any = handle
        planes.append(Plane(memoryview(bytes(4)), 4, handle=held))
    return Tensor(Description(ferry.DType.UINT8, (4,), format="several planes"), tuple(planes))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(request, flags) of each ioctl, none of which reaches the kernel."""
    calls: list[tuple[int, int]] = []

    def ioctl(fd: int, request: int, argument: bytes) -> int:
        calls.append((request, *struct.unpack("=Q", argument)))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    return calls


@pytest.mark.parametrize("mode", ["read", "write", "readwrite"])
@pytest.mark.parametrize("storage", ["mem", "shm"])
def test_coherent_memory_needs_no_brackets(synced: list[tuple[int, int]], storage: str, mode: str) -> None:
    t = ferry.allocate_image("NV12", 4, 4, storage=storage)
    with t.cpu_access(mode) as same:
        assert same is t
        t.plane(0)[:] = 1
    assert synced == []


@pytest.mark.parametrize(("mode", "flags"), [("read", READ), ("write", WRITE), ("readwrite", READ | WRITE)])
def test_brackets_around_a_dma_buf(synced: list[tuple[int, int]], mode: str, flags: int) -> None:
    """Once for all planes of one buffer, and ended after an error too."""
    t = ferry.allocate_image("NV12", 4, 4, storage="shm")
    region = t.planes[0].handle
    assert isinstance(region, Region)
    region.storage = StorageKind.DMA_BUF
    with t.cpu_access(mode):
        assert synced == [(0x40086200, flags)]
    assert synced == [(0x40086200, flags), (0x40086200, flags | END)]
    del synced[:]
    with pytest.raises(ZeroDivisionError), t.cpu_access(mode):
        _ = 1 // 0
    assert [got for _, got in synced] == [flags, flags | END]


def test_several_buffers_are_ended_in_reverse() -> None:
    notes: list[str] = []
    a, b = Bracketed("a", notes), Bracketed("b", notes)
    with over(a, b, a, None).cpu_access("read"):
        notes.append("look")
    assert notes == ["begin a r", "begin b r", "look", "end b r", "end a r"]


def test_what_has_begun_is_ended_when_the_next_cannot_begin() -> None:
    notes: list[str] = []
    with (
        pytest.raises(OSError, match="no"),
        over(Bracketed("a", notes), Bracketed("b", notes, True)).cpu_access("write"),
    ):
        notes.append("never")
    assert notes == ["begin a w", "end a w"]


def test_foreign_handles_need_no_brackets() -> None:
    with over(object()).cpu_access("read"):
        pass


@pytest.mark.parametrize("mode", ["", "r", "rw", "READ", "readonly", "read write"])
def test_unknown_modes(mode: str) -> None:
    with pytest.raises(ValueError, match="none of 'read', 'write', 'readwrite'"), over().cpu_access(mode):
        pass


def interrupted(times: int, error: str) -> Callable[..., int]:
    left = [times]

    def ioctl(*_: object) -> int:
        if left[0]:
            left[0] -= 1
            raise os_error(error)
        return 0

    return ioctl


def test_an_interrupted_bracket_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in ("EAGAIN", "EINTR"):
        monkeypatch.setattr(fcntl, "ioctl", interrupted(3, error))
        dmabuf.sync(0, begin=True, read=True, write=False)
    monkeypatch.setattr(fcntl, "ioctl", interrupted(1, "ENOTTY"))
    with pytest.raises(OSError, match="Inappropriate ioctl"):
        dmabuf.sync(0, begin=True, read=True, write=False)
