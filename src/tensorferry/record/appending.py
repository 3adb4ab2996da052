"""Writing streams of blobs so that a crash at any byte costs at most the blob that was being written."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .. import blob
from ..blob.header import HEADER_LEN, region_offsets
from ..closing import Closing
from ..errors import Closed, InUse, Unsupported, WireError
from ..parts import Buffer
from ..tensor import StorageKind, Tensor
from .scanning import blob_size, check_uncut, find_blob, header_at, placed
from .source import ReadFile

if sys.platform != "win32":
    import fcntl

__all__ = ["Dropped", "StreamWriter", "append"]

_MAX_PARTS = 1024  # IOV_MAX: buffers of one writev
_MAX_SIZE = 1 << 48  # bytes; a larger size in a cut header is no blob's
_WINDOW = 4 << 20


class Dropped(NamedTuple):
    """What reopening a stream took off its end: the start of a blob that a crash cut short."""

    offset: int
    """Bytes from the start of the file; where the stream went on."""
    length: int
    why: str


def append(path: str | os.PathLike[str], *, sync: bool = False) -> StreamWriter:
    """A writer at the end of the stream of blobs at ``path``, which is made where there is none.

    A blob is there for good once ``write`` has returned, whatever becomes of this process; with ``sync`` also
    when the power goes (each write then waits for the disk). Behind a crash it goes on after the last whole
    blob: ``dropped`` says what came off. Raises InUse while another writer has the stream; WireError, with
    the file untouched, where it ends in anything but a blob that was cut short, or holds a header that cannot be
    believed (``repair`` it first); Unsupported for what is no regular file; OSError.
    """
    return StreamWriter(path, sync=sync)


class StreamWriter(Closing):
    """A stream of blobs, open for appending by this process alone. ``append`` makes it.

    ``count`` is blobs written here, ``size`` bytes of whole blobs in the file. Not for several threads at once.
    """

    def __init__(self, path: str | os.PathLike[str], *, sync: bool = False) -> None:
        self.path = Path(path)
        self.sync = sync
        self.count = 0
        self.dropped: Dropped | None = None
        is_new = not self.path.exists()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        self._fd = os.open(self.path, flags, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise Unsupported(f"{path} is no regular file: append to a file", field="path")
            _lock(self._fd, self.path)
            self.size = self._find_end()
            if sync:
                self.flush()
                if is_new:
                    _sync_directory(self.path.parent)
        except BaseException:
            self.close()
            raise

    def write(self, tensor_or_array: object, *, lossy: bool = False) -> int:
        """Append a tensor, or anything that ``Tensor.from_array`` takes; returns the byte at which its blob starts.

        Nothing of the payload is copied on the way to the kernel. Raises Lossy as ``dumps`` does, InUse when
        someone else has changed the file, OSError (ENOSPC and the like); the file then is as it was before.
        """
        tensor = tensor_or_array if isinstance(tensor_or_array, Tensor) else Tensor.from_array(tensor_or_array)
        if tensor.storage is StorageKind.DMA_BUF:
            with tensor.cpu_access("read"):
                return self._append(blob.export_parts(tensor, lossy=lossy))
        return self._append(blob.export_parts(tensor, lossy=lossy))

    def flush(self) -> None:
        """Wait until all that was written is on the disk, safe from a loss of power."""
        os.fsync(self._file())

    def close(self) -> None:
        """Let the file and its lock go. Closing twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._fd < 0 else f"{self.size} bytes"
        return f"<StreamWriter {str(self.path)!r}, {state}>"

    # ---- inside ----

    def _file(self) -> int:
        if self._fd < 0:
            raise Closed(f"{self.path} was closed: open it again with append")
        return self._fd

    def _append(self, parts: list[Buffer]) -> int:
        fd, start = self._file(), self.size
        have = os.lseek(fd, 0, os.SEEK_END)
        if have != start:
            raise InUse(
                f"{self.path} has {have} bytes and had {start} after the last write: someone else writes to it;"
                " close this and append again"
            )
        try:
            written = _write_all(fd, parts)
            if self.sync:
                os.fsync(fd)
        except BaseException as error:  # an interrupt as well: half a blob must not stay
            self._undo(start, error)
            raise
        self.size = start + written
        self.count += 1
        return start

    def _undo(self, start: int, cause: BaseException) -> None:
        try:
            os.ftruncate(self._fd, start)
        except OSError as error:
            self.close()  # whatever came next would stand behind half a blob
            raise error from cause

    def _find_end(self) -> int:
        """Where the last whole blob ends, once what a crash left behind it is off the file."""
        source = ReadFile(self.path, self._fd)
        try:
            at = before = 0
            try:
                while at < source.size:
                    before, at = at, at + blob_size(source, at)
            except WireError as error:
                why = None if _is_cut(source, before, at) else _left_by_crash(source, at)
                if why is None:
                    raise _not_ours(placed(error, source, at), source.size - at) from None
                self.dropped = Dropped(at, source.size - at, why)
                os.ftruncate(self._fd, at)
            return at
        finally:
            source.close()


