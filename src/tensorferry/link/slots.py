"""Buffers that the other side has mapped already: lent again by a number, in one control frame.

The sender proposes a slot together with a blob; the receiver remembers what it mapped under it, and says so when
it gives the buffer back. From then on the number means that blob over that memory, on this link.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from ..memory.lease import Lease
from ..memory.region import Region
from ..tensor import Description, Handle, Plane, Tensor

__all__ = ["MAX_SLOTS", "Known", "Slot", "Slots"]

MAX_SLOTS = 64
"""Numbers that a link has in each direction, from 1 on. Buffers beyond that go the full way."""

_MAX_BLOB = 4096  # bytes: a stranger's are not kept whatever their size

Layout = list[tuple[int, int, int, int, int]]


class Slot:
    """What the sender means by a number: a description of memory laid out like this in one region."""

    __slots__ = ("description", "key", "known", "layout", "number", "region")

    def __init__(self, number: int, key: tuple[int, int], region: Region, tensor: Tensor, layout: Layout) -> None:
        self.number = number
        self.key = key
        self.region = weakref.ref(region)  # the memory goes when its pool gives it up
        self.description = tensor._description  # kept, so that no other can have its id
        self.layout = layout
        self.known = False


class Slots:
    """The sender's slots. Safe to use from several threads, and in a finalizer: it takes no lock.

    A number is free again only when the frame that proposed it was given back: until then the receiver may
    yet remember under it what it was proposed for.
    """

    __slots__ = ("_free", "_slots")

    def __init__(self) -> None:
        self._slots: dict[tuple[int, int], Slot] = {}
        self._free = list(range(MAX_SLOTS, 0, -1))

    def find(self, tensor: Tensor) -> Slot | None:
        """The slot that stands for ``tensor``, if the receiver knows it."""
        planes = tensor.planes
        region = planes[0].handle
        slot = self._slots.get((id(region), id(tensor._description)))
        if slot is None or not slot.known or tensor._labels is not None or tensor._carried is not None:
            return None
        return slot if slot.region() is region and slot.layout == _layout(planes, region) else None

    def propose(self, tensor: Tensor) -> Slot | None:
        """A new slot for ``tensor``, which is sent the full way; None where it can have none, now or ever."""
        planes = tensor.planes
        region = planes[0].handle
        if not isinstance(region, Region) or tensor._labels is not None or tensor._carried is not None:
            return None
        layout = _layout(planes, region)
        if len(layout) != len(planes):
            return None
        key = id(region), id(tensor._description)
        old = self._slots.get(key)
        if old is not None:
            if not old.known or old.region() is not None:
                return None
            self._forget(old)
        if not self._free:
            self._forget_the_dead()
        try:
            number = self._free.pop()
        except IndexError:
            return None
        slot = Slot(number, key, region, tensor, layout)
        if self._slots.setdefault(key, slot) is not slot:  # another thread was quicker
            self._free.append(number)
            return None
        return slot

    def settle(self, slot: Slot, known: bool) -> None:
        """The frame that proposed ``slot`` was given back, or never sent: whether the receiver knows it now."""
        if known:
            slot.known = True
        else:
            self._forget(slot)

    def _forget_the_dead(self) -> None:
        for slot in list(self._slots.values()):
            if slot.known and slot.region() is None:
                self._forget(slot)

    def _forget(self, slot: Slot) -> None:
        if self._slots.pop(slot.key, None) is slot:  # of two threads, one frees the number
            self._free.append(slot.number)

    def close(self) -> None:
        """Everything goes the full way from now on."""
        self._free.clear()
        self._slots.clear()


class Known:
    """What the receiver has mapped under a number, and what it takes to make a tensor over it again."""

    __slots__ = ("data", "description", "layout", "region")

    fds: Sequence[int] = ()
    """None came: it waits for ``recv`` where frames do."""

    def __init__(self, data: bytes, description: Description, region: Region, layout: Layout) -> None:
        self.data = data
        """The blob that said all this."""
        self.description = description
        self.region = region
        self.layout = layout

    @classmethod
    def of(cls, tensor: Tensor, data: bytes | bytearray) -> Known | None:
        """To remember ``tensor`` by, which came as ``data``; None where it is not all in one mapping."""
        planes = tensor.planes
        region = planes[0].handle
        if not isinstance(region, Region) or tensor._carried is not None or len(data) > _MAX_BLOB:
            return None
        layout = _layout(planes, region)
        if len(layout) != len(planes):
            return None
        return cls(bytes(data), tensor._description, region, layout)

    def tensor(self, lease: Lease) -> Tensor:
        """Another one, which holds ``lease``."""
        region = self.region
        root = region.root()
        whole = root.data
        planes = [
            Plane(whole[at : at + size], stride, size, used, offset=at, modifier=modifier, handle=region)
            for at, size, stride, used, modifier in self.layout
        ]
        return Tensor(self.description, tuple(planes), storage=region.storage, hold=lease.hold(root))


def _layout(planes: Sequence[Plane], region: Handle | None) -> Layout:
    """Where the planes that are in ``region`` are."""
    return [(p.offset, p.size, p.stride, p.used, p.modifier) for p in planes if p.handle is region]
