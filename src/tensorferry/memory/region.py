"""Regions: memory behind a descriptor, mapped once, and what keeps it while tensors and views look at it."""

from __future__ import annotations

import errno
import mmap
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InUse, Unsupported
from ..tensor import Plane, StorageKind
from .descriptor import Descriptor, Nature, nature_of, no_descriptor, size_of
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

    __slots__ = ("__weakref__", "_map", "descriptor", "size", "storage", "writable")

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
            self._map = _map(fd, self.size, writable)
        except (OSError, ValueError) as error:
            descriptor.close()
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise no_descriptor(fd, error) from error
            raise Unsupported(
                f"the memory cannot be mapped for {'writing' if writable else 'reading'}: {error}", field="fd"
            ) from error
        except BaseException:
            descriptor.close()
            raise
        self.descriptor = descriptor
        self.writable = writable
        self.storage = StorageKind.DMA_BUF if nature is Nature.DMA_BUF else StorageKind.SHM
        from .passing import pass_by_descriptor  # it builds on this module

        pass_by_descriptor()

    def fileno(self) -> int:
        """The descriptor's number, borrowed."""
        return self.descriptor.fileno()

    def root(self) -> Bytes:
        """A new array over all of the region. Every view taken from a memoryview of it keeps it alive."""
        root: Bytes = np.ndarray((self.size,), _BYTE, self._map)
        return root

    def cpu_access(self, *, begin: bool, read: bool, write: bool) -> None:
        """Bracket access by the CPU to a dma-buf; nothing is needed for coherent memory."""
        if self.storage is StorageKind.DMA_BUF:
            sync(self.fileno(), begin=begin, read=read, write=write)

    def close(self) -> None:
        """Unmap, unless a view is still alive (then it goes with the last one), and close the descriptor."""
        with suppress(BufferError):
            self._map.close()
        self.descriptor.close()

    def __repr__(self) -> str:
        return f"<Region {self.size} bytes, {self.storage}>"


def _map(fd: int, size: int, writable: bool) -> mmap.mmap:
    if writable:
        return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, **_NO_DUPLICATE)
    try:
        return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ, **_NO_DUPLICATE)
    except PermissionError:
        # Before Linux 6.7 memory sealed against writing cannot be shared, only looked at privately: the same bytes.
        return mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ, **_NO_DUPLICATE)


class Hold:
    """What keeps a region's memory for one tensor and for all that share its planes.

    Planes look at the memory through ``root``, an array of this tensor's own, so that its end is the end of
    every view that was ever taken: memoryviews of an array keep that array alive, and arrays made over a
    memoryview keep the memoryview. ``finish`` runs when the tensor is closed and no view is left.
    """

    __slots__ = ("_finish", "_root", "_sharers")

    def __init__(self, root: Bytes | None, finish: Callable[[], None] | None = None) -> None:
        self._root = root
        self._finish = finish
        self._sharers: weakref.WeakSet[object] | None = None

    def share(self, *tensors: object) -> None:
        """These tensors look at the same planes. Only known by weak references: not all of them are closed."""
        if self._sharers is None:
            self._sharers = weakref.WeakSet()
        self._sharers.update(tensors)

    def release(self, tensor: object, planes: Sequence[Plane]) -> None:
        """``tensor`` is done with the planes; when no other looks at them, their memory is let go.

        Raises InUse, with nothing changed, when views are alive.
        """
        if self._sharers is not None:
            self._sharers.discard(tensor)
            if self._sharers:
                return
        self.let_go(planes)
        self.finish()

    def let_go(self, planes: Sequence[Plane]) -> None:
        """Look at the memory no more. InUse, with nothing changed, when views are alive."""
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

    def finish(self) -> None:
        """Close what the memory was reached by, once nothing looks at it."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


def look_through(planes: Sequence[Plane], root: Bytes) -> None:
    """Give every plane its stretch of ``root``."""
    whole = root.data
    for plane in planes:
        start = plane.offset
        plane.data = whole[start : start + plane.size]
