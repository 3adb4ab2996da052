"""A link: tensors to another process on this host, and back, by descriptor where they have one."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import blob
from ..blob import BlobView, TransportMode
from ..closing import Closing
from ..errors import Disconnected, EndOfStream, FerryError, Malformed, TimedOut, Truncated, Unsupported
from ..memory.descriptor import limit_advice, require_linux
from ..memory.lease import Lease, LeaseHold
from ..memory.process import this_process
from ..memory.region import Hold, Region
from ..parts import Buffer
from ..tensor import StorageKind, Tensor
from .channel import CONTROL, NEVER, Channel, Deadline, Frame, close_all
from .mappings import Mappings
from .slots import MAX_SLOTS, Known, Slot, Slots
from .waiting import Waker, readable

__all__ = ["DEFAULT_MAX_BYTES", "Lent", "Link", "Peer", "tend"]

DEFAULT_MAX_BYTES = 1 << 30
_LEND = 1
"""Says of the blob that follows: its buffer is lent, give the token back when you are done with it.

The blob's length stands above the low byte, which says what the frame is; in the highest byte is the slot that
is proposed for it, 0 for none.
"""
_RETURN = 2
_RETURN_KNOWN = _RETURN | 1 << 8
"""Says besides that the buffer is remembered under the slot that its LEND proposed."""
_AGAIN = 3
"""A buffer is lent again that is remembered under the slot above the low byte: no blob follows."""
_SLOT_SHIFT = 56
_LENGTH_MASK = (1 << 48) - 1

_MAX_LENT_MAPPINGS = 256
_MAX_OTHER_MAPPINGS = 16  # nobody says when such a buffer is done with: memory that is dead may be kept by it
_MAX_WAITING = 64  # tensors, or descriptors of theirs, that are taken in before anybody asks for them
_MAX_WAITING_BYTES = 64 << 20
_LOOK_AGAIN = 0.2  # seconds
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


class Link(Closing):
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
        tend()
        self._peer = _peer_of(sock)
        self._options: dict[str, Any] = {"writable": writable, "policy": policy, "fence": fence}
        self._max_bytes = max_bytes
        self._tokens = itertools.count(1)
        self._lent: dict[int, _Lending] = {}
        self._relayed: set[int] = set()
        self._held: dict[int, int] = {}  # and what to say when each is given back
        self._slots = Slots()
        self._known: dict[int, Known] = {}
        self._coming: _Coming | None = None
        self._waiting: deque[_Waiting] = deque()
        self._lent_mappings = Mappings(_MAX_LENT_MAPPINGS)
        self._other_mappings = Mappings(_MAX_OTHER_MAPPINGS)
        self._wakers: set[Waker] = set()
        self._closing = False
        self._pid = os.getpid()
        self._channel = Channel(sock, max_bytes)

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
        """The socket's descriptor, for polling: readable when ``recv`` may have something. -1 once closed.

        Where buffers of a pool come back over the same link, ``Pool.acquire`` may have taken tensors in
        together with them, which the socket then shows no more: ``recv(0)`` until TimedOut before polling.
        """
        return self._channel.fileno()

    # ---- sending ----

    def send(self, tensor: Tensor | object, timeout: float | None = None, *, lossy: bool = False) -> None:
        """Send a tensor, or anything that ``Tensor.from_array`` takes; returns when the kernel has it.

        Lends it if it is a pool's (``Pool``). A tensor in other shared memory is the sender's to leave alone
        until the receiver is done. ``timeout`` is in seconds, None waits as long as it takes. Raises Lossy
        as ``blob.export`` does; TimedOut, after which the link goes on if the message says that nothing was
        sent; Disconnected; Unsupported where too many descriptors are on their way.
        """
        self._check_open()
        if not isinstance(tensor, Tensor):
            tensor = Tensor.from_array(tensor)
        parts, fds, token = self._outgoing(tensor, lossy)
        self._dispatch(parts, fds, token, NEVER if timeout is None else Deadline(timeout))

    def _outgoing(self, tensor: Tensor, lossy: bool) -> tuple[list[Buffer], list[int], int | None]:
        """The frame for a tensor, its descriptors (borrowed), and the token that it is lent under."""
        if tensor._storage not in _SHAREABLE or None in [plane.handle for plane in tensor.planes]:
            return blob.export_parts(tensor, lossy=lossy), [], None
        if isinstance(tensor._hold, LeaseHold):
            return self._lend(tensor, tensor._hold.lease, lossy)
        data, fds = blob.export(tensor, TransportMode.REFERENCE, lossy=lossy)
        return [data], fds, None

    def _lend(self, tensor: Tensor, lease: Lease, lossy: bool) -> tuple[list[Buffer], list[int], int]:
        """As ``_outgoing``: by its slot's number alone where the receiver knows it."""
        known = self._slots.find(tensor)
        token = next(self._tokens)
        parts: list[Buffer]
        fds: list[int] = []
        proposed = None
        if known is not None:
            parts = [CONTROL.pack(CONTROL.size, _AGAIN | known.number << 8, token)]
        else:
            data, fds = blob.export(tensor, TransportMode.REFERENCE, lossy=lossy)
            proposed = self._slots.propose(tensor)
            number = 0 if proposed is None else proposed.number
            parts = [CONTROL.pack(CONTROL.size, _LEND | len(data) << 8 | number << _SLOT_SHIFT, token), data]
        claim = Lent(self, token)
        self._lent[token] = _Lending(lease, claim, proposed)
        lease.claim(claim)
        if type(lease) is _Loan:
            self._relay(token)
        return parts, fds, token

    def _relay(self, token: int) -> None:
        """Lent on from another link: no pool will ask here whether it has come back."""
        self._relayed.add(token)
        if self not in _tended:
            _tended.add(self)
            for wake in list(_idle):
                wake()
        self.collect()

    def _dispatch(self, parts: Sequence[Buffer], fds: Sequence[int], token: int | None, deadline: Deadline) -> None:
        try:
            self._channel.send(parts, fds, deadline)
        except BaseException:
            self._unsent(token)
            raise

    def _unsent(self, token: int | None) -> None:
        if token is not None:
            self._returned(token)

    def _returned(self, token: int, known: bool = False) -> bool:
        """Take back what was lent under ``token``, whose slot the receiver may know now; whether anything was."""
        lent = self._lent.pop(token, None)
        if lent is None:
            return False
        self._relayed.discard(token)
        lease, claim, proposed = lent
        if proposed is not None:
            self._slots.settle(proposed, known)
        lease.drop(claim)
        return True

    # ---- receiving ----

    def recv(self, timeout: float | None = None) -> Tensor:
        """The next tensor. Planes by reference are mapped once and stay mapped; close it when done.

        Raises EndOfStream when the other side has closed, TimedOut after ``timeout`` seconds (None waits),
        WireError and Unsupported for a tensor that cannot be believed or reached. After those the link goes
        on with the next, unless the stream itself is damaged: then every later ``recv`` says the same.
        Disconnected when this side is closed, by another thread perhaps.
        """
        self._check_open()
        deadline = NEVER if timeout is None else Deadline(timeout)
        lock = self._channel.recv_lock
        if not lock.acquire(False) and not lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            raise TimedOut("another thread was receiving all the time")
        try:
            while not self._waiting:
                self._receive(deadline)
            frame, token, slot = self._waiting.popleft()
            if token is not None:
                self._held[token] = _RETURN  # before anybody who closes can ask what is held
        finally:
            lock.release()
            if self._closing:
                self._settle()
        if isinstance(frame, Known):
            assert token is not None  # it is always lent
            return self._again(frame, token)
        return self._tensor(frame, token, slot)

    def __iter__(self) -> Iterator[Tensor]:
        """Each tensor until the other side closes."""
        while True:
            try:
                tensor = self.recv()
            except EndOfStream:
                return
            yield tensor
            del tensor  # who iterates may let go of it before the next has come

    def collect(self, enough: Collection[object] = ()) -> bool:
        """Take what has come in, without waiting: buffers given back, and tensors for a later ``recv``.

        Stops as soon as ``enough`` has something in it, and does not ask whether more came. Returns whether to
        look again when the socket can be read.
        """
        if self._closing:
            self._settle()
            return self._channel.fileno() >= 0
        if not self._channel.recv_lock.acquire(blocking=False):
            return False  # whoever receives takes it in
        try:
            return self._take_in(enough=enough)
        finally:
            self._channel.recv_lock.release()
            if self._closing:
                self._settle()

    def _take_in(self, most: int = _MAX_WAITING, enough: Collection[object] = ()) -> bool:
        """Sort what is there, at most so many frames; whether all of it was taken, and more may come."""
        try:
            for _ in range(most):
                if self._crowded():
                    return False
                frame = self._channel.receive_now(self._hint())
                if frame is None:
                    return True
                self._sort(frame)
                if enough:
                    return True
        except FerryError as error:  # the next recv says so
            self._cut_off(error)
            return not self._take_back()
        return True

    def _crowded(self) -> bool:
        """Whether so much waits for ``recv`` that no more is taken in: a peer must not fill this process."""
        waiting = self._waiting
        return bool(waiting) and (
            sum(1 + len(frame.fds) for frame, *_ in waiting) >= 2 * _MAX_WAITING
            or sum(len(frame.data) for frame, *_ in waiting) >= _MAX_WAITING_BYTES
        )

    def _hint(self) -> int:
        return 0 if self._coming is None else self._coming.length

    def _receive(self, deadline: Deadline) -> None:
        try:
            self._sort(self._channel.receive(deadline, self._hint(), tend))
        except TimedOut:
            raise
        except FerryError as error:
            if self._closing:  # the other side may still be there: closing settles with it
                raise
            cut_off = self._cut_off(error)
            self._take_back()
            if cut_off:
                raise self._channel.failed() from error
            raise

    def _sort(self, frame: Frame) -> None:
        """A blob waits for ``recv``, with the token and the descriptors that came before it."""
        if len(frame.data) == CONTROL.size:
            self._control(frame)
            return
        token, slot = None, 0
        if self._coming is not None:
            token, slot, length, fds, lost = self._coming
            frame = Frame(frame.data, fds + frame.fds, lost or frame.lost)
            self._coming = None
            if len(frame.data) != length:
                raise self._refuse(frame, "length", f"a blob of {length} bytes was announced, {len(frame.data)} came")
        self._arrived(frame, token, slot)

    def _arrived(self, frame: Frame | Known, token: int | None, slot: int) -> None:
        if self._closing:
            self._throw_away(frame, token)
            return
        self._waiting.append((frame, token, slot))
        self._wake()

    def _control(self, frame: Frame) -> None:
        _, what, token = CONTROL.unpack(frame.data)
        kind = what & 0xFF
        if self._coming is not None:
            raise self._refuse(frame, "what", f"a blob was announced, and a control frame (kind {kind}) came")
        if kind == _LEND:
            self._announced(frame, what, token)
        elif frame.fds or frame.lost:
            raise self._refuse(frame, "handle", f"a control frame of kind {kind} brought descriptors")
        elif kind == _AGAIN:
            known = self._known.get(what >> 8)  # now: by the time that somebody asks, the number may mean another
            if known is None:
                raise self._refuse(frame, "what", f"slot {what >> 8} was lent again, which is not known here")
            self._arrived(known, token, 0)
        elif what == _RETURN_KNOWN:
            if token in self._lent and self._lent[token].proposed is None:
                raise self._refuse(frame, "token", f"token {token} proposed no slot, and one was confirmed")
            self._took_back(frame, token, known=True)
        elif what == _RETURN:
            self._took_back(frame, token, known=False)
        else:
            raise self._refuse(frame, "what", f"a control frame says {what:#x}, which is nothing that is known here")

    def _announced(self, frame: Frame, what: int, token: int) -> None:
        slot = what >> _SLOT_SHIFT
        if slot > MAX_SLOTS:
            raise self._refuse(frame, "what", f"slot {slot} was proposed, there are {MAX_SLOTS}")
        # What the number stood for is over, whatever becomes of this frame.
        self._known.pop(slot, None)
        self._coming = _Coming(token, slot, what >> 8 & _LENGTH_MASK, frame.fds, frame.lost)

    def _took_back(self, frame: Frame, token: int, *, known: bool) -> None:
        if not self._returned(token, known):
            raise self._refuse(frame, "token", f"token {token} was given back, which is not lent")

    def _refuse(self, frame: Frame, field: str, message: str) -> FerryError:
        """Malformed, closing what came: a peer that breaks the rules is not listened to any more."""
        close_all(frame.fds)
        return self._channel.refuse(Malformed(message, field=field))

    def _again(self, known: Known, token: int) -> Tensor:
        """What is mapped already, lent once more under ``token``."""
        lease = _Loan(partial(self._give_back, token, this_process()))
        try:
            return known.tensor(lease)
        finally:
            if not lease.claims:  # it could not be made
                lease.drop(None)

    def _tensor(self, frame: Frame, token: int | None, slot: int) -> Tensor:
        lease = None
        mappings = self._other_mappings
        if token is not None:
            lease = _Loan(partial(self._give_back, token, this_process()))
            mappings = self._lent_mappings
        arrival = _Arrival(mappings, lease)
        try:
            if frame.lost:
                self._other_mappings.clear()  # they hold descriptors, for a better chance only
                raise Unsupported(
                    f"descriptors of this tensor were lost, this process has no room for them: {limit_advice()}",
                    field="RLIMIT_NOFILE",
                )
            tensor = blob.import_(frame.data, frame.fds, opener=arrival.open, keep=arrival.keep, **self._options)
            if len(frame.fds) != arrival.opened:
                _check_table(frame, tensor)
            if slot and token is not None:
                self._remember(slot, token, tensor, frame.data)
            return tensor
        except BaseException:
            arrival.forget()
            raise
        finally:
            close_all(frame.fds)
            if lease is not None and not lease.claims:  # refused, or read out: nothing here looks at it
                lease.drop(None)

    def _remember(self, slot: int, token: int, tensor: Tensor, data: bytes | bytearray) -> None:
        """Under ``slot``, and say so when it is given back, if its memory is mapped here."""
        known = Known.of(tensor, data)
        if known is not None and not self._closing:
            self._known[slot] = known
            self._held[token] = _RETURN_KNOWN

    # ---- giving back, and the end ----

    def _give_back(self, token: int, receiver: int) -> None:
        """Runs when the last view of a lent tensor is gone, perhaps inside a garbage collection."""
        if this_process() != receiver:  # a forked child's copy ends: the parent that received it still looks
            return
        self._note_return(token, self._held.pop(token, _RETURN))
        self._finish_closing()

    def _note_return(self, token: int, what: int = _RETURN) -> None:
        if self._channel.fileno() >= 0:
            self._channel.note(CONTROL.pack(CONTROL.size, what, token))

    def _cut_off(self, error: FerryError) -> bool:
        """Whether the stream ended between a tensor's announcement and its blob: then it ended too early."""
        coming, self._coming = self._coming, None
        if coming is None:
            return False
        close_all(coming.fds)
        if not isinstance(error, EndOfStream):
            return False
        self._channel.refuse(Truncated("the stream ended where a tensor was announced", need=coming.length, have=0))
        return True

    def _take_back(self) -> bool:
        """The other side gives nothing back any more: what it held comes back by itself if it is gone.

        Not before: it may have been refused for a mistake, and still be looking at what it has.
        """
        if not self._channel.gone():
            return False
        for token in list(self._lent):
            self._returned(token)
        self._finish_closing()
        return True

    def close(self) -> None:
        """Close the link. Closing twice is fine. Never waits; who waits here in another thread is told soon.

        Where tensors lent by or to this side are still looked at, the socket stays open underneath until
        they are given back, so that no buffer is written under a reader; nothing more is sent or received.
        """
        self._here()
        if self._closing:
            return
        self._closing = True
        self._channel.stop()
        self._slots.close()
        self._wake()
        self._settle()
        if self._channel.fileno() >= 0:
            _tended.add(self)
        tend()

    def _settle(self) -> None:
        """Bring the end nearer, without waiting: whoever receives at this moment does it afterwards."""
        if not self._channel.recv_lock.acquire(blocking=False):
            return
        try:
            while self._waiting:
                frame, token, _ = self._waiting.popleft()
                self._throw_away(frame, token)
            self._known.clear()
            self._lent_mappings.clear()
            self._other_mappings.clear()
            # Each side learns as soon as it can be told that nothing more comes, or is taken: only what is
            # still to be given back must get through.
            if self._held and not self._lent:
                self._channel.shut(socket.SHUT_RD)
            elif self._lent and not self._held:
                self._channel.shut(socket.SHUT_WR)
            if self._held or self._lent:
                self._take_in()
            elif self._coming is not None:
                close_all(self._coming.fds)
                self._coming = None
        finally:
            self._channel.recv_lock.release()
        self._finish_closing()

    def _throw_away(self, frame: Frame | Known, token: int | None) -> None:
        """Nobody will ask for this tensor any more."""
        close_all(frame.fds)
        if token is not None:
            self._note_return(token)

    def _finish_closing(self) -> None:
        if self._closing and not self._held and not self._lent:
            if self._channel.fileno() >= 0:
                self._channel.flush_notes()
            self._channel.close()
            _tended.discard(self)

    def _tend(self) -> bool:
        """Take in what came back; whether to watch for more."""
        self._here()
        watch = self.collect()
        if self._closing or self._relayed:
            return watch and self._channel.fileno() >= 0
        _tended.discard(self)
        if self._relayed:  # since we looked
            _tended.add(self)
        return False

    def _check_open(self) -> None:
        self._here()
        if self._closing:
            raise Disconnected("this link was closed")

    def _here(self) -> None:
        """After a fork: what the parent lent, holds and has taken in is the parent's to settle."""
        pid = this_process()
        if pid != self._pid:
            self._pid = pid
            self._lent.clear()
            self._relayed.clear()
            self._held.clear()
            self._wakers.clear()
            for frame, *_ in self._waiting:
                close_all(frame.fds)
            self._waiting.clear()
            # Which of the two goes on sending, the receiver cannot tell. What was mapped is mapped in both.
            self._slots.close()
            self._channel.renew_locks()

    def __del__(self) -> None:
        # Descriptors of tensors that nobody asked for are plain numbers: no other object would close them.
        if hasattr(self, "_channel") and not sys.is_finalizing():
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closing else f"to process {self.peer.pid}"
        return f"<Link {state}, {len(self._lent)} lent, {len(self._held)} held>"

    def __reduce__(self) -> tuple[Any, ...]:
        """To a child that multiprocessing spawns: it gets a duplicate of the socket, and of what is known here.

        For the sender goes on meaning that by its numbers, whoever receives. What this side sends, the child
        proposes anew.
        """
        from multiprocessing.reduction import DupFd

        self._check_open()
        options = {**self._options, "max_bytes": self._max_bytes}
        known = [(slot, it.data, DupFd(it.region.fileno())) for slot, it in list(self._known.items())]
        return _from_duplicate, (DupFd(self.fileno()), options, known)

    def _adopt(self, slot: int, data: bytes, fd: int) -> None:
        """Know by ``slot`` what the process knew that this link comes from. Where it cannot be mapped, not."""
        arrival = _Arrival(self._lent_mappings, None)
        try:
            tensor = blob.import_(data, [fd], opener=arrival.open, keep=arrival.keep, **self._options)
            known = Known.of(tensor, data)
            if known is not None:
                self._known[slot] = known
        except FerryError:
            arrival.forget()
        finally:
            os.close(fd)

    # ---- asyncio ----

    async def asend(self, tensor: Tensor | object, *, lossy: bool = False) -> None:
        """``send`` without holding up the event loop. If it is cancelled, the tensor may be sent all the same."""
        self._check_open()
        if not isinstance(tensor, Tensor):
            tensor = Tensor.from_array(tensor)
        parts, fds, token = self._outgoing(tensor, lossy)
        if sum(map(len, parts)) <= self._channel.whole:
            try:
                self._channel.send(parts, fds, Deadline(0))
                return
            except TimedOut:
                pass  # the kernel takes such a frame whole or not at all: it has none of it
            except BaseException:
                self._unsent(token)
                raise

        def wait(kept: Tensor = tensor) -> None:  # keeps the descriptors open, whoever was cancelled
            self._dispatch(parts, fds, token, Deadline(None))

        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, wait))

    async def arecv(self) -> Tensor:
        """``recv`` without holding up the event loop."""
        while True:
            try:
                return self.recv(0)
            except TimedOut:
                await self._readable()

    async def _readable(self) -> None:
        # Buffers given back while there was no room to say so are said when there is: so look again.
        owing = self._held or not self._channel.flush_notes()
        fds = [self.fileno(), *tend()]
        if fds[0] >= 0:
            look_again = _LOOK_AGAIN if owing else None
            await readable(fds, [self._wakers, _idle], look_again, lambda: self._closing or bool(self._waiting))

    def _wake(self) -> None:
        if self._wakers:
            for wake in list(self._wakers):
                wake()

    async def __aiter__(self) -> AsyncIterator[Tensor]:
        """Each tensor until the other side closes."""
        while True:
            try:
                tensor = await self.arecv()
            except EndOfStream:
                return
            yield tensor
            del tensor  # who iterates may let go of it before the next has come


