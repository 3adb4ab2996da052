"""The bytes of a recording's file, mapped or read, never past what the file has."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from pathlib import Path

from ..errors import Closed, Truncated, Unsupported

__all__ = ["MappedFile", "ReadFile"]

_LET_GO = 64 << 20  # bytes of a mapping that iteration leaves behind before it gives the pages back
_DONT_NEED: int | None = getattr(mmap, "MADV_DONTNEED", None)


if sys.platform == "win32":

    def _pread(fd: int, length: int, at: int) -> bytes:
        os.lseek(fd, at, os.SEEK_SET)
        return os.read(fd, length)

else:
    _pread = os.pread


class ReadFile:
    """A regular file whose bytes are read when they are asked for: nothing that others do to it can hurt.

    Owns a descriptor. ``size`` is what the file had when it was opened; what is appended later is not seen.
    """

    def __init__(self, path: Path, fd: int | None = None) -> None:
        """Open ``path``, or read from ``fd`` (borrowed: duplicated). Unsupported for what is no regular file."""
        self.path = path
        # Without waiting: somebody may have put a pipe there.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        self._fd = os.open(path, flags) if fd is None else os.dup(fd)
        try:
            self.status = os.fstat(self._fd)
            if not stat.S_ISREG(self.status.st_mode):
                raise Unsupported(f"{path} is no regular file: copy what it gives into one first", field="path")
            self.size = self.status.st_size
        except BaseException:
            self.close()
            raise

    def read(self, at: int, length: int) -> bytes:
        """A copy of the bytes from ``at`` on, fewer than ``length`` only where the file ends."""
        if self._fd < 0:
            raise Closed(f"{self.path} was closed: take what you need from it before")
        data = _pread(self._fd, length, at)
        if len(data) == length or not data:
            return data
        parts = [data]  # one read gives at most 2 GiB
        done = len(data)
        while done < length and (data := _pread(self._fd, length - done, at + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def lend(self, at: int, length: int) -> memoryview:
        """Exactly these bytes, read-only. Truncated where the file has become shorter than it was."""
        data = self.read(at, length)
        if len(data) < length:
            raise self._shrunk(at, length, at + len(data))
        return memoryview(data)

    def let_go(self, start: int, end: int) -> int:
        """Nobody is likely to look at the bytes from ``start`` to ``end`` soon; returns where to start next time."""
        return end

    def close(self) -> None:
        """Close the descriptor. What was lent lives on. Closing twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def _shrunk(self, at: int, length: int, have: int) -> Truncated:
        return Truncated(
            f"{self.path} has shrunk from {self.size} bytes to {have} since it was opened: open it again",
            need=at + length,
            have=have,
        )


class MappedFile(ReadFile):
    """A regular file mapped read-only: what it lends is the page cache itself.

    Whoever truncates the file takes the pages from under the mapping, and the kernel kills readers of lost
    pages (SIGBUS). So the size is asked for again before anything is lent; what was lent before cannot be
    guarded.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            # An empty file cannot be mapped.
            self._map = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ) if self.size else None
        except BaseException:
            self.close()
            raise
        self._view = memoryview(self._map or b"")

    def lend(self, at: int, length: int) -> memoryview:
        if self._fd < 0:
            raise Closed(f"{self.path} was closed: take what you need from it before")
        end = at + length
        have = os.lseek(self._fd, 0, os.SEEK_END)  # a third of what fstat costs
        if end > have:
            raise self._shrunk(at, length, have)
        return self._view[at:end]

    def let_go(self, start: int, end: int) -> int:
        # Pages stay in the page cache, and views over them good: they only stop counting as this process's.
        if end - start < _LET_GO or self._map is None or _DONT_NEED is None:
            return start
        end -= end % mmap.PAGESIZE
        self._map.madvise(_DONT_NEED, start, end - start)
        return end

    def close(self) -> None:
        """Close; the mapping goes with the last view of it."""
        super().close()
        self._map = None
        self._view = memoryview(b"")
