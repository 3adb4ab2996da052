"""What does it cost to hand a frame to another process, beside the other ways to do it, in one run?

    python benchmarks/handoff.py [--quick] [--json FILE]

Two processes. First, frames that the producer fills and the consumer reads whole, one at a time and as a
stream. Then the hand-off alone, nothing filled and nothing read: lend a frame, and wait until it is back.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import multiprocessing
import os
import shutil
import socket
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from measure import (
    Effort,
    Target,
    Timing,
    environment,
    number,
    optional,
    percentile,
    print_targets,
    progress,
    ratio,
    rounds_of,
    table,
    write_json,
)

import tensorferry as ferry
from tensorferry import blob
from tensorferry.link import Link, Pool

Array = npt.NDArray[np.uint8]
Shape = tuple[int, ...]

TINY, FRAME, LARGE = "4 KB", "1080p RGB, 6.2 MB", "64 MiB"
SHAPES: dict[str, Shape] = {TINY: (4096,), FRAME: (1080, 1920, 3), LARGE: (64, 1024, 1024)}

LINK, PIPE, SHARED, ICEORYX = "ferry link", "Pipe, pickled", "shared_memory, Queue", "iceoryx2"
BARE, PIPE_SMALL = "send_fds/recv_fds", "Pipe, one number"
SINGLE, STREAM = "one at a time", "stream"
TOGETHER, APART = "on one processor", "on two processors"
SLOTS = 4
PATIENCE = 30.0
"""Seconds after which a process that does not answer is taken for dead."""

LEGEND = """\
Milliseconds a frame, from the start of its filling to the end of its reading; of a stream, from one frame
read to the next. "transfer" is what is left of it without the filling and the reading. Every byte is
written and read, in memory that stays the same: an array of its own for the pipe, which copies it out and
in; a ring of 4 buffers for the others. A ratio is the median of the rounds' own ratios. iceoryx2 lends
from its publisher and wakes the other side with its events, since it has no receive that waits."""
LEGEND_TRIPS = """\
Microseconds from lending a frame to having it back. The bare loop sends as many bytes and a descriptor,
which the other side closes, and gets 24 bytes back. The small pipe sends a number each way; iceoryx2
a sample one way, and an event each way, the second when the sample is released. Where the processes run
is settled for each table, or the kernel would place one contender's on one processor and another's on
two. On one, two interpreters at different addresses keep spoiling each other's branch prediction: that
costs more the more Python runs for a frame (setarch -R, without address randomization, shows it)."""


class Plan(NamedTuple):
    """How much of one question: rounds, and frames of each contender in a round."""

    effort: Effort
    frames: int


FULL = {
    FRAME: Plan(Effort(seconds=22, least=5, most=200, loop=0), 12),
    LARGE: Plan(Effort(seconds=22, least=3, most=100, loop=0), 4),
    "trips": Plan(Effort(seconds=13, least=5, most=200, loop=0), 200),
}
QUICK = {
    FRAME: Plan(Effort(seconds=3, least=2, most=50, loop=0), 8),
    LARGE: Plan(Effort(seconds=3, least=1, most=20, loop=0), 3),
    "trips": Plan(Effort(seconds=2, least=3, most=50, loop=0), 100),
}


# ---- the contenders: each is two ends, one for either process ----


class Sender(ABC):
    """The producer's end."""

    @abstractmethod
    def give(self, i: int) -> float:
        """Hand frame ``i`` over; returns the seconds that filling it took, of these."""

    def settle(self) -> None:  # noqa: B027  # most have nothing to wait for
        """After a round: wait for what is still out."""

    @abstractmethod
    def close(self) -> None:
        """Free what this end owns."""


class Receiver(ABC):
    """The consumer's end. It is pickled to the other process, where ``open`` is called before all else."""

    def open(self) -> None:  # noqa: B027  # most can be pickled whole
        """Take up what cannot be pickled."""

    @abstractmethod
    def take(self, i: int) -> float:
        """Take frame ``i``, and give it back; returns the seconds that reading it took, of these."""

    @abstractmethod
    def close(self) -> None:
        """Free what this end owns."""


