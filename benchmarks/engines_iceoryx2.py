"""What does a frame cost through iceoryx2, by hand and through tensorferry? Run by engines.py.

As there, a frame of 6.2 MB goes to a second process and the next when it was acknowledged, but ten of one contender
in a row. Hand-off: the clock starts before memory is asked for, nothing is written, and it stops when the reader has
an array over the frame. Filled and read: every byte is written, and summed up.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from engine_kit import (
    FILLED,
    HANDOFF,
    PATIENCE,
    QUESTIONS,
    SHAPE,
    Array,
    Engine,
    Key,
    Reader,
    Runs,
    answer,
)
from measure import Target, Timing, optional, ratio, settle_memory

from tensorferry.net import iceoryx2

SIZE = int(np.prod(SHAPE))
MEMORY = "shared memory"
RAW, LOAN, RAW_ARRAY, ARRAY, PICKLE = (
    "raw loan and send",
    "ferry, a loan",
    "raw, an array copied in",
    "ferry, any array",
    "Pipe, pickled",
)

IN_A_ROW = 10

Give = Callable[[np.uint8 | None], None]
"""Sends a frame that is filled with a number, or with whatever is there."""


class Frames(Reader):
    """The reading process, and how a frame to it is timed."""

    def time(self, name: str, question: str, give: Give) -> Callable[[], float]:
        """Seconds a frame, of ``IN_A_ROW`` one after the other: no frame finds the caches of another contender."""
        counter = 0

        def once() -> float:
            nonlocal counter
            took = 0.0
            for _ in range(IN_A_ROW):
                self._pipe.send((name, question))
                self.says()  # it waits
                counter = (counter + 1) % 256
                start = perf_counter()
                give(np.uint8(counter) if question == FILLED else None)
                end, total = self.says()
                if question == FILLED and total != counter * 0x0101010101010101 * (SIZE // 8) % 2**64:
                    raise AssertionError(f"{name}: another frame was read than was sent")
                took += end - start
            return took / IN_A_ROW

        return once


# ---- by hand ----


class Raw:
    """A node of iceoryx2 under a directory of its own, and services on it."""

    def __init__(self, root: str) -> None:
        self.iox = iox = optional("iceoryx2")
        iox.set_log_level(iox.LogLevel.Error)
        config = iox.config.default()
        config.global_cfg.root_path = iox.Path.new(root)
        config.global_cfg.prefix = iox.FileName.new(f"{Path(root).name}_")
        node = iox.NodeBuilder.new().config(config).signal_handling_mode(iox.SignalHandlingMode.Disabled)
        self.node = node.create(iox.ServiceType.Ipc)

    def samples(self, name: str) -> Any:
        service = self.node.service_builder(self.iox.ServiceName.new(name))
        return service.publish_subscribe(self.iox.Slice[ctypes.c_uint8]).open_or_create()

    def events(self, name: str) -> Any:
        return self.node.service_builder(self.iox.ServiceName.new(name)).event().open_or_create()


def giving_raw(raw: Raw, name: str, array: Array | None) -> Give:
    """Loans and sends; ``array`` is copied in where there is one."""
    publisher = raw.samples(name).publisher_builder().initial_max_slice_len(SIZE).create()
    bell = raw.events(name).notifier_builder().create()

    def give(value: np.uint8 | None) -> None:
        sample = publisher.loan_slice_uninit(SIZE)
        frame = np.frombuffer(sample.payload().as_memory_view(), np.uint8).reshape(SHAPE)
        if array is not None:
            if value is not None:
                array.fill(value)
            frame[...] = array
        elif value is not None:
            frame.fill(value)
        sample.assume_init().send()
        bell.notify()

    return give


def taking_raw(raw: Raw, name: str) -> Callable[[], Array]:
    subscriber = raw.samples(name).subscriber_builder().create()
    listener = raw.events(name).listener_builder().create()
    patience = raw.iox.Duration.from_secs_f64(PATIENCE)

    def take() -> Array:
        while (sample := subscriber.receive()) is None:
            if not listener.timed_wait(patience):
                raise TimeoutError(f"{name}: no frame came")
        return np.frombuffer(sample.payload().as_memory_view(), np.uint8).reshape(SHAPE)

    return take


# ---- through us, and by pickle ----


def giving_loans(publisher: iceoryx2.Publisher) -> Give:
    def give(value: np.uint8 | None) -> None:
        tensor = publisher.loan(SHAPE, np.uint8)
        frame = tensor.numpy()
        if value is not None:
            frame.fill(value)
        publisher.publish(tensor)

    return give


def giving_arrays(send: Callable[[Array], None]) -> Give:
    array = np.zeros(SHAPE, np.uint8)

    def give(value: np.uint8 | None) -> None:
        if value is not None:
            array.fill(value)
        send(array)

    return give


@contextlib.contextmanager
def iceoryx2_runs() -> Iterator[Runs]:
    root = tempfile.mkdtemp(prefix="ferry_engines_")
    with contextlib.ExitStack() as stack:
        stack.callback(_remove, root)
        theirs, ours = multiprocessing.get_context("spawn").Pipe(duplex=False)
        reader = Frames(read_iceoryx2, root, theirs)
        stack.callback(reader.end)
        reader.says()
        raw = Raw(root)
        publishers = {
            name: stack.enter_context(iceoryx2.Publisher(name, max_bytes=SIZE, node=raw.node)) for name in (LOAN, ARRAY)
        }
        gives: dict[str, Give] = {
            RAW: giving_raw(raw, RAW, None),
            LOAN: giving_loans(publishers[LOAN]),
            RAW_ARRAY: giving_raw(raw, RAW_ARRAY, np.zeros(SHAPE, np.uint8)),
            ARRAY: giving_arrays(publishers[ARRAY].publish),
            PICKLE: giving_arrays(ours.send),
        }
        yield {Key(MEMORY, name, q): reader.time(name, q, give) for q in QUESTIONS for name, give in gives.items()}


def read_iceoryx2(pipe: Connection, root: str, pickled: Connection) -> None:
    """The reading process."""
    settle_memory()
    raw = Raw(root)
    takes: dict[str, Callable[[], Array]] = {name: taking_raw(raw, name) for name in (RAW, RAW_ARRAY)}
    takes[PICKLE] = pickled.recv
    ours = {name: iceoryx2.Subscriber(name, node=raw.node) for name in (LOAN, ARRAY)}
    pipe.send("ready")
    while True:
        name, question = pipe.recv()
        pipe.send("waiting")
        if name in ours:
            tensor = ours[name].recv(PATIENCE)
            if tensor is None:
                raise TimeoutError(f"{name}: {ours[name]}")
            answer(pipe, question, tensor.numpy())
            del tensor
        else:
            answer(pipe, question, takes[name]())


def _remove(root: str) -> None:
    """Everything that was made under ``root``, and under its name in shared memory: the reader was killed."""
    shutil.rmtree(root, ignore_errors=True)
    for file in Path("/dev/shm").glob(f"{Path(root).name}_*"):
        file.unlink(missing_ok=True)


def iceoryx2_targets(timings: Mapping[Key, Timing]) -> list[Target]:
    return [
        Target(
            f"iceoryx2, {question}: {LOAN} / {RAW}",
            limit,
            ratio(timings[Key(MEMORY, LOAN, question)], timings[Key(MEMORY, RAW, question)]),
            "×",
        )
        for question, limit in ((HANDOFF, 3.0), (FILLED, 1.1))
    ]


LEGEND = """\
By hand: a slice of bytes is loaned, sent, and rung for by an event service; the reader waits for the event, receives,
and makes an array over the sample. The pipe pickles the array (protocol 5, in band), and copies it into the kernel and
out of it."""

ICEORYX2 = Engine("iceoryx2", "iceoryx2", iceoryx2_runs, iceoryx2_targets, LEGEND)
