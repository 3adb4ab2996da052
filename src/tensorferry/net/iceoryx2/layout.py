"""A message laid out around its planes, so that the planes of a loan need not move when it is published."""

from __future__ import annotations

from typing import Any

from ...labels import Labels
from ...memory.region import Hold
from ...parts import Buffer
from ...tensor import Description, Plane, Tensor
from ..payloads import parts_of
from .message import ALIGNMENT, Bytes, array_over, write_bytes

__all__ = ["HEADROOM", "Layout", "LoanHold", "aligned", "lent_tensor"]

HEADROOM = 1024
"""Bytes that a loan keeps free before its head: for labels, and for a head that grows until it is published."""


class Layout:
    """Where everything but the planes' bytes stands, counted from the first plane's first byte.

    ``head`` ends there. ``between`` are the pieces behind it and ``places`` the planes (offset, size, stride, used).
    ``size`` bytes are needed from there on.
    """

    __slots__ = ("between", "description", "head", "labels", "places", "size")

    def __init__(self, tensor: Tensor, format: str, *, lossy: bool) -> None:
        """Lossy and Unsupported as ``parts_of`` raises."""
        self.description: Description = tensor._description
        self.labels: Labels | None = tensor.labels
        head, *parts = parts_of(tensor, format, lossy=lossy)
        planes = {id(plane.data): plane for plane in tensor.planes}
        self.head = bytes(head)
        self.between: list[tuple[int, bytes]] = []
        self.places: list[tuple[int, int, int, int]] = []
        self.size = 0
        for part in parts:
            self._place(part, planes.get(id(part)))

    def _place(self, part: Buffer, plane: Plane | None) -> None:
        if plane is None:
            self.between.append((self.size, bytes(part)))
        else:
            self.places.append((self.size, plane.size, plane.stride, plane.used))
        self.size += len(part)

    def write(self, first: int) -> None:
        """Write all but the planes' bytes to memory, with the first plane at address ``first``."""
        write_bytes(first - len(self.head), self.head)
        for offset, piece in self.between:
            write_bytes(first + offset, piece)


class LoanHold(Hold):
    """The hold of a loaned tensor: what is needed to publish it where it stands."""

    __slots__ = ("base", "first", "layout", "lender", "port")

    def __init__(self, root: Bytes, lender: Any, layout: Layout, base: int, first: int, port: object) -> None:
        """The sample's address is ``base``; the first plane stands ``first`` bytes behind it."""
        super().__init__(root)
        self.lender = lender
        self.layout = layout
        self.base = base
        self.first = first
        self.port = port

    def takes(self, layout: Layout, attached: int) -> bool:
        """Whether ``layout`` can be written around the planes as they stand, behind ``attached`` bytes."""
        return layout.places == self.layout.places and attached + len(layout.head) <= self.first

    def end(self, tensor: Tensor) -> Any:
        """Close ``tensor``, and all that share its planes; returns the sample, which is its readers' next.

        Views of the planes stay where memory is: they keep the port, which has it mapped.
        """
        sample, self.lender.keep = self.lender.keep, self.port
        for one in (tensor, *(self._sharers or ())):
            if isinstance(one, Tensor):
                one._planes = one._hold = None
        return sample


def lent_tensor(layout: Layout, sample: Any, first: int, labels: Labels | None, port: object) -> Tensor:
    """A writable tensor over the planes of ``layout``, the first of which starts at byte ``first`` of ``sample``."""
    base = sample.payload_ptr
    root, lender = array_over(sample, base + first, layout.size, writable=True)
    whole = root.data
    planes = [
        Plane(whole[offset : offset + size], stride, size, used, offset=offset)
        for offset, size, stride, used in layout.places
    ]
    hold = LoanHold(root, lender, layout, base, first, port)
    return Tensor(layout.description, tuple(planes), labels=labels, hold=hold)


def aligned(address: int, least: int) -> int:
    """The first byte from ``least`` on of memory at ``address`` at which a plane may start."""
    return least + -(address + least) % ALIGNMENT