class _Loan(Lease):
    """The lease of a buffer that came over a link."""

    __slots__ = ()


class _Lending(NamedTuple):
    """What is lent under a token, and the slot that was proposed with it."""

    lease: Lease
    claim: Lent
    proposed: Slot | None


_Waiting = tuple["Frame | Known", "int | None", int]
"""What waits for ``recv``, the token that it is lent under, and the slot that is proposed for it (0: none)."""


class _Coming(NamedTuple):
    """What was announced of the blob that comes next."""

    token: int
    slot: int
    length: int
    fds: list[int]
    lost: bool


class _Arrival:
    """How the memory of one received tensor is opened and kept."""

    __slots__ = ("_fresh", "_lease", "_mappings", "opened")

    def __init__(self, mappings: Mappings, lease: Lease | None) -> None:
        self._mappings = mappings
        self._lease = lease
        self._fresh: list[tuple[int, int]] = []
        self.opened = 0

    def open(self, fd: int, writable: bool) -> Region | None:
        self.opened += 1
        return self._mappings.open(fd, writable, self._fresh)

    def keep(self, root: npt.NDArray[np.uint8], region: Region) -> Hold:
        return Hold(root) if self._lease is None else self._lease.hold(root)

    def forget(self) -> None:
        """The tensor was refused: keep nothing of it mapped that was not so before."""
        self._mappings.forget(self._fresh)


