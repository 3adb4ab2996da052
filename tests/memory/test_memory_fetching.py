"""Descriptors out of other processes, by pid: each failure is its own error."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest
from descriptors import memfd, none_left, os_error, refers_to

import tensorferry as ferry
from tensorferry import FetchRefused, NoSuchDescriptor, ProcessGone, Unsupported, memory
from tensorferry.memory import fetching

HOLDER = """
import fcntl, os, sys
fd = os.memfd_create("held", os.MFD_ALLOW_SEALING)
os.write(fd, b"out of the child")
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
print(fd, flush=True)
sys.stdin.read()
"""


@contextmanager
def holder() -> Iterator[tuple[int, int]]:
    """(pid, descriptor) of a process that holds sealed memory."""
    child = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        yield child.pid, int(child.stdout.readline())


def test_memory_of_another_process_is_read_here() -> None:
    with none_left():
        with holder() as (pid, fd):
            got = memory.fetch(pid, fd, allow=True)
            assert fcntl.fcntl(got.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
            t = ferry.from_fd(got.fileno(), (16,), "uint8")
            got.close()
        assert bytes(t.numpy()) == b"out of the child"  # the process is gone, the memory is here
        assert t.storage == "shm"
        t.close()


def _lend(ours: Connection) -> None:
    t = ferry.allocate(5, "uint8", storage="shm")
    t.numpy()[:] = range(5)
    handle = t.planes[0].handle
    assert handle is not None
    ours.send(handle.fileno())
    ours.recv()


def test_memory_of_a_spawned_tensorferry() -> None:
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe()
    child = context.Process(target=_lend, args=(ours,))
    child.start()
    try:
        assert child.pid is not None
        with none_left():
            got = memory.fetch(child.pid, theirs.recv(), allow=True)
            with ferry.from_fd(got.fileno(), (5,), "uint8") as t:
                assert t.numpy().tolist() == [0, 1, 2, 3, 4]
            got.close()
    finally:
        theirs.send("done")
        child.join()
        theirs.close()
        ours.close()
        child.close()


def test_of_this_process_too() -> None:
    with memfd(b"x") as fd, none_left():
        got = memory.fetch(os.getpid(), fd, allow=True)
        assert got.fileno() != fd
        assert refers_to(got.fileno()) == refers_to(fd)
        got.close()


def test_off_unless_allowed() -> None:
    with memfd(b"x") as fd, none_left():
        for options in ({}, {"allow": False}):
            with pytest.raises(Unsupported, match="pass allow=True"):
                memory.fetch(os.getpid(), fd, **options)


def test_no_such_descriptor() -> None:
    with holder() as (pid, fd), none_left():
        for number in (fd + 1000, -1, -(2**40), 2**31 - 1):
            with pytest.raises(NoSuchDescriptor, match=str(number)) as caught:
                memory.fetch(pid, number, allow=True)
            assert (caught.value.field, caught.value.value) == ("fd", number)
            assert isinstance(caught.value, LookupError)
            del caught


def test_numbers_past_the_kernels_are_not_cut_to_fit() -> None:
    """A message has 64 bits for a descriptor, the kernel 32: the rest must not lead to another one."""
    with memfd(b"x") as fd, none_left():
        for number in (fd + 2**32, fd + 2**63, fd - 2**32, 2**31):
            with pytest.raises(NoSuchDescriptor):
                memory.fetch(os.getpid(), number, allow=True)
        for pid in (os.getpid() + 2**32, 2**31, 2**32 - 1):
            with pytest.raises(ProcessGone):
                memory.fetch(pid, fd, allow=True)


def test_a_process_that_is_gone() -> None:
    with holder() as (pid, fd):
        pass
    with none_left():
        for number in (pid, 0, -1):
            with pytest.raises(ProcessGone) as caught:
                memory.fetch(number, fd, allow=True)
            assert (caught.value.field, caught.value.value) == ("pid", number)
            assert isinstance(caught.value, ProcessLookupError)
            del caught


def test_a_process_that_has_ended_and_was_not_waited_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 30
    with open(f"/proc/{child.pid}/stat") as stat:
        while " Z " not in stat.read() and time.monotonic() < deadline:
            time.sleep(0.01)
            stat.seek(0)
    with none_left(), pytest.raises(ProcessGone):
        memory.fetch(child.pid, 0, allow=True)
    child.wait()


def in_a_fork(run: Callable[[], None]) -> None:
    """Run in a forked child, and fail here where it fails there."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from Python 3.12 on: none are used
        pid = os.fork()
    if pid == 0:
        try:
            run()
            os.write(writing, b"done")
        except BaseException:
            os.write(writing, traceback.format_exc()[-4000:].encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as said:
        assert said.read() == b"done"
    os.waitpid(pid, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_somebody_else() -> None:
    def as_nobody() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with none_left(), pytest.raises(FetchRefused, match="the right to trace it") as caught:
            memory.fetch(os.getppid(), 0, allow=True)
        assert isinstance(caught.value, PermissionError)
        assert caught.value.value == os.getppid()

    in_a_fork(as_nobody)


def test_what_a_forked_child_fetches_from_its_parent() -> None:
    with memfd(b"of the parent") as fd:

        def child() -> None:
            number = fd
            os.close(number)
            got = memory.fetch(os.getppid(), number, allow=True)
            with ferry.from_fd(got.fileno(), (13,), "uint8") as t:
                assert bytes(t.numpy()) == b"of the parent"

        # Whether a child may trace its parent is the system's choice (kernel.yama.ptrace_scope).
        if os.geteuid() == 0:
            in_a_fork(child)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        ("ESRCH", ProcessGone),
        ("EPERM", FetchRefused),
        ("EACCES", FetchRefused),
        ("EBADF", NoSuchDescriptor),
        ("ENOSYS", Unsupported),
        ("EMFILE", Unsupported),
        ("ENFILE", Unsupported),
        ("EINVAL", Unsupported),
    ],
)
@pytest.mark.parametrize("where", ["open", "get"])
def test_every_refusal_of_the_kernel(
    where: str, number: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise os_error(number)

    def refuse_call(*_: object) -> int:
        ctypes.set_errno(getattr(errno, number))
        return -1

    with none_left(), monkeypatch.context() as patched:
        if where == "open":
            patched.setattr(os, "pidfd_open", refuse)
        else:
            patched.setattr(fetching, "_syscall", lambda: refuse_call)
        for _ in range(20):
            with pytest.raises(ferry.FerryError) as caught:
                memory.fetch(os.getpid(), 0, allow=True)
            assert type(caught.value) is error
            if number == "ENOSYS":
                assert "Linux 5.6" in str(caught.value)
            if number in ("EMFILE", "ENFILE"):
                assert caught.value.field == "RLIMIT_NOFILE"
            del caught


def test_elsewhere_than_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(Unsupported, match="needs Linux"):
        memory.fetch(1, 0, allow=True)


def test_thousands_of_rounds() -> None:
    with memfd(b"x") as fd, none_left():
        for i in range(2000):
            if i % 2:
                memory.fetch(os.getpid(), fd, allow=True).close()
            else:
                with pytest.raises(NoSuchDescriptor):
                    memory.fetch(os.getpid(), 100_000, allow=True)
