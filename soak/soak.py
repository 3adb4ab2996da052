"""Frames for days, in minutes: does a link lose, tear or leak anything, and does it survive its peers?

    python soak/soak.py [--frames N] [--kills N] [--size BYTES] [--limit SECONDS] [--seed N]

First, N frames go from this process to another through a pool of four buffers. Each carries a counter and a
checksum, and is checked when it comes and again before it is let go of. Descriptors, resident memory and page
faults of both processes are sampled all along. Then a peer is killed at a random moment, N times, a receiver
and a producer in turn; afterwards everything must have come back to this process. Exit status 1 on any failure.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensorferry import Disconnected, EndOfStream, Tensor, TimedOut, Truncated
from tensorferry.link import Link, Listener, Pool, connect

BUFFERS = 4
GUARD = 60.0
"""Seconds after which something hangs."""

SAMPLES = 20
RSS_GROWTH = 4.0
"""MiB by which resident memory may differ from the first sample after the start to the last: allocators breathe."""


class Failure(Exception):
    """What this run is there to find."""


class Sample(NamedTuple):
    """What a process has at a moment."""

    frame: int
    descriptors: int
    rss: float
    faults: int

    @classmethod
    def now(cls, frame: int) -> Sample:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        return cls(frame, len(os.listdir("/proc/self/fd")), resident, faults)


class Progress:
    """A line on stderr, rewritten where that is a terminal; and the end of all patience."""

    def __init__(self, what: str, total: int, deadline: float) -> None:
        self._what = what
        self._total = total
        self._deadline = deadline
        self._start = self._shown = time.monotonic()

    def at(self, done: int) -> None:
        now = time.monotonic()
        if now > self._deadline:
            raise Failure(f"out of time at {self._what} {done} of {self._total} (--limit)")
        if sys.stderr.isatty() and now - self._shown > 0.2:
            self._shown = now
            rate = done / (now - self._start)
            print(f"\r{self._what} {done:,} of {self._total:,}, {rate:,.0f}/s ", end="", file=sys.stderr, flush=True)

    def done(self) -> float:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
        return time.monotonic() - self._start


# ---- frames ----


def write(tensor: Tensor, number: int) -> None:
    array = tensor.numpy()
    array[2:] = number
    array[2 + number % (len(array) - 2)] = ~number  # so that no two frames are alike in one place only
    array[0] = number
    array[1] = zlib.crc32(array[2:].data)


def check(array: npt.NDArray[Any], number: int | None) -> int:
    """The frame's number; Failure if it is torn, or not ``number``."""
    found = int(array[0])
    if int(array[1]) != zlib.crc32(array[2:].data):
        raise Failure(f"frame {found} is torn")
    if number is not None and found != number:
        raise Failure(f"frame {found} came, {number} was to come")
    return found


def acquire(pool: Pool) -> Tensor:
    tensor = pool.acquire(GUARD)
    assert tensor is not None
    return tensor


# ---- processes ----


@contextlib.contextmanager
def forked(run: Callable[[], None]) -> Iterator[int]:
    """A forked child that runs ``run``; killed if the block is left by an error, and reaped by its pid."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    try:
        yield pid
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def reap(pid: int) -> int:
    """The child's exit status, negative a signal."""
    deadline = time.monotonic() + GUARD
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            raise Failure(f"child {pid} hangs")
        time.sleep(0.0005)


def no_zombie() -> None:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return
    raise Failure("a child was left behind")


# ---- the stream ----


def consume(link: Link, frames: int, every: int) -> None:
    """Check every frame as it comes, and again when it is let go of, some frames later; report samples."""
    chance = random.Random(1)
    held: list[tuple[int, npt.NDArray[Any]]] = []
    number = 0
    for tensor in link:
        with tensor:
            held.append((check(tensor.numpy(), number), tensor.numpy()))  # a view outlives its tensor
        while len(held) >= BUFFERS - 1 or (held and chance.random() < 0.7):
            expected, view = held.pop(chance.randrange(len(held)))
            check(view, expected)
            del view
        number += 1
        if number % every == 0:
            link.send(np.array(Sample.now(number)))
    if number != frames:
        raise Failure(f"{number} of {frames} frames came")