_tended: set[Link] = set()
"""Links that nobody may be listening to, but buffers come back over: closed ones, and those that lent on what they
got from another."""

_idle: set[Waker] = set()
"""Whoever waits in an event loop: told when there is one more link to look after."""


def tend() -> Sequence[int]:
    """Take in what came back to the links above, without waiting; the descriptors to watch for more.

    Whoever waits for something in this package does it, so that buffers travel back through this process.
    """
    return [link.fileno() for link in list(_tended) if link._tend()] if _tended else ()


def _check_table(frame: Frame, tensor: Tensor) -> None:
    """Malformed where more descriptors came than the planes are in."""
    planes = BlobView.parse(frame.data).planes
    used = {plane.handle for plane in planes if not plane.is_inline}
    if len(used) < len(frame.fds):
        tensor.close()
        raise Malformed(
            f"{len(frame.fds)} descriptors came with a tensor whose planes are in {len(used)}",
            field="handle",
            value=len(frame.fds),
        )


def _from_duplicate(duplicate: Any, options: dict[str, Any], known: Sequence[tuple[int, bytes, Any]]) -> Link:
    link = Link(socket.socket(fileno=duplicate.detach()), **options)
    for slot, data, region in known:
        link._adopt(slot, data, region.detach())
    return link


def _peer_of(sock: socket.socket) -> Peer:
    credentials = struct.Struct("3i")
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return Peer._make(credentials.unpack(raw))
