"""dma-buf: buffers that devices share, from the kernel's heaps, and the brackets around CPU access to them.

The numbers come from linux/dma-heap.h and linux/dma-buf.h; a test compiles those headers and compares.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

from ..errors import Unsupported
from .descriptor import Descriptor, no_descriptor

if sys.platform == "linux":
    import fcntl

__all__ = ["allocate_dma_buf", "heaps", "sync"]

HEAPS = "/dev/dma_heap"

DMA_HEAP_IOCTL_ALLOC = 0xC0184800
DMA_BUF_IOCTL_SYNC = 0x40086200
DMA_BUF_SYNC_READ = 1
DMA_BUF_SYNC_WRITE = 2
DMA_BUF_SYNC_START = 0
DMA_BUF_SYNC_END = 4

_ALLOCATION = struct.Struct("=QIIQ")  # len, fd, fd_flags, heap_flags
_SYNC = struct.Struct("=Q")


def heaps() -> list[str]:
    """The kernel's dma heaps by name, those that devices without an IOMMU can use last; empty without any."""
    try:
        return sorted(os.listdir(HEAPS), key=lambda name: (name != "system", name))
    except OSError:
        return []


def allocate_dma_buf(size: int, heap: str | None = None) -> Descriptor:
    """A new dma-buf of ``size`` bytes (rounded up to pages by the kernel) from ``heap`` or the first one.

    Raises Unsupported where the machine has no such heap, or it refuses.
    """
    name = heap or next(iter(heaps()), "system")
    path = f"{HEAPS}/{name}"
    try:
        device = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise no_descriptor(-1, error) from error
        hint = "use storage='shm'" if error.errno == errno.ENOENT else "check its permissions"
        raise Unsupported(f"no dma-buf can be had: {path}: {error.strerror}; {hint}", field="storage") from error
    try:
        request = bytearray(_ALLOCATION.pack(size, 0, os.O_RDWR | os.O_CLOEXEC, 0))
        fcntl.ioctl(device.fileno(), DMA_HEAP_IOCTL_ALLOC, request)
        return Descriptor(_ALLOCATION.unpack(request)[1])
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise no_descriptor(-1, error) from error
        raise Unsupported(f"{path} gives no {size} bytes: {error.strerror}", field="storage") from error
    finally:
        device.close()


def sync(fd: int, *, begin: bool, read: bool, write: bool) -> None:
    """Begin or end the CPU's access to dma-buf ``fd``. OSError where the kernel refuses."""
    flags = (DMA_BUF_SYNC_READ if read else 0) | (DMA_BUF_SYNC_WRITE if write else 0)
    flags |= DMA_BUF_SYNC_START if begin else DMA_BUF_SYNC_END
    while True:
        try:
            fcntl.ioctl(fd, DMA_BUF_IOCTL_SYNC, _SYNC.pack(flags))
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR):  # the header says to try again on these
                raise
