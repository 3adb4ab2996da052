"""Regions: memory behind a descriptor, mapped once, and what keeps it while tensors and views look at it."""

from __future__ import annotations

import mmap
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InUse, Unsupported
from ..tensor import Plane, StorageKind
from .descriptor import Descriptor, Nature, nature_of, size_of
from .dmabuf import sync

__all__ = ["Hold", "Region"]

Bytes = npt.NDArray[np.uint8]
_BYTE = np.dtype(np.uint8)
# mmap keeps a duplicate of the descriptor unless told not to, which it can be since Python 3.13.
_NO_DUPLICATE: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class Region:
    """Memory that cannot shrink, mapped into this process, with the descriptor that it came by.

    ``size`` is bytes. It is the handle of every plane that lives in it: ``fileno`` is borrowed by an export
    by reference.
    """

    __slots__ = ("_map", "descriptor", "size", "storage", "writable")

    def __init__(self, descriptor: Descriptor, *, writable: bool) -> None:
        """Map all that ``descriptor`` (taken over) refers to.

        Raises Unsupported where it may shrink, or cannot be mapped as asked; then the descriptor is closed.
        """
        try:
            fd = descriptor.fileno()
            nature = nature_of(fd)
            if not nature.mappable:
                raise Unsupported(f"{nature.value} is never mapped: it may shrink under a reader", field="fd", value=fd)
            self.size = size_of(fd)
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            self._map = mmap.mmap(fd, self.size, mmap.MAP_SHARED, access, **_NO_DUPLICATE)
        except (OSError, ValueError) as error:
            descriptor.close()
            raise Unsupported(
                f"the memory cannot be mapped for {'writing' if writable else 'reading'}: {error}", field="fd"
            ) from error
        except BaseException:
            descriptor.close()
            raise
        self.descriptor = descriptor
        self.writable = writable
        self.storage = StorageKind.DMA_BUF if nature is Nature.DMA_BUF else StorageKind.SHM

    def fileno(self) -> int:
        """The descriptor's number, borrowed."""
        return self.descriptor.fileno()

    def root(self) -> Bytes:
        """A new array over all of the region. Every view taken from a memoryview of it keeps it alive."""
        return np.ndarray((self.size,), _BYTE, self._map)

    def cpu_access(self, *, begin: bool, read: bool, write: bool) -> None:
        """Bracket access by the CPU to a dma-buf; nothing is needed for coherent memory."""
        if self.storage is StorageKind.DMA_BUF:
            sync(self.fileno(), begin=begin, read=read, write=write)

    def close(self) -> None:
        """Unmap, unless a view is still alive (then it goes with the last one), and close the descriptor."""
        try:
            self._map.close()
        except BufferError:
            pass
        self.descriptor.close()

    def __repr__(self) -> str:
        return f"<Region {self.size} bytes, {self.storage}>"


class Hold:
    """What keeps a region's memory for one tensor and for all that share its planes.

    Planes look at the memory through ``root``, an array of this tensor's own, so that its end is the end of
    every view that was ever taken: memoryviews of an array keep that array alive, and arrays made over a
    memoryview keep the memoryview. ``finish`` runs when the tensor is closed and no view is left.
    """

    __slots__ = ("_finish", "_root", "_shares")

    def __init__(self, root: Bytes, finish: Callable[[], None] | None = None) -> None:
        self._root: Bytes | None = root
        self._finish = finish
        self._shares = 1

    def retain(self) -> None:
        """One more tensor shares the planes."""
        self._shares += 1

    def release(self, planes: Sequence[Plane]) -> None:
        """One tensor fewer shares the planes; with the last one their memory is let go.

        Raises InUse, with nothing changed, when views are alive.
        """
        if self._shares > 1:
            self._shares -= 1
            return
        root = self._root
        if root is None:
            return
        watch = weakref.ref(root)
        for plane in planes:
            plane.data = None
        self._root = root = None
        survivor = watch()
        if survivor is not None:
            self._root = survivor
            look_through(planes, survivor)
            raise InUse(
                "views of this tensor's memory are alive: drop them before closing it, or use `with`,"
                " which lets the memory go with the last of them"
            )
        self._shares = 0
        if self._finish is not None:
            self._finish()


def look_through(planes: Sequence[Plane], root: Bytes) -> None:
    """Give every plane its stretch of ``root``."""
    whole = memoryview(root)
    for plane in planes:
        start = plane.offset
        plane.data = whole[start : start + plane.size]

