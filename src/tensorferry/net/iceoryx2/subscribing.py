"""Subscribing: tensors over the very memory that their publisher wrote."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

from ...closing import Closing
from ...errors import Closed, Disconnected, FerryError, InUse, Unsupported
from ...link.channel import Deadline
from ...tensor import Tensor
from ..arrivals import Counts, Received
from .engine import Service, Settings, load, name_of, use_node
from .message import HEADER, read_bytes
from .reading import Reader

__all__ = ["Subscriber"]

_MAX_PUBLISHERS_KNOWN = 64
_LONGEST_WAIT = 3600.0  # seconds, after which it is waited for again


class Subscriber(Closing):
    """Receives the tensors of a topic. Safe to use from several threads; a context manager.

    A tensor looks at its sample in place, read-only, and keeps it until it is closed or its last view has gone.
    What cannot be believed is refused, counted, and passed over.
    """

    def __init__(
        self,
        topic: str,
        *,
        format: str | None = None,
        depth: int = 8,
        hold: int = 8,
        max_publishers: int = 8,
        max_subscribers: int = 8,
        node: Any = None,
    ) -> None:
        """Subscribe to ``topic``; messages that were published before do not come.

        ``format`` "blob" or "vlink" takes only that, None both. The other arguments are as in ``Publisher``: whoever
        opens the topic first says for all how many messages may wait (``depth``), and how many tensors a subscriber
        may have at a time (``hold``).
        """
        self.topic = name_of(topic)
        self._reader = Reader(self.topic, format)
        self._counts = Counts()
        self._expected: dict[int, int] = {}
        self._lock = threading.Lock()
        settings = Settings(depth, hold, max_publishers, max_subscribers).check()
        service = Service(use_node(node), self.topic, settings)
        self._service: Service | None = service
        try:
            self._port = service.samples.subscriber_builder().create()
        except load().SubscriberCreateError as error:
            raise Unsupported(
                f"{self.topic!r} takes no further subscriber ({error}): its max_subscribers are there",
                field="topic",
                value=self.topic,
            ) from error
        self._waiting = _Waiting(service)

    @property
    def counts(self) -> Counts:
        """What became of the messages so far; what was dropped, by each publisher's numbers from its first on."""
        return self._counts

    # ---- receiving ----

    def recv(self, timeout: float | None = None) -> Tensor | None:
        """The next tensor; None when none came within ``timeout`` seconds (None waits).

        Raises InUse where this subscriber has as many as it may ``hold``, Closed once it was closed, Disconnected
        after a fork or where the samples of a publisher cannot be had.
        """
        received = self.receive(timeout)
        return None if received is None else received.tensor

    def receive(self, timeout: float | None = None) -> Received | None:
        """``recv`` with what was said beside the tensor: its topic and log time."""
        deadline = Deadline(timeout)
        while True:
            sample = self._take()
            if sample is None:
                left = deadline.left()
                if left == 0:
                    return None
                self._waiting.wait(left)
                continue
            received = self._read(sample)
            if received is not None:
                return received
            del sample
            if timeout is not None and deadline.left() == 0:  # one refusal after the other takes time as well
                return None

    def _take(self) -> Any:
        """The next sample, None for none. Events are forgotten only then, so that ``fileno`` tells what is left."""
        service, port = self._service, self._port
        if service is None or port is None:
            raise Closed("this subscriber was closed")
        if service.used.forked:
            raise service.used.refuse()
        try:
            sample = port.receive()
            if sample is None:
                self._waiting.forget()
                sample = port.receive()
        except load().ReceiveError as error:
            if str(error) == "ExceedsMaxBorrows":
                held = service.samples.static_config.subscriber_max_borrowed_samples
                raise InUse(
                    f"{held} tensors of {self.topic!r} are held here, which is all that may be: close them, drop the"
                    " views of them, or have the topic opened with a larger hold="
                ) from None
            raise Disconnected(f"{self.topic!r} cannot be received: {error}") from error
        return sample

    def _read(self, sample: Any) -> Received | None:
        beside = sample.header
        # Copied before it is looked at: its publisher can still write to it.
        header = HEADER.unpack(read_bytes(sample.user_header_ptr, HEADER.size))
        publisher, sequence = beside.publisher_id.value, header[0]
        with self._lock:
            if self._expected.get(publisher) != sequence:
                self._count_dropped(publisher, sequence)
            self._expected[publisher] = sequence + 1
            try:
                received = self._reader.read(sample, header, beside.number_of_elements)
            except FerryError as error:
                # What it was raised from has frames too, which would keep the sample as the error's own would.
                error.__context__ = error.__cause__ = None
                self._counts.refuse(error)
                return None
            self._counts.received += 1
            return received

    def _count_dropped(self, publisher: int, sequence: int) -> None:
        self._counts.dropped += max(sequence - self._expected.pop(publisher, sequence), 0)
        while len(self._expected) >= _MAX_PUBLISHERS_KNOWN:
            del self._expected[next(iter(self._expected))]

    def __iter__(self) -> Iterator[Tensor]:
        """Each tensor until this subscriber is closed."""
        while True:
            try:
                tensor = self.recv()
            except Closed:
                return
            if tensor is not None:
                yield tensor
            del tensor

    def fileno(self) -> int:
        """A descriptor for polling: readable when ``recv(0)`` may have something, and once closed (Linux only)."""
        if self._service is None:
            raise Closed("this subscriber was closed")
        return self._waiting.fileno()

    # ---- asyncio ----

    async def arecv(self) -> Tensor:
        """``recv`` without holding up the event loop (Linux only)."""
        while True:
            tensor = self.recv(0)
            if tensor is not None:
                return tensor
            await _readable(self.fileno())

    async def __aiter__(self) -> AsyncIterator[Tensor]:
        """Each tensor until this subscriber is closed."""
        while True:
            try:
                tensor = await self.arecv()
            except Closed:
                return
            yield tensor
            del tensor

    # ---- the end ----

    def close(self) -> None:
        """Stop receiving; what waits unread goes, tensors that are out stay. Closing twice is fine."""
        self._service = self._port = None
        self._waiting.close()

    def __repr__(self) -> str:
        counts = self.counts
        return (
            f"<Subscriber to {self.topic!r}, {counts.received} received, {counts.dropped} dropped,"
            f" {counts.refused} refused>"
        )