Contender = Callable[[Shape], tuple[Sender, Receiver]]


def fill(frame: Array, i: int) -> float:
    """Write every byte, each frame with another value."""
    start = perf_counter()
    frame.fill(i & 0xFF)
    return perf_counter() - start


def read(frame: Array, i: int) -> float:
    """Read every byte, and see that they are frame ``i``'s."""
    start = perf_counter()
    seen = frame.max()
    took = perf_counter() - start
    if seen != i & 0xFF:
        raise AssertionError(f"frame {i} was read as {seen}, not {i & 0xFF}")
    return took


# ours


class LinkSender(Sender):
    def __init__(self, link: Link, shape: Shape) -> None:
        self.link = link
        self.pool = Pool(shape, np.uint8, SLOTS)

    def give(self, i: int) -> float:
        frame = self.pool.acquire(PATIENCE)
        assert frame is not None
        with frame:
            took = fill(frame.numpy(), i)
            self.link.send(frame)
        return took

    def close(self) -> None:
        self.link.close()
        self.pool.close()


class LinkReceiver(Receiver):
    def __init__(self, link: Link) -> None:
        self.link = link

    def take(self, i: int) -> float:
        with self.link.recv() as frame:
            return read(frame.numpy(), i)

    def close(self) -> None:
        self.link.close()


class LinkTripSender(Sender):
    """A pool of one: the next ``acquire`` waits until the frame is back."""

    def __init__(self, link: Link, shape: Shape) -> None:
        self.link = link
        self.pool = Pool(shape, np.uint8, 1)

    def give(self, i: int) -> float:
        with self.pool.acquire() as frame:  # type: ignore[union-attr]  # it waits: never None
            self.link.send(frame)
        return 0.0

    def settle(self) -> None:
        frame = self.pool.acquire(PATIENCE)
        assert frame is not None
        frame.close()

    def close(self) -> None:
        self.link.close()
        self.pool.close()


class LinkTripReceiver(LinkReceiver):
    def take(self, i: int) -> float:
        with self.link.recv():
            return 0.0


def by_link(shape: Shape) -> tuple[Sender, Receiver]:
    ours, theirs = Link.pair()
    return LinkSender(ours, shape), LinkReceiver(theirs)


def by_link_trip(shape: Shape) -> tuple[Sender, Receiver]:
    ours, theirs = Link.pair()
    return LinkTripSender(ours, shape), LinkTripReceiver(theirs)


# a descriptor by hand: the least that a hand-off by descriptor can cost in Python


class BareSender(Sender):
    def __init__(self, sock: socket.socket, shape: Shape) -> None:
        self.sock = sock
        frame = ferry.allocate(shape, "uint8", storage="shm")
        message, descriptors = blob.export(frame, blob.TransportMode.REFERENCE)
        self.frame, self.message, self.descriptors = frame, bytes(24 + len(message)), descriptors

    def give(self, i: int) -> float:
        socket.send_fds(self.sock, [self.message], self.descriptors)
        if not self.sock.recv(24):
            raise EOFError("the consumer is gone")
        return 0.0

    def close(self) -> None:
        self.frame.close()
        self.sock.close()


class BareReceiver(Receiver):
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def take(self, i: int) -> float:
        _, descriptors, _, _ = socket.recv_fds(self.sock, 4096, 1)
        for descriptor in descriptors:
            os.close(descriptor)
        self.sock.send(b"given back, in 24 bytes.")
        return 0.0

    def close(self) -> None:
        self.sock.close()


def by_hand(shape: Shape) -> tuple[Sender, Receiver]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return BareSender(ours, shape), BareReceiver(theirs)


# multiprocessing: a pickle through a pipe


class PipeSender(Sender):
    def __init__(self, pipe: Connection, shape: Shape) -> None:
        self.pipe = pipe
        self.frame = np.zeros(shape, np.uint8)

    def give(self, i: int) -> float:
        took = fill(self.frame, i)
        self.pipe.send(self.frame)
        return took

    def close(self) -> None:
        self.pipe.close()


