"""Publishing tensors: those that stand in a sample already, and those that are copied into one."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...closing import Closing
from ...dtypes import DType
from ...errors import Closed, Disconnected, InUse, TimedOut, Unsupported
from ...image import Colorimetry, PixelFormat
from ...labels import Labels
from ...link.channel import Deadline
from ...memory.allocating import allocate, allocate_image
from ...parts import write_parts
from ...quantization import Quantization
from ...tensor import Tensor
from ..attachment import Attachment, write_attachment
from ..payloads import checked_format, parts_of
from .engine import Service, Settings, load, name_of, use_node
from .layout import HEADROOM, Layout, LoanHold, aligned, lent_tensor
from .message import ALIGNMENT, CODES, HEADER, array_over, write_bytes

__all__ = ["DEFAULT_MAX_BYTES", "Publisher"]

DEFAULT_MAX_BYTES = 16 << 20
"""More than a 4K image in NV12. Memory that no message needs is set aside by name only."""

_BESIDE = 4096  # bytes of a sample beside the planes': the head, records, labels, what alignment costs
_OVERFLOWS = ("drop", "block")
_MAX_LOG_TIME = (1 << 64) - 1
_FIRST_PAUSE, _LAST_PAUSE = 0.0002, 0.005  # seconds
_CLEAN_EVERY = 0.25  # seconds
_MAX_LAYOUTS = 64
_LOOK_AGAIN = 0.005  # seconds


class Publisher(Closing):
    """Publishes tensors under one topic. Safe to use from several threads; a context manager.

    A tensor from anywhere is copied once, into shared memory. One that ``loan`` gave is there already.
    """

    def __init__(
        self,
        topic: str,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        format: str = "blob",
        overflow: str = "drop",
        loans: int = 4,
        depth: int = 8,
        hold: int = 8,
        max_publishers: int = 8,
        max_subscribers: int = 8,
        node: Any = None,
        lossy: bool = False,
    ) -> None:
        """Publish under ``topic``, up to 255 ASCII characters; a leading slash goes.

        ``max_bytes`` bounds a tensor's planes: so much shared memory is set aside for every sample that can be on
        its way, and used once it is. ``format`` is "blob" or "vlink". Where a subscriber is too slow, ``overflow``
        "drop" lets it lose the oldest messages, while "block" makes this publisher wait for it. ``loans`` is
        how many tensors may be out at a time, the one that a copy goes to included.

        Whoever opens a topic first says for all how many messages may wait for a subscriber (``depth``), how many
        tensors one may ``hold``, and how many publishers and subscribers there may be. ``node`` is an iceoryx2.Node
        of yours, None the one that this process shares. ``lossy`` is as in ``blob.export``; labels always travel.

        Raises ValueError for what these cannot be, Unsupported where the topic cannot be had or without iceoryx2,
        Disconnected where this process can have no node.
        """
        self.topic = name_of(topic)
        self.format = checked_format(format)
        if overflow not in _OVERFLOWS:
            raise ValueError(f"overflow {overflow!r} is none of {', '.join(map(repr, _OVERFLOWS))}")
        if max_bytes < 0 or loans < 1:
            raise ValueError(f"max_bytes {max_bytes} and loans {loans} leave nothing to publish")
        self._code = CODES[self.format]
        self.max_bytes = max_bytes
        self._room = max_bytes + _BESIDE
        self._lossy = lossy
        self._loans = loans
        self._lock = threading.RLock()  # a signal's handler may close what its thread publishes with
        self._sequence = 0
        self._layouts: dict[Hashable, Layout] = {}
        settings = Settings(depth, hold, max_publishers, max_subscribers).check()
        self._service: Service | None = Service(use_node(node), self.topic, settings)
        self._port, self._bell = self._open_ports(self._service, overflow)

    def _open_ports(self, service: Service, overflow: str) -> tuple[Any, Any]:
        """What samples are sent by, and what tells of them."""
        engine = load()
        builder = service.samples.publisher_builder().initial_max_slice_len(self._room)
        builder = builder.max_loaned_samples(self._loans)
        if overflow == "block":
            # With no more samples than fit a subscriber's queue none is ever pushed out: a sample that cannot be had
            # is what is waited for here. iceoryx2's own way to block would stop all of Python, for ever if need be.
            builder = builder.override_sample_preallocation(service.samples.static_config.subscriber_max_buffer_size)
        builder = builder.backpressure_strategy(engine.BackpressureStrategy.DiscardData)
        try:
            return builder.create(), service.events.notifier_builder().create()
        except (engine.PublisherCreateError, engine.NotifierCreateError) as error:
            raise Unsupported(
                f"{self.topic!r} takes no further publisher ({error}): its max_publishers are there, or shared memory"
                f" for samples of {self._room} bytes cannot be had",
                field="topic",
                value=self.topic,
            ) from error

    # ---- publishing ----

    def publish(self, tensor: Tensor | object, *, log_time: int | None = None, timeout: float | None = None) -> None:
        """Publish a tensor, or anything that ``Tensor.from_array`` takes, which afterwards is yours again.

        A loan is not: it is sent as it stands, and closed. Do not write through views of it that you still have.
        ``log_time`` is in nanoseconds since the Unix epoch, None now. With overflow "block" this waits for a free
        sample, and raises TimedOut after ``timeout`` seconds (None waits). Raises Lossy and Unsupported as
        ``blob.export`` does, Unsupported for more than ``max_bytes``, Closed, Disconnected.
        """
        if log_time is None:
            log_time = time.time_ns()
        elif not 0 <= log_time <= _MAX_LOG_TIME:
            raise ValueError(f"log_time {log_time} does not fit 64 unsigned bits")
        self._opened()
        hold = tensor._hold if isinstance(tensor, Tensor) else None
        if isinstance(tensor, Tensor) and isinstance(hold, LoanHold) and hold.port is self._port:
            if self._publish_loan(tensor, hold, log_time):
                return
            self._publish_copy(tensor, log_time, timeout)
            hold.end(tensor)
        else:
            self._publish_copy(tensor, log_time, timeout)

    def _publish_loan(self, tensor: Tensor, hold: LoanHold, log_time: int) -> bool:
        """Send a loan as it stands; False where what it says by now takes more room than there is around it."""
        attachment = self._attachment(tensor)
        layout = hold.layout
        same = tensor._description is layout.description and tensor._carried is None
        if not same or (tensor._labels is not layout.labels and self._bound(tensor._labels or layout.labels)):
            layout = Layout(tensor, self.format, lossy=self._lossy)
        if not hold.takes(layout, len(attachment)):
            return False
        with self._lock:
            tensor.planes  # noqa: B018  one that another thread has just published says that it is closed
            layout.write(hold.base + hold.first)
            if attachment:
                write_bytes(hold.base, attachment)
            head = len(layout.head)
            self._send(hold.end(tensor), log_time, head + layout.size, hold.first - head, len(attachment), head)
        return True

    def _publish_copy(self, tensor: Tensor | object, log_time: int, timeout: float | None) -> None:
        if not isinstance(tensor, Tensor):
            tensor = Tensor.from_array(tensor)
        attachment = self._attachment(tensor)
        parts = parts_of(tensor, self.format, lossy=self._lossy)
        head, length = len(parts[0]), sum(map(len, parts))
        size = len(attachment) + ALIGNMENT - 1 + length
        sample = self._take(size, timeout)
        base = sample.payload_ptr
        start = aligned(base, len(attachment) + head) - head
        write_bytes(base, attachment)
        write_parts(parts, array_over(sample, base + start, length, writable=True)[0].data)
        with self._lock:
            self._send(sample, log_time, length, start, len(attachment), head)

    def _attachment(self, tensor: Tensor) -> bytes:
        """The labels that the payload has no room for."""
        if tensor._labels is None or self.format == "vlink":
            return b""
        return write_attachment(Attachment(labels=tensor._labels))

    def _send(self, sample: Any, log_time: int, length: int, start: int, attached: int, head: int) -> None:
        """Under the lock, so that messages go in the order of their numbers."""
        port, bell = self._port, self._bell
        if port is None:
            raise Closed("this publisher was closed")
        header = HEADER.pack(self._sequence, log_time, length, start, attached, self._code, head)
        write_bytes(sample.user_header_ptr, header)
        self._sequence += 1
        try:
            sample.assume_init().send()
            bell.notify()
        except (load().SendError, load().NotifierNotifyError) as error:
            raise Disconnected(f"{self.topic!r} cannot be published: {error}") from error

    # ---- loans ----

    def loan(
        self,
        shape: int | Sequence[int],
        dtype: DType | npt.DTypeLike,
        *,
        quantization: Quantization | None = None,
        labels: Labels | None = None,
        timeout: float | None = None,
    ) -> Tensor:
        """A writable tensor in shared memory, which holds whatever was there: fill all of it, and publish it.

        Its first element's address is a multiple of 64. It can be published once; closing it, or letting it go,
        gives it back. What ``replace`` makes of it may be published in its stead. Raises InUse where all ``loans``
        are out, Unsupported for more than ``max_bytes``, and with overflow "block" TimedOut after ``timeout``.
        """
        dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
        key = None
        if quantization is None and not self._bound(labels) and isinstance(dtype, (str, type, np.dtype)):
            key = dimensions, dtype
        layout = self._layouts.get(key)
        if layout is None:
            row = DType.of(dtype)
            self._fit(math.prod(dimensions) * row.size)
            like = allocate(dimensions, row).replace(quantization=quantization, labels=labels)
            layout = self._lay_out(like, key)
        return self._lend(layout, labels, timeout)

    def loan_image(
        self,
        format: PixelFormat | str,
        width: int,
        height: int,
        *,
        stride: int | None = None,
        dtype: DType | npt.DTypeLike = DType.UINT8,
        colorimetry: Colorimetry | None = None,
        labels: Labels | None = None,
        timeout: float | None = None,
    ) -> Tensor:
        """The same for an image; ``stride`` is the row pitch in bytes, None the smallest.

        The first plane starts at a multiple of 64. A blob's records stand between the planes, so that further
        planes start 56 bytes or more behind the one before, at a multiple of 8.
        """
        said = (format, width, height, stride, DType.of(dtype), colorimetry)
        key = None if self._bound(labels) else said
        layout = self._layouts.get(key)
        if layout is None:
            like = allocate_image(format, width, height, stride=stride, dtype=dtype, colorimetry=colorimetry)
            layout = self._lay_out(like.replace(labels=labels), key)
        return self._lend(layout, labels, timeout)

    def _bound(self, labels: Labels | None) -> bool:
        """Whether ``labels`` are part of the payload, so that its layout serves no other tensor."""
        return labels is not None and self.format == "vlink"

    def _lay_out(self, like: Tensor, key: Hashable) -> Layout:
        """The layout of a message that carries ``like``, kept under ``key`` where there is one."""
        layout = Layout(like, self.format, lossy=self._lossy)
        if key is not None:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = layout
        return layout

    def _lend(self, layout: Layout, labels: Labels | None, timeout: float | None) -> Tensor:
        before = HEADROOM + len(layout.head)
        sample = self._take(before + ALIGNMENT - 1 + layout.size, timeout)
        return lent_tensor(layout, sample, aligned(sample.payload_ptr, before), labels, self._port)

    # ---- samples ----

    def _fit(self, size: int) -> None:
        if size > self._room:
            raise Unsupported(
                f"a message of {size} bytes does not fit: this publisher was opened with max_bytes={self.max_bytes}",
                field="max_bytes",
                value=size,
            )

    def _take(self, size: int, timeout: float | None) -> Any:
        """A free sample of ``size`` bytes."""
        self._fit(size)
        try:
            return self._opened()[1].loan_slice_uninit(size)
        except load().LoanError as error:
            reason = str(error)
        return self._wait_for_sample(size, Deadline(timeout), reason)

    def _wait_for_sample(self, size: int, deadline: Deadline, reason: str) -> Any:
        """The same once one is free, if that is what is missing."""
        pause, clean_at = _FIRST_PAUSE, 0.0
        while True:
            if reason == "ExceedsMaxLoans":
                raise InUse(f"all {self._loans} loans of this publisher are out: publish or close one, or give loans=")
            if reason != "OutOfMemory":
                raise Disconnected(f"{self.topic!r} has no memory to lend: {reason}")
            left = deadline.left()
            if left == 0:
                raise TimedOut(f"no sample of {self.topic!r} came free in time: its subscribers hold all there are")
            service, port = self._opened()
            now = time.monotonic()
            if now >= clean_at:  # those who hold them may have been killed
                service.used.node.try_cleanup_dead_nodes()
                port.update_connections()
                clean_at = now + _CLEAN_EVERY
            else:
                time.sleep(pause if left is None else min(pause, left))
                pause = min(2 * pause, _LAST_PAUSE)
            try:
                return port.loan_slice_uninit(size)
            except load().LoanError as error:
                reason = str(error)

    # ---- who listens, and the end ----

    @property
    def matched(self) -> bool:
        """Whether anybody subscribes now."""
        return self._opened()[0].subscribers > 0

    def wait_for_subscriber(self, timeout: float | None = None) -> bool:
        """Wait until somebody subscribes and would get what is published; False after ``timeout`` seconds."""
        deadline = Deadline(timeout)
        while not self.matched:
            if deadline.left() == 0:
                return False
            time.sleep(_LOOK_AGAIN)
        return True

    def close(self) -> None:
        """Stop publishing; subscribers keep what they have, and get what waits for them. Closing twice is fine.

        While a loan or a view of one is alive its memory stays.
        """
        with self._lock:
            self._service = self._port = self._bell = None
            self._layouts.clear()

    def _opened(self) -> tuple[Service, Any]:
        service, port = self._service, self._port
        if service is None or port is None:
            raise Closed("this publisher was closed")
        if service.used.forked:
            raise service.used.refuse()
        return service, port

    def __repr__(self) -> str:
        return f"<Publisher of {self.format} under {self.topic!r}{', closed' if self._port is None else ''}>"
