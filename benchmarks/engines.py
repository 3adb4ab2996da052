"""What does a frame cost through an engine of others, by hand and through tensorferry, in one run?

    python benchmarks/engines.py [--quick] [--engine NAME] [--json FILE]

A frame of 6.2 MB goes to a second process, which acknowledges it with the time at which it had it; then the next
goes. Hand-off: the frame is ready before the clock starts, and in the reader's hands when it stops. Filled and
read: the clock starts before the frame is written, and stops when every byte of it has been summed up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from measure import (
    Effort,
    Target,
    Timing,
    environment,
    number,
    optional,
    print_targets,
    progress,
    ratio,
    rounds_of,
    settle_memory,
    table,
    write_json,
)

import tensorferry as ferry
from tensorferry.net import zenoh

if TYPE_CHECKING:
    import zenoh as raw_zenoh

Array = npt.NDArray[np.uint8]

SHAPE = (1080, 1920, 3)
HANDOFF, FILLED = "hand-off", "filled and read"
QUESTIONS = (HANDOFF, FILLED)

FULL = Effort(seconds=15, least=30, most=400, loop=0)
QUICK = Effort(seconds=2, least=5, most=60, loop=0)
PATIENCE = 20.0
"""Seconds after which a frame is lost, and the run with it."""


class Key(NamedTuple):
    """What is timed: a contender, over a transport of its engine, answering a question."""

    transport: str
    contender: str
    question: str


Runs = dict[Key, Callable[[], float]]
"""One frame each: seconds from the sender to the reader."""


class Engine(NamedTuple):
    """An engine: what it takes, who contends, and what was promised."""

    module: str
    distribution: str
    runs: Callable[[], contextlib.AbstractContextManager[Runs]]
    targets: Callable[[Mapping[Key, Timing]], list[Target]]
    legend: str


# ---- two processes ----


class Reader:
    """The process that reads: ``main(pipe, *arguments)``, spawned."""

    def __init__(self, main: Callable[..., None], *arguments: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=main, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def says(self) -> Any:
        """What it sends next."""
        if not self._pipe.poll(PATIENCE):
            raise TimeoutError(f"the reader, process {self._process.pid}, says nothing")
        return self._pipe.recv()

    def run(self, name: str, question: str, send: Callable[[], None], frame: Array) -> Callable[[], float]:
        """Times one frame that ``send`` sends to contender ``name``, and that ``frame`` is filled for."""
        counter = np.uint8(0)

        def once() -> float:
            nonlocal counter
            self._pipe.send((name, question))
            self.says()  # it waits
            counter += np.uint8(1)
            if question == HANDOFF:
                frame.fill(counter)
            start = perf_counter()
            if question == FILLED:
                frame.fill(counter)
            send()
            end, total = self.says()
            if question == FILLED and total != _sum(frame):
                raise AssertionError(f"{name}: another frame was read than was sent")
            return float(end - start)

        return once

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def answer(pipe: Connection, question: str, values: Array) -> None:
    """In the reader: the frame is here; look at it as the question wants, and say when that was done."""
    total = _sum(values) if question == FILLED else None
    pipe.send((perf_counter(), total))


def _sum(values: Array) -> int:
    return int(values.reshape(-1).view(np.uint64).sum())


# ---- Zenoh ----

RAW, LOAN, RAW_ARRAY, ARRAY, PICKLE = (
    "raw put of ready bytes",
    "ferry, a loan",
    "raw put of array.tobytes()",
    "ferry, any array",
    "put of a pickle",
)
TRANSPORTS = {"shared memory": True, "TCP": False}


def zenoh_config(shared_memory: bool) -> dict[str, Any]:
    """This host only: nobody is scouted for."""
    return {
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": {"shared_memory": {"enabled": shared_memory}},
    }


@contextlib.contextmanager
def zenoh_runs() -> Iterator[Runs]:
    with contextlib.ExitStack() as stack:
        runs: Runs = {}
        for transport, shared_memory in TRANSPORTS.items():
            runs.update(stack.enter_context(_over_zenoh(transport, shared_memory)))
        yield runs


@contextlib.contextmanager
def _over_zenoh(transport: str, shared_memory: bool) -> Iterator[Runs]:
    import zenoh as engine

    where = _free_endpoint()
    config = engine.Config.from_json5(json.dumps(zenoh_config(shared_memory) | {"listen": {"endpoints": [where]}}))
    with engine.open(config) as session, contextlib.ExitStack() as stack:
        reader = Reader(read_zenoh, where, shared_memory)
        stack.callback(reader.end)
        block = engine.CongestionControl.BLOCK
        raw = {name: session.declare_publisher(_topic(name), congestion_control=block) for name in _RAW}
        ours = {
            name: stack.enter_context(
                zenoh.Publisher(_topic(name), session=session, congestion_control="block", latest=False)
            )
            for name in _OURS
        }
        reader.says()
        for publisher in ours.values():
            publisher.wait_for_subscriber(PATIENCE)
        yield _zenoh_contenders(transport, reader, raw, ours)


_RAW, _OURS = (RAW, RAW_ARRAY, PICKLE), (LOAN, ARRAY)


def _zenoh_contenders(
    transport: str, reader: Reader, raw: Mapping[str, raw_zenoh.Publisher], ours: Mapping[str, zenoh.Publisher]
) -> Runs:
    # "The same bytes": a blob that is ready, header and all.
    message = bytearray(ferry.dumps(np.zeros(SHAPE, np.uint8)))
    in_message = np.frombuffer(message, np.uint8)[-int(np.prod(SHAPE)) :].reshape(SHAPE)
    array = np.zeros(SHAPE, np.uint8)
    loan = ours[LOAN].loan(SHAPE, np.uint8)
    sends: dict[str, tuple[Callable[[], None], Array]] = {
        RAW: (lambda: raw[RAW].put(message), in_message),
        LOAN: (lambda: ours[LOAN].publish(loan), loan.numpy()),
        RAW_ARRAY: (lambda: raw[RAW_ARRAY].put(array.tobytes()), array),
        ARRAY: (lambda: ours[ARRAY].publish(array), array),
        PICKLE: (lambda: raw[PICKLE].put(pickle.dumps(array, 5)), array),
    }
    return {
        Key(transport, name, question): reader.run(name, question, send, frame)
        for question in QUESTIONS
        for name, (send, frame) in sends.items()
    }


def read_zenoh(pipe: Connection, where: str, shared_memory: bool) -> None:
    """The reading process: Zenoh's own callback for those by hand, ``recv`` for ours."""
    import zenoh as engine

    settle_memory()
    config = zenoh_config(shared_memory) | {"connect": {"endpoints": [where]}, "listen": {"endpoints": []}}
    questions: list[str] = []
    done = threading.Event()
    size = int(np.prod(SHAPE))

    def values_of(name: str, data: bytes) -> Array:
        if name == PICKLE:
            unpickled: Array = pickle.loads(data)
            return unpickled
        return np.frombuffer(data, np.uint8)[-size:]

    def called(name: str) -> Callable[[raw_zenoh.Sample], None]:
        def callback(sample: raw_zenoh.Sample) -> None:
            answer(pipe, questions[-1], values_of(name, sample.payload.to_bytes()))
            done.set()

        return callback

    with engine.open(engine.Config.from_json5(json.dumps(config))) as session, contextlib.ExitStack() as stack:
        for name in _RAW:
            session.declare_subscriber(_topic(name), called(name))
        ours = {name: stack.enter_context(zenoh.Subscriber(_topic(name), session=session)) for name in _OURS}
        pipe.send("ready")
        while True:
            name, question = pipe.recv()
            questions[:] = [question]
            done.clear()
            pipe.send("waiting")
            if name in ours:
                tensor = ours[name].recv(PATIENCE)
                if tensor is None:
                    raise TimeoutError(f"{name}: {ours[name]}")
                answer(pipe, question, tensor.numpy())
                del tensor
            elif not done.wait(PATIENCE):
                raise TimeoutError(f"{name}: no frame came")


