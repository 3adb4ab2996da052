"""``tensorferry send``: tensors out of files to a process on this host, by reference where that is possible."""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import numpy as np
import typer

from ..arrays import dense_strides
from ..errors import Disconnected, FerryError, TimedOut, Unsupported
from ..image import PixelFormat
from ..link import Link, Pool
from ..tensor import Tensor
from .ending import BadData, BadUsage, complain, safe, told
from .ends import Listens, SocketPath, Timeout, open_link
from .flow import Flow, live
from .formats import READERS, read, write
from .inputs import Input, open_input
from .interrupt import Interrupt
from .look import Facts, to_json

__all__ = ["send"]

_BUFFERS = 4
_TICK = 0.25


def send(
    socket: SocketPath,
    files: Annotated[list[str], typer.Argument(metavar="FILES…", help="Blobs, VLink tensors, npy files; - is stdin.")],
    repeat: Annotated[int, typer.Option(metavar="N", min=0, help="Send it all N times; 0: until Ctrl-C.")] = 1,
    rate: Annotated[float | None, typer.Option(metavar="HZ", help="Frames a second, at most.")] = None,
    lossy: Annotated[bool, typer.Option("--lossy", help="Leave behind what a blob cannot say.")] = False,
    listens: Listens = False,
    timeout: Timeout = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as one JSON document.")] = False,
) -> None:
    """Send the tensors in FILES over a Unix socket to `tensorferry recv`, or anyone else who has a link.

    Each of several blobs in a file is a frame of its own.
    Frames of one kind go by reference, through shared memory; of several, inline.
    """
    if rate is not None and not rate > 0:
        raise BadUsage(f"--rate {rate:g}: it must be above 0")
    tensors = [tensor for name in files for tensor in _tensors(open_input(name), lossy)]
    sending = _Sending(tensors, min(_BUFFERS, len(tensors) * repeat or _BUFFERS), lossy)
    with open_link(socket, listens=listens, timeout=timeout, other="receiver") as link:
        try:
            sending.run(link, repeat, rate)
        except Disconnected as error:
            total = f" of {repeat * len(tensors):,}" if repeat else ""
            raise BadData(f"the receiver left after {sending.flow.frames:,}{total} frames: {error}") from None
        finally:
            sending.report(socket, as_json)


def _tensors(input: Input, lossy: bool) -> Iterator[Tensor]:
    """Every tensor in a file, as a blob can carry it. BadData, naming the file, where one cannot be."""
    others = any(input.data[: len(reader.magic)] == reader.magic for reader in READERS.values())
    lost: dict[str, None] = {}
    for piece in [None] if others else input.pieces():
        try:
            written = write(read(input, None) if piece is None else piece.load(), "blob", lossy=lossy)
        except FerryError as error:
            which = f"blob {piece.index} at {piece.offset:#x}: " if piece is not None and piece.index else ""
            raise BadData(f"{input.name}: {which}{told(error)}") from None
        lost.update(dict.fromkeys(written.lost))
        yield written.tensor
    if lost:
        complain(f"{input.name}: left behind: {', '.join(lost)}")


