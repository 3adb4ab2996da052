"""Descriptors to test with, and a count of those that are open: none may be left behind, whatever happens."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["SEALS", "memfd", "none_left", "open_descriptors", "os_error", "refers_to"]

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def open_descriptors() -> set[tuple[str, str]]:
    """Every open descriptor of this process, with what it refers to."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
        except OSError:  # the one that listed the directory
            continue
    return found


@contextmanager
def none_left(*, quick: bool = False) -> Iterator[None]:
    """What runs inside leaves no descriptor open, and closes none that it did not open.

    ``quick`` collects garbage only when there is a difference, for tests of many examples; then what was garbage
    before may go too.
    """
    if not quick:
        gc.collect()
    before = open_descriptors()
    yield
    if open_descriptors() != before:
        gc.collect()
        after = open_descriptors()
        assert after <= before if quick else after == before


@contextmanager
def memfd(data: bytes = b"", *, size: int | None = None, seals: int = SEALS) -> Iterator[int]:
    """Anonymous memory of ``size`` bytes (None: those of ``data``) that starts with ``data``; closed at the end."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, len(data) if size is None else size)
        os.pwrite(fd, data, 0)
        if seals:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        yield fd
    finally:
        os.close(fd)


def refers_to(fd: int) -> tuple[int, int]:
    """Which file a descriptor refers to."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def os_error(name: str) -> OSError:
    """The error that a system call gives by ``name``, "ENOMEM" for one."""
    number = getattr(errno, name)
    return OSError(number, os.strerror(number))