def _topic(contender: str) -> str:
    return "engines/" + contender.translate(str.maketrans(" ,.()", "_____"))


def _free_endpoint() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{sock.getsockname()[1]}"


def zenoh_targets(timings: Mapping[Key, Timing]) -> list[Target]:
    return [
        Target(
            f"Zenoh, {transport}, {question}: {ours} / {raw}",
            1.15,
            ratio(timings[Key(transport, ours, question)], timings[Key(transport, raw, question)]),
            "×",
        )
        for transport in TRANSPORTS
        for question in QUESTIONS
        for ours, raw in ((LOAN, RAW), (ARRAY, RAW_ARRAY))
    ]


ZENOH_LEGEND = """\
All are handed to one and the same session, over TCP of this host; "shared memory" is what Zenoh does there by itself
for messages of 3 KB and more. "Ready bytes" are a blob, the same as a loan's. The callback of those by hand copies the
payload to bytes, as recv does: the binding lends no view of it. Every array that is not a loan is copied once more,
since the binding takes bytes and bytearray only; pickle copies it on either side."""

# ---- all engines ----

ENGINES = {
    "zenoh": Engine("zenoh", "eclipse-zenoh", zenoh_runs, zenoh_targets, ZENOH_LEGEND),
}


def measure(engine: Engine, effort: Effort) -> dict[Key, Timing]:
    with engine.runs() as runs:
        for key, run in runs.items():
            progress(f"warming up: {', '.join(key)}")
            for _ in range(5):
                run()
        progress(f"timing {len(runs)} contenders, {effort.seconds:g} s or more")
        timings = rounds_of(runs, effort)
    progress("")
    return timings


