"""Which field of a blob each of its bytes belongs to; of a damaged one, as far as that can be said."""

from __future__ import annotations

from struct import Struct

from ..errors import FerryError, Truncated, WireError
from ..fields import Field, Walk
from ..parts import Buffer
from .header import HEADER, PLANE_RECORD_LEN, BlobHeader, padding, parse_header
from .planes import RECORD
from .strings import BlobStrings
from .view import MAX_NDIM, MAX_PLANES, MAX_STRINGS_BYTES, BlobView

__all__ = ["fields"]

_U32 = Struct("<I")
_WORD = 8


def _rows(names: tuple[str, ...], layout: Struct) -> tuple[tuple[str, Struct], ...]:
    return tuple((name, Struct(f"<{code}")) for name, code in zip(names, layout.format[1:], strict=True))


_HEADER_ROWS = _rows(BlobHeader._fields, HEADER)
_RECORD_ROWS = _rows(("handle", "offset", "stride", "size", "used", "modifier", "handle_bytes_len", "data_len"), RECORD)
_NUMBERS = (
    ("shape", "ndim", Struct("<Q")),
    ("strides", "strides_len", Struct("<q")),
    ("quant_scales", "quant_scales_len", Struct("<f")),
    ("quant_zero_points", "quant_zero_points_len", Struct("<i")),
)


def fields(data: Buffer) -> list[Field]:
    """The fields of the blob at the start of ``data``, in order; they cover all of ``data``.

    Bytes behind the blob are ``behind``, those of a later revision ``appended``. Never raises: what cannot
    be read is one last field, ``unread``, whose value is the refusal. A blob that was cut short is read up
    to the cut. What the numbers mean is not checked here: ``import_`` may still refuse.
    """
    walk = Walk(data)
    try:
        BlobView.parse(walk.data)
        refusal = None
    except FerryError as error:
        refusal = error
    header = _header(walk)
    if header is not None:
        walk.stop = min(header.size, len(walk.data))
        if _counted(walk, header) and _strings(walk, header) and _planes(walk, header):
            whole = walk.raw("appended", header.size - walk.at)
            walk.stop = len(walk.data)
            if whole:
                walk.raw("behind", walk.stop - walk.at)
    return walk.finish(refusal)


def _header(walk: Walk) -> BlobHeader | None:
    """The header's fields; the header, where what follows may be read by it."""
    if not all(walk.number(name, layout) for name, layout in _HEADER_ROWS):
        return None
    try:
        header = parse_header(walk.data)
    except Truncated:
        header = BlobHeader._make(HEADER.unpack_from(walk.data))
    except WireError:
        return None
    bounded = header.ndim <= MAX_NDIM and header.plane_count <= MAX_PLANES and header.strings_bytes <= MAX_STRINGS_BYTES
    return header if bounded and header.strides_len in (0, header.ndim) else None


def _counted(walk: Walk, header: BlobHeader) -> bool:
    """The four regions of numbers."""
    for name, counted_by, layout in _NUMBERS:
        count: int = getattr(header, counted_by)
        if walk.at + count * layout.size > header.size or not walk.numbers(name, layout, count):
            return False
    return True


def _strings(walk: Walk, header: BlobHeader) -> bool:
    end = walk.at + header.strings_bytes
    if end > header.size:
        return False
    walk.stop, stop = min(end, walk.stop), walk.stop
    for name in BlobStrings._fields:
        at = walk.at
        if not walk.number(f"strings.{name}_len", _U32):
            return False
        if not walk.text(f"strings.{name}", _U32.unpack_from(walk.data, at)[0]):
            return False
    rest = walk.data[walk.at : end]
    padded = len(rest) == padding(walk.at) and not any(rest)
    whole = walk.raw("strings.padding" if padded else "strings.appended", end - walk.at)
    walk.stop = stop
    return whole


def _planes(walk: Walk, header: BlobHeader) -> bool:
    end = walk.at + header.planes_bytes
    if walk.at % _WORD or end > header.size or header.plane_count * PLANE_RECORD_LEN > header.planes_bytes:
        return False
    walk.stop, stop = min(end, walk.stop), walk.stop
    for i in range(header.plane_count):
        at = walk.at
        if not all(walk.number(f"planes[{i}].{name}", layout) for name, layout in _RECORD_ROWS):
            return False
        *_, handle_bytes_len, data_len = RECORD.unpack_from(walk.data, at)
        if not (walk.raw(f"planes[{i}].handle_bytes", handle_bytes_len) and walk.raw(f"planes[{i}].data", data_len)):
            return False
        walk.raw(f"planes[{i}].padding", min(padding(walk.at), end - walk.at))
    whole = walk.raw("planes.appended", end - walk.at)
    walk.stop = stop
    return whole