class _Waiting:
    """Waits for a topic's events, or for the subscriber to be closed."""

    def __init__(self, service: Service) -> None:
        engine = load()
        try:
            self._listener = service.events.listener_builder().create()
        except engine.ListenerCreateError as error:
            raise Unsupported(f"no further subscriber can listen ({error})", field="topic") from error
        self._poll: select.epoll | None = None
        self._lock = threading.Lock()
        self._guards: tuple[Any, ...] = ()
        self._set: Any = None
        self._closing, self._close_bell = os.pipe()
        self._turn = threading.RLock()  # a signal's handler may close what its thread waits for
        builder = engine.WaitSetBuilder.new().signal_handling_mode(engine.SignalHandlingMode.Disabled)
        self._set = builder.create(engine.ServiceType.Ipc)
        self._guards = (
            self._set.attach_notification(self._listener),
            self._set.attach_notification_fd(engine.FileDescriptor.non_owning_new(self._closing)),
        )

    def wait(self, timeout: float | None) -> None:
        """Wait until something rings, for ``timeout`` seconds; it may return early. One thread at a time waits."""
        deadline = Deadline(_LONGEST_WAIT if timeout is None else min(timeout, _LONGEST_WAIT))
        if not self._turn.acquire(timeout=deadline.left() or 0):
            return
        try:
            if self._set is not None:
                self._set.wait_and_process_with_timeout(load().Duration.from_secs_f64(deadline.left()))
        finally:
            self._turn.release()

    def forget(self) -> None:
        """Forget what rang so far."""
        listener = self._listener
        if listener is not None:
            listener.try_wait()

    def fileno(self) -> int:
        """A descriptor that is readable when something rang that was not forgotten, and for good once closed."""
        with self._lock:
            if self._poll is None:
                bell = _descriptor_of(self._listener)
                self._poll = select.epoll()
                self._poll.register(self._closing, select.EPOLLIN)
                self._poll.register(bell, select.EPOLLIN)
            return self._poll.fileno()

    def close(self) -> None:
        """Ring for good. What was polled stays open as long as somebody has this."""
        with self._lock:
            if self._close_bell < 0:
                return
            os.close(self._close_bell)  # the other end hangs up, which wakes all who wait
            self._close_bell = -1
        with self._turn:
            self._guards = ()
            self._set = self._listener = None

    def __del__(self) -> None:
        if not hasattr(self, "_turn"):
            return
        self.close()
        os.close(self._closing)


def _descriptor_of(listener: Any) -> int:
    """The socket by which iceoryx2 wakes ``listener``, borrowed: its binding (0.10) does not say, but it has a name.

    Unsupported where it is not found.
    """
    name = str(listener.id.value)
    if sys.platform == "linux":
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(number))) as sock:
                    address = sock.getsockname()
                if isinstance(address, str) and name in os.path.basename(address):
                    return int(number)
    raise Unsupported(
        "iceoryx2 lends no descriptor to poll here: receive in a thread, which recv does not hold up", field="fileno"
    )


async def _readable(descriptor: int) -> None:
    """Wait in an event loop until ``descriptor`` is readable."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    # Of our own: a loop must never watch a number that was closed, perhaps used again, under it.
    watched = os.dup(descriptor)
    loop.add_reader(watched, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)
