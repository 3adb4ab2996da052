"""Kill a writer with SIGKILL at random moments, again and again, and look for every tensor that it had acknowledged.

    python killed.py DIRECTORY TIMES

Each writer goes on with the stream that the one before it left. Prints how many tensors were acknowledged, and
how many times the next writer found a blob cut short. Fails if one acknowledged tensor is missing or changed.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads must not fork

import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tensorferry import record

STREAMS = 5  # to keep each file small


def tensor(number: int) -> npt.NDArray[np.uint32]:
    """What the tensor of this number holds: it can be checked from its first element alone."""
    return np.arange(number, number + 1 + number * 7919 % 60_000, dtype=np.uint32)


def write(path: Path, number: int, acknowledge: int) -> None:
    """Append until killed; each number goes to the pipe once its tensor's write has returned."""
    with record.append(path) as writer:
        os.write(acknowledge, b"+" if writer.dropped else b"=")
        while True:
            writer.write(tensor(number))
            os.write(acknowledge, number.to_bytes(8, "little"))
            number += 1


def kill_one(path: Path, number: int, seconds: float) -> tuple[list[int], bool]:
    """Run a writer and kill it; the numbers that it acknowledged, and whether it had found a blob cut short."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            write(path, number, writing)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read(1)
        # Far too few bytes to fill the pipe: the writer never waits for this side.
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WTERMSIG(status) != signal.SIGKILL or found not in (b"+", b"="):
        raise AssertionError(f"the writer ended by itself: status {status}, {found!r}")
    whole = len(said) - len(said) % 8
    return np.frombuffer(said[:whole], "<u8").tolist(), found == b"+"


def check(path: Path, acknowledged: set[int]) -> None:
    with record.open(path, strict=False) as recording:
        there = set()
        for r in recording:
            array = r.tensor.numpy()
            number = int(array[0])
            if not np.array_equal(array, tensor(number)):
                raise AssertionError(f"tensor {number} was changed")
            there.add(number)
        missing = acknowledged - there
        if missing:
            raise AssertionError(f"acknowledged, and gone: {sorted(missing)[:10]}")
        if len(recording.damage) > 1:
            raise AssertionError(f"damage before the end: {recording.damage}")


def main() -> None:
    directory, times = Path(sys.argv[1]), int(sys.argv[2])
    chance = random.Random(0)
    total = cut_short = number = 0
    for stream in range(STREAMS):
        path = directory / f"{stream}.tblob"
        acknowledged: set[int] = set()
        for _ in range(times // STREAMS):
            numbers, was_cut = kill_one(path, number, chance.uniform(0, 0.015))
            acknowledged.update(numbers)
            cut_short += was_cut
            number = max(numbers, default=number) + 2  # one more may be there, unacknowledged
        check(path, acknowledged)
        total += len(acknowledged)
        path.unlink()
    print(total, cut_short)


if __name__ == "__main__":
    main()
