"""One way to open whatever somebody recorded: what it is, is told by its content."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import FerryError, Malformed
from .record import Recording
from .scanning import blob_size
from .source import ReadFile
from .stream import BlobStream

__all__ = ["open"]

_MCAP = b"\x89MCAP"
_SQLITE = b"SQLite format 3\0"
_MANIFEST_KEY = b'"VLinkFiles"'
_BAGS = (".vcap", ".vdb", ".vcapx", ".vdbx")
_ENOUGH = 4096


def open(path: str | os.PathLike[str], *, strict: bool = True, map: bool = True, index: bool = False) -> Recording:
    """The recording at ``path``: a stream of blobs, an MCAP file, or a VLink bag or manifest.

    ``strict`` raises at damage; without it damage is passed over and listed in ``damage``. The other options are
    about streams of blobs. ``map=False`` reads each blob into memory of its own instead of mapping the file: for
    files that someone may truncate meanwhile. ``index=True`` keeps where the blobs stand in ``<path>.index``, and
    uses that as long as it fits. Raises Malformed for a file that is
    none of these, Unsupported for what is no regular file or needs an extra that is not installed, OSError.
    """
    place = Path(path)
    kind = _kind(place)
    if kind == "mcap":
        from .mcap import open_mcap

        return open_mcap(place, strict=strict)
    if kind == "bag":
        from .vlink_bags import open_bag

        return open_bag(place, strict=strict)
    return BlobStream(place, strict=strict, map=map, index=index)


def _kind(path: Path) -> str:
    source = ReadFile(path)
    try:
        head = source.read(0, _ENOUGH)
        suffix = path.suffix.lower()
        if head.startswith(_SQLITE) or suffix in _BAGS or (head.lstrip().startswith(b"{") and _MANIFEST_KEY in head):
            return "bag"
        if head.startswith(_MCAP) or suffix == ".mcap":
            return "mcap"
        # By its name a recording stays what it is, however damaged its start.
        if head and suffix != ".tblob":
            _require_blob(source)
        return "stream"
    finally:
        source.close()


def _require_blob(source: ReadFile) -> None:
    try:
        blob_size(source, 0)
    except FerryError as error:
        raise Malformed(
            f"{source.path} is neither a stream of blobs ({error}), nor MCAP, nor a VLink bag;"
            " a damaged stream opens when its name ends in .tblob",
            offset=0,
        ) from None
