"""Every kind of file by name, and the verbs over them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...errors import Lossy
from ...parts import Buffer, flat
from ...tensor import Tensor
from ..beside import written_beside
from ..source import MappedFile
from .entry import Entry, Format, Loss, Written
from .npy import NPY
from .npz import NPZ
from .onnx import ONNX
from .pictures import JPEG, PNG, WEBP
from .raw import RAW
from .safetensors import SAFETENSORS
from .wires import BLOB, VLINK

__all__ = ["FORMATS", "encode", "format_of", "read", "write"]

FORMATS: dict[str, Format] = {
    "blob": BLOB,
    "vlink": VLINK,
    "npy": NPY,
    "npz": NPZ,
    "safetensors": SAFETENSORS,
    "onnx": ONNX,
    "png": PNG,
    "jpeg": JPEG,
    "webp": WEBP,
    "raw": RAW,
}

# A blob's size may look like another format's start, so what is plainly a blob is one.
_LONGEST_START = 16
_BY_START = ("vlink", "blob", "npy", "png", "jpeg", "webp", "npz", "safetensors")


def format_of(data: Buffer = b"", path: str | os.PathLike[str] | None = None) -> str | None:
    """The name of the format that ``data`` plainly starts as, or else that the suffix of ``path`` names.

    None where neither says. Nothing is believed yet: ``read`` checks.
    """
    view = flat(data)
    suffix = "" if path is None else Path(path).suffix.lower()
    named = next((name for name, format in FORMATS.items() if suffix in format.suffixes), None)
    if named == "onnx" or not len(view):
        return named  # a protobuf message may start as anything
    head = bytes(view[:_LONGEST_START])
    return next((name for name in _BY_START if FORMATS[name].starts(head, len(view))), named)


def read(source: str | os.PathLike[str] | Buffer, *, format: str | None = None, **options: Any) -> list[Entry]:
    """Every tensor of a file, in its order, with what the file calls it.

    ``source`` is a path, whose file is mapped, or the bytes of a file: tensors may borrow either, read-only.
    ``format`` is a name of ``FORMATS``; None goes by what ``format_of`` says. ``options`` are the format's
    own, such as ``shape`` and ``dtype`` of raw values. Raises WireError or Unsupported for what is in the
    file, ValueError for what was asked, OSError.
    """
    path = None
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        file = MappedFile(path)
        try:
            data = file.lend(0, file.size)
        finally:
            file.close()
    else:
        data = flat(source)
    name = format or format_of(data, path) or "blob"
    row = _row(name)
    _check_options(name, row.read, options)
    return row.read(data, **options)


def encode(entries: Tensor | Sequence[tuple[str, Tensor]], format: str, **options: Any) -> Written:
    """Tensors as a file of ``format``, in pieces, and what is left behind for it, for the caller to allow.

    Unsupported (or Lossy) for what cannot be written at all, ValueError for what was asked.
    """
    row = _row(format)
    _check_options(format, row.write, options)
    named = [Entry("", entries)] if isinstance(entries, Tensor) else [Entry(*entry) for entry in entries]
    if len(named) != 1 and not row.many:
        raise ValueError(f"{row.what} holds one tensor, and {len(named)} were given: write a file for each")
    return row.write(named, **options)


def write(
    entries: Tensor | Sequence[tuple[str, Tensor]],
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    lossy: bool = False,
    **options: Any,
) -> list[Loss]:
    """Write a file, which appears whole or not at all and replaces what was there; returns what it left behind.

    ``entries`` is a tensor, or names and tensors. ``format`` None goes by the suffix. Raises Lossy, naming
    everything, where something would be left behind without ``lossy``; otherwise as ``encode`` does, and
    OSError.
    """
    target = Path(path)
    name = format or format_of(b"", target)
    if name is None:
        raise ValueError(f"{target}: its suffix names no format: give one of {', '.join(FORMATS)}")
    written = encode(entries, name, **options)
    if written.lost and not lossy:
        raise Lossy(
            f"{FORMATS[name].what} cannot carry {', '.join(dict.fromkeys(loss.named for loss in written.lost))}:"
            " pass lossy=True to leave that behind",
            fields=tuple(dict.fromkeys(loss.field for loss in written.lost)),
        )
    with written_beside(target) as file:
        for part in written.parts:
            file.write(part)
    return list(written.lost)


def _row(name: str) -> Format:
    if name not in FORMATS:
        raise ValueError(f"format {name!r} is none of {', '.join(FORMATS)}")
    return FORMATS[name]


def _check_options(name: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    known = [key for key, given in inspect.signature(function).parameters.items() if given.kind is given.KEYWORD_ONLY]
    for key in options:
        if key not in known:
            raise ValueError(f"{name} has no option {key!r}{': it has ' if known else ''}{', '.join(known)}")