class PipeReceiver(Receiver):
    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def take(self, i: int) -> float:
        return read(self.pipe.recv(), i)

    def close(self) -> None:
        self.pipe.close()


class PipeTripSender(Sender):
    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def give(self, i: int) -> float:
        self.pipe.send(i)
        self.pipe.recv()
        return 0.0

    def close(self) -> None:
        self.pipe.close()


class PipeTripReceiver(PipeReceiver):
    def take(self, i: int) -> float:
        self.pipe.send(self.pipe.recv())
        return 0.0


def by_pipe(shape: Shape) -> tuple[Sender, Receiver]:
    theirs, ours = multiprocessing.Pipe(duplex=False)
    return PipeSender(ours, shape), PipeReceiver(theirs)


def by_pipe_trip(shape: Shape) -> tuple[Sender, Receiver]:
    ours, theirs = multiprocessing.Pipe()
    return PipeTripSender(ours), PipeTripReceiver(theirs)


# multiprocessing: shared memory, and queues of the slots in it


class SharedSender(Sender):
    def __init__(self, shape: Shape, filled: Any, free: Any) -> None:
        self.memory = SharedMemory(create=True, size=SLOTS * int(np.prod(shape)))
        self.slots: Array | None = np.ndarray((SLOTS, *shape), np.uint8, self.memory.buf)
        self.filled, self.free = filled, free
        for slot in range(SLOTS):
            free.put(slot)

    def give(self, i: int) -> float:
        slot = self.free.get(timeout=PATIENCE)
        assert self.slots is not None
        took = fill(self.slots[slot], i)
        self.filled.put(slot)
        return took

    def close(self) -> None:
        self.slots = None
        self.memory.close()
        self.memory.unlink()
        for queue in (self.filled, self.free):
            queue.close()
            queue.join_thread()


class SharedReceiver(Receiver):
    def __init__(self, name: str, shape: Shape, filled: Any, free: Any) -> None:
        self.name, self.shape, self.filled, self.free = name, shape, filled, free

    def open(self) -> None:
        self.memory = SharedMemory(self.name)
        self.slots: Array | None = np.ndarray((SLOTS, *self.shape), np.uint8, self.memory.buf)

    def take(self, i: int) -> float:
        slot = self.filled.get(timeout=PATIENCE)
        assert self.slots is not None
        took = read(self.slots[slot], i)
        self.free.put(slot)
        return took

    def close(self) -> None:
        self.slots = None
        self.memory.close()


def by_shared_memory(shape: Shape) -> tuple[Sender, Receiver]:
    spawn = multiprocessing.get_context("spawn")
    filled, free = spawn.Queue(), spawn.Queue()
    sender = SharedSender(shape, filled, free)
    return sender, SharedReceiver(sender.memory.name, shape, filled, free)


# iceoryx2: loans from a publisher


class Iceoryx:
    """One end: a node with the services of one contender, in a directory and under a prefix of their own."""

    def __init__(self, root: str, name: str) -> None:
        self.root, self.name = root, name

    def open(self) -> None:
        iox = optional("iceoryx2")
        iox.set_log_level(iox.LogLevel.Error)
        config = iox.config.default()
        config.global_cfg.root_path = iox.Path.new(self.root)
        config.global_cfg.prefix = iox.FileName.new(f"{Path(self.root).name}_")
        self.iox, self.patience = iox, iox.Duration.from_secs_f64(PATIENCE)
        node = iox.NodeBuilder.new().config(config).signal_handling_mode(iox.SignalHandlingMode.Disabled)
        self.node = node.create(iox.ServiceType.Ipc)

    def frames(self) -> Any:
        service = self.node.service_builder(self.iox.ServiceName.new(self.name))
        service = service.publish_subscribe(self.iox.Slice[ctypes.c_uint8]).enable_safe_overflow(False)
        return service.subscriber_max_buffer_size(SLOTS).open_or_create()

    def events(self, what: str) -> Any:
        service = self.node.service_builder(self.iox.ServiceName.new(f"{self.name} {what}"))
        return service.event().open_or_create()

    def wait(self, listener: Any) -> None:
        end = perf_counter() + PATIENCE
        while not listener.timed_wait(self.patience):  # it also wakes up for events that it has told before
            if perf_counter() > end:
                raise TimeoutError("iceoryx2: no event came")


