"""A pool of shared buffers that go round: filled here, lent to receivers, given back."""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy.typing as npt

from ..closing import Closing
from ..dtypes import DType
from ..errors import Closed, TimedOut
from ..image import Colorimetry, PixelFormat
from ..memory.allocating import image_description, new_region, plane_layout
from ..memory.descriptor import Descriptor, no_descriptor, require_linux
from ..memory.lease import Lease
from ..memory.process import this_process
from ..memory.region import Region
from ..tensor import Description, Plane, StorageKind, Tensor
from .channel import NEVER, Deadline
from .link import Lent, Link, tend

__all__ = ["Pool"]

_SLICE = 200.0  # milliseconds: how long to wait for what wakes, before looking all the same
_NAP = 0.001  # seconds
_POLLIN = getattr(select, "POLLIN", 0)


class Pool(Closing):
    """``count`` buffers in shared memory for tensors of one kind, so that a stream allocates nothing.

    ``acquire`` gives a writable tensor. Sending it lends it, over as many links as you like; the buffer is
    free again when this side has let go of the tensor (``close``, the end of a ``with``, or garbage
    collection, and no view is left) and the last receiver has let go of it. A receiver that dies lets go.
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        dtype: DType | npt.DTypeLike,
        count: int,
        *,
        storage: StorageKind | str = StorageKind.SHM,
        when_empty: str = "block",
        huge_pages: bool = False,
    ) -> None:
        """Buffers for bare tensors in C order. ``storage`` is "shm" or "dmabuf".

        ``when_empty`` "block" makes ``acquire`` wait for a buffer; "drop" makes it return None at once and
        count the frame in ``dropped``.
        """
        dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
        row = DType.of(dtype)
        strides = Description(row, dimensions).strides
        self._start(Description(row, dimensions, strides), None, count, storage, when_empty, huge_pages)

    @classmethod
    def of_images(
        cls,
        format: PixelFormat | str,
        width: int,
        height: int,
        count: int,
        *,
        stride: int | None = None,
        dtype: DType | npt.DTypeLike = DType.UINT8,
        colorimetry: Colorimetry | None = None,
        storage: StorageKind | str = StorageKind.SHM,
        when_empty: str = "block",
        huge_pages: bool = False,
    ) -> Pool:
        """Buffers for images, each in one allocation; ``stride`` is the row pitch in bytes."""
        self = cls.__new__(cls)
        description = image_description(PixelFormat(format), width, height, stride, DType.of(dtype), colorimetry)
        self._start(description, stride, count, storage, when_empty, huge_pages)
        return self

    def _start(
        self,
        description: Description,
        stride: int | None,
        count: int,
        storage: StorageKind | str,
        when_empty: str,
        huge_pages: bool,
    ) -> None:
        if when_empty not in ("block", "drop"):
            raise ValueError(f"when_empty {when_empty!r} is neither 'block' nor 'drop'")
        if count < 1:
            raise ValueError(f"a pool of {count} buffers has none to give")
        require_linux("a pool")
        self._description = description
        self._layout = plane_layout(description, stride)
        self._drop = when_empty == "drop"
        self.dropped = 0
        """Frames for which no buffer was free, with ``when_empty="drop"``."""
        self.count = count
        self._pid = os.getpid()
        self._closed = False
        self._waiters: set[object] = set()
        self._alarm: Descriptor | None = _new_alarm()
        self._out: dict[Region, Lease] = {}
        size = sum(size for size, _ in self._layout)
        kind = StorageKind(storage)
        self._regions: list[Region] = []
        self._free: deque[Region] = deque()
        try:
            for _ in range(count):
                self._regions.append(new_region(size, kind, huge_pages=huge_pages))
        except BaseException:
            self.close()
            raise
        self._free.extend(self._regions)

    def acquire(self, timeout: float | None = None) -> Tensor | None:
        """A writable tensor over a free buffer, whose old content it has.

        Waits ``timeout`` seconds for one (None as long as it takes), then TimedOut; or, with
        ``when_empty="drop"``, None at once.
        """
        deadline: Deadline | None = None
        while True:
            if self._closed or this_process() != self._pid:
                raise Closed("this pool was closed" if self._closed else "a pool serves only the process that made it")
            try:
                return self._tensor(self._free.popleft())
            except IndexError:
                pass
            if deadline is None:
                deadline = NEVER if timeout is None else Deadline(timeout)
                if timeout != 0 and not self._drop:  # look when there is something to see
                    self._wait_first(deadline)
            watch = self._collect()
            if self._free:
                continue
            if self._drop:
                self.dropped += 1
                return None
            if deadline.left() == 0:
                raise TimedOut(self._why_empty())
            self._wait(watch, deadline)

    async def aacquire(self) -> Tensor | None:
        """``acquire`` without holding up the event loop."""
        while True:
            try:
                return self.acquire(0)
            except TimedOut:
                # Receivers of any number of links, and views anywhere here, may let go: too many to watch each.
                await asyncio.sleep(_NAP)

    def _tensor(self, region: Region) -> Tensor:
        self._out[region] = lease = Lease(partial(self._freed, region))
        root = region.root()
        whole = root.data
        planes = []
        offset = 0
        for size, stride in self._layout:
            end = offset + size
            # As look_through does, in the same go: it runs for every frame.
            planes.append(Plane(whole[offset:end], stride, size, size, offset=offset, handle=region))
            offset = end
        return Tensor(self._description, tuple(planes), storage=region.storage, hold=lease.hold(root))

    def _freed(self, region: Region) -> None:
        self._out.pop(region, None)
        if this_process() == self._pid and not self._closed:
            self._free.append(region)
            self._ring()

    def _ring(self) -> None:
        """Wake who waits in ``acquire``. Safe in a finalizer: it takes no lock and never waits."""
        alarm = self._alarm  # which stays open as long as anybody has it in hand
        if alarm is not None and self._waiters:
            os.eventfd_write(alarm.fileno(), 1)

    def _links(self) -> set[Link]:
        leases = list(self._out.values())
        return {claim.link for lease in leases for claim in lease.claims if isinstance(claim, Lent)}

    def _collect(self) -> list[int]:
        """Take in what came back; the descriptors to watch for more (of others, another thread takes it in)."""
        return [*(link.fileno() for link in self._links() if link.collect(self._free)), *tend()]

    def _wait_first(self, deadline: Deadline) -> None:
        """Wait before anything was taken in: what is there already ends it at once."""
        self._wait([*(link.fileno() for link in self._links()), *tend()], deadline)

    def _wait(self, watch: list[int], deadline: Deadline) -> None:
        """Wait until something may have come back: over a link, or from another thread here."""
        alarm = self._alarm
        if alarm is None:
            return
        poll = select.poll()
        poll.register(alarm.fileno(), _POLLIN)
        for fd in watch:
            if fd >= 0:  # it is not closed
                poll.register(fd, _POLLIN)
        waiter = object()
        self._waiters.add(waiter)
        try:
            left = deadline.left()
            if self._free or self._closed:  # since there was nobody to wake
                return
            if alarm.fileno() in dict(poll.poll(_SLICE if left is None else min(_SLICE, left * 1000))):
                os.eventfd_read(alarm.fileno())
        except BlockingIOError:  # another waiter was quicker
            pass
        finally:
            self._waiters.discard(waiter)

    def _why_empty(self) -> str:
        lent = sum(1 for lease in list(self._out.values()) if any(isinstance(claim, Lent) for claim in lease.claims))
        here = len(self._out) - lent
        return (
            f"none of {self.count} buffers came free in time: {lent} are lent to receivers, {here} are held here only"
            " (close a tensor after sending it, and drop its views)"
        )

    @property
    def free(self) -> int:
        """Buffers that are free now, as far as is known without asking the receivers."""
        return len(self._free)

    def close(self) -> None:
        """Give the buffers up. Those that somebody still looks at go with the last view. Closing twice is fine."""
        self._closed = True
        self._regions = []
        self._free = deque()
        self._ring()
        self._alarm = None
        tend()

    def __repr__(self) -> str:
        return f"<Pool of {self.count} × {self._description.dtype} {list(self._description.shape)}, {self.free} free>"


def _new_alarm() -> Descriptor:
    # Of the semaphore kind: of several who wait, each is woken once for each buffer.
    try:
        return Descriptor(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE))
    except OSError as error:
        raise no_descriptor(-1, error) from error
