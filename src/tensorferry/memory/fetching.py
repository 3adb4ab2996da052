"""A descriptor out of another process, by its pid: for messages that carry raw descriptor numbers."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable

from ..errors import FerryError, FetchRefused, NoSuchDescriptor, ProcessGone, Unsupported
from .descriptor import Descriptor, no_descriptor, require_linux

__all__ = ["fetch"]

_PIDFD_GETFD = 438  # the same number on every architecture
_MAX_INT = (1 << 31) - 1


def fetch(pid: int, fd: int, *, allow: bool = False) -> Descriptor:
    """A duplicate of descriptor ``fd`` of process ``pid``, owned by the caller.

    Off unless ``allow`` is True: a pid out of a message is a stranger's claim, and numbers are used again.
    Raises ProcessGone, FetchRefused (it takes the right to trace the process), NoSuchDescriptor, or Unsupported
    on kernels before 5.6 and when no descriptor is free here.
    """
    require_linux("fetching a descriptor by pid")
    if not allow:
        raise Unsupported(
            f"descriptor {fd} of process {pid} is fetched only when the caller allows it: pass allow=True",
            field="pid",
            value=pid,
        )
    if not 0 < pid <= _MAX_INT:  # a message has room for numbers that no process has
        raise ProcessGone(f"there is no process {pid}", field="pid", value=pid)
    if not 0 <= fd <= _MAX_INT:
        raise NoSuchDescriptor(f"there is no descriptor {fd}", field="fd", value=fd)
    try:
        process = Descriptor(os.pidfd_open(pid))
    except OSError as error:
        raise _refusal(pid, fd, error) from error
    try:
        return Descriptor(_pidfd_getfd(process.fileno(), fd))
    except OSError as error:
        raise _refusal(pid, fd, error) from error
    finally:
        process.close()


def _refusal(pid: int, fd: int, error: OSError) -> FerryError:
    number = error.errno
    if number == errno.ESRCH:
        return ProcessGone(f"process {pid} is gone, and descriptor {fd} with it", field="pid", value=pid)
    if number in (errno.EPERM, errno.EACCES):
        return FetchRefused(
            f"process {pid} may not be reached into: it takes the right to trace it"
            " (the same user, CAP_SYS_PTRACE, kernel.yama.ptrace_scope)",
            field="pid",
            value=pid,
        )
    if number == errno.EBADF:
        return NoSuchDescriptor(f"process {pid} has no descriptor {fd}", field="fd", value=fd)
    if number == errno.ENOSYS:
        return Unsupported(
            "this kernel has no pidfd_getfd: it takes Linux 5.6", field="kernel", value=os.uname().release
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return no_descriptor(fd, error)
    return Unsupported(f"descriptor {fd} of process {pid}: {error.strerror}", field="fd", value=fd)


def _pidfd_getfd(pidfd: int, fd: int) -> int:
    got = _syscall()(_PIDFD_GETFD, pidfd, fd, 0)
    if got < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return got


@functools.cache
def _syscall() -> Callable[[int, int, int, int], int]:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    function.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_uint)
    return function
