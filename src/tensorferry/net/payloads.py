"""Tensors as the payloads of an engine's messages: which formats there are, and tensors laid out in a message."""

from __future__ import annotations

from collections.abc import Sequence

from .. import blob, vlink
from ..parts import Buffer, write_parts
from ..tensor import Plane, Tensor

__all__ = ["FORMATS", "checked_format", "lay_out", "parts_of", "tensor_in"]

FORMATS = ("blob", "vlink")


def checked_format(format: str, formats: Sequence[str] = FORMATS) -> str:
    """``format`` if it is one of ``formats``; ValueError otherwise."""
    if format not in formats:
        raise ValueError(f"format {format!r} is none of {', '.join(map(repr, formats))}")
    return format


def parts_of(tensor: Tensor, format: str, *, lossy: bool = False) -> list[Buffer]:
    """``tensor`` in ``format`` as pieces that make the payload when joined; the planes are borrowed.

    A blob has no room for labels: they are left out without a word, for the engine to carry beside it.
    Otherwise raises as ``blob.export`` and ``vlink.export`` do.
    """
    if format == "vlink":
        return vlink.export_parts(tensor, lossy=lossy)
    return blob.export_parts(tensor if tensor.labels is None else tensor.replace(labels=None), lossy=lossy)


def tensor_in(payload: Buffer, format: str) -> Tensor:
    """The tensor in ``payload``, whose planes borrow from it. WireError or Unsupported as ``loads`` raises."""
    return vlink.import_(payload) if format == "vlink" else blob.import_(payload)


def lay_out(like: Tensor, parts: Sequence[Buffer], memory: bytearray | memoryview) -> Tensor:
    """Write ``parts``, which ``parts_of(like)`` gave, to writable ``memory``; a tensor over the planes there.

    What is written to its planes is written to the payload. ``like``'s values are copied.
    """
    write_parts(parts, memory)
    planes = {id(plane.data): plane for plane in like.planes}
    view = memoryview(memory)
    placed = []
    at = 0
    for part in parts:
        end = at + len(part)
        plane = planes.get(id(part))
        if plane is not None:
            placed.append(Plane(view[at:end], plane.stride, plane.size, plane.used))
        at = end
    return Tensor(like._description, tuple(placed), labels=like.labels)
