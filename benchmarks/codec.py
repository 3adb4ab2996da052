"""What does a codec cost, beside its peers, in one run?

    python benchmarks/codec.py [--quick] [--json FILE]

Every codec does the same four things to the same float32 arrays, starting from an ndarray and ending with
one: encode to bytes, decode, encode into a buffer that is used again and again, and encode without copying
the payload, in parts. A codec that cannot do one of them has a "-" there. Takes 3 GiB of memory.
"""

from __future__ import annotations

import argparse
import io
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
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
    interleave,
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
from tensorferry import blob, vlink

Array = npt.NDArray[np.float32]

SMALL, FRAME, LARGE = "96 B", "602 KB", "64 MiB"
SHAPES: dict[str, tuple[int, ...]] = {SMALL: (2, 3, 4), FRAME: (1, 3, 224, 224), LARGE: (16, 1024, 1024)}

ENCODE, DECODE, INTO, PARTS = "encode", "decode", "into a reused buffer", "parts"
OPERATIONS = (ENCODE, DECODE, INTO, PARTS)

BLOB, VLINK, MEMCPY, PYARROW = "ferry blob", "ferry vlink", "memcpy, no codec", "pyarrow tensor"
BLOB_TENSOR, VLINK_TENSOR = "  blob, of a Tensor", "  vlink, of a Tensor"
BLOB_NEW = "  blob, new header"
NO_PEERS = (BLOB, BLOB_TENSOR, BLOB_NEW, VLINK, VLINK_TENSOR, MEMCPY)

PEERS = ("pyarrow", "safetensors", "tenso", "edgefirst-schemas")

FULL = Effort(seconds=6, least=5, most=60, loop=0.005)
QUICK = Effort(seconds=0.7, least=3, most=5, loop=0.001)
IMPORT = Effort(seconds=0, least=15, most=15, loop=0)
IMPORT_QUICK = Effort(seconds=0, least=5, most=5, loop=0)

LEGEND = """\
Medians of interleaved rounds. A ratio is the median of the rounds' own ratios; above 1 is slower than ferry
blob. Everything starts from an ndarray, but for the rows "of a Tensor". "new header" is a blob unlike those
seen before: loads remembers the headers that it has checked. "parts" copy no payload. Most of encoding
64 MiB is the page faults of fresh memory, which pyarrow keeps in a pool of its own; tenso 0.24.0
leaks what it encodes, so it pays them at 602 KB too. Peers without a row are not installed (extra: bench)."""


class Job(NamedTuple):
    """One operation of one codec on one array: ``run`` is timed; ``values`` is the array in what it returned."""

    run: Callable[[], Any]
    values: Callable[[Any], Any]
    most: int = sys.maxsize
    """Calls in a round, at the most."""


Jobs = dict[str, Job]


# ---- the contenders: all that each can do to one array ----


def ferry_blob(array: Array) -> Jobs:
    data = ferry.dumps(array)
    buffer = bytearray(len(data))
    return {
        ENCODE: Job(lambda: ferry.dumps(array), _loaded),
        DECODE: Job(lambda: ferry.loads(data).numpy(), _itself),
        INTO: Job(lambda: blob.export_into(ferry.Tensor.from_array(array), buffer), lambda n: _loaded(buffer[:n])),
        PARTS: Job(lambda: blob.export_parts(ferry.Tensor.from_array(array)), _joined),
    }


def ferry_blob_of_a_tensor(array: Array) -> Jobs:
    tensor = ferry.Tensor.from_array(array)
    buffer = bytearray(len(ferry.dumps(tensor)))
    return {
        ENCODE: Job(lambda: ferry.dumps(tensor), _loaded),
        INTO: Job(lambda: blob.export_into(tensor, buffer), lambda n: _loaded(buffer[:n])),
        PARTS: Job(lambda: blob.export_parts(tensor), _joined),
    }


def ferry_blob_new_header(array: Array) -> Jobs:
    # loads believes a header at once that it has seen before, as every frame of a stream but the first has
    # it. A BlobView is always taken apart and checked in full.
    data = ferry.dumps(array)
    return {DECODE: Job(lambda: blob.import_(blob.BlobView.parse(data)).numpy(), _itself)}


