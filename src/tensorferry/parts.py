"""Messages in pieces: buffers that make one message when they are joined, none of them copied."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Buffer", "write_parts"]

Buffer = bytes | bytearray | memoryview


def write_parts(parts: Sequence[Buffer], buffer: bytearray | memoryview) -> int:
    """Copy ``parts`` one behind the other to the start of writable ``buffer``; returns their bytes together.

    ValueError, with nothing written, when they do not fit.
    """
    out = memoryview(buffer).cast("B")
    total = sum(map(len, parts))
    if total > len(out):
        raise ValueError(f"{total} bytes do not fit the buffer's {len(out)}: give a larger one")
    at = 0
    for part in parts:
        end = at + len(part)
        out[at:end] = part
        at = end
    return total
