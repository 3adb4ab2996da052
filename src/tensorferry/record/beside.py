"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["written_beside"]

_TEMPORARY = ".tensorferry-part"


@contextmanager
def written_beside(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A file to write beside ``path``, which takes its place when all is written and, with ``sync``, on the disk.

    Where the writing fails the file beside is removed, and what was at ``path`` stays. OSError as usual.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    file = beside.open("xb")
    try:
        with file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
