"""A socket as a channel of frames with descriptors: bytes in and out, and no idea of tensors.

A frame starts with its own length, a little-endian u64 that counts itself: a tensor blob as it stands, or,
since no blob is shorter than its header, a control frame of 24 bytes. Descriptors travel with a frame's
first byte. Frames are read one at a time and from their first byte on, so that the kernel never hands over
descriptors of one frame together with bytes of another.
"""

from __future__ import annotations

import array
import contextlib
import copy
import errno
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import Disconnected, EndOfStream, FerryError, ForgedLength, Malformed, TimedOut, Truncated, Unsupported
from ..memory.descriptor import limit_advice
from ..parts import Buffer

__all__ = ["CONTROL", "MAX_DESCRIPTORS", "Channel", "Deadline", "Frame", "close_all"]

CONTROL = struct.Struct("<QQQ")  # length (24), what, which
_LENGTH = struct.Struct("<Q")
_SHORTEST = CONTROL.size
_SHORTEST_BLOB = 72

MAX_DESCRIPTORS = 253
"""The kernel's SCM_MAX_FD: what one message can carry."""

_ANCILLARY = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4) if hasattr(socket, "CMSG_SPACE") else 0
_FIRST_CHUNK = 1 << 20
_SLICE = 200  # milliseconds
_SMALL = 1 << 16
_INT = struct.calcsize("i")
_MAX_PIECES = 1024  # the kernel's UIO_MAXIOV
_MAX_THROWN_AWAY = 64  # reads at a time
# As plain numbers: flags of the enum kind cost as much as the system call that they go to.
_CLOEXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_NO_SIGNAL = int(getattr(socket, "MSG_NOSIGNAL", 0))
_CTRUNC = int(getattr(socket, "MSG_CTRUNC", 0))
_SOL_SOCKET, _SCM_RIGHTS = int(socket.SOL_SOCKET), int(getattr(socket, "SCM_RIGHTS", 0))
_POLLIN, _POLLOUT = (select.POLLIN, select.POLLOUT) if hasattr(select, "poll") else (0, 0)


Aside = Callable[[], Sequence[int]]
"""Something to do before waiting, and what else to watch: see ``Channel.receive``."""


class Deadline:
    """A moment by which something must be done; None is never."""

    __slots__ = ("_at",)

    def __init__(self, timeout: float | None) -> None:
        self._at = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds left, 0 when it has passed, None for ever."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())


NEVER = Deadline(None)


class Frame(NamedTuple):
    """One whole frame: its bytes, its length included, and the descriptors that came with it, now owned."""

    data: bytes | bytearray
    fds: list[int]
    lost: bool
    """Whether descriptors were lost on the way, because this process has no room for more."""


