"""Descriptors: one class owns one and closes it once; everything else borrows or duplicates."""

from __future__ import annotations

import errno
import os
import stat
import sys
from enum import Enum

from ..errors import Unsupported

if sys.platform == "linux":  # elsewhere this can be imported, and says Unsupported when it is used
    import fcntl
    import resource

__all__ = ["Descriptor", "Nature", "nature_of", "require_linux", "size_of"]


def require_linux(what: str) -> None:
    """Unsupported where descriptors are not Linux's."""
    if sys.platform != "linux":
        raise Unsupported(f"{what} needs Linux; this is {sys.platform}: use heap memory and inline planes")


class Descriptor:
    """A file descriptor that this object owns: closed once, by ``close`` or when the object goes."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        """Take ``fd`` over: nobody else may close it from here on."""
        self._fd = fd

    @classmethod
    def duplicate(cls, fd: int) -> Descriptor:
        """A descriptor of our own for what ``fd`` refers to; ``fd`` stays the caller's.

        Raises Unsupported, naming the limit, when no descriptor is free, and for an ``fd`` that is not open.
        """
        try:
            return cls(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
        except OSError as error:
            raise no_descriptor(fd, error) from error

    def fileno(self) -> int:
        """The number, borrowed: valid until this is closed. ValueError after that."""
        if self._fd < 0:
            raise ValueError("this descriptor was closed")
        return self._fd

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def close(self) -> None:
        """Close it; closing twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def __repr__(self) -> str:
        return f"Descriptor({self._fd if self._fd >= 0 else 'closed'})"


def no_descriptor(fd: int, error: OSError) -> Unsupported:
    """What to say when ``fd`` could not be duplicated."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return Unsupported(
            f"no descriptor is free ({os.strerror(error.errno)}): {limit_advice()}", field="RLIMIT_NOFILE", value=fd
        )
    return Unsupported(f"descriptor {fd} cannot be duplicated: {error.strerror}", field="fd", value=fd)


def limit_advice() -> str:
    """The process's descriptor limit, and what to do about it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"the limit RLIMIT_NOFILE is {soft} (up to {hard}): close what is not needed, or raise it (ulimit -n)"


class Nature(Enum):
    """What a descriptor refers to, as the kernel has it, whatever anyone claims."""

    SEALED = "a memfd sealed against shrinking"
    DMA_BUF = "a dma-buf"
    UNSEALED = "shared memory that is not sealed against shrinking"
    FILE = "a regular file"
    OTHER = "no memory"

    @property
    def mappable(self) -> bool:
        """Whether it cannot shrink under a mapping, so that no reader dies of SIGBUS."""
        return self in (Nature.SEALED, Nature.DMA_BUF)


def nature_of(fd: int) -> Nature:
    """What ``fd`` refers to. Unsupported where it is not open."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError as error:
        raise Unsupported(f"descriptor {fd} is not open: {error.strerror}", field="fd", value=fd) from error
    if _is_dma_buf(fd):
        return Nature.DMA_BUF
    if not stat.S_ISREG(mode):
        return Nature.OTHER
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # EINVAL: a file system that knows no seals
        return Nature.FILE
    return Nature.SEALED if seals & fcntl.F_SEAL_SHRINK else Nature.UNSEALED


def _is_dma_buf(fd: int) -> bool:
    # The kernel names the inode; there is no other question that userspace could ask it.
    try:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if not name.startswith("/dmabuf:"):
            return name == "anon_inode:dmabuf"  # before Linux 5.3
        # A sender may have a file of that name at a root of its own: what is known of the descriptor tells.
        with open(f"/proc/self/fdinfo/{fd}", "rb") as facts:
            return b"\nexp_name:" in facts.read()
    except OSError:
        return False


def size_of(fd: int) -> int:
    """Bytes behind ``fd``; a dma-buf tells by seeking, older kernels leave its stat at 0."""
    status = os.fstat(fd)
    size = status.st_size
    if size == 0 and not stat.S_ISREG(status.st_mode):
        try:
            return os.lseek(fd, 0, os.SEEK_END)
        except OSError:
            return 0
    return size


def describe_other(fd: int) -> str:
    """What a descriptor that is no memory is, in a word."""
    mode = os.fstat(fd).st_mode
    for test, name in (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    ):
        if test(mode):
            return name
    return "no memory"
