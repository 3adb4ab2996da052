"""Both wire formats behind two verbs, told apart by content."""

from __future__ import annotations

from struct import Struct

from . import blob, vlink
from .arrays import aligned_zeros
from .parts import Buffer, flat
from .tensor import Plane, Tensor

__all__ = ["dumps", "format_of", "loads"]

_BLOB = "blob"
_VLINK = "vlink"
_SIZE = Struct("<Q")


def format_of(data: Buffer) -> str:
    """ "vlink" when ``data`` starts as a VLink envelope does, otherwise "blob".

    Only the start is looked at, and nothing is believed yet: ``loads`` checks.
    """
    have = len(data)
    if have < _SIZE.size:
        return _VLINK if data[:4] == vlink.MAGIC_BEGIN_BYTES else _BLOB
    (size,) = _SIZE.unpack_from(data)
    # The magic may also be the low half of a blob's size; then as many bytes must be here.
    return _VLINK if size & 0xFFFFFFFF == vlink.MAGIC_BEGIN and size > have else _BLOB


def loads(data: bytes | bytearray | memoryview, *, copy: bool = False) -> Tensor:
    """The tensor in ``data``, a blob or a VLink envelope.

    Borrows from ``data``, read-only, unless ``copy`` asks for planes of its own, which are writable. Bytes behind a
    blob's end are left alone; behind an envelope's they are refused. Raises WireError or Unsupported.
    """
    view = flat(data)
    read = vlink.import_ if format_of(view) == _VLINK else blob.import_
    tensor = read(view)
    if copy:
        _own(tensor.planes)
    return tensor


def _own(planes: tuple[Plane, ...]) -> None:
    """Move planes to memory of their own, 64-byte aligned, one behind the other as an allocation has them."""
    own = aligned_zeros(sum(plane.size for plane in planes)).data
    start = 0
    for plane in planes:
        end = start + plane.size
        if plane.data is not None:
            own[start:end] = plane.data
            plane.data = own[start:end]
        start = end


def dumps(tensor_or_array: object, *, format: str = _BLOB, lossy: bool = False) -> bytes:
    """A tensor, or anything that ``Tensor.from_array`` takes, as bytes in ``format`` ("blob" or "vlink").

    Raises Lossy, naming every field, where the format cannot carry the tensor; ``lossy`` lets labels go.
    """
    tensor = tensor_or_array if isinstance(tensor_or_array, Tensor) else Tensor.from_array(tensor_or_array)
    if format == _BLOB:
        return b"".join(blob.export_parts(tensor, lossy=lossy))
    if format == _VLINK:
        return b"".join(vlink.export_parts(tensor, lossy=lossy))
    raise ValueError(f"format {format!r} is neither 'blob' nor 'vlink'")
