"""Who is at the other end in the tests of Zenoh: processes of their own, and settings that keep to this host."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import tensorferry as ferry
from tensorferry.net import zenoh

GUARD = 60.0
"""Seconds after which something hangs; no test passes or fails by anything shorter."""

CONFIG: dict[str, Any] = {"scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}}}


class Pair(NamedTuple):
    """Settings of two sessions that are connected."""

    publisher: dict[str, Any]
    subscriber: dict[str, Any]


Frame = npt.NDArray[np.uint32]


def endpoint() -> str:
    """An endpoint on this host that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{sock.getsockname()[1]}"


def at(listen: str) -> dict[str, Any]:
    """Settings of a session that listens at ``listen``."""
    return {"config": CONFIG, "listen": listen}


def to(connect: str) -> dict[str, Any]:
    """Settings of a session that only connects to ``connect``."""
    return {"config": CONFIG, "connect": connect, "listen": ()}


def eventually(true: Callable[[], bool]) -> None:
    """Wait until ``true`` is; only a hang ends it otherwise."""
    deadline = time.monotonic() + GUARD
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


# ---- frames that tell when they are torn ----


def fill(frame: Frame, number: int) -> None:
    """Make ``frame`` the ``number``-th: its number, words that follow from that, and a checksum."""
    frame[0] = number
    frame[1:-1] = np.arange(len(frame) - 2, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(number)
    frame[-1] = zlib.crc32(frame[:-1].data)


def number_of(frame: Frame) -> int | None:
    """Which frame it is; None for one that is torn."""
    wanted = np.empty_like(frame)
    fill(wanted, int(frame[0]))
    return int(frame[0]) if np.array_equal(frame, wanted) else None


# ---- children ----


class Child:
    """A spawned process that runs ``run(pipe, *arguments)``, and the pipe to it."""

    def __init__(self, run: Callable[..., None], *arguments: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_guarded, args=(run, theirs, *arguments))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def says(self) -> Any:
        """What it sends next."""
        assert self.pipe.poll(GUARD), f"child {self.pid} says nothing"
        said = self.pipe.recv()
        assert not isinstance(said, Failure), said
        return said

    def ask(self, what: Any) -> Any:
        self.pipe.send(what)
        return self.says()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        """Kill it, and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self._process.join(GUARD)
        assert self._process.exitcode is not None
        self._process.close()
        self.pipe.close()


class Failure(str):
    """A child's traceback."""


def _guarded(run: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    try:
        run(pipe, *arguments)
    except BaseException:
        pipe.send(Failure(traceback.format_exc()))
        raise


@contextlib.contextmanager
def child(run: Callable[..., None], *arguments: Any) -> Iterator[Child]:
    """A child that is gone at the end of the block."""
    it = Child(run, *arguments)
    try:
        yield it
    finally:
        it.end()


# ---- what children do ----


def publishing(pipe: Connection, settings: dict[str, Any], topic: str, words: int, options: dict[str, Any]) -> None:
    """Publish so many frames of ``words`` as the pipe says, from the number it says, ``pause`` seconds apart."""
    with zenoh.Publisher(topic, **settings, **options) as publisher:
        frame = publisher.loan(words, np.uint32)
        pipe.send("ready")
        while (asked := pipe.recv()) is not None:
            first, count, pause = asked
            for number in range(first, first + count):
                fill(frame.numpy(), number)
                publisher.publish(frame)
                if pause:
                    time.sleep(pause)
            pipe.send(count)


def publishing_shared(pipe: Connection, settings: dict[str, Any], topic: str, words: int) -> None:
    """The same by reference, a tensor in shared memory for each."""
    with zenoh.Publisher(topic, reference=True, **settings) as publisher:
        pipe.send("ready")
        while (asked := pipe.recv()) is not None:
            for number in range(asked):
                tensor = ferry.allocate(words, np.uint32, storage="shm")
                fill(tensor.numpy(), number)
                publisher.publish(tensor)
            pipe.send(asked)


def receiving(pipe: Connection, settings: dict[str, Any], topic: str, pause: float, options: dict[str, Any]) -> None:
    """Receive, ``pause`` seconds over each frame, and tell when asked: numbers, torn frames, counts."""
    numbers: list[int] = []
    torn = 0
    with zenoh.Subscriber(topic, **settings, **options) as subscriber:
        pipe.send("ready")
        while True:
            if pipe.poll():
                if pipe.recv() is None:
                    return
                counts = subscriber.counts
                pipe.send((numbers, torn, counts.received, counts.dropped, counts.refused))
            tensor = subscriber.recv(0.02)
            if tensor is not None:
                number = number_of(tensor.numpy())
                torn += number is None
                numbers += [] if number is None else [number]
                time.sleep(pause)


def holding(pipe: Connection, settings: dict[str, Any], topic: str, options: dict[str, Any]) -> None:
    """Receive one frame each time it is asked to: its number, or None for a torn one, and how many were refused."""
    with zenoh.Subscriber(topic, **settings, **options) as subscriber:
        pipe.send("ready")
        while pipe.recv() is not None:
            tensor = subscriber.recv(1.0)
            last = subscriber.counts.last_refusal
            pipe.send(
                (
                    "nothing" if tensor is None else number_of(tensor.numpy()),
                    subscriber.counts.refused,
                    None if last is None else last.field,
                )
            )