def stream(frames: int, size: int, deadline: float) -> None:
    every = max(frames // SAMPLES, 1)
    ours: list[Sample] = []
    theirs: list[Sample] = []
    near, far = Link.pair()
    progress = Progress("frame", frames, deadline)

    def run() -> None:
        near.close()
        consume(far, frames, every)
        far.close()

    with forked(run) as pid:
        far.close()
        with near, Pool(size // 8, "int64", BUFFERS) as pool:
            for number in range(frames):
                with acquire(pool) as tensor:
                    write(tensor, number)
                    near.send(tensor, GUARD)
                if (number + 1) % every == 0:
                    progress.at(number + 1)
                    ours.append(Sample.now(number + 1))
                    theirs += received(near)
            while len(theirs) < len(ours):
                with near.recv(GUARD) as tensor:
                    theirs.append(sample(tensor))
        status = reap(pid)
    seconds = progress.done()
    show(ours, theirs)
    print(f"{frames:,} frames of {size:,} bytes in {seconds:.1f} s, {frames / seconds:,.0f}/s: none lost, none torn")
    if status:
        raise Failure(f"the consumer ended with {status}")
    flat("producer", ours)
    flat("consumer", theirs)
    no_zombie()


def received(link: Link) -> list[Sample]:
    """The samples that have come so far."""
    samples = []
    while True:
        try:
            with link.recv(0) as tensor:
                samples.append(sample(tensor))
        except TimedOut:
            return samples


def sample(tensor: Tensor) -> Sample:
    frame, descriptors, rss, faults = tensor.numpy().tolist()
    return Sample(int(frame), int(descriptors), rss, int(faults))


def show(ours: list[Sample], theirs: list[Sample]) -> None:
    print(f"{'':>10}  {'producer':^28}  {'consumer':^28}")
    print(f"{'frame':>10}" + f"  {'descriptors':>11} {'RSS MiB':>8} {'faults':>7}" * 2)
    for a, b in zip(ours, theirs, strict=True):
        columns = "".join(f"  {s.descriptors:>11} {s.rss:>8.1f} {s.faults:>7}" for s in (a, b))
        print(f"{a.frame:>10,}{columns}")


def flat(who: str, samples: list[Sample]) -> None:
    first, last = samples[min(1, len(samples) - 1)], samples[-1]
    if first.descriptors != last.descriptors:
        raise Failure(f"the {who} had {first.descriptors} descriptors, and has {last.descriptors}")
    if last.rss - first.rss > RSS_GROWTH:
        raise Failure(f"the {who} had {first.rss:.1f} MiB resident, and has {last.rss:.1f}")


# ---- the kills ----


def victim(path: Path, produces: bool, size: int) -> None:
    """Run until killed."""
    link = connect(path, GUARD)
    if produces:
        pool = Pool(size // 8, "int64", BUFFERS)
        number = 0
        while True:
            with acquire(pool) as tensor:
                write(tensor, number)
                link.send(tensor)
            number += 1
    for tensor in link:
        with tensor:
            check(tensor.numpy(), None)


def survive(link: Link, pool: Pool, produces: bool) -> tuple[int, str]:
    """Exchange frames with a victim until it is gone: how many, and how its end was told."""
    number = 0
    kept = None
    try:
        while True:
            if produces:
                tensor = link.recv(GUARD)
                check(tensor.numpy(), number)
                kept = tensor
            else:
                with acquire(pool) as tensor:
                    write(tensor, number)
                    link.send(tensor, GUARD)
            number += 1
    except (EndOfStream, Disconnected, Truncated) as error:
        if kept is not None:
            check(kept.numpy(), number - 1)  # what it produced outlives it
        return number, type(error).__name__


def kill(pid: int, delay: float) -> None:
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)


def kills(count: int, size: int, deadline: float, seed: int) -> None:
    chance = random.Random(seed)
    endings: dict[str, int] = {}
    frames = 0
    samples: list[Sample] = []
    progress = Progress("kill", count, deadline)
    with (
        tempfile.TemporaryDirectory() as directory,
        Listener(Path(directory, "soak.sock")) as listener,
        Pool(size // 8, "int64", BUFFERS) as pool,
    ):
        path = Path(listener.path)
        for i in range(count):
            produces = i % 2 == 0
            with forked(partial(victim, path, produces, size)) as pid:
                with listener.accept(GUARD) as link:
                    killer = threading.Thread(target=kill, args=(pid, chance.random() * chance.random() * 0.05))
                    killer.start()
                    number, ending = survive(link, pool, produces)
                    killer.join()
                status = reap(pid)
            if status != -signal.SIGKILL:
                raise Failure(f"the victim of kill {i} ended by itself, with {status}")
            frames += number
            endings[ending] = endings.get(ending, 0) + 1
            everything_back(pool, i)
            samples.append(Sample.now(i + 1))
            progress.at(i + 1)
    seconds = progress.done()
    first, last = samples[min(2, len(samples) - 1)], samples[-1]
    told = ", ".join(f"{name} {times}" for name, times in sorted(endings.items()))
    print(f"{count} peers killed in {seconds:.1f} s, after {frames:,} frames: told by {told}")
    print(f"descriptors {first.descriptors} → {last.descriptors}, RSS {first.rss:.1f} → {last.rss:.1f} MiB, no zombie")
    flat("survivor", samples[1:])
    no_zombie()


def everything_back(pool: Pool, i: int) -> None:
    try:
        buffers = [acquire(pool) for _ in range(BUFFERS)]
    except TimedOut as error:
        raise Failure(f"after kill {i}: {error}") from error
    for tensor in buffers:
        tensor.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--size", type=int, default=32768, help="bytes of a frame")
    parser.add_argument("--limit", type=float, default=1200, help="seconds after which it fails")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    deadline = time.monotonic() + args.limit
    print(f"soak: {args.frames:,} frames, {args.kills} kills, seed {args.seed}")
    try:
        if args.frames:
            stream(args.frames, args.size, deadline)
        if args.kills:
            kills(args.kills, args.size, deadline, args.seed)
    except Failure as failure:
        print(f"FAILED: {failure}")
        return 1
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
