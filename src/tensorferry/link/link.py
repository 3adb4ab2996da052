"""A link: tensors to another process on this host, and back, by descriptor where they have one."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import blob
from ..blob import TransportMode
from ..errors import Disconnected, EndOfStream, FerryError, TimedOut, Unsupported
from ..memory.descriptor import limit_advice, require_linux
from ..memory.lease import Lease, LeaseHold
from ..memory.opening import open_region
from ..memory.region import Hold, Region
from ..parts import Buffer
from ..tensor import StorageKind, Tensor
from .channel import CONTROL, Channel, Deadline, Frame, close_all

__all__ = ["DEFAULT_MAX_BYTES", "Lent", "Link", "Peer"]

DEFAULT_MAX_BYTES = 1 << 30
_LEND = 1
"""Says of the blob that follows: its buffer is lent, give the token back when you are done with it.

The blob's length stands above the low byte, which says what the frame is.
"""
_RETURN = 2

_MAX_MAPPINGS = 256
_MAX_WAITING = 64
_SHAREABLE = {StorageKind.SHM, StorageKind.DMA_BUF}


class Peer(NamedTuple):
    """Who is at the other end, as the kernel knows it."""

    pid: int
    uid: int
    gid: int


class Lent(NamedTuple):
    """A claim on a buffer that is lent over ``link`` under the number ``token``."""

    link: Link
    token: int


class Link:
    """Tensors over a connected AF_UNIX stream socket, both ways. Safe to use from several threads.

    A tensor in shared memory or a dma-buf goes by reference: the blob's records, and its descriptors beside
    it. Any other goes inline. A tensor out of a ``Pool`` is lent: the receiver's ``close``, or the end of
    its last view, gives the buffer back over the same socket.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        writable: bool = False,
        policy: str = "read",
        fence: str | None = None,
    ) -> None:
        """Take over ``sock``, connected. ``Listener``, ``connect`` and ``Link.pair`` make links for you.

        ``max_bytes`` bounds one received frame, inline planes included. ``writable``, ``policy`` and
        ``fence`` say how received references are taken, as ``blob.import_`` documents.
        """
        require_linux("a link")
        self._channel = Channel(sock, max_bytes)
        self._options: dict[str, Any] = {"writable": writable, "policy": policy, "fence": fence}
        self._max_bytes = max_bytes
        self._tokens = itertools.count(1)
        self._lent: dict[int, Lease] = {}
        self._held: set[int] = set()
        self._coming_token: int | None = None
        self._coming_length = 0
        self._coming_lost = False
        self._coming_fds: list[int] = []
        self._waiting: deque[tuple[Frame, int | None]] = deque()
        self._mappings: OrderedDict[tuple[int, int], Region] = OrderedDict()
        self._closing = False
        self._pid = os.getpid()
        self._peer = _peer_of(sock)

    @classmethod
    def pair(cls, **options: Any) -> tuple[Link, Link]:
        """Two links connected to each other: keep one, give the other to a child or a thread."""
        require_linux("a link")
        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(a, **options), cls(b, **options)

    @property
    def peer(self) -> Peer:
        """The process at the other end: of a pair, the one that made it."""
        return self._peer

    def fileno(self) -> int:
        """The socket's descriptor, for polling: readable when ``recv`` may have something. -1 once closed."""
        return self._channel.fileno()

    # ---- sending ----

    def send(self, tensor: Tensor | object, timeout: float | None = None, *, lossy: bool = False) -> None:
        """Send a tensor, or anything that ``Tensor.from_array`` takes; returns when the kernel has it.

        Lends it if it is a pool's (``Pool``). A tensor in other shared memory is the sender's to leave alone
        until the receiver is done. ``timeout`` is in seconds, None waits as long as it takes. Raises Lossy
        as ``blob.export`` does, TimedOut, Disconnected.
        """
        self._check_open()
        if not isinstance(tensor, Tensor):
            tensor = Tensor.from_array(tensor)
        parts: list[Buffer]
        token = None
        if tensor.storage in _SHAREABLE and all(plane.handle is not None for plane in tensor.planes):
            data, fds = blob.export(tensor, TransportMode.REFERENCE, lossy=lossy)
            parts = [data]
            lease = tensor._hold.lease if isinstance(tensor._hold, LeaseHold) else None
            if lease is not None:
                token = self._lend(lease)
                parts.insert(0, CONTROL.pack(CONTROL.size, _LEND | len(data) << 8, token))
        else:
            parts, fds = blob.export_parts(tensor, lossy=lossy), []
        try:
            self._channel.send(parts, fds, Deadline(timeout))
        except BaseException:
            if token is not None:
                self._returned(token)
            raise

    def _lend(self, lease: Lease) -> int:
        token = next(self._tokens)
        self._lent[token] = lease
        lease.claim(Lent(self, token))
        return token

    def _returned(self, token: int) -> None:
        lease = self._lent.pop(token, None)
        if lease is not None:
            lease.drop(Lent(self, token))

    # ---- receiving ----

    def recv(self, timeout: float | None = None) -> Tensor:
        """The next tensor. Planes by reference are mapped once and stay mapped; close it when done.

        Raises EndOfStream when the other side has closed, TimedOut after ``timeout`` seconds (None waits),
        WireError and Unsupported for a tensor that cannot be believed or reached (the link goes on with the
        next), Disconnected when the other side is gone in the middle.
        """
        self._check_open()
        deadline = Deadline(timeout)
        left = deadline.left()
        if not self._channel.recv_lock.acquire(timeout=-1 if left is None else left):
            raise TimedOut("another thread was receiving all the time")
        try:
            while not self._waiting:
                self._sort(self._receive(deadline))
            frame, token = self._waiting.popleft()
        finally:
            self._channel.recv_lock.release()
        return self._tensor(frame, token)

    def __iter__(self) -> Iterator[Tensor]:
        """Each tensor until the other side closes."""
        while True:
            try:
                tensor = self.recv()
            except EndOfStream:
                return
            yield tensor

    def collect(self) -> None:
        """Take what has come in, without waiting: buffers given back, and tensors for a later ``recv``."""
        if not self._channel.recv_lock.acquire(blocking=False):
            return  # whoever receives takes it in
        try:
            while self._channel.fileno() >= 0 and len(self._waiting) < _MAX_WAITING:
                frame = self._channel.receive_now(self._coming_length)
                if frame is None:
                    return
                self._sort(frame)
        except FerryError:  # the end of the stream: the next recv says so
            self._peer_gone()
        finally:
            self._channel.recv_lock.release()

    def _receive(self, deadline: Deadline) -> Frame:
        try:
            return self._channel.receive(deadline, self._coming_length)
        except TimedOut:
            raise
        except FerryError:
            self._peer_gone()
            raise

    def _sort(self, frame: Frame) -> None:
        """A blob waits for ``recv``, with the token and the descriptors that came before it."""
        if len(frame.data) != CONTROL.size:
            if self._coming_token is not None:
                frame = Frame(frame.data, self._coming_fds + frame.fds, self._coming_lost or frame.lost)
            self._waiting.append((frame, self._coming_token))
            self._coming_token, self._coming_fds, self._coming_length = None, [], 0
            return
        _, what, token = CONTROL.unpack(frame.data)
        if what & 0xFF == _LEND:
            if self._coming_token is not None:  # the blob that it announced never came
                self._channel.note(CONTROL.pack(CONTROL.size, _RETURN, self._coming_token))
                close_all(self._coming_fds)
            self._coming_token, self._coming_fds, self._coming_length = token, frame.fds, what >> 8
            self._coming_lost = frame.lost
            return
        close_all(frame.fds)
        if what == _RETURN:
            self._returned(token)
            self._finish_closing()

    def _tensor(self, frame: Frame, token: int | None) -> Tensor:
        lease = None
        if token is not None:
            self._held.add(token)
            receiver = os.getpid()
            lease = Lease(lambda: self._give_back(token, receiver))

        def keep(root: npt.NDArray[np.uint8], region: Region) -> Hold:
            return Hold(root) if lease is None else lease.hold(root)

        try:
            if frame.lost:
                raise Unsupported(
                    f"descriptors of this tensor were lost, this process has no room for them: {limit_advice()}",
                    field="RLIMIT_NOFILE",
                )
            return blob.import_(frame.data, frame.fds, opener=self._mapping, keep=keep, **self._options)
        finally:
            close_all(frame.fds)
            if lease is not None and not lease.claims:  # refused, or read out: nothing here looks at it
                lease.drop(None)

    def _mapping(self, fd: int, writable: bool) -> Region | None:
        """The mapping of what ``fd`` refers to, kept from one frame to the next."""
        status = os.fstat(fd)
        key = (status.st_dev, status.st_ino)
        known = self._mappings.get(key)
        if known is not None and known.size >= status.st_size:
            self._mappings.move_to_end(key)
            return known
        region = open_region(fd, writable)
        if region is not None:
            self._mappings[key] = region
            if len(self._mappings) > _MAX_MAPPINGS:
                self._mappings.popitem(last=False)  # it is unmapped when the last tensor in it goes
        return region

    # ---- giving back, and the end ----

    def _give_back(self, token: int, receiver: int) -> None:
        """Runs when the last view of a lent tensor is gone, perhaps inside a garbage collection."""
        self._held.discard(token)
        if os.getpid() != receiver:  # a forked child's copy ends: the parent that received it still looks
            return
        if self._channel.fileno() >= 0:
            self._channel.note(CONTROL.pack(CONTROL.size, _RETURN, token))
        self._finish_closing()

    def _peer_gone(self) -> None:
        """The other side can give nothing back any more: what it held comes back by itself."""
        for token in list(self._lent):
            self._returned(token)
        self._finish_closing()

    def close(self) -> None:
        """Close the link. Closing twice is fine.

        Where tensors lent by or to this side are still looked at, the socket stays open underneath until
        they are given back, so that no buffer is written under a reader; nothing more is sent or received.
        """
        self._here()
        if self._closing:
            return
        self._closing = True
        if not self._held and self._lent:
            self._channel.shut(socket.SHUT_WR)
        elif self._held and not self._lent:
            self._channel.shut(socket.SHUT_RD)
        with self._channel.recv_lock:
            for frame, token in self._waiting:
                close_all(frame.fds)
                if token is not None:
                    self._channel.note(CONTROL.pack(CONTROL.size, _RETURN, token))
            self._waiting.clear()
            close_all(self._coming_fds)
            self._coming_fds = []
            self._mappings.clear()
        self._finish_closing()

    def _finish_closing(self) -> None:
        if self._closing and not self._held and not self._lent and self._channel.fileno() >= 0:
            self._channel.flush_notes()
            self._channel.close()

    def _check_open(self) -> None:
        self._here()
        if self._closing:
            raise Disconnected("this link was closed")

    def _here(self) -> None:
        """After a fork: what the parent lent and holds is the parent's to settle."""
        pid = os.getpid()
        if pid != self._pid:
            self._pid = pid
            self._lent.clear()
            self._held.clear()

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closing else f"to process {self.peer.pid}"
        return f"<Link {state}, {len(self._lent)} lent, {len(self._held)} held>"

    def __reduce__(self) -> tuple[Any, ...]:
        """To a child that multiprocessing spawns: it gets a duplicate of the socket."""
        from multiprocessing.reduction import DupFd

        options = {**self._options, "max_bytes": self._max_bytes}
        return _from_duplicate, (DupFd(self.fileno()), options)

    # ---- asyncio ----

    async def asend(self, tensor: Tensor | object, *, lossy: bool = False) -> None:
        """``send`` without holding up the event loop."""
        try:
            self.send(tensor, 0, lossy=lossy)
        except TimedOut:
            if self._channel.fileno() < 0:
                raise
            await asyncio.get_running_loop().run_in_executor(None, lambda: self.send(tensor, lossy=lossy))

    async def arecv(self) -> Tensor:
        """``recv`` without holding up the event loop; one at a time."""
        while True:
            try:
                return self.recv(0)
            except TimedOut:
                await _readable(self._channel.fileno())

    async def __aiter__(self) -> AsyncIterator[Tensor]:
        """Each tensor until the other side closes."""
        while True:
            try:
                tensor = await self.arecv()
            except EndOfStream:
                return
            yield tensor


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _from_duplicate(duplicate: Any, options: dict[str, Any]) -> Link:
    return Link(socket.socket(fileno=duplicate.detach()), **options)


def _peer_of(sock: socket.socket) -> Peer:
    credentials = struct.Struct("3i")
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return Peer._make(credentials.unpack(raw))


