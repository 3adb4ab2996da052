"""A bounded queue between an engine's thread and whoever receives, with a descriptor to poll."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections import deque
from typing import Generic, TypeVar

from ..errors import Closed
from ..link.channel import Deadline

__all__ = ["Inbox"]

Item = TypeVar("Item")

_ONE = (1).to_bytes(8, "little")  # what an eventfd counts by; to a pipe it is eight bytes like any other


class Inbox(Generic[Item]):
    """At most ``depth`` items, oldest first; an item too many pushes the oldest out, which is counted.

    ``put`` never waits, so that a slow receiver holds up nobody. Safe to use from several threads.
    """

    def __init__(self, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth {depth} leaves no room for a message: give 1 or more")
        self._items: deque[Item] = deque()
        self._depth = depth
        self._lock = threading.Lock()
        self._readable, self._bell = _new_bell()
        self._waiting = 0
        self._closed = False
        self.dropped = 0

    def put(self, item: Item) -> None:
        """Add ``item``, at the cost of the oldest where there is no room. After ``close``, nothing."""
        out = None  # an item's end may take a while: not under the lock
        with self._lock:
            if self._closed:
                return
            if len(self._items) == self._depth:
                out = self._items.popleft()
                self.dropped += 1
            elif not self._items:
                os.write(self._bell, _ONE)
            self._items.append(item)
        del out

    def take(self, timeout: float | None) -> Item | None:
        """The oldest item; None when none came within ``timeout`` seconds (None waits). Closed once closed."""
        deadline = Deadline(timeout)
        while True:
            with self._lock:
                if self._items:
                    return self._pop()
                self._check_open()
                left = deadline.left()
                if left == 0:
                    return None
                self._waiting += 1
            try:
                self._wait(left)
            finally:
                with self._lock:
                    self._waiting -= 1
                    self._close_bell()

    def _wait(self, timeout: float | None) -> None:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(self._readable, select.POLLIN)
            poll.poll(None if timeout is None else timeout * 1000)
        else:
            select.select([self._readable], [], [], timeout)

    def _pop(self) -> Item:
        item = self._items.popleft()
        if not self._items and not self._closed:
            os.read(self._readable, len(_ONE))
        return item

    def fileno(self) -> int:
        """A descriptor that is readable while there is something to take, and once closed. Closed then."""
        self._check_open()
        return self._readable

    async def filled(self) -> None:
        """Wait in an event loop until there may be something to take. Closed once closed."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        # Of our own: a loop must never watch a number that was closed, perhaps used again, under it.
        watched = os.dup(self.fileno())
        loop.add_reader(watched, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(watched)
            os.close(watched)

    def close(self) -> None:
        """Drop what is left and wake who waits. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._items:
                os.write(self._bell, _ONE)
            left, self._items = self._items, deque()
            self._close_bell()
        del left

    def _close_bell(self) -> None:
        """Under the lock: once closed, the last who polls the descriptor closes it."""
        if self._closed and not self._waiting and self._readable >= 0:
            os.close(self._readable)
            if self._bell != self._readable:
                os.close(self._bell)
            self._readable = self._bell = -1

    def __del__(self) -> None:
        if hasattr(self, "_items"):
            self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this subscriber was closed")


def _new_bell() -> tuple[int, int]:
    """What is polled, and what is written to ring it."""
    if hasattr(os, "eventfd"):
        event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return event, event
    return os.pipe()