class IceoryxSender(Sender):
    def __init__(self, end: Iceoryx, shape: Shape, *, filled: bool) -> None:
        end.open()
        self.end, self.shape, self.filled = end, shape, filled
        self.size = int(np.prod(shape))
        self.publisher = end.frames().publisher_builder().initial_max_slice_len(self.size).create()
        self.notifier = end.events("sent").notifier_builder().create()
        self.listener = end.events("released").listener_builder().create()

    def give(self, i: int) -> float:
        loan = self.publisher.loan_slice_uninit(self.size)
        took = fill(_array(loan, self.shape), i) if self.filled else 0.0
        loan.assume_init().send()
        self.notifier.notify()
        if not self.filled:
            self.end.wait(self.listener)
        return took

    def close(self) -> None:
        for port in (self.publisher, self.notifier, self.listener):
            port.delete()
        del self.end.node


class IceoryxReceiver(Receiver):
    def __init__(self, end: Iceoryx, shape: Shape, *, filled: bool) -> None:
        self.end, self.shape, self.filled = end, shape, filled

    def open(self) -> None:
        self.end.open()
        self.subscriber = self.end.frames().subscriber_builder().create()
        self.listener = self.end.events("sent").listener_builder().create()
        self.notifier = self.end.events("released").notifier_builder().create()

    def take(self, i: int) -> float:
        while (sample := self.subscriber.receive()) is None:
            self.end.wait(self.listener)
        took = read(_array(sample, self.shape), i) if self.filled else 0.0
        sample.delete()
        if not self.filled:
            self.notifier.notify()
        return took

    def close(self) -> None:
        for port in (self.subscriber, self.listener, self.notifier):
            port.delete()
        del self.end.node


def _array(sample: Any, shape: Shape) -> Array:
    return np.frombuffer(sample.payload().as_memory_view(), np.uint8).reshape(shape)


def by_iceoryx2(root: str, filled: bool, shape: Shape) -> tuple[Sender, Receiver]:
    name = f"{'filled' if filled else 'trip'} {'x'.join(map(str, shape))}"
    sender = IceoryxSender(Iceoryx(root, name), shape, filled=filled)
    return sender, IceoryxReceiver(Iceoryx(root, name), shape, filled=filled)


# ---- the other process ----