def print_timings(timings: Mapping[Key, Timing]) -> None:
    for transport in dict.fromkeys(key.transport for key in timings):
        names = list(dict.fromkeys(key.contender for key in timings if key.transport == transport))
        rows = []
        for name in names:
            cells = []
            for question in QUESTIONS:
                timing, first = timings[Key(transport, name, question)], timings[Key(transport, names[0], question)]
                cells.append(f"{number(timing.median * 1e3)} {number(ratio(timing, first)):>6}×")
            rows.append([name, *cells])
        print(f"\n{transport}: {'×'.join(map(str, SHAPE))} uint8, {np.prod(SHAPE) / 1e6:.1f} MB")
        print(table([f"ms a frame, × {names[0]}", *QUESTIONS], rows))


def as_json(timings: Mapping[Key, Timing], promised: list[Target]) -> object:
    return {
        "frames": [
            {
                **key._asdict(),
                "median_ms": timing.median * 1e3,
                "rounds_ms": [seconds * 1e3 for seconds in timing.rounds],
            }
            for key, timing in timings.items()
        ],
        "targets": [{**target._asdict(), "met": target.met} for target in promised],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What does a frame cost through an engine, by hand and through us?")
    parser.add_argument("--quick", action="store_true", help="few rounds: rough numbers")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="only this one; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args()
    start = perf_counter()
    facts = {"tensorferry": ferry.__version__, **environment("numpy", *(e.distribution for e in ENGINES.values()))}
    print("\n".join(f"{name:<18} {value}" for name, value in facts.items()))
    settle_memory()
    content: dict[str, object] = {"environment": facts}
    for name in options.engine or ENGINES:
        engine = ENGINES[name]
        if optional(engine.module) is None:
            print(f"\n{name}: not installed (pip install 'tensorferry[{name}]')")
            continue
        timings = measure(engine, QUICK if options.quick else FULL)
        promised = engine.targets(timings)
        print_timings(timings)
        print(f"\n{engine.legend}\n")
        print_targets(promised)
        content[name] = as_json(timings, promised)
    print(f"\n{perf_counter() - start:.0f} s in all")
    if options.json is not None:
        write_json(options.json, content)


if __name__ == "__main__":
    main()
