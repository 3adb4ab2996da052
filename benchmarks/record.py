"""How fast do recorded tensors come back, and how fast are they recorded, beside what people use, in one run?

    python benchmarks/record.py [--quick] [--count N] [--dir DIRECTORY] [--json FILE]

Every contender has the same float32 tensors of 602 KB in files of its own, in the page cache, and makes an
ndarray of each in turn: once looking at one element, once adding all of them up. Takes 12 GB of disk for a
while (temporary files in DIRECTORY), and as much memory for the page cache; with less, --count fewer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
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
    table,
    write_json,
)

import tensorferry as ferry
from tensorferry import record

Array = npt.NDArray[np.float32]

SHAPE = (1, 3, 224, 224)
TENSOR_BYTES = 4 * 3 * 224 * 224
COUNT, QUICK_COUNT = 10_000, 500
DISTINCT = 16  # tensors; they are written again and again

TOUCH, SUM = "one element", "all elements"
LOOKS: dict[str, Callable[[Array], float]] = {
    TOUCH: lambda array: float(array[0, 0, 0, 0]),
    SUM: lambda array: float(array.sum()),
}

TBLOB, MCAP, MCAP_UNCHUNKED = "tblob, mapped", "MCAP, no compression", "MCAP, not chunked"
SAFETENSORS, NPY, NPY_MAPPED = "safetensors files", ".npy files", ".npy files, mapped"
READ = "plain read, no format"

FULL = Effort(seconds=6, least=3, most=7, loop=0)
QUICK = Effort(seconds=3, least=3, most=5, loop=0)
APPENDED = 1000
APPEND = Effort(seconds=10, least=9, most=25, loop=0)
FLAT_MIB = 100.0

LEGEND = """\
Medians of rounds in which each contender and tblob took turns. A ratio is the median of the rounds' own
ratios; above 1 is slower than tblob. Adding all elements up is most of tblob's time then, and costs everyone the
same. MCAP's payload is the array alone, its shape known beforehand. "plain read" reads the same file into one
buffer that is used again and again. All files are in the page cache. Contenders without a row are not installed."""


class Contender(NamedTuple):
    """``write`` puts tensors into a directory, ``arrays`` gives them back."""

    write: Callable[[Path, Iterator[Array]], None]
    arrays: Callable[[Path], Iterator[Array]]


# ---- the contenders ----


def _write_tblob(directory: Path, tensors: Iterator[Array]) -> None:
    with record.append(directory / "a.tblob") as writer:
        for tensor in tensors:
            writer.write(tensor)


def _tblob(**options: bool) -> Callable[[Path], Iterator[Array]]:
    def arrays(directory: Path) -> Iterator[Array]:
        with record.open(directory / "a.tblob", **options) as recording:
            for r in recording:
                yield r.tensor.numpy()

    return arrays


def mcap(*, chunked: bool) -> Contender | None:
    writing, reading = optional("mcap.writer"), optional("mcap.reader")
    if writing is None:
        return None

    def write(directory: Path, tensors: Iterator[Array]) -> None:
        with (directory / "a.mcap").open("wb") as file:
            writer = writing.Writer(file, compression=writing.CompressionType.NONE, use_chunking=chunked)
            writer.start()
            channel = writer.register_channel("t", "raw", 0)
            for i, tensor in enumerate(tensors):
                writer.add_message(channel, i, tensor.tobytes(), i)
            writer.finish()

    def arrays(directory: Path) -> Iterator[Array]:
        with (directory / "a.mcap").open("rb") as file:
            reader = reading.SeekingReader(file) if chunked else reading.NonSeekingReader(file)
            # Each reader's faster way: the seeking one takes three times as long when it need not sort.
            for _, _, message in reader.iter_messages(log_time_order=chunked):
                yield np.frombuffer(message.data, np.float32).reshape(SHAPE)

    return Contender(write, arrays)


def safetensors() -> Contender | None:
    codec = optional("safetensors.numpy")
    if codec is None:
        return None

    def write(directory: Path, tensors: Iterator[Array]) -> None:
        for i, tensor in enumerate(tensors):
            codec.save_file({"t": tensor}, directory / f"{i:05}.safetensors")

    def arrays(directory: Path) -> Iterator[Array]:
        for path in _files(directory):
            yield codec.load_file(path)["t"]

    return Contender(write, arrays)


def _write_npy(directory: Path, tensors: Iterator[Array]) -> None:
    for i, tensor in enumerate(tensors):
        np.save(directory / f"{i:05}.npy", tensor)


def _npy(mode: Any) -> Callable[[Path], Iterator[Array]]:
    def arrays(directory: Path) -> Iterator[Array]:
        for path in _files(directory):
            yield np.load(path, mmap_mode=mode)

    return arrays


def _plain_read(directory: Path) -> Iterator[Array]:
    buffer = np.empty(SHAPE, np.float32)
    into = buffer.reshape(-1).view(np.uint8).data
    with (directory / "a.tblob").open("rb", buffering=0) as file:
        while file.readinto(into) == TENSOR_BYTES:
            yield buffer


def _files(directory: Path) -> list[str]:
    return sorted(entry.path for entry in os.scandir(directory))


CONTENDERS: dict[str, Contender | None] = {
    "tblob, map=False": Contender(_write_tblob, _tblob(map=False)),
    "tblob, strict=False": Contender(_write_tblob, _tblob(strict=False)),
    MCAP: mcap(chunked=True),
    MCAP_UNCHUNKED: mcap(chunked=False),
    SAFETENSORS: safetensors(),
    NPY: Contender(_write_npy, _npy(None)),
    NPY_MAPPED: Contender(_write_npy, _npy("r")),
    READ: Contender(_write_tblob, _plain_read),
}
OURS = Contender(_write_tblob, _tblob())


def tensors(count: int) -> Iterator[Array]:
    distinct = np.random.default_rng(0).random((DISTINCT, *SHAPE), np.float32)
    for i in range(count):
        yield distinct[i % DISTINCT]


# ---- measuring ----


class Measured(NamedTuple):
    """One contender beside tblob, both timed in the same rounds. Seconds for all tensors."""

    look: str
    name: str
    timing: Timing
    tblob: Timing


def measure_reading(directory: Path, ours: Path, count: int, effort: Effort) -> list[Measured]:
    """``ours`` is where the stream is; files of the others come and go in ``directory``."""
    found = []
    for name, contender in CONTENDERS.items():
        if contender is None:
            continue
        progress(f"{name}: writing {count} tensors")
        # Where the files are the same ones, they need not be there twice.
        shared = contender.write is _write_tblob
        theirs = ours if shared else _recorded(directory / "peer", contender, count)
        for look, see in LOOKS.items():
            progress(f"{name}: reading {count} tensors, {look}")
            pair = {
                name: _pass(contender, theirs, see, count, check=name != READ),
                TBLOB: _pass(OURS, ours, see, count),
            }
            timings = rounds_of(pair, effort)
            found.append(Measured(look, name, timings[name], timings[TBLOB]))
        if not shared:
            shutil.rmtree(theirs)
    progress("")
    return found


def _recorded(directory: Path, contender: Contender, count: int) -> Path:
    directory.mkdir()
    contender.write(directory, tensors(count))
    return directory


def _pass(
    contender: Contender, directory: Path, see: Callable[[Array], float], count: int, *, check: bool = True
) -> Callable[[], float]:
    """Seconds to look at all tensors; checked once, which also warms the page cache."""

    def seconds() -> float:
        start = perf_counter()
        for array in contender.arrays(directory):
            see(array)
        return perf_counter() - start

    seen = [see(array) for array in contender.arrays(directory)]
    if check and seen != [see(array) for array in tensors(count)]:
        raise AssertionError(f"{directory}: other values came back than went in")
    return seconds


def measure_appending(directory: Path, count: int) -> dict[str, Timing]:
    """Seconds for ``count`` tensors into a new file: recorded, and the same bytes written by one write each."""
    array = next(tensors(1))
    data = ferry.dumps(array)
    path = directory / "appended.tblob"

    def append() -> float:
        path.unlink(missing_ok=True)
        with record.append(path) as writer:
            start = perf_counter()
            for _ in range(count):
                writer.write(array)
            return perf_counter() - start

    def write() -> float:
        path.unlink(missing_ok=True)
        with path.open("wb", buffering=0) as file:
            start = perf_counter()
            for _ in range(count):
                file.write(data)
            return perf_counter() - start

    progress(f"appending {count} tensors")
    append()
    taken = rounds_of({"append": append, "write": write}, APPEND)
    path.unlink()
    progress("")
    return taken


def measure_memory(ours: Path) -> float | None:
    """MiB by which the process grew, at the most, while it added up all of a stream; None where nobody tells."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    progress("watching memory")
    before = most = _resident(status)
    for i, array in enumerate(OURS.arrays(ours)):
        array.sum()
        if i % 16 == 0:
            most = max(most, _resident(status))
    progress("")
    return (most - before) / 1024


