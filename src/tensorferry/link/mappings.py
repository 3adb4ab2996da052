"""Mappings that outlive a frame: a buffer that comes again and again is mapped once."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import Iterable

from ..errors import Unsupported
from ..memory.opening import open_region
from ..memory.region import Region

__all__ = ["Mappings"]

Key = tuple[int, int]


class Mappings:
    """The mappings used last, at most ``limit``, by device and inode. Safe to use from several threads.

    One that is dropped is unmapped when the last tensor in it goes.
    """

    __slots__ = ("_limit", "_regions")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._regions: OrderedDict[Key, Region] = OrderedDict()

    def open(self, fd: int, writable: bool, fresh: list[Key]) -> Region | None:
        """The mapping of what ``fd`` (borrowed) refers to; None where it may shrink and must be read out.

        Where it had to be made, its key is added to ``fresh``.
        """
        try:
            status = os.fstat(fd)
        except OSError as error:
            raise Unsupported(f"descriptor {fd} is not open: {error.strerror}", field="fd", value=fd) from error
        key = (status.st_dev, status.st_ino)
        region = self._regions.get(key)
        if region is None or region.size < status.st_size:  # unless it is sealed against that too, it may grow
            region = self._map(fd, writable)
            if region is None:
                return None
            self._regions[key] = region
            fresh.append(key)
            if len(self._regions) > self._limit:
                self._drop_oldest()
            return region
        with contextlib.suppress(KeyError):  # another thread dropped it: it is good all the same
            self._regions.move_to_end(key)
        return region

    def _map(self, fd: int, writable: bool) -> Region | None:
        while True:
            try:
                return open_region(fd, writable)
            except Unsupported as error:
                # A mapping holds descriptors: before none is free for this one, let the oldest go.
                if not _none_free(error) or not self._drop_oldest():
                    raise

    def _drop_oldest(self) -> bool:
        try:
            self._regions.popitem(last=False)
        except KeyError:
            return False
        return True

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop these."""
        for key in keys:
            self._regions.pop(key, None)

    def clear(self) -> None:
        """Drop them all."""
        self._regions.clear()


def _none_free(error: Unsupported) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.EMFILE, errno.ENFILE)
