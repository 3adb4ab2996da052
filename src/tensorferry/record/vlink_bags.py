"""VLink's recordings: ``.vcap``, ``.vdb``, and the manifests ``.vcapx`` and ``.vdbx`` of split ones."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from ..errors import Malformed
from .manifest import ManifestRecording
from .record import Recording
from .source import ReadFile
from .vcap import VcapWriter, open_vcap
from .vdb import open_vdb

__all__ = ["VcapWriter", "open_bag"]

_OPENERS = {".vcap": open_vcap, ".vdb": open_vdb}
_MAGICS = {b"\x89MCAP0\r\n": ".vcap", b"SQLite format 3\0": ".vdb"}


def open_bag(path: str | os.PathLike[str], *, strict: bool = True) -> Recording:
    """The VLink bag, or the split bag's manifest, at ``path``: topics are URLs, times ns since 1970.

    What it is, the content tells, then the suffix. A bag that a crash left is read as far as it goes, and ``damage``
    says so; ``strict`` raises at other damage. URLs that carry no tensors are listed in ``topics``, not decoded.
    Raises OSError, WireError for what is no such bag, Unsupported for compressed payloads (lzav).
    """
    place = Path(path)
    suffix = _kind(place)
    if suffix.endswith("x"):
        of = suffix.removesuffix("x")
        return ManifestRecording(place, of, partial(_OPENERS[of], strict=strict), strict=strict)
    return _OPENERS[suffix](place, strict=strict)


def _kind(path: Path) -> str:
    source = ReadFile(path)
    try:
        head = source.read(0, 16)
    finally:
        source.close()
    suffix = path.suffix.lower()
    for magic, kind in _MAGICS.items():
        if head.startswith(magic):
            return kind
    if suffix in (".vcapx", ".vdbx") or suffix in _OPENERS:
        return suffix
    raise Malformed(
        f"{path} is no VLink bag: name a .vcap, .vdb, .vcapx or .vdbx file", field="magic", value=head, offset=0
    )