def ferry_vlink(array: Array) -> Jobs:
    data = ferry.dumps(array, format="vlink")
    buffer = bytearray(len(data))
    return {
        ENCODE: Job(lambda: ferry.dumps(array, format="vlink"), _loaded),
        DECODE: Job(lambda: ferry.loads(data).numpy(), _itself),
        INTO: Job(lambda: vlink.export_into(ferry.Tensor.from_array(array), buffer), lambda n: _loaded(buffer[:n])),
        PARTS: Job(lambda: vlink.export_parts(ferry.Tensor.from_array(array)), _joined),
    }


def ferry_vlink_of_a_tensor(array: Array) -> Jobs:
    tensor = ferry.Tensor.from_array(array)
    buffer = bytearray(len(ferry.dumps(tensor, format="vlink")))
    return {
        ENCODE: Job(lambda: ferry.dumps(tensor, format="vlink"), _loaded),
        INTO: Job(lambda: vlink.export_into(tensor, buffer), lambda n: _loaded(buffer[:n])),
        PARTS: Job(lambda: vlink.export_parts(tensor), _joined),
    }


def memcpy(array: Array) -> Jobs:
    """The floor: the payload alone. Its decode is numpy.frombuffer, with the shape known beforehand."""
    payload = array.reshape(-1).view(np.uint8).data
    data = bytes(payload)
    buffer = bytearray(len(data))
    target = memoryview(buffer)

    def copy() -> None:
        target[:] = payload

    def values(raw: bytes | bytearray) -> Any:
        return np.frombuffer(raw, np.float32).reshape(array.shape)

    return {
        ENCODE: Job(lambda: bytes(payload), values),
        DECODE: Job(lambda: values(data), _itself),
        INTO: Job(copy, lambda _: values(buffer)),
    }


def pickle_5(array: Array) -> Jobs:
    data = pickle.dumps(array, 5)
    file = io.BytesIO(bytes(len(data)))

    def into() -> None:
        file.seek(0)
        pickle.dump(array, file, 5)

    def parts() -> tuple[bytes, list[pickle.PickleBuffer]]:
        buffers: list[pickle.PickleBuffer] = []
        return pickle.dumps(array, 5, buffer_callback=buffers.append), buffers

    return {
        ENCODE: Job(lambda: pickle.dumps(array, 5), pickle.loads),
        DECODE: Job(lambda: pickle.loads(data), _itself),
        INTO: Job(into, lambda _: pickle.loads(file.getvalue())),
        PARTS: Job(parts, lambda made: pickle.loads(made[0], buffers=made[1])),
    }


def numpy_save(array: Array) -> Jobs:
    def encode() -> bytes:
        file = io.BytesIO()
        np.save(file, array)
        return file.getvalue()

    data = encode()
    reused = io.BytesIO(bytes(len(data)))

    def into() -> None:
        reused.seek(0)
        np.save(reused, array)

    def values(raw: bytes) -> Any:
        return np.load(io.BytesIO(raw))

    return {
        ENCODE: Job(encode, values),
        DECODE: Job(lambda: values(data), _itself),
        INTO: Job(into, lambda _: values(reused.getvalue())),
    }


def pyarrow_tensor(array: Array) -> Jobs:
    pa = optional("pyarrow")
    if pa is None:
        return {}
    tensors, from_numpy = pa.ipc, pa.Tensor.from_numpy

    def encode() -> Any:
        stream = pa.BufferOutputStream()
        tensors.write_tensor(from_numpy(array), stream)
        return stream.getvalue()

    def values(raw: Any) -> Any:
        return tensors.read_tensor(pa.py_buffer(raw)).to_numpy()

    data = encode().to_pybytes()
    buffer = pa.py_buffer(bytearray(len(data)))
    return {
        ENCODE: Job(encode, values),
        DECODE: Job(lambda: values(data), _itself),
        INTO: Job(
            lambda: tensors.write_tensor(from_numpy(array), pa.FixedSizeBufferWriter(buffer)), lambda _: values(buffer)
        ),
    }


def safetensors(array: Array) -> Jobs:
    codec = optional("safetensors.numpy")
    if codec is None:
        return {}
    data = codec.save({"t": array})
    return {
        ENCODE: Job(lambda: codec.save({"t": array}), lambda raw: codec.load(raw)["t"]),
        DECODE: Job(lambda: codec.load(data)["t"], _itself),
    }


