"""What a command reads: the bytes of a file or of stdin, and the tensors that stand in them."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .. import blob, vlink
from ..blob.fields import fields as blob_fields
from ..errors import FerryError, Truncated, WireError
from ..fields import Field
from ..tensor import Tensor
from ..vlink.fields import fields as vlink_fields
from ..wire import format_of
from .ending import BadUsage, NotATensor
from .sniff import looks_like

__all__ = ["Input", "Piece", "open_input", "pick"]

STDIN = "-"


class Input(NamedTuple):
    """Bytes and what to call them."""

    name: str
    data: memoryview

    def pieces(self) -> Iterator[Piece]:
        """Each tensor in turn: one envelope, or blobs end to end. The last may be bytes that are neither."""
        if format_of(self.data) == "vlink":
            yield Piece(0, "vlink", 0, self.data)
            return
        index = offset = 0
        try:
            for data in blob.iter_blobs(self.data):
                yield Piece(index, "blob", offset, data)
                index, offset = index + 1, offset + len(data)
        except WireError:
            yield Piece(index, "blob", offset, self.data[offset:])
            return
        if not index:
            yield Piece(0, "blob", 0, self.data)


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor's bytes, ``offset`` bytes into its file. They may be damaged, or no tensor's at all."""

    index: int
    format: str
    offset: int
    data: memoryview

    def fields(self) -> list[Field]:
        return vlink_fields(self.data) if self.format == "vlink" else blob_fields(self.data)

    def load(self) -> Tensor:
        """The tensor, borrowed. Raises as ``loads`` does, and says so where the bytes are plainly no tensor's."""
        try:
            return vlink.import_(self.data) if self.format == "vlink" else blob.import_(self.data)
        except FerryError as error:
            raise self._explained(error) from None

    def _explained(self, error: FerryError) -> FerryError:
        if self.index:
            is_rest = isinstance(error, WireError) and not _has_blob_header(self.data)
            if not is_rest:
                return error
            return type(error)(f"the last {len(self.data)} bytes of the file are no blob: {error}")
        if not len(self.data):
            return Truncated("it is empty", need=blob.HEADER_LEN, have=0)
        likeness = None if self.format == "vlink" else looks_like(self.data)
        if likeness is None:
            return error
        return NotATensor(f"it looks like {likeness}, and is neither a tensor blob nor a VLink envelope")


def _has_blob_header(data: memoryview) -> bool:
    try:
        blob.parse_header(data)
    except WireError:
        return False
    return True


def open_input(path: str) -> Input:
    """The bytes of the file at ``path``, mapped and not read; or stdin's for "-". BadUsage where there are none."""
    if path == STDIN:
        if sys.stdin is None or sys.stdin.isatty():
            raise BadUsage("stdin is a terminal: pipe a file in, or name one")
        return Input("stdin", memoryview(sys.stdin.buffer.read()))
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                raise BadUsage(f"{path}: it is a device, not a file")
            if stat.S_ISREG(status.st_mode) and status.st_size:
                # The view keeps the mapping alive; nothing closes it before.
                return Input(path, memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
            return Input(path, memoryview(file.read()))
    except IsADirectoryError:
        raise BadUsage(f"{path}: it is a directory: name the files in it") from None
    except FileNotFoundError:
        raise BadUsage(f"{path}: there is no such file") from None
    except OSError as error:
        raise BadUsage(f"{path}: {(error.strerror or str(error)).lower()}") from None


def pick(input: Input, index: int | None) -> Piece:
    """The tensor number ``index`` of a file, counted from 0; None is the only one. BadUsage where there is none."""
    pieces = list(input.pieces())
    if index is None:
        if len(pieces) > 1:
            raise BadUsage(f"{input.name}: it holds {len(pieces)} blobs: pick one with --index")
        return pieces[0]
    if not 0 <= index < len(pieces):
        raise BadUsage(
            f"{input.name}: there is no blob {index}: --index goes from 0 to {len(pieces) - 1}"
            if len(pieces) > 1
            else f"{input.name}: there is no blob {index}: it holds one, number 0"
        )
    return pieces[index]
