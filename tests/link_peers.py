"""What stands at the other end in the tests of a link: children, raw sockets, and counts of what this process holds."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorferry as ferry
from tensorferry.blob import TransportMode
from tensorferry.link import Link, Pool
from tensorferry.tensor import Tensor

GUARD = 60.0
"""Seconds after which something hangs; no test passes or fails by anything shorter."""

LEND, RETURN = 1, 2
CONTROL = struct.Struct("<QQQ")

Array = npt.NDArray[Any]


# ---- what this process holds ----


def descriptors() -> list[str]:
    """What every open descriptor of this process refers to."""
    gc.collect()
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone by now
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
    return sorted(found)


def mapped() -> int:
    """How many mappings of tensorferry's shared memory this process has."""
    return sum("memfd:" in line for line in Path("/proc/self/maps").read_text().splitlines())


def children() -> set[int]:
    """The pids of this process's children, zombies included."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[1]) == os.getpid():
                    found.add(int(entry.name))
    return found


def state_of(pid: int) -> str:
    """The kernel's letter for a process: R, S, T (stopped), Z (zombie) …"""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def eventually(true: Callable[[], bool]) -> None:
    """Wait until ``true`` is; only a hang ends it otherwise."""
    deadline = time.monotonic() + GUARD
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


# ---- children ----


class Child:
    """A forked child, waited for by its pid."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                run()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def join(self) -> int:
        """Its exit status, negative the signal that ended it; one that hangs is killed."""
        if self.status is None:
            deadline = time.monotonic() + GUARD
            while True:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    break
                if time.monotonic() > deadline:
                    self.kill()
                    _, status = os.waitpid(self.pid, 0)
                    self.status = os.waitstatus_to_exitcode(status)
                    raise AssertionError(f"child {self.pid} hung")
                time.sleep(0.001)
            self.status = os.waitstatus_to_exitcode(status)
        return self.status


@contextlib.contextmanager
def child(run: Callable[[], None]) -> Iterator[Child]:
    """A forked child that runs ``run``; it must have ended well when the block ends, unless it was killed in it."""
    it = Child(run)
    try:
        yield it
    except BaseException:
        it.kill()
        it.join()
        raise
    status = it.join()
    assert status in (0, -signal.SIGKILL), f"the child ended with {status}"


class Thread(threading.Thread):
    """A thread whose exception is raised by ``done``, and whose result it returns."""

    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._run_it = run
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._run_it()
        except BaseException as error:
            self._error = error
        del self._run_it

    def done(self) -> Any:
        self.join(GUARD)
        assert not self.is_alive(), "the thread hung"
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return self._result


def blocked(thread: threading.Thread) -> None:
    """Wait until ``thread`` sleeps in the kernel."""
    stat = Path(f"/proc/self/task/{thread.native_id}/stat")
    eventually(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "S")


# ---- what multiprocessing's children run: importable under spawn ----


def echo(link: Link, not_ours: Link | None = None) -> None:
    """Send back what comes, until the end."""
    if not_ours is not None:
        not_ours.close()
    with link:
        for tensor in link:
            link.send(tensor)
            tensor.close()


def produce(link: Link, count: int) -> None:
    """Send ``count`` numbered frames out of a pool."""
    with link, Pool(64, "int64", 2) as pool:
        for i in range(count):
            tensor = pool.acquire(GUARD)
            assert tensor is not None
            with tensor:
                tensor.numpy()[:] = i
                link.send(tensor, GUARD)
        all_back(pool)


# ---- raw sockets ----


def raw_pair(**options: Any) -> tuple[socket.socket, Link]:
    """A socket to misbehave on, and a link at its other end."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return mine, Link(theirs, **options)


def put(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send all of ``data``, ``fds`` with its first byte."""
    if fds:
        sent = socket.send_fds(sock, [data], list(fds))
        data = data[sent:]
    if data:
        sock.sendall(data)


def lend(token: int, length: int) -> bytes:
    return CONTROL.pack(CONTROL.size, LEND | length << 8, token)


def give_back(token: int) -> bytes:
    return CONTROL.pack(CONTROL.size, RETURN, token)


def memfd(data: bytes, *, sealed: bool = True) -> int:
    """A descriptor of memory with ``data`` in it; the caller closes it."""
    fd = os.memfd_create("peer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    if sealed:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def reference(shape: int = 512, *, handle: int | None = None) -> tuple[bytes, Tensor]:
    """A blob by reference to ``shape`` bytes at the start of descriptor 0 (or ``handle``), and its tensor."""
    tensor = ferry.allocate(shape, "uint8", storage="shm")
    tensor.numpy()[:] = np.arange(shape) % 251
    data, _ = ferry.blob.export(tensor, TransportMode.REFERENCE)
    if handle is not None:
        # The plane record is the blob's last: the handle is its first field.
        at = len(data) - ferry.blob.PLANE_RECORD_LEN
        data = data[:at] + struct.pack("<q", handle) + data[at + 8 :]
    return data, tensor


def fileno(tensor: Tensor) -> int:
    """The descriptor behind a tensor's first plane."""
    handle = tensor.planes[0].handle
    assert handle is not None
    return handle.fileno()


def inode(tensor: Tensor) -> tuple[int, int]:
    """Which memory a tensor's first plane is in."""
    status = os.fstat(fileno(tensor))
    return status.st_dev, status.st_ino


def acquire(pool: Pool, timeout: float | None = GUARD) -> Tensor:
    """A buffer of a pool that does not drop."""
    tensor = pool.acquire(timeout)
    assert tensor is not None
    return tensor


def all_back(pool: Pool) -> None:
    """Every buffer of a pool comes free, each its own."""
    buffers = [acquire(pool) for _ in range(pool.count)]
    assert len({inode(tensor) for tensor in buffers}) == pool.count
    for tensor in buffers:
        tensor.close()
