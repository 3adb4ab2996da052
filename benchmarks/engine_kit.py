"""Frames through engines of others: two processes, what is timed, and how it is printed. See engines.py."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
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
    print_targets,
    progress,
    ratio,
    rounds_of,
    settle_memory,
    table,
    write_json,
)

import tensorferry as ferry

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


# ---- all engines ----


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


def main(engines: Mapping[str, Engine]) -> None:
    parser = argparse.ArgumentParser(description="What does a frame cost through an engine, by hand and through us?")
    parser.add_argument("--quick", action="store_true", help="few rounds: rough numbers")
    parser.add_argument("--engine", choices=engines, action="append", help="only this one; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args()
    start = perf_counter()
    facts = {"tensorferry": ferry.__version__, **environment("numpy", *(e.distribution for e in engines.values()))}
    print("\n".join(f"{name:<18} {value}" for name, value in facts.items()))
    settle_memory()
    content: dict[str, object] = {"environment": facts}
    for name in options.engine or engines:
        engine = engines[name]
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