def _is_cut(source: ReadFile, start: int, end: int) -> bool:
    """Whether the last blob that looks whole is not, so that what stands behind it is another one's."""
    try:
        if start < end:
            check_uncut(source, start, end - start)
    except WireError:
        return True
    return False


def _not_ours(error: WireError, length: int) -> WireError:
    error.args = (
        f"{error} ({length} bytes from there on are not what a crash leaves, so nothing was cut off:"
        " repair the stream into another file and append to that)",
    )
    return error


def _left_by_crash(source: ReadFile, at: int) -> str | None:
    """What the bytes from ``at`` to the end are, if a crash of a writer may have left them; None otherwise.

    Anything else is somebody's data. So is a tail with a whole blob in it: then the size before it is wrong.
    """
    left = source.size - at
    head = source.read(at, min(HEADER_LEN, left))
    if not any(head):
        return f"{left} bytes of zeros" if _is_zero(source, at) else None
    if left < HEADER_LEN:
        return f"{left} bytes of a header" if _starts_a_header(head) else None
    try:
        header = header_at(source, at)
    except WireError:
        return None
    is_cut = left < region_offsets(header).end and header.size < _MAX_SIZE
    if not is_cut or find_blob(source, at + 1) < source.size:
        return None
    return f"{left} of a blob's {header.size} bytes"


def _starts_a_header(head: bytes) -> bool:
    size, mask = head[:8], head[8:16]
    claimed = int.from_bytes(size, "little")
    return claimed < _MAX_SIZE and not any(mask) and (len(size) < 8 or claimed > len(head))


def _is_zero(source: ReadFile, at: int) -> bool:
    while at < source.size:
        window = source.read(at, min(_WINDOW, source.size - at))
        if window.count(0) != len(window) or not window:
            return False
        at += len(window)
    return True


def _write_all(fd: int, parts: Sequence[Buffer]) -> int:
    """Write all of ``parts``, however few bytes the system takes at a time; returns their bytes."""
    pending = [part for part in parts if len(part)]
    total = 0
    while pending:
        done = os.write(fd, pending[0]) if sys.platform == "win32" else os.writev(fd, pending[:_MAX_PARTS])
        total += done
        whole = 0
        while whole < len(pending) and done >= len(pending[whole]):
            done -= len(pending[whole])
            whole += 1
        del pending[:whole]
        if done:
            pending[0] = memoryview(pending[0])[done:]
    return total


def _lock(fd: int, path: Path) -> None:
    """Keep other writers out until ``fd`` is closed, even by a crash. Windows has no such lock."""
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUse(f"{path} has a writer already: one at a time, so write elsewhere and join the files") from None


def _sync_directory(path: Path) -> None:
    """A new file's name is safe only once its directory is."""
    if sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
