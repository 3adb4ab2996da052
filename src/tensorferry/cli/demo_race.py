"""One frame after another to a second process, by reference and through a pipe in turn, both verified."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import FerryError
from ..link import Link, Pool
from .demo_tensors import scene
from .interrupt import Interrupt

__all__ = ["HEIGHT", "WIDTH", "Lap", "race"]

Array = npt.NDArray[Any]
Fill = Callable[[Array], None]

WIDTH, HEIGHT = 1920, 1080
_ROUNDS = 5
_ROUND = 25
_WARM = 5  # frames of each round that do not count: the other way's memory is in the caches
_SECONDS = 4.0
_PATIENCE = 10.0
_SCENES = 4


class Lap(NamedTuple):
    """How one way did: medians in ms a frame, of ``frames`` that were counted."""

    way: str
    frames: int
    fill: float
    hand_over: float
    read: float
    whole: float

    @property
    def megabytes_a_second(self) -> float:
        return WIDTH * HEIGHT * 3 / self.whole / 1000


def race() -> list[Lap]:
    """By reference, and by pipe. RuntimeError when a frame came wrong, or the other process went."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = Link.pair()
    pipe_in, pipe_out = context.Pipe(duplex=False)
    replies, answering = context.Pipe(duplex=False)
    child = context.Process(target=_consume, args=(theirs, pipe_in, answering), daemon=True)
    try:
        with _unbothered():
            child.start()
        for end in (theirs, pipe_in, answering):
            end.close()
        with Pool.of_images("rgb8", WIDTH, HEIGHT, 4) as pool, Interrupt() as interrupt:
            return _laps(ours, pool, pipe_out, replies, interrupt)
    except (FerryError, OSError, EOFError) as error:
        raise RuntimeError(f"the second process went wrong: {error or type(error).__name__}") from error
    finally:
        for end in (ours, pipe_out, theirs, pipe_in, answering):
            end.close()
        if child.pid is not None:
            child.join(_PATIENCE)
            child.kill()
            child.join()
        replies.close()


@contextlib.contextmanager
def _unbothered() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal: one that is started here leaves it to this one, which ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _laps(link: Link, pool: Pool, pipe: Connection, replies: Connection, interrupt: Interrupt) -> list[Lap]:
    own = np.empty((HEIGHT, WIDTH, 3), np.uint8)

    def by_reference(fill: Fill) -> int:
        frame = pool.acquire(_PATIENCE)
        assert frame is not None
        with frame:
            fill(frame.numpy())
            filled = time.monotonic_ns()
            link.send(frame, _PATIENCE)
        return filled

    def by_pipe(fill: Fill) -> int:
        fill(own)
        filled = time.monotonic_ns()
        pipe.send(own)
        return filled

    # Round by round, so that what else the machine does meets both.
    ways = {"tensorferry.link": by_reference, "multiprocessing.Pipe": by_pipe}
    times: dict[str, list[tuple[int, int, int]]] = {way: [] for way in ways}
    drawn = scene(WIDTH, HEIGHT)
    pictures = [_Picture(np.roll(drawn, 480 * i, axis=1)) for i in range(_SCENES)]
    end = time.monotonic() + _SECONDS
    for turn in range(_ROUNDS):
        if turn and time.monotonic() > end:
            break
        for way, hand in ways.items():
            for number in range(turn * _ROUND, (turn + 1) * _ROUND):
                interrupt.check()
                picture = pictures[number % _SCENES]
                begun = time.monotonic_ns()
                filled = hand(functools.partial(picture.draw, number))
                if not replies.poll(_PATIENCE):
                    raise RuntimeError(f"no answer to frame {number} by {way}")
                had, done, total = replies.recv()
                if total != picture.total(number):
                    raise RuntimeError(f"frame {number} by {way} came with other bytes than it was sent with")
                if number % _ROUND >= _WARM:
                    times[way].append((filled - begun, had - filled, done - had))
    return [_lap(way, laps) for way, laps in times.items()]


class _Picture:
    """A frame to draw, whose first eight bytes are its number."""

    def __init__(self, rgb: Array) -> None:
        self._rgb = rgb
        self._rgb.reshape(-1)[:8] = 0
        self._total = checksum(self._rgb)

    def draw(self, number: int, frame: Array) -> None:
        frame[...] = self._rgb
        frame.reshape(-1)[:8].view(np.uint64)[0] = number

    def total(self, number: int) -> int:
        return (self._total + number) % (1 << 64)


def checksum(frame: Array) -> int:
    """Of every byte: the sum of all 8-byte words. No two of the frames drawn here have the same."""
    return int(frame.reshape(-1).view(np.uint64).sum())


def _consume(link: Link, pipe: Connection, replies: Connection) -> None:
    """The second process: reads each frame whole as it comes, and answers when it had it, and what it read."""

    def answer(frame: Array) -> None:
        had = time.monotonic_ns()
        total = checksum(frame)
        replies.send((had, time.monotonic_ns(), total))

    with contextlib.suppress(EOFError, ConnectionError, FerryError):
        while True:
            for _ in range(_ROUND):
                with link.recv() as tensor:
                    answer(tensor.numpy())
            for _ in range(_ROUND):
                answer(pipe.recv())


def _lap(way: str, laps: list[tuple[int, int, int]]) -> Lap:
    fill, hand_over, read = (statistics.median(column) / 1e6 for column in zip(*laps, strict=True))
    return Lap(way, len(laps), fill, hand_over, read, statistics.median(map(sum, laps)) / 1e6)
