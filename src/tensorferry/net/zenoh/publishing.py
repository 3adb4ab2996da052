"""Publishing tensors, and answering those who ask for the latest."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy.typing as npt

from ... import blob
from ...blob import TransportMode
from ...closing import Closing
from ...dtypes import DType
from ...errors import Closed, Disconnected
from ...image import Colorimetry, PixelFormat
from ...labels import Labels
from ...link.channel import Deadline
from ...memory.allocating import allocate, allocate_image
from ...parts import write_parts
from ...quantization import Quantization
from ...tensor import Tensor
from ..attachment import Attachment, References, write_attachment
from ..payloads import checked_format, lay_out, parts_of
from .encodings import FORMATS, encoding_of
from .engine import choice, key_of, load
from .references import host_id, references_to, shareable
from .sessions import Config, Endpoints, use_session

if TYPE_CHECKING:
    import zenoh

__all__ = ["TOKENS", "Publisher"]

TOKENS = "@tensorferry/topics"
"""Where publishers say that they are alive: TOKENS/session/number/format/topic, the topic percent-encoded."""

_LOOK_AGAIN = 0.01  # seconds
_SETTLING = 0.02  # seconds; Zenoh says that somebody subscribes up to a millisecond before what is published gets there
_MAX_LOG_TIME = (1 << 64) - 1
_numbers = itertools.count(1)


class _Message(NamedTuple):
    """What was published, as Zenoh has it."""

    payload: zenoh.ZBytes
    encoding: str
    attachment: bytes


class Publisher(Closing):
    """Publishes tensors under one topic. Safe to use from several threads; a context manager.

    A tensor from anywhere is copied once into a message of this publisher's, and by Zenoh from there. One that
    ``loan`` gave is in its message already.
    """

    def __init__(
        self,
        topic: str,
        *,
        format: str = "blob",
        session: zenoh.Session | None = None,
        config: Config = None,
        connect: Endpoints = None,
        listen: Endpoints = None,
        reliability: zenoh.Reliability | str | None = None,
        congestion_control: zenoh.CongestionControl | str | None = None,
        priority: zenoh.Priority | str | None = None,
        express: bool | None = None,
        latest: bool = True,
        reference: bool = False,
        keep: int = 8,
        lossy: bool = False,
    ) -> None:
        """Publish under ``topic``, a Zenoh key expression without wildcards; a leading slash goes.

        ``format`` is "blob", "vlink", or "cdr" (``edgefirst_msgs/msg/Tensor``). ``session`` is an open
        zenoh.Session, which stays the caller's. Otherwise one is opened, as a peer unless configured otherwise,
        and shared by all in this process that say the same: ``config`` is a zenoh.Config, a mapping, JSON5 text or
        a file's path, None the file that ZENOH_CONFIG names or Zenoh's own settings; ``connect`` and ``listen``
        are endpoints such as "tcp/192.168.1.2:7447". TLS, users and passwords are set in the configuration.

        ``reliability`` ("reliable", "best_effort"), ``congestion_control`` ("drop", "block"), ``priority``
        ("real_time" … "background") and ``express`` are Zenoh's, None its own choice. ``latest`` keeps the last
        message for those who ``get`` it. ``reference`` sends tensors in shared memory or dma-bufs as descriptors
        by pid: only subscribers of this host that allow it can take them, and the last ``keep`` of them stay
        open here. ``lossy`` is as in ``blob.export``; labels always travel.

        Raises ValueError for what these cannot be, Disconnected where no session can be had, Unsupported without
        Zenoh.
        """
        self.topic = key_of(topic)
        self.format = checked_format(format, FORMATS)
        if keep < 1:
            raise ValueError(f"keep {keep} leaves nobody time to fetch a descriptor: give 1 or more")
        if reference:
            host_id()
            if format == "vlink":
                raise ValueError("a VLink tensor cannot go by reference: use format='blob'")
        self._reference = reference
        self._lossy = lossy
        self._lock = threading.Lock()
        self._scratch = bytearray()
        self._loans: weakref.WeakKeyDictionary[Tensor, bytearray] = weakref.WeakKeyDictionary()
        self._kept: deque[Tensor] = deque(maxlen=keep)
        self._latest: list[_Message] | None = [] if latest else None
        quality = {
            "reliability": choice("Reliability", reliability, "reliability"),
            "congestion_control": choice("CongestionControl", congestion_control, "congestion_control"),
            "priority": choice("Priority", priority, "priority"),
            "express": express,
        }
        self._use = use_session(session, config, connect, listen)
        self._use.close_with(self)
        try:
            self._publisher = self._declare(self._use.session, quality)
        except load().ZError as error:
            self._use.close()
            raise Disconnected(f"the session does not let {self.topic!r} be published: {error}") from error

    def _declare(self, session: zenoh.Session, quality: dict[str, Any]) -> zenoh.Publisher:
        keep = self._use.declared
        if self._latest is not None:
            # In Zenoh's own thread: its Python threads would keep a process alive that forgot to close.
            answer = load().handlers.Callback(_answering(self.topic, self._latest), indirect=False)
            keep(session.declare_queryable(self.topic, answer, complete=True))
        publisher = keep(session.declare_publisher(self.topic, encoding=encoding_of(self.format), **quality))
        token = f"{TOKENS}/{session.zid()}/{next(_numbers)}/{self.format}/{quote(self.topic, safe='')}"
        keep(session.liveliness().declare_token(token))
        return publisher

    # ---- publishing ----

    def publish(self, tensor: Tensor | object, *, log_time: int | None = None) -> None:
        """Publish a tensor, or anything that ``Tensor.from_array`` takes; afterwards it is the caller's again.

        By reference it is not: its memory must not change before the subscribers are done. ``log_time`` is in
        nanoseconds since the Unix epoch, None now. With congestion_control "block" this waits for the network.
        Raises Lossy and Unsupported as ``blob.export`` does, Closed, Disconnected.
        """
        if log_time is None:
            log_time = time.time_ns()
        elif not 0 <= log_time <= _MAX_LOG_TIME:
            raise ValueError(f"log_time {log_time} does not fit 64 unsigned bits")
        if not isinstance(tensor, Tensor):
            tensor = Tensor.from_array(tensor)
        self._check_open()
        with self._lock:
            message = self._message(tensor, log_time)
            if self._latest is not None:
                self._latest[:] = [message]
            try:
                self._publisher.put(message.payload, encoding=message.encoding, attachment=message.attachment)
            except load().ZError as error:
                raise Disconnected(f"{self.topic!r} cannot be published: {error}") from error

    def _message(self, tensor: Tensor, log_time: int) -> _Message:
        labels = None if self.format == "vlink" else tensor.labels
        references = None
        by_reference = self._reference and shareable(tensor)
        loaned = self._loans.get(tensor)
        if loaned is not None:
            tensor.planes  # noqa: B018  a closed one says so
            payload: bytes | bytearray = loaned
        elif self.format == "cdr":
            payload = self._cdr(tensor, by_reference)
        elif by_reference:
            payload, references = self._by_reference(tensor)
        else:
            payload = self._joined(tensor)
        attachment = write_attachment(Attachment(log_time, labels, references))
        encoding = encoding_of(self.format, reference=by_reference)
        return _Message(load().ZBytes(payload), encoding, attachment)

    def _joined(self, tensor: Tensor) -> bytearray:
        """The message in memory that is used again and again: fresh pages would cost more than the copy."""
        parts = parts_of(tensor, self.format, lossy=self._lossy)
        size = sum(map(len, parts))
        if len(self._scratch) != size:
            self._scratch = bytearray(size)
        write_parts(parts, self._scratch)
        return self._scratch

    def _by_reference(self, tensor: Tensor) -> tuple[bytes, References]:
        same = tensor.replace(labels=None)
        data, descriptors = blob.export(same, TransportMode.REFERENCE, lossy=self._lossy)
        self._kept.append(same)
        return data, references_to(descriptors)

    def _cdr(self, tensor: Tensor, by_reference: bool) -> bytes:
        from ... import messages  # an extra of its own

        same = tensor.replace(labels=None)
        if by_reference:
            self._kept.append(same)
        mode = TransportMode.REFERENCE if by_reference else TransportMode.INLINE
        return messages.encode(same, "Tensor", mode=mode, lossy=self._lossy)

    # ---- loans ----

    def loan(
        self,
        shape: int | Sequence[int],
        dtype: DType | npt.DTypeLike,
        *,
        quantization: Quantization | None = None,
        labels: Labels | None = None,
    ) -> Tensor:
        """A writable tensor of zeros that stands in a message: publishing it copies nothing that Zenoh does not.

        Fill it, publish it, fill it again: it may be published as often as you like.
        """
        return self._loan(allocate(shape, dtype), quantization=quantization, labels=labels)

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
    ) -> Tensor:
        """The same for an image; ``stride`` is the row pitch in bytes, None the smallest."""
        made = allocate_image(format, width, height, stride=stride, dtype=dtype)
        return self._loan(made, colorimetry=colorimetry, labels=labels)

    def _loan(self, like: Tensor, **said: Any) -> Tensor:
        if self.format == "cdr":
            raise ValueError("a CDR message cannot be loaned: use format='blob'")
        like = like.replace(**said)
        parts = parts_of(like, self.format, lossy=self._lossy)
        message = bytearray(sum(map(len, parts)))
        tensor = lay_out(like, parts, message)
        with self._lock:
            self._loans[tensor] = message
        return tensor

    # ---- who listens, and the end ----

    @property
    def matched(self) -> bool:
        """Whether anybody subscribes now, as far as this session knows."""
        self._check_open()
        status: Any = self._publisher.matching_status  # an object, whatever the binding's stub says: always true
        return bool(status.matching)

    def wait_for_subscriber(self, timeout: float | None = None) -> bool:
        """Wait until somebody subscribes and would get what is published; False after ``timeout`` seconds."""
        deadline = Deadline(timeout)
        while not self.matched:
            if deadline.left() == 0:
                return False
            time.sleep(_LOOK_AGAIN)
        time.sleep(_SETTLING)
        return True

    def close(self) -> None:
        """Stop publishing. Closing twice is fine. A shared session is closed with its last user."""
        self._use.close()
        self._kept.clear()

    def _check_open(self) -> None:
        if self._use.closed:
            raise Closed("this publisher was closed")
        self._use.check()

    def __repr__(self) -> str:
        return f"<Publisher of {self.format} under {self.topic!r}{', closed' if self._use.closed else ''}>"


def _answering(topic: str, latest: list[_Message]) -> Callable[[zenoh.Query], None]:
    """What answers a query with what ``latest`` has then; it must not keep the publisher alive."""

    def answer(query: zenoh.Query) -> None:
        with query:
            for message in latest[:]:
                query.reply(topic, message.payload, encoding=message.encoding, attachment=message.attachment)

    return answer
