"""Both wire formats behind two verbs, told apart by content."""

from __future__ import annotations

from . import blob, vlink
from .parts import Buffer, flat
from .tensor import Tensor

__all__ = ["dumps", "format_of", "loads"]

_BLOB = "blob"
_VLINK = "vlink"


def format_of(data: Buffer) -> str:
    """"vlink" when ``data`` starts as a VLink envelope does, otherwise "blob".

    Only the start is looked at, and nothing is believed yet: ``loads`` checks.
    """
    head = bytes(data[:8])
    if head[:4] != vlink.MAGIC_BEGIN_BYTES:
        return _BLOB
    # The same four bytes may be the low half of a blob's size; then as many bytes must be here.
    return _BLOB if len(head) == 8 and int.from_bytes(head, "little") <= len(data) else _VLINK


def loads(data: bytes | bytearray | memoryview, *, copy: bool = False) -> Tensor:
    """The tensor in ``data``, a blob or a VLink envelope.

    Borrows from ``data``, read-only, unless ``copy`` takes a writable copy of it first. Bytes behind a
    blob's end are left alone; behind an envelope's they are refused. Raises WireError or Unsupported.
    """
    view = flat(data)
    if copy:
        view = memoryview(bytearray(view))
    read = vlink.import_ if format_of(view) == _VLINK else blob.import_
    return read(view)


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
