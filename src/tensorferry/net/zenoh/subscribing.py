"""Subscribing: tensors as they come, the oldest dropped where they come too fast."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...closing import Closing
from ...errors import Closed, Disconnected, FerryError
from ...link.channel import Deadline
from ...tensor import Tensor
from ..arrivals import Counts, Received
from ..inbox import Inbox
from .engine import key_of, load
from .reading import DEFAULT_MAX_BYTES, Reader
from .sessions import Config, Endpoints, use_session

if TYPE_CHECKING:
    import zenoh

__all__ = ["Subscriber"]


class Subscriber(Closing):
    """Receives the tensors of a topic. Safe to use from several threads; a context manager.

    Messages wait in a queue of ``depth``; where they come faster than they are received the oldest are dropped,
    and counted. What cannot be believed is refused, counted, and passed over.
    """

    def __init__(
        self,
        topic: str,
        *,
        format: str | None = None,
        session: zenoh.Session | None = None,
        config: Config = None,
        connect: Endpoints = None,
        listen: Endpoints = None,
        depth: int = 8,
        reference: bool = False,
        policy: str = "refuse",
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """Subscribe to ``topic``, a Zenoh key expression; with ``*`` and ``**`` to many. A leading slash goes.

        ``format`` None takes each message for what its encoding says it is: a blob, a VLink tensor, or a message of
        an EdgeFirst device; where that says nothing, blobs and VLink tensors are told by their content. "blob",
        "vlink" and "cdr" take only that. The session is found as ``Publisher`` does.

        ``depth`` is how many messages may wait. ``reference`` allows descriptors to be fetched from the process
        that a message names, of this host: that is a stranger's claim, so allow it where you trust all who can
        publish. ``policy`` "refuse" then takes only memory that cannot shrink, "read" reads other memory out.
        ``max_bytes`` bounds a message.
        """
        self.topic = key_of(topic, wildcards=True)
        self._reader = Reader(format, reference, policy, max_bytes)
        self._counts = Counts()
        self._inbox: Inbox[zenoh.Sample] = Inbox(depth)
        self._use = use_session(session, config, connect, listen)
        self._use.close_with(self)
        # In Zenoh's own thread, and brief: its Python threads would keep a process alive that forgot to close.
        handler = load().handlers.Callback(self._inbox.put, indirect=False)
        try:
            self._use.declared(self._use.session.declare_subscriber(self.topic, handler))
        except load().ZError as error:
            self._use.close()
            raise Disconnected(f"the session does not let {self.topic!r} be subscribed to: {error}") from error

    @property
    def counts(self) -> Counts:
        """What became of the messages so far."""
        return replace(self._counts, dropped=self._inbox.dropped)

    # ---- receiving ----

    def recv(self, timeout: float | None = None) -> Tensor | None:
        """The next tensor, over memory of its own; None when none came within ``timeout`` seconds (None waits).

        Raises Closed once this subscriber was closed, Disconnected when its session is another process's.
        """
        received = self.receive(timeout)
        return None if received is None else received.tensor

    def receive(self, timeout: float | None = None) -> Received | None:
        """``recv`` with what was said beside the tensor: its topic and log time."""
        if os.getpid() != self._use.pid:
            self._use.check()
        deadline = Deadline(timeout)
        while True:
            sample = self._inbox.take(deadline.left())
            if sample is None:
                return None
            received = self._read(sample)
            if received is not None:
                return received
            if timeout is not None and deadline.left() == 0:  # one refusal after the other takes time as well
                return None

    def _read(self, sample: zenoh.Sample) -> Received | None:
        if sample.kind != load().SampleKind.PUT:  # a deletion carries no tensor
            return None
        try:
            received = self._reader.read(sample)
        except FerryError as error:
            self._counts.refuse(error)
            return None
        self._counts.received += 1
        return received

    def __iter__(self) -> Iterator[Tensor]:
        """Each tensor until this subscriber is closed."""
        while True:
            try:
                tensor = self.recv()
            except Closed:
                return
            if tensor is not None:
                yield tensor

    def fileno(self) -> int:
        """A descriptor for polling: readable when ``recv(0)`` may have something, and once closed."""
        return self._inbox.fileno()

    # ---- asyncio ----

    async def arecv(self) -> Tensor:
        """``recv`` without holding up the event loop."""
        while True:
            tensor = self.recv(0)
            if tensor is not None:
                return tensor
            await self._inbox.filled()

    async def __aiter__(self) -> AsyncIterator[Tensor]:
        """Each tensor until this subscriber is closed."""
        while True:
            try:
                tensor = await self.arecv()
            except Closed:
                return
            yield tensor

    # ---- the end ----

    def close(self) -> None:
        """Stop receiving; what waits unread goes. Closing twice is fine. A shared session closes with its last user."""
        self._use.close()
        self._inbox.close()

    def __repr__(self) -> str:
        counts = self.counts
        return (
            f"<Subscriber to {self.topic!r}, {counts.received} received, {counts.dropped} dropped,"
            f" {counts.refused} refused>"
        )
