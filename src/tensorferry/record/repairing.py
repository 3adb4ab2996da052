"""A damaged stream of blobs into a sound one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from .beside import written_beside
from .record import Damage
from .scanning import salvage
from .source import ReadFile

__all__ = ["Repaired", "repair"]

_WINDOW = 4 << 20

Progress = Callable[[int, int], None]
"""Told bytes done, and bytes in all."""


class Repaired(NamedTuple):
    """What ``repair`` kept and what it left out. All lengths are bytes."""

    kept: int
    """Blobs."""
    kept_bytes: int
    dropped: tuple[Damage, ...]

    @property
    def dropped_bytes(self) -> int:
        return sum(damage.length for damage in self.dropped)


def repair(path: str | os.PathLike[str], out: str | os.PathLike[str], *, progress: Progress | None = None) -> Repaired:
    """Write every blob of the stream ``path`` that can be read to ``out``, byte for byte; ``path`` is not touched.

    ``out`` takes its place when it is whole, over a file that was there. Blobs that only this version cannot
    read (Unsupported, UnsupportedRequirement) are left out too, since a damaged one may look the same: see
    ``dropped``, and keep the original. ValueError where ``out`` is ``path``; OSError.
    """
    source = ReadFile(Path(path))
    try:
        target = Path(out)
        if target.exists() and os.path.samestat(target.stat(), source.status):
            raise ValueError(f"{out} is the damaged stream itself: repair it into another file")
        with written_beside(target) as file:
            return _copy(source, file, progress)
    finally:
        source.close()


def _copy(source: ReadFile, file: BinaryIO, progress: Progress | None) -> Repaired:
    kept = kept_bytes = 0
    dropped: list[Damage] = []
    for what in salvage(source):
        if isinstance(what, Damage):
            dropped.append(what)
            done = what.offset + what.length
        else:
            kept += 1
            kept_bytes += what.size
            done = what.start + what.size
            for at in range(what.start, done, _WINDOW):
                file.write(source.lend(at, min(_WINDOW, done - at)))
        if progress is not None:
            progress(done, source.size)
    return Repaired(kept, kept_bytes, tuple(dropped))