class _Sending:
    """Frames on their way out."""

    def __init__(self, tensors: list[Tensor], buffers: int, lossy: bool) -> None:
        self.flow = Flow()
        self._tensors = tensors
        self._buffers = buffers
        self._lossy = lossy
        self._pool: Pool | None = None

    def run(self, link: Link, repeat: int, rate: float | None) -> None:
        """Send them all ``repeat`` times (0: for ever), ``rate`` a second at most, and wait for the buffers."""
        self._pool = _pool(self._tensors, self._buffers)
        rounds = itertools.repeat(self._tensors, repeat) if repeat else itertools.repeat(self._tensors)
        begun = time.monotonic()
        with live(self.flow, "sending") as follow, Interrupt() as interrupt:

            def until(done: Callable[[], bool]) -> None:
                while not done():
                    follow()
                    interrupt.check()

            for number, tensor in enumerate(itertools.chain.from_iterable(rounds)):
                due = begun + number / rate if rate is not None else begun
                until(lambda: _slept(due))  # noqa: B023 (called at once)
                until(lambda: self._sent(link, tensor))  # noqa: B023
                follow()
                interrupt.check()
            until(lambda: self._given_back(link))

    def _sent(self, link: Link, tensor: Tensor) -> bool:
        """Send a frame; False where no buffer comes free for a while, or the receiver takes nothing."""
        if self._pool is None:
            if not _ready(link, select.POLLOUT):
                return False
            link.send(tensor, lossy=self._lossy)
        else:
            try:
                buffer = self._pool.acquire(_TICK)
            except TimedOut:
                return False
            assert buffer is not None
            with buffer, _described_as(buffer, tensor) as frame:
                _copy(tensor, frame)
                link.send(frame)
        self.flow.passed(tensor.nbytes, by_reference=self._pool is not None)
        return True

    def _given_back(self, link: Link) -> bool:
        """Whether every buffer is back. A sender that left before would reset what it sent last."""
        if self._pool is None:
            return True
        link.collect()
        if self._pool.free < self._pool.count:
            _ready(link, select.POLLIN)
        return self._pool.free == self._pool.count

    def report(self, socket: str, as_json: bool) -> None:
        if as_json:
            facts: Facts = {"socket": socket, **self.flow.facts()}
            print(to_json(facts))
        else:
            print(safe(f"sent {self.flow.summary()}"))


def _slept(due: float) -> bool:
    """Sleep a while, until ``due`` at most; whether it has come."""
    early = due - time.monotonic()
    if early > 0:
        time.sleep(min(early, _TICK))
    return early <= _TICK


def _ready(link: Link, events: int) -> bool:
    """Whether the socket is ready, waiting a while for it."""
    poll = select.poll()
    poll.register(link, events)
    return bool(poll.poll(_TICK * 1000))


_Kind = tuple[object, ...]


def _kind(tensor: Tensor) -> _Kind | None:
    """What tensors have in common that fit the same buffers; None for what travels only as it stands."""
    if tensor.carried is not None or any(plane.modifier or plane.data is None for plane in tensor.planes):
        return None
    format, itemsize = tensor.format, tensor.dtype.size
    if format is None:
        is_dense = tensor.strides == dense_strides(tensor.shape, itemsize)
        return (tensor.dtype, tensor.shape) if is_dense else None
    if not isinstance(format, PixelFormat):
        return None
    stride = tensor.planes[0].stride
    try:
        layout = format.plane_table(tensor.width, tensor.height, stride, itemsize)
        is_plain = tensor.strides == format.strides(tensor.width, tensor.height, stride, itemsize)
    except ValueError:
        return None
    is_plain = is_plain and [(p.stride, p.size) for p in layout] == [(p.stride, p.size) for p in tensor.planes]
    return (format, tensor.width, tensor.height, stride, tensor.dtype) if is_plain else None


def _pool(tensors: list[Tensor], buffers: int) -> Pool | None:
    """Buffers that each of ``tensors`` fits; None where there is no such kind, or no shared memory for it."""
    kinds = {_kind(tensor) for tensor in tensors}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        return None
    first = tensors[0]
    try:
        if not isinstance(first.format, PixelFormat):
            return Pool(first.shape, first.dtype, buffers)
        stride, dtype = first.planes[0].stride, first.dtype
        return Pool.of_images(first.format, first.width, first.height, buffers, stride=stride, dtype=dtype)
    except Unsupported as error:
        complain(f"frames go inline: {error}")
        return None


def _described_as(buffer: Tensor, tensor: Tensor) -> Tensor:
    return buffer.replace(quantization=tensor.quantization, colorimetry=tensor.colorimetry)


def _copy(tensor: Tensor, frame: Tensor) -> None:
    if tensor.format is None:
        np.copyto(frame.numpy(), tensor.numpy())
        return
    for i in range(len(tensor.planes)):
        np.copyto(frame.plane(i), tensor.plane(i))