def tenso(array: Array) -> Jobs:
    codec, core = optional("tenso"), optional("tenso.tenso_rs")
    if codec is None:
        return {}
    data = _aligned(codec.dumps(array))
    # Version 0.24.0 never frees what dumps returned. So it is called less, and always pays for fresh memory.
    few = max(1, (4 << 20) // array.nbytes)
    jobs = {
        ENCODE: Job(lambda: codec.dumps(array), codec.loads, few),
        DECODE: Job(lambda: codec.loads(data), _itself),
    }
    if hasattr(core, "dump_to_buffer_rs"):  # what its shared-memory and cache modules write with
        buffer = memoryview(bytearray(len(data)))
        jobs[INTO] = Job(lambda: core.dump_to_buffer_rs(array, buffer), lambda n: codec.loads(buffer[:n]))
    return jobs


def edgefirst_cdr(array: Array) -> Jobs:
    """The CDR message that carries the same tensor: float32 is its dtype 9, and the plane is inline."""
    messages = optional("edgefirst.schemas.edgefirst_msgs")
    if messages is None:
        return {}
    size = array.nbytes

    def encode() -> bytes:
        # tobytes is the fastest way in: it takes a memoryview byte by byte.
        plane = messages.TensorPlane(stride=size, size=size, used=size, data=array.tobytes())
        encoded: bytes = messages.Tensor(dtype=9, shape=array.shape, planes=[plane]).to_bytes()
        return encoded

    def values(raw: bytes) -> Any:
        message = messages.Tensor.from_cdr(raw)
        return np.frombuffer(message.plane_data(0), np.float32).reshape(message.shape)

    data = encode()
    return {ENCODE: Job(encode, values), DECODE: Job(lambda: values(data), _itself)}


CONTENDERS: dict[str, Callable[[Array], Jobs]] = {
    BLOB: ferry_blob,
    BLOB_TENSOR: ferry_blob_of_a_tensor,
    BLOB_NEW: ferry_blob_new_header,
    VLINK: ferry_vlink,
    VLINK_TENSOR: ferry_vlink_of_a_tensor,
    PYARROW: pyarrow_tensor,
    "pickle 5": pickle_5,
    "numpy.save": numpy_save,
    "safetensors": safetensors,
    "tenso": tenso,
    "edgefirst CDR": edgefirst_cdr,
    MEMCPY: memcpy,
}


def _itself(result: Any) -> Any:
    return result


def _loaded(data: bytes | bytearray) -> Any:
    return ferry.loads(data).numpy()


def _joined(parts: Sequence[bytes | bytearray | memoryview]) -> Any:
    return _loaded(b"".join(parts))


def _aligned(data: memoryview) -> memoryview:
    """A copy that starts on 64 bytes: tenso lends from such memory only, and copies out of any other."""
    room = np.empty(len(data) + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return room.data[start : start + len(data)]


# ---- measuring ----

Timings = dict[tuple[str, str, str], Timing]
"""By operation, size and contender."""


def measure(effort: Effort) -> Timings:
    """Time everything, one operation after the other.

    Sizes share their rounds where size should not matter, so that they can be compared; where the payload
    is copied they do not, since the large would leave the small nothing of the caches.
    """
    settle_memory()
    jobs = {}
    for size, shape in SHAPES.items():
        array = np.random.default_rng(0).random(shape, np.float32)
        for name, contender in CONTENDERS.items():
            for operation, job in contender(array).items():
                what = f"{name.strip()}: {operation}, {size}"
                progress(f"checking {what}")
                check(what, array, job)
                jobs[operation, size, name] = job
    timings: Timings = {}
    for operation in OPERATIONS:
        for sizes in [tuple(SHAPES)] if operation in (DECODE, PARTS) else [(size,) for size in SHAPES]:
            chosen = {key: job for key, job in jobs.items() if key[0] == operation and key[1] in sizes}
            progress(f"timing {operation}, {' and '.join(sizes)}: {len(chosen)} jobs, {effort.seconds:g} s or more")
            calls = {key: job.run for key, job in chosen.items()}
            timings.update(interleave(calls, effort, {key: job.most for key, job in chosen.items()}))
    progress("")
    return timings


def check(what: str, array: Array, job: Job) -> None:
    """Only a codec that gives the same array back takes part."""
    back = job.values(job.run())
    if back.dtype != array.dtype or back.shape != array.shape or back.tobytes() != array.tobytes():
        raise AssertionError(f"{what}: other values came back than went in")


def measure_import(effort: Effort) -> dict[str, Timing]:
    """Seconds for a Python process that imports NumPy, and for one that imports tensorferry too."""

    def process(statement: str) -> Callable[[], float]:
        def seconds() -> float:
            start = perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            return perf_counter() - start

        seconds()  # writes the bytecode
        return seconds

    progress(f"importing in {effort.most} processes each")
    taken = rounds_of({"numpy": process("import numpy"), "tensorferry": process("import numpy, tensorferry")}, effort)
    progress("")
    return taken


# ---- telling ----


def print_sizes(timings: Timings) -> None:
    for size, shape in SHAPES.items():
        print(f"\n{size}: {'×'.join(map(str, shape))} float32")
        rows = []
        for name in CONTENDERS:
            cells = [_cell(timings, operation, size, name) for operation in OPERATIONS]
            if any(cell != "-" for cell in cells):
                rows.append([name, *cells])
        rows.append(["ferry blob / best peer", *(_beside_best(timings, operation, size) for operation in OPERATIONS)])
        print(table(["µs a call, × ferry blob", *OPERATIONS], rows))


def _cell(timings: Timings, operation: str, size: str, name: str) -> str:
    timing = timings.get((operation, size, name))
    if timing is None:
        return "-"
    return f"{number(timing.median * 1e6)} {number(ratio(timing, timings[operation, size, BLOB])):>6}×"


def _beside_best(timings: Timings, operation: str, size: str) -> str:
    peers = [
        timing for (op, of, name), timing in timings.items() if (op, of) == (operation, size) and name not in NO_PEERS
    ]
    if not peers:
        return "-"
    best = min(peers, key=lambda timing: timing.median)
    return f"{number(ratio(timings[operation, size, BLOB], best))}×"


def targets(timings: Timings, imports: dict[str, Timing]) -> list[Target]:
    found = []
    for name, label in ((BLOB, BLOB), (BLOB_NEW, "ferry blob, new header"), (VLINK, VLINK)):
        for size in SHAPES:
            arrow = timings.get((DECODE, size, PYARROW))
            beside = None if arrow is None else ratio(timings[DECODE, size, name], arrow)
            found.append(Target(f"{label}: decode, {size}", 1.0, beside, "× pyarrow"))
        medians = [timings[DECODE, size, name].median for size in SHAPES]
        found.append(Target(f"{label}: decode, slowest over fastest size", 1.3, max(medians) / min(medians), "×"))
    for name in (BLOB, VLINK):
        into = ratio(timings[INTO, LARGE, name], timings[INTO, LARGE, MEMCPY])
        found.append(Target(f"{name}: into a reused buffer, {LARGE}", 1.1, into, "× memcpy"))
    for name, label in ((BLOB_TENSOR, BLOB), (VLINK_TENSOR, VLINK)):
        slowest = max(timings[PARTS, size, name].median for size in SHAPES)
        found.append(Target(f"{label}: export_parts of a Tensor, slowest size", 5.0, slowest * 1e6, "µs"))
    pairs = zip(imports["tensorferry"].rounds, imports["numpy"].rounds, strict=True)
    added = median(both - numpy for both, numpy in pairs)
    found.append(Target("import tensorferry, on top of import numpy", 60.0, added * 1e3, "ms"))
    return found


def as_json(facts: dict[str, str], timings: Timings, imports: dict[str, Timing], promised: list[Target]) -> object:
    return {
        "environment": facts,
        "codecs": [
            {
                "operation": operation,
                "size": size,
                "contender": name.strip(),
                "median_us": timing.median * 1e6,
                "rounds_us": [seconds * 1e6 for seconds in timing.rounds],
                "times_ferry_blob": ratio(timing, timings[operation, size, BLOB]),
            }
            for (operation, size, name), timing in timings.items()
        ],
        "import_ms": {name: timing.median * 1e3 for name, timing in imports.items()},
        "targets": [{**target._asdict(), "met": target.met} for target in promised],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What does a codec cost, beside its peers, in one run?")
    parser.add_argument("--quick", action="store_true", help="few and short rounds: about 15 s, rough numbers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args()
    start = perf_counter()
    facts = {"tensorferry": ferry.__version__, **environment("numpy", *PEERS)}
    print("\n".join(f"{name:<18} {value}" for name, value in facts.items()))
    timings = measure(QUICK if options.quick else FULL)
    imports = measure_import(IMPORT_QUICK if options.quick else IMPORT)
    print_sizes(timings)
    print(f"\n{LEGEND}\n")
    promised = targets(timings, imports)
    print_targets(promised)
    print(f"\n{perf_counter() - start:.0f} s in all")
    if options.json is not None:
        write_json(options.json, as_json(facts, timings, imports, promised))


if __name__ == "__main__":
    main()
