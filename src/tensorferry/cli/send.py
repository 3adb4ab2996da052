"""``tensorferry send``: tensors out of files to a process on this host, by reference where that is possible."""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
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
from .formats import encoded, read_all
from .inputs import open_input
from .interrupt import Interrupt
from .look import Facts, to_json

__all__ = ["Frames", "Sending", "as_blob", "send"]

_BUFFERS = 4
_TICK = 0.25


def send(
    socket: SocketPath,
    files: Annotated[list[str], typer.Argument(metavar="FILES…", help="Files of tensors, or pictures; - is stdin.")],
    repeat: Annotated[int, typer.Option(metavar="N", min=0, help="Send it all N times; 0: until Ctrl-C.")] = 1,
    rate: Annotated[float | None, typer.Option(metavar="HZ", help="Frames a second, at most.")] = None,
    lossy: Annotated[bool, typer.Option("--lossy", help="Leave behind what a blob cannot say.")] = False,
    listens: Listens = False,
    timeout: Timeout = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as one JSON document.")] = False,
) -> None:
    """Send the tensors in FILES over a Unix socket to `tensorferry recv`, or anyone else who has a link.

    Each of several tensors in a file is a frame of its own.
    Frames of one kind go by reference, through shared memory; of several, inline.
    """
    if rate is not None and not rate > 0:
        raise BadUsage(f"--rate {rate:g}: it must be above 0")
    tensors = [tensor for name in files for tensor in _tensors(name, lossy)]
    total = repeat * len(tensors)
    is_one_kind = len({_kind(tensor) for tensor in tensors}) == 1
    sending = Sending(int(is_one_kind), min(_BUFFERS, total or _BUFFERS), lossy=lossy)
    with open_link(socket, listens=listens, timeout=timeout, other="receiver") as link:
        try:
            sending.run(link, _timed(tensors, repeat, rate))
        except Disconnected as error:
            of = f" of {total:,}" if total else ""
            raise BadData(f"the receiver left after {sending.flow.frames:,}{of} frames: {error}") from None
        finally:
            _report(sending, socket, as_json)


def _tensors(name: str, lossy: bool) -> Iterator[Tensor]:
    """Every tensor in a file, as a blob can carry it. BadData, naming the file, where one cannot be."""
    input = open_input(name)
    lost: dict[str, None] = {}
    for i, entry in enumerate(read_all(input)):
        try:
            tensor, left = as_blob(entry.tensor, lossy)
        except FerryError as error:
            raise BadData(f"{input.name}: {f'tensor {i}: ' if i else ''}{told(error)}") from None
        lost.update(dict.fromkeys(left))
        yield tensor
    if lost:
        complain(f"{input.name}: left behind: {', '.join(lost)}")


def as_blob(tensor: Tensor, lossy: bool) -> tuple[Tensor, list[str]]:
    """``tensor`` as a blob can carry it, and what is left behind for that. Raises as ``encoded`` does."""
    written = encoded([("", tensor)], "blob", lossy=lossy)
    return written.entries[0].tensor, [loss.said for loss in written.lost]


Frames = Iterable[tuple[float | None, Tensor]]
"""When each is due, on the monotonic clock (None: at once), and what it is."""


def _timed(tensors: list[Tensor], repeat: int, rate: float | None) -> Iterator[tuple[float | None, Tensor]]:
    rounds = itertools.repeat(tensors, repeat) if repeat else itertools.repeat(tensors)
    begun = time.monotonic()
    for number, tensor in enumerate(itertools.chain.from_iterable(rounds)):
        yield None if rate is None else begun + number / rate, tensor


def _report(sending: Sending, socket: str, as_json: bool) -> None:
    if as_json:
        facts: Facts = {"socket": socket, **sending.flow.facts()}
        print(to_json(facts))
    else:
        print(safe(f"sent {sending.flow.summary()}"))


class Sending:
    """Frames on their way out: the first ``kinds`` of them through ``buffers`` of shared memory each, others inline.

    ``latest`` is how late a frame went, in seconds, at the most.
    """

    def __init__(self, kinds: int, buffers: int = _BUFFERS, *, lossy: bool, doing: str = "sending") -> None:
        self.flow = Flow()
        self.latest = 0.0
        self._kinds = kinds
        self._buffers = buffers
        self._pools: dict[_Kind, Pool | None] = {}
        self._lossy = lossy
        self._doing = doing

    def run(self, link: Link, frames: Frames) -> None:
        """Send ``frames``, each when it is due, and wait until all buffers are back."""
        with live(self.flow, self._doing) as follow, Interrupt() as interrupt:

            def until(done: Callable[[], bool]) -> None:
                while not done():
                    follow()
                    interrupt.check()

            for due, tensor in frames:
                if due is not None:
                    until(partial(_slept, due))
                    self.latest = max(self.latest, time.monotonic() - due)
                until(partial(self._sent, link, tensor))
                follow()
                interrupt.check()
            until(lambda: self._given_back(link))

    def _sent(self, link: Link, tensor: Tensor) -> bool:
        """Send a frame; False where no buffer comes free for a while, or the receiver takes nothing."""
        pool = self._pool(tensor)
        if pool is None:
            if not _ready(link, select.POLLOUT):
                return False
            link.send(tensor, lossy=self._lossy)
        else:
            try:
                buffer = pool.acquire(_TICK)
            except TimedOut:
                return False
            assert buffer is not None
            with buffer, _described_as(buffer, tensor) as frame:
                _copy(tensor, frame)
                link.send(frame)
        self.flow.passed(tensor.nbytes, by_reference=pool is not None)
        return True

    def _pool(self, tensor: Tensor) -> Pool | None:
        """The buffers for such a tensor, made with the first of its kind; None where it goes inline."""
        kind = _kind(tensor) if self._kinds else None
        if kind is None:
            return None
        if kind not in self._pools and len(self._pools) < self._kinds:
            self._pools[kind] = _pool(tensor, self._buffers)
        return self._pools.get(kind)

    def _given_back(self, link: Link) -> bool:
        """Whether every buffer is back. A sender that left before would reset what it sent last."""
        pools = [pool for pool in self._pools.values() if pool is not None]
        if not pools:
            return True
        link.collect()
        if any(pool.free < pool.count for pool in pools):
            _ready(link, select.POLLIN)
        return all(pool.free == pool.count for pool in pools)


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


def _pool(tensor: Tensor, buffers: int) -> Pool | None:
    """Buffers that tensors of the kind of ``tensor`` fit; None where there is no shared memory for them."""
    try:
        if not isinstance(tensor.format, PixelFormat):
            return Pool(tensor.shape, tensor.dtype, buffers)
        stride, dtype = tensor.planes[0].stride, tensor.dtype
        return Pool.of_images(tensor.format, tensor.width, tensor.height, buffers, stride=stride, dtype=dtype)
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
