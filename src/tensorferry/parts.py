"""Messages as buffers: one of bytes, or pieces that make one when they are joined, none of them copied."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Buffer", "flat", "write_parts"]

Buffer = bytes | bytearray | memoryview


def flat(buffer: Buffer) -> memoryview:
    """``buffer`` as a flat memoryview of bytes over the same memory. ValueError where its bytes have gaps."""
    view = memoryview(buffer)
    if view.format == "B" and view.ndim == 1 and view.c_contiguous:
        return view
    if not view.c_contiguous:
        raise ValueError("the buffer's bytes have gaps between them: give a contiguous one, such as bytes(buffer)")
    return view.cast("B") if view.nbytes else memoryview(b"")


def write_parts(parts: Sequence[Buffer], buffer: bytearray | memoryview) -> int:
    """Copy ``parts`` one behind the other to the start of writable ``buffer``; returns their bytes together.

    ValueError, with nothing written, when they do not fit.
    """
    out = flat(buffer)
    total = sum(map(len, parts))
    if total > len(out):
        raise ValueError(f"{total} bytes do not fit the buffer's {len(out)}: give a larger one")
    at = 0
    for part in parts:
        end = at + len(part)
        out[at:end] = part
        at = end
    return total