def _resident(status: Path) -> int:
    """KiB."""
    for line in status.read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("Linux says VmRSS")


# ---- telling ----


def print_reading(found: list[Measured], count: int) -> None:
    for look in LOOKS:
        mine = [m for m in found if m.look == look]
        print(f"\nto an ndarray, looking at {look}")
        fastest = min(mine, key=lambda m: m.tblob.median).tblob
        rows = [[TBLOB, *_cells(fastest, count), ""]]
        rows += [[m.name, *_cells(m.timing, count), f"{number(ratio(m.timing, m.tblob))}×"] for m in mine]
        print(table(["contender", "µs a tensor", "GB/s", "× tblob"], rows))


def _cells(timing: Timing, count: int) -> list[str]:
    seconds = timing.median / count
    return [number(seconds * 1e6), number(TENSOR_BYTES / seconds / 1e9)]


def targets(found: list[Measured], appended: dict[str, Timing], grown: float | None) -> list[Target]:
    beside = next((1 / ratio(m.timing, m.tblob) for m in found if (m.look, m.name) == (TOUCH, MCAP)), None)
    promised = [Target("iterate to an ndarray", 0.2, beside, f"× {MCAP}")]
    promised.append(Target("append", 1.2, ratio(appended["append"], appended["write"]), "× plain write"))
    promised.append(Target("memory, growth while iterating", FLAT_MIB, grown, "MiB"))
    return promised