class Consumer:
    """The process with the receivers: told over a pipe which of them takes how many frames."""

    def __init__(self, receivers: Mapping[str, Receiver], processors: set[int]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._commands, commands = spawn.Pipe()
        self.acknowledged, acknowledge = socket.socketpair()
        self.acknowledged.settimeout(PATIENCE)
        arguments = (dict(receivers), commands, acknowledge, processors)
        self._process = spawn.Process(target=consume, args=arguments, name="consumer", daemon=True)
        self._process.start()
        commands.close()
        acknowledge.close()
        for receiver in receivers.values():
            _disown(receiver)
        self.result()

    def start(self, key: str, frames: int, *, acknowledging: bool) -> None:
        self._commands.send((key, frames, acknowledging))

    def result(self) -> list[tuple[float, float]]:
        """Of each frame when it was read, and how long the reading took."""
        if not self._commands.poll(PATIENCE):
            raise TimeoutError("the consumer does not answer")
        taken: list[tuple[float, float]] = self._commands.recv()
        return taken

    def close(self) -> None:
        """Ask it to end, and see that it does."""
        with suppress(OSError):
            self._commands.send(None)
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self._commands.close()
        self.acknowledged.close()


def _disown(receiver: Receiver) -> None:
    """Close this process's copy of a receiver's end, so that the consumer's death can be seen here."""
    for attribute in ("link", "sock", "pipe"):
        end = getattr(receiver, attribute, None)
        if end is not None:
            end.close()


def consume(
    receivers: Mapping[str, Receiver], commands: Connection, acknowledge: socket.socket, processors: set[int]
) -> None:
    """The other process: take what comes, and report when each frame was read and how long the reading took.

    ``perf_counter`` is one clock for all processes of a Linux host.
    """
    gc.disable()
    os.sched_setaffinity(0, processors)
    for receiver in receivers.values():
        receiver.open()
    commands.send([])  # ready
    while (command := commands.recv()) is not None:
        key, frames, acknowledging = command
        receiver = receivers[key]
        taken = []
        for i in range(frames):
            reading = receiver.take(i)
            taken.append((perf_counter(), reading))
            if acknowledging:
                acknowledge.send(b"\0")
        commands.send(taken)
    for receiver in receivers.values():
        receiver.close()


# ---- measuring ----


class Course:
    """One contender, and what its frames took, over all rounds."""

    def __init__(self, consumer: Consumer, key: str, sender: Sender, frames: int) -> None:
        self.consumer, self.key, self.sender, self.frames = consumer, key, sender, frames
        self.seconds: list[float] = []
        self.transfers: list[float] = []
        self.transfer_rounds: list[float] = []

    def single(self) -> float:
        """A round of frames one at a time."""
        self.consumer.start(self.key, self.frames, acknowledging=True)
        given = []
        for i in range(self.frames):
            start = perf_counter()
            filling = self.sender.give(i)
            given.append((start, filling))
            if not self.consumer.acknowledged.recv(1):
                raise EOFError("the consumer is gone")
        taken = self.consumer.result()
        round_ = [end - start for (start, _), (end, _) in zip(given, taken, strict=True)]
        pairs = zip(round_, given, taken, strict=True)
        transfers = [whole - filling - reading for whole, (_, filling), (_, reading) in pairs]
        self.transfers += transfers
        self.transfer_rounds.append(median(transfers))
        return self._kept(round_)

    def stream(self) -> float:
        """A round of frames as fast as they go: the time between two that were read."""
        count = self.frames + SLOTS
        self.consumer.start(self.key, count, acknowledging=False)
        for i in range(count):
            self.sender.give(i)
        ends = [end for end, _ in self.consumer.result()][SLOTS - 1 :]  # the first fill the ring
        self._kept([b - a for a, b in pairwise(ends)])
        return (ends[-1] - ends[0]) / self.frames

    def trips(self) -> float:
        """A round of hand-offs that wait until the frame is back."""
        self.consumer.start(self.key, self.frames, acknowledging=False)
        round_ = []
        for i in range(self.frames):
            start = perf_counter()
            self.sender.give(i)
            round_.append(perf_counter() - start)
        self.sender.settle()
        self.consumer.result()
        return self._kept(round_)

    def _kept(self, round_: list[float]) -> float:
        self.seconds += round_
        return median(round_)


class Measured(NamedTuple):
    """Seconds of one contender: every frame's, the rounds' medians, and the same of the transfer alone."""

    seconds: list[float]
    rounds: Timing
    transfers: list[float]
    transfer_rounds: Timing

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def p99(self) -> float:
        return percentile(self.seconds, 0.99)


Results = dict[tuple[str, ...], Measured]


def measure_filled(size: str, contenders: Mapping[str, Contender], plan: Plan) -> Results:
    """Frames filled and read, by (mode, contender)."""
    made = {name: make(SHAPES[size]) for name, make in contenders.items()}
    modes = {SINGLE: Course.single, STREAM: Course.stream}
    everywhere = os.sched_getaffinity(0)
    return _run(
        made, plan, lambda course: {(mode,): partial(run, course) for mode, run in modes.items()}, size, everywhere
    )


def measure_trips(contenders: Mapping[tuple[str, str], Contender], plan: Plan, placement: str) -> Results:
    """Hand-offs alone, by (contender, size)."""
    allowed = os.sched_getaffinity(0)
    ours, theirs = min(allowed), max(allowed) if placement == APART else min(allowed)
    os.sched_setaffinity(0, {ours})
    try:
        made = {f"{name}, {size}": make(SHAPES[size]) for (name, size), make in contenders.items()}
        what = f"hand-off alone, {placement}"
        results = _run(made, plan, lambda course: {(): course.trips}, what, {theirs})
    finally:
        os.sched_setaffinity(0, allowed)
    return {key: results[(f"{key[0]}, {key[1]}",)] for key in contenders}


def _run(
    made: Mapping[str, tuple[Sender, Receiver]],
    plan: Plan,
    modes: Callable[[Course], Mapping[tuple[str, ...], Callable[[], float]]],
    what: str,
    processors: set[int],
) -> Results:
    progress(f"{what}: {len(made)} contenders, {plan.effort.seconds:g} s or more")
    consumer = None
    try:
        consumer = Consumer({name: receiver for name, (_, receiver) in made.items()}, processors)
        jobs, courses = {}, {}
        for name, (sender, _) in made.items():
            for mode in modes(Course(consumer, name, sender, 1)):
                key = (*mode, name)
                courses[key] = Course(consumer, name, sender, plan.frames)
                jobs[key] = modes(courses[key])[mode]
        for course, job in zip(courses.values(), jobs.values(), strict=True):
            job()  # maps, connects and faults in, once
            course.seconds.clear()
            course.transfers.clear()
            course.transfer_rounds.clear()
        timings = rounds_of(jobs, plan.effort)
    finally:
        if consumer is not None:
            consumer.close()
        for sender, _ in made.values():
            sender.close()
        progress("")
    return {
        key: Measured(course.seconds, timings[key], course.transfers, Timing(course.transfer_rounds))
        for key, course in courses.items()
    }


class Numbers(NamedTuple):
    filled: dict[str, Results]
    trips: dict[str, Results]


def measure(plans: Mapping[str, Plan]) -> Numbers:
    # All that iceoryx2 makes is under this name: here, and in /dev/shm.
    root = Path(tempfile.mkdtemp(prefix="ferry_handoff_"))
    iceoryx = optional("iceoryx2") is not None
    try:
        contenders: dict[str, Contender] = {LINK: by_link, PIPE: by_pipe, SHARED: by_shared_memory}
        trips: dict[tuple[str, str], Contender] = {(BARE, TINY): by_hand, (PIPE_SMALL, TINY): by_pipe_trip}
        trips.update({(LINK, size): by_link_trip for size in SHAPES})
        if iceoryx:
            contenders[ICEORYX] = partial(by_iceoryx2, str(root), True)
            trips.update({(ICEORYX, size): partial(by_iceoryx2, str(root), False) for size in SHAPES})
        filled = {size: measure_filled(size, contenders, plans[size]) for size in (FRAME, LARGE)}
        placements = (TOGETHER, APART) if len(os.sched_getaffinity(0)) > 1 else (TOGETHER,)
        return Numbers(filled, {where: measure_trips(trips, plans["trips"], where) for where in placements})
    finally:
        shutil.rmtree(root, ignore_errors=True)
        for left in Path("/dev/shm").glob(f"{root.name}_*"):
            left.unlink(missing_ok=True)


# ---- telling ----


def print_filled(size: str, results: Results) -> None:
    print(f"\n{size}: {'×'.join(map(str, SHAPES[size]))} uint8, filled and read")
    rows = []
    for mode in (SINGLE, STREAM):
        ours = results[mode, LINK]
        for (of, name), found in results.items():
            if of != mode:
                continue
            row = [f"{name}, {mode}", number(found.median * 1e3), number(found.p99 * 1e3)]
            row += [f"{number(ratio(found.rounds, ours.rounds))}×", "-", "-"]
            if found.transfers:
                beside = ratio(found.transfer_rounds, ours.transfer_rounds)
                row[-2:] = [number(median(found.transfers) * 1e3), f"{number(beside)}×"]
            rows.append(row)
    frames = len(results[SINGLE, LINK].seconds)
    head = [f"ms a frame, {frames} frames each", "median", "p99", "× ours", "transfer", "× ours"]
    print(table(head, rows))


def print_trips(placement: str, trips: Results) -> None:
    print(f"\nhand-off alone, there and back, {placement}")
    bare = trips[BARE, TINY]
    rows = []
    for (name, size), found in trips.items():
        rows.append(
            [
                f"{name}, {size}" if name in (LINK, ICEORYX) else name,
                number(found.median * 1e6),
                number(found.p99 * 1e6),
                f"{number(ratio(found.rounds, bare.rounds))}×",
            ]
        )
    print(table([f"µs, {len(bare.seconds)} each", "median", "p99", "× bare"], rows))


def targets(numbers: Numbers) -> list[Target]:
    found = []
    frames = numbers.filled[FRAME]
    for mode in (SINGLE, STREAM):
        times = ratio(frames[mode, PIPE].rounds, frames[mode, LINK].rounds)
        found.append(Target(f"6.2 MB filled and read, {mode}: faster than the pipe", 20, times, "×", at_least=True))
    alone = ratio(frames[SINGLE, PIPE].transfer_rounds, frames[SINGLE, LINK].transfer_rounds)
    found.append(Target("6.2 MB, the transfer of it: faster than the pipe", 20, alone, "×", at_least=True))
    for where, trips in numbers.trips.items():
        ours = [trips[LINK, size] for size in SHAPES]
        medians = [trip.median for trip in ours]
        beside = max(ratio(trip.rounds, trips[BARE, TINY].rounds) for trip in ours)
        found.append(Target(f"hand-off {where}: slowest over fastest size", 1.3, max(medians) / min(medians), "×"))
        found.append(Target(f"hand-off {where}: round trip, slowest size", 150, max(medians) * 1e6, "µs"))
        found.append(Target(f"hand-off {where}: round trip, slowest size", 3, beside, "× the bare loop"))
    return found


def as_json(facts: dict[str, str], numbers: Numbers, promised: list[Target]) -> object:
    def row(found: Measured, ours: Measured, scale: float) -> dict[str, object]:
        return {
            "frames": len(found.seconds),
            "median": found.median * scale,
            "p99": found.p99 * scale,
            "rounds": [seconds * scale for seconds in found.rounds.rounds],
            "ratio": ratio(found.rounds, ours.rounds),
        }

    return {
        "environment": facts,
        "filled_and_read_ms": [
            {
                "size": size,
                "mode": mode,
                "contender": name,
                **row(found, results[mode, LINK], 1e3),
                "transfer_median": median(found.transfers) * 1e3 if found.transfers else None,
            }
            for size, results in numbers.filled.items()
            for (mode, name), found in results.items()
        ],
        "hand_off_us": [
            {"where": where, "size": size, "contender": name, **row(found, trips[BARE, TINY], 1e6)}
            for where, trips in numbers.trips.items()
            for (name, size), found in trips.items()
        ],
        "targets": [{**target._asdict(), "met": target.met} for target in promised],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What does it cost to hand a frame to another process?")
    parser.add_argument("--quick", action="store_true", help="few rounds: about 15 s, rough numbers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args()
    if sys.platform != "linux":
        parser.error("descriptors go over a socket on Linux only")
    start = perf_counter()
    facts = {"tensorferry": ferry.__version__, **environment("numpy", "iceoryx2")}
    print("\n".join(f"{name:<18} {value}" for name, value in facts.items()))
    numbers = measure(QUICK if options.quick else FULL)
    for size, results in numbers.filled.items():
        print_filled(size, results)
    print(f"\n{LEGEND}")
    for where, trips in numbers.trips.items():
        print_trips(where, trips)
    print(f"\n{LEGEND_TRIPS}\n")
    promised = targets(numbers)
    print_targets(promised)
    print(f"\n{perf_counter() - start:.0f} s in all")
    if options.json is not None:
        write_json(options.json, as_json(facts, numbers, promised))


if __name__ == "__main__":
    main()
