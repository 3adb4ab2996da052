"""Links by a path in the file system: one side listens, the others connect."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from ..errors import Disconnected, TimedOut, Unsupported
from ..memory.descriptor import require_linux
from .channel import Deadline
from .link import Link, Peer

__all__ = ["Listener", "connect"]

Allow = Callable[[Peer], bool]


class Listener:
    """A socket file that others connect to. The file is made 0600 and removed on ``close``.

    A file left by a process that is gone is replaced; one that somebody listens on is refused.
    """

    def __init__(self, path: str | os.PathLike[str], *, allow: Allow | None = None, **options: Any) -> None:
        """Listen on ``path``. ``allow`` is asked of every peer that connects; one that it refuses is closed
        at once. ``options`` are those of ``Link``. Raises Unsupported where the path cannot be had.
        """
        require_linux("a listener")
        self.path = os.fspath(path)
        self._allow = allow
        self._options = options
        self._pid = os.getpid()
        _clear(self.path)
        self._socket = _bound(self.path)
        self._identity = _identity(self.path)

    def accept(self, timeout: float | None = None) -> Link:
        """The next link that the rule allows. TimedOut after ``timeout`` seconds, Disconnected once closed."""
        deadline = Deadline(timeout)
        while True:
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                self._wait(deadline)
                continue
            except OSError as error:
                if self.fileno() < 0:
                    raise Disconnected("this listener was closed") from error
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise Unsupported(
                        f"no descriptor is free to accept a link: {error.strerror}", field="RLIMIT_NOFILE"
                    ) from error
                raise Disconnected(f"a peer was gone before it was accepted ({error.strerror})") from error
            link = Link(connection, **self._options)
            if self._allow is None or self._allow(link.peer):
                return link
            link.close()

    def _wait(self, deadline: Deadline) -> None:
        left = deadline.left()
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if left == 0 or not poll.poll(None if left is None else left * 1000):
            raise TimedOut(f"nobody connected to {self.path} within the time given")

    def __iter__(self) -> Iterator[Link]:
        """Each link as it comes, until the listener is closed."""
        while True:
            try:
                link = self.accept()
            except Disconnected:
                if self.fileno() < 0:
                    return
                continue
            yield link

    def fileno(self) -> int:
        """The listening socket's descriptor, -1 once closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Stop listening and remove the socket file. Links that were accepted live on."""
        if self.fileno() < 0:
            return
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that accepts
        except OSError:
            pass
        self._socket.close()
        # A forked child's copy ends too, and somebody else may have taken the path: remove only what is ours.
        if os.getpid() == self._pid and _identity(self.path) == self._identity:
            os.unlink(self.path)

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Listener {self.path}{'' if self.fileno() >= 0 else ', closed'}>"


def connect(path: str | os.PathLike[str], timeout: float | None = 0, **options: Any) -> Link:
    """A link to whoever listens on ``path``, waiting ``timeout`` seconds for it to listen (None for ever).

    ``options`` are those of ``Link``. Raises Disconnected where nobody listens, Unsupported where the path is
    no socket or not ours to use.
    """
    require_linux("a link")
    name = os.fspath(path)
    deadline = Deadline(timeout)
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(name)
            return Link(sock, **options)
        except OSError as error:
            sock.close()
            if not isinstance(error, (FileNotFoundError, ConnectionRefusedError, BlockingIOError)):
                raise _unusable(name, error) from error
            if deadline.left() == 0:
                raise Disconnected(f"nobody listens on {name}: {error.strerror}", field="path", value=name) from error
            time.sleep(0.01)


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