def as_json(
    facts: dict[str, str], count: int, found: list[Measured], appended: dict[str, Timing], promised: list[Target]
) -> object:
    return {
        "environment": facts,
        "tensors": count,
        "tensor_bytes": TENSOR_BYTES,
        "reading": [
            {
                "look": m.look,
                "contender": m.name,
                "median_us_a_tensor": m.timing.median / count * 1e6,
                "rounds_s": m.timing.rounds,
                "tblob_rounds_s": m.tblob.rounds,
                "times_tblob": ratio(m.timing, m.tblob),
            }
            for m in found
        ],
        "appending_s": {name: timing.rounds for name, timing in appended.items()},
        "targets": [{**target._asdict(), "met": target.met} for target in promised],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast are tensors recorded, and read again?")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_COUNT} tensors: rough numbers")
    parser.add_argument("--count", type=int, metavar="N", help=f"tensors, by default {COUNT}")
    parser.add_argument("--dir", type=Path, metavar="DIRECTORY", help="where the temporary files go")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args()
    count = options.count or (QUICK_COUNT if options.quick else COUNT)
    start = perf_counter()
    facts = {"tensorferry": ferry.__version__, **environment("numpy", "mcap", "safetensors")}
    print("\n".join(f"{name:<18} {value}" for name, value in facts.items()))
    print(f"{'tensors':<18} {count} of {number(TENSOR_BYTES / 1e3)} KB")
    with tempfile.TemporaryDirectory(prefix="tensorferry-record-", dir=options.dir) as name:
        directory = Path(name)
        appended = measure_appending(directory, min(count, APPENDED))
        progress(f"recording {count} tensors")
        ours = _recorded(directory / "tblob", OURS, count)
        grown = measure_memory(ours)
        found = measure_reading(directory, ours, count, QUICK if options.quick else FULL)
    print_reading(found, count)
    print("\nappending, µs a tensor")
    rows = [
        [what, number(timing.median / min(count, APPENDED) * 1e6), f"{number(ratio(timing, appended['write']))}×"]
        for what, timing in appended.items()
    ]
    print(table(["", "µs a tensor", "× write"], rows))
    print(f"\n{LEGEND}\n")
    promised = targets(found, appended, grown)
    print_targets(promised)
    print(f"\n{perf_counter() - start:.0f} s in all")
    if options.json is not None:
        write_json(options.json, as_json(facts, count, found, appended, promised))


if __name__ == "__main__":
    main()
