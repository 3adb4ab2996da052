"""Links by a path in the file system: one side listens, the others connect."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from ..closing import Closing
from ..errors import Disconnected, TimedOut, Unsupported
from ..memory.descriptor import limit_advice, require_linux
from .channel import Deadline
from .link import Link, Peer
from .waiting import Waker, readable

__all__ = ["Listener", "connect"]

Allow = Callable[[Peer], bool]

_RETRY = 0.01  # seconds between tries to connect


class Listener(Closing):
    """A socket file that others connect to. The file is made 0600 and removed on ``close``.

    A file left by a process that is gone is replaced; one that somebody listens on is refused.
    """

    def __init__(self, path: str | os.PathLike[str], *, allow: Allow | None = None, **options: Any) -> None:
        """Listen on ``path``. ``allow`` is asked of every peer that connects; one that it refuses is closed
        at once. ``options`` are those of ``Link``. Raises Unsupported where the path cannot be had.
        """
        require_linux("a listener")
        self.path = os.fspath(path)
        self._file = os.path.abspath(self.path)  # whose removal must not hang on the current directory
        self._allow = allow
        self._options = options
        self._pid = os.getpid()
        self._closed = False
        self._wakers: set[Waker] = set()
        _clear(self.path)
        self._socket = _bound(self.path)
        self._identity = _identity(self._file)

    def accept(self, timeout: float | None = None) -> Link:
        """The next link that the rule allows. TimedOut after ``timeout`` seconds, Disconnected once closed.

        Unsupported when no descriptor is free: whoever connected waits for a later ``accept``.
        """
        deadline = Deadline(timeout)
        while True:
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                self._wait(deadline)
            except OSError as error:
                raise self._not_accepted(error) from error
            else:
                link = self._linked(connection)
                if link is not None:
                    return link

    def _linked(self, connection: socket.socket) -> Link | None:
        """The link over a new connection, None if the rule does not allow it."""
        link = _link_over(connection, self._options)
        allowed = False
        try:
            allowed = self._allow is None or self._allow(link.peer)
        finally:
            if not allowed:
                link.close()
        return link if allowed else None

    def _not_accepted(self, error: OSError) -> Disconnected | Unsupported:
        if self._closed:
            return Disconnected("this listener was closed")
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return Unsupported(
                f"no descriptor is free to accept a link ({error.strerror}): {limit_advice()}", field="RLIMIT_NOFILE"
            )
        return Disconnected(f"a peer was gone before it was accepted ({error.strerror})")

    def _wait(self, deadline: Deadline) -> None:
        left = deadline.left()
        fd = self.fileno()
        if fd < 0:
            return
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if left == 0 or not poll.poll(None if left is None else left * 1000):
            raise TimedOut(f"nobody connected to {self.path} within the time given")

    async def aaccept(self) -> Link:
        """``accept`` without holding up the event loop."""
        while True:
            try:
                return self.accept(0)
            except TimedOut:
                await readable([self.fileno()], [self._wakers], None, lambda: self._closed)

    def __iter__(self) -> Iterator[Link]:
        """Each link as it comes, until the listener is closed."""
        while True:
            try:
                link = self.accept()
            except Disconnected:
                if self._closed:
                    return
                continue
            yield link

    async def __aiter__(self) -> AsyncIterator[Link]:
        """Each link as it comes, until the listener is closed."""
        while True:
            try:
                link = await self.aaccept()
            except Disconnected:
                if self._closed:
                    return
                continue
            yield link

    def fileno(self) -> int:
        """The listening socket's descriptor, -1 once closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Stop listening and remove the socket file. Links that were accepted live on."""
        if self._closed:
            return
        self._closed = True
        ours = os.getpid() == self._pid  # a forked child's copy ends alone
        if ours:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that accepts
            for wake in list(self._wakers):
                wake()
        self._socket.close()
        # Somebody else may have taken the path meanwhile: remove only what is ours.
        if ours and _identity(self._file) == self._identity:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file)

    def __repr__(self) -> str:
        return f"<Listener {self.path}{', closed' if self._closed else ''}>"


def connect(path: str | os.PathLike[str], timeout: float | None = 0, **options: Any) -> Link:
    """A link to whoever listens on ``path``, waiting ``timeout`` seconds for it to listen (None for ever).

    ``options`` are those of ``Link``. Raises Disconnected where nobody listens, Unsupported where the path is
    no socket or not ours to use.
    """
    require_linux("a link")
    name = os.fspath(path)
    deadline = Deadline(timeout)
    while True:
        try:
            return _link_over(_connected(name), options)
        except OSError as error:
            if isinstance(error, BlockingIOError):
                refusal = f"whoever listens on {name} does not accept: too many are waiting already"
            elif isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
                refusal = f"nobody listens on {name}: {error.strerror}"
            else:
                raise _unusable(name, error) from error
            left = deadline.left()
            if left == 0:
                raise Disconnected(refusal, field="path", value=name) from error
            time.sleep(_RETRY if left is None else min(_RETRY, left))


def _link_over(sock: socket.socket, options: dict[str, Any]) -> Link:
    try:
        return Link(sock, **options)
    except BaseException:
        sock.close()
        raise


def _connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # a full backlog would make it wait without end
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _clear(path: str) -> None:
    """Remove a socket file that nobody listens on; refuse anything else that is in the way."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(path, error) from error
    if not stat.S_ISSOCK(mode):
        raise Unsupported(f"{path} is there and is no socket: it is left alone", field="path", value=path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:  # its backlog is full: alive
            pass
        except OSError as error:
            raise _unusable(path, error) from error
    raise Unsupported(f"somebody listens on {path} already", field="path", value=path)


def _bound(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        try:
            # Before it listens nobody can connect, so that there is no moment in which others could.
            os.chmod(path, 0o600)
            sock.listen(128)
        except BaseException:
            os.unlink(path)
            raise
    except OSError as error:
        sock.close()
        raise _unusable(path, error) from error
    sock.setblocking(False)
    return sock


def _unusable(path: str, error: OSError) -> Unsupported:
    return Unsupported(f"{path} cannot be used: {error.strerror or error}", field="path", value=path)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