class Channel:
    """Frames over a connected AF_UNIX stream socket, which this owns. Safe to use from several threads."""

    def __init__(self, sock: socket.socket, max_bytes: int) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._max_bytes = max_bytes
        self._unsent = bytearray()
        self._notes: deque[bytes] = deque()
        self._broken: str | None = None
        self._failure: FerryError | None = None
        self._over = False
        self._stopped = False
        self.whole = min(_SMALL, sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2 - 64)
        """Bytes of a frame that the kernel takes whole or not at all: it has them in one piece."""
        self.renew_locks()
        self._reset()

    def renew_locks(self) -> None:
        """In a forked child: threads that held the locks are the parent's, and never let go here."""
        self._send_lock = threading.Lock()
        self.recv_lock = threading.Lock()
        self._poll: select.poll | None = None  # the parent's may be in use, by a thread that is not here

    def fileno(self) -> int:
        """The socket's descriptor, -1 once closed."""
        return self._socket.fileno()

    # ---- out ----

    def send(self, parts: Sequence[Buffer], fds: Sequence[int], deadline: Deadline) -> None:
        """Send one frame whole, ``fds`` with its first byte; frames of other threads wait their turn.

        Raises TimedOut: with nothing sent if the frame had not begun; otherwise the channel is broken, for
        what follows half a frame cannot be told apart. Disconnected when the other side is gone.
        """
        if not self._send_lock.acquire(False):
            left = deadline.left()
            if not self._send_lock.acquire(timeout=-1 if left is None else left):
                raise TimedOut("another thread was sending all the time: nothing was sent")
        try:
            if self._stopped:
                raise Disconnected("this link was closed")
            if self._notes or self._unsent:
                self._flush(deadline)
            self._send_whole(list(parts), fds, deadline)
        finally:
            self._send_lock.release()
            if self._notes:
                self.flush_notes()

    def _send_whole(self, parts: list[Buffer], fds: Sequence[int], deadline: Deadline) -> None:
        if len(fds) > MAX_DESCRIPTORS:
            raise Unsupported(
                f"{len(fds)} descriptors are more than the {MAX_DESCRIPTORS} that one message can carry:"
                " put the planes into fewer allocations",
                field="handle",
                value=len(fds),
            )
        ancillary = [(_SOL_SOCKET, _SCM_RIGHTS, array.array("i", fds))] if fds else []
        begun = False
        try:
            while parts:
                try:
                    sent = self._sendmsg(parts[:_MAX_PIECES], ancillary)
                except BlockingIOError:
                    if not self._wait(_POLLOUT, deadline):
                        raise TimedOut(
                            "the receiver does not take what is sent"
                            + (": half a frame is out, this link cannot go on" if begun else ": nothing was sent")
                        ) from None
                    continue
                begun, ancillary = True, []
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                if sent:
                    parts[0] = memoryview(parts[0])[sent:]
        finally:  # on any way out, an interrupt from the keyboard included
            if begun and parts and self._broken is None:
                self._broken = "a frame was sent only in part: this link cannot go on"

    def _sendmsg(self, parts: Sequence[Buffer], ancillary: list[tuple[int, int, array.array[int]]]) -> int:
        if self._broken is not None:
            raise Disconnected(self._broken)
        try:
            return self._socket.sendmsg(parts, ancillary, _NO_SIGNAL)
        except BlockingIOError:
            raise
        except OSError as error:
            if self.fileno() < 0:
                raise Disconnected("this link was closed") from error
            if error.errno == errno.ETOOMANYREFS:
                raise Unsupported(
                    f"too many descriptors are on their way and not yet received: {limit_advice()}",
                    field="RLIMIT_NOFILE",
                ) from error
            if error.errno == errno.EBADF:
                raise Unsupported("a descriptor to send is not open", field="fd") from error
            self._broken = f"the other side is gone ({error.strerror})"
            raise Disconnected(self._broken) from error

    def note(self, frame: bytes) -> None:
        """Send a small frame when there is room for it, without ever waiting; safe in a finalizer."""
        if not self._send_lock.acquire(False):
            self._notes.append(frame)
        else:
            try:
                if self._unsent or self._notes:
                    self._notes.append(frame)
                else:
                    self._unsent += frame[self._sendmsg([frame], []) :]
            except BlockingIOError:
                self._notes.append(frame)
            except Disconnected:  # nobody is there to be told
                pass
            finally:
                self._send_lock.release()
        if self._notes:
            self.flush_notes()

    def flush_notes(self) -> bool:
        """Send the notes that there is room for; whether none is left."""
        while self._notes or self._unsent:
            # Whoever holds the lock flushes when it lets go, so that no note is left behind.
            if not self._send_lock.acquire(blocking=False):
                return False
            try:
                self._flush(Deadline(0))
            except TimedOut:
                return False
            except Disconnected:  # they never will be
                self._notes.clear()
                self._unsent.clear()
                return False
            finally:
                self._send_lock.release()
        return True

    def _flush(self, deadline: Deadline) -> None:
        while self._notes or self._unsent:
            while self._notes:
                self._unsent += self._notes.popleft()
            try:
                sent = self._sendmsg([memoryview(bytes(self._unsent))], [])
                del self._unsent[:sent]
            except BlockingIOError:
                if not self._wait(_POLLOUT, deadline):
                    raise TimedOut("the other side does not take what is sent: nothing was sent") from None

    # ---- in ----

    def _reset(self) -> None:
        self._data: bytes | bytearray = b""
        self._filled = 0
        self._fds: list[int] = []
        self._lost = False

    def receive(self, deadline: Deadline, hint: int = 0, aside: Aside = tuple) -> Frame:
        """The next frame, whole. Call it under ``recv_lock``.

        ``hint`` is the frame's length where the other side has announced it: it saves a system call.
        ``aside`` is called before each wait, and again when a descriptor that it returned can be read.
        Raises TimedOut (what has come of a frame is kept, and the next call goes on with it), EndOfStream,
        Truncated where the stream ends inside a frame, Malformed and ForgedLength for what is no frame;
        whatever ended the stream is raised again by every later call. Disconnected after ``stop``.
        """
        if self._failure is not None:
            raise self.failed()
        ready = hint > 0  # what was announced was sent together with what announced it
        while True:
            # A look first costs less than a read in vain, which is an exception here.
            ready = ready or self._wait(_POLLIN, deadline, aside)
            frame = self.receive_now(hint)
            if frame is not None:
                return frame
            if self._stopped:
                raise Disconnected("this link was closed")
            if not ready:
                come = f"{self._filled} bytes of a frame came" if self._filled else "nothing came"
                raise TimedOut(f"{come} within the time given")
            ready = False

    def receive_now(self, hint: int = 0) -> Frame | None:
        """As ``receive``, but None where it would wait, stopped or not."""
        if self._failure is not None:
            raise self.failed()
        length = 0
        while True:
            filled = self._filled
            if filled >= _SHORTEST:
                if length == 0:
                    length = self._length()
                if filled == length:
                    frame = Frame(self._data, self._fds, self._lost)
                    self._data, self._filled, self._fds, self._lost = b"", 0, [], False
                    return frame
                more = self._read_on(length)
            else:
                more = self._read_start(max(_SHORTEST, min(hint, _SMALL)))
            if not more:
                return None

    def _read_start(self, length: int) -> bool:
        """Read the frame's start, and the descriptors that came with it; False where nothing is there yet.

        Never past the frame's end: what followed it might have descriptors of its own.
        """
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(length - self._filled, _ANCILLARY, _CLOEXEC)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._ended(error) from error
        if ancillary or flags & _CTRUNC:
            self._take_descriptors(ancillary, flags)
        if not data:
            raise self._ended(None)
        self._data = self._data + data if self._data else data
        self._filled = len(self._data)
        return True

    def _read_on(self, length: int) -> bool:
        """Read more of a frame of ``length`` bytes. Descriptors in its middle are nobody's: the kernel drops them."""
        filled = self._filled
        try:
            if length <= _SMALL:
                got = self._socket.recv(length - filled)
                self._data += got
                self._filled = len(self._data)
                return self._came(len(got))
            data = self._data
            if not isinstance(data, bytearray):
                self._data = data = bytearray(data)
            if filled == len(data):  # what was claimed is believed only as it comes
                data += bytes(min(length - filled, max(filled, _FIRST_CHUNK)))
            with memoryview(data) as whole, whole[filled:] as rest:
                count = self._socket.recv_into(rest)
            self._filled += count
            return self._came(count)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._ended(error) from error

    def _came(self, count: int) -> bool:
        if count == 0:
            raise self._ended(None)
        return True

    def _length(self) -> int:
        """The length that the frame claims, if it can be one."""
        length: int
        (length,) = _LENGTH.unpack_from(self._data)
        if length < _SHORTEST_BLOB and length != _SHORTEST:
            raise self.refuse(
                Malformed(
                    f"a frame of {length} bytes is neither a blob nor a control frame", field="size", value=length
                )
            )
        if length > self._max_bytes:
            raise self.refuse(
                ForgedLength(
                    f"a frame claims {length} bytes, this link takes {self._max_bytes} (max_bytes=)",
                    field="size",
                    value=length,
                )
            )
        if length < self._filled:
            raise self.refuse(
                Malformed(f"{self._filled} bytes were announced, the frame has {length}", field="size", value=length)
            )
        return length

    def _take_descriptors(self, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        for level, kind, payload in ancillary:
            if level == _SOL_SOCKET and kind == _SCM_RIGHTS:
                self._fds += memoryview(payload[: len(payload) - len(payload) % _INT]).cast("i")
        if flags & _CTRUNC:
            self._lost = True
        if len(self._fds) > MAX_DESCRIPTORS:
            raise self.refuse(
                Malformed(
                    f"{len(self._fds)} descriptors came with one frame, more than {MAX_DESCRIPTORS}",
                    field="handle",
                    value=len(self._fds),
                )
            )

    def _ended(self, error: OSError | None) -> FerryError:
        filled = self._filled
        if self.fileno() < 0:
            return Disconnected("this link was closed")
        self._over = True
        if filled:
            length = _LENGTH.unpack_from(self._data)[0] if filled >= _LENGTH.size else _LENGTH.size
            return self.refuse(
                Truncated(f"the stream ended after {filled} bytes of a frame of {length}", need=length, have=filled)
            )
        # A reset only says that the other side left something unread, as buffers given back late always are:
        # all that it sent has been read here.
        if error is not None and error.errno != errno.ECONNRESET:
            return self.refuse(Disconnected(f"the other side is gone ({error.strerror})"))
        return self.refuse(EndOfStream("the other side has closed: no more will come"))

    def refuse(self, error: FerryError) -> FerryError:
        """``error``, after which nothing more can be read: where the next frame starts is unknown."""
        self._failure = error
        close_all(self._fds)
        self._reset()
        return self.failed()

    def failed(self) -> FerryError:
        """What ended the stream: a copy, for a kept one would grow a traceback, and keep alive what that looks at."""
        assert self._failure is not None
        return copy.copy(self._failure)

    def gone(self) -> bool:
        """Whether the other side has closed, or died. Call it under ``recv_lock``, once the stream has failed.

        One that was refused for what it said may still be there, and is told nothing until this side closes:
        what more it says is thrown away, with its descriptors.
        """
        for _ in range(_MAX_THROWN_AWAY):
            if self._over:
                break
            try:
                self._over = not self._socket.recv(_SMALL)
            except BlockingIOError:
                break
            except OSError:
                self._over = True
        return self._over

    # ---- both ----

    def _wait(self, events: int, deadline: Deadline, aside: Aside = tuple) -> bool:
        """Wait until the socket is ready, or somebody stops it; False when the deadline came first.

        Whoever waits for what comes in sends the notes meanwhile that there was no room for.
        """
        while True:
            left = deadline.left()
            if left == 0:
                return False
            others = aside()
            fd = self.fileno()
            if self._stopped or fd < 0:
                return self._stop_waiting(events)
            # In slices: closing a descriptor wakes nobody who polls it. (A shutdown would, but it would end
            # the connection for a forked child that uses it too.)
            time_slice = _SLICE if left is None else min(_SLICE, left * 1000)
            noting = events == _POLLIN and bool(self._notes or self._unsent)
            if events == _POLLIN and not noting and not others:
                if self._poll_in(fd).poll(time_slice):
                    return True
                continue
            poll = select.poll()
            for other in others:
                poll.register(other, _POLLIN)
            poll.register(fd, events | _POLLOUT if noting else events)
            happened = dict(poll.poll(time_slice)).get(fd, 0)
            if noting and happened & _POLLOUT:
                self.flush_notes()
                happened &= ~_POLLOUT
            if happened:
                return True

    def _poll_in(self, fd: int) -> select.poll:
        """What polls ``fd``, this socket's, for what comes in: kept, for it is waited on for every frame."""
        poll = self._poll
        if poll is None:
            self._poll = poll = select.poll()
            poll.register(fd, _POLLIN)
        return poll

    def _stop_waiting(self, events: int) -> bool:
        if events == _POLLOUT:
            raise Disconnected("this link was closed")
        return True  # what has come already is still to be had

    def stop(self) -> None:
        """Let nobody wait here any more: who does is told soon. Reading what has come, and notes, still work."""
        self._stopped = True

    def shut(self, how: int) -> None:
        """Shut one direction down, for every process that has the connection; no matter if it is already."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket, and what has come of a frame. Closing twice is fine.

        Never waits: if somebody receives at this moment, it must be called again when they are done.
        """
        self._stopped = True
        self._socket.close()
        if self.recv_lock.acquire(blocking=False):
            try:
                close_all(self._fds)
                self._reset()
            finally:
                self.recv_lock.release()


def close_all(fds: Sequence[int]) -> None:
    """Close received descriptors."""
    for fd in fds:
        os.close(fd)
