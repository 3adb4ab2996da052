"""Who is at the other end in the tests of iceoryx2: nodes that keep to a directory of their own, and processes."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from net_peers import fill, number_of

from tensorferry.net import iceoryx2
from tensorferry.net.iceoryx2.engine import Service, Settings, UsedNode, load

SHM = Path("/dev/shm")


@contextmanager
def home() -> Iterator[str]:
    """A directory for iceoryx2, whose name is the prefix of what it makes in /dev/shm; nothing of both is left."""
    root = tempfile.mkdtemp(prefix="ferry_iox2_")
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
        for file in _in_shm(root):
            file.unlink(missing_ok=True)


def left_in_shm(root: str) -> list[Path]:
    """The files of ``root``'s world in shared memory, apart from the one that all of its nodes share."""
    return [file for file in _in_shm(root) if not file.name.endswith(".global_mgmt")]


def _in_shm(root: str) -> list[Path]:
    return list(SHM.glob(f"{Path(root).name}_*"))


def node_in(root: str) -> Any:
    """A node that sees only what was made under ``root``."""
    engine = load()
    config = engine.config.default()
    config.global_cfg.root_path = engine.Path.new(root)
    config.global_cfg.prefix = engine.FileName.new(f"{Path(root).name}_")
    builder = engine.NodeBuilder.new().config(config)
    return builder.signal_handling_mode(engine.SignalHandlingMode.Disabled).create(engine.ServiceType.Ipc)


# ---- where memory is ----


def place_of(array: npt.NDArray[Any]) -> tuple[str, int]:
    """The file that an array's first byte is mapped from, and where in it: the same in whichever process."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, _, *path = line.split()
        first, last = (int(part, 16) for part in span.split("-"))
        if first <= address < last:
            return " ".join(path), address - first + int(offset, 16)
    raise AssertionError(f"{address:#x} is mapped from nowhere")


# ---- a publisher that says what it likes ----


class Stranger:
    """Sends whatever bytes and whatever header, through iceoryx2 alone."""

    def __init__(self, node: Any, topic: str) -> None:
        self._service = Service(UsedNode(node), topic, Settings(8, 8, 8, 8))
        self._port = self._service.samples.publisher_builder().initial_max_slice_len(1 << 20).create()
        self._bell = self._service.events.notifier_builder().create()
        self._sequence = 0
        self._last = 0

    def send(self, data: bytes, **header: int) -> None:
        """A sample of ``data``; what of the header is not given is right for a blob that is all of it."""
        said = {"sequence": self._sequence, "log_time": 7, "length": len(data), "start": 0, "attached": 0}
        said.update({"format": 1, "head": 0}, **header)
        self._sequence += 1
        sample = self._port.loan_slice_uninit(len(data))
        self._last = sample.payload_ptr
        ctypes.memmove(sample.payload_ptr, data, len(data))
        packed = iceoryx2_header(**said)
        ctypes.memmove(sample.user_header_ptr, packed, len(packed))
        sample.assume_init().send()
        self._bell.notify()

    def close(self) -> None:
        """Let go of everything."""
        self.__dict__.clear()

    def overwrite(self, data: bytes) -> None:
        """Write over the last sample, which its readers have."""
        ctypes.memmove(self._last, data, len(data))


def iceoryx2_header(
    *, sequence: int, log_time: int, length: int, start: int, attached: int, format: int, head: int
) -> bytes:
    """The user header as docs/iceoryx2.md has it."""
    words = [number.to_bytes(8, "little") for number in (sequence, log_time, length)]
    return b"".join(words + [number.to_bytes(4, "little") for number in (start, attached, format, head)])


# ---- what children do ----


def publishing(pipe: Connection, root: str, topic: str, words: int, options: dict[str, Any]) -> None:
    """Publish as many loaned frames as the pipe says, from the number it says; tells where the last one was."""
    with iceoryx2.Publisher(topic, node=node_in(root), **options) as publisher:
        publisher.wait_for_subscriber(60)
        pipe.send("ready")
        while (asked := pipe.recv()) is not None:
            first, count = asked
            place = None
            for number in range(first, first + count):
                loan = publisher.loan(words, np.uint32)
                frame = loan.numpy()
                fill(frame, number)
                if number == first + count - 1:
                    place = place_of(frame)
                publisher.publish(loan)
            pipe.send(place)


def receiving(pipe: Connection, root: str, topic: str, pause: float, options: dict[str, Any]) -> None:
    """Receive, ``pause`` seconds over each frame, and tell when asked: numbers, torn frames, counts."""
    numbers: list[int] = []
    torn = 0
    with iceoryx2.Subscriber(topic, node=node_in(root), **options) as subscriber:
        pipe.send("ready")
        while True:
            if pipe.poll():
                if pipe.recv() is None:
                    return
                counts = subscriber.counts
                pipe.send((numbers, torn, counts.received, counts.dropped, counts.refused))
            with_tensor = subscriber.recv(0.02)
            if with_tensor is not None:
                number = number_of(with_tensor.numpy())
                torn += number is None
                numbers += [] if number is None else [number]
                time.sleep(pause)
            del with_tensor


def hoarding(pipe: Connection, root: str, topic: str, options: dict[str, Any]) -> None:
    """Receive as many frames as the pipe says, and keep them."""
    with iceoryx2.Subscriber(topic, node=node_in(root), **options) as subscriber:
        pipe.send("ready")
        kept = [subscriber.recv(60) for _ in range(pipe.recv())]
        pipe.send(len(kept))
        pipe.recv()
