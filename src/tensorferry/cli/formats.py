"""Tensors out of the files that people have and into them, as commands do it: by ``record.files``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import FerryError, Lossy, Unsupported
from ..image import Colorimetry
from ..record import colour, files
from ..record.files import Entry, Loss, Written
from ..tensor import Tensor
from .ending import BadData, BadUsage, told
from .inputs import Input, Piece, pick
from .words import counted

__all__ = ["FORMATS", "as_pixels", "colorimetry", "encoded", "format_for", "missing_extra", "read_all", "read_one"]

FORMATS = tuple(files.FORMATS)
"""What ``--to`` takes, beside the suffixes of the same formats."""

_WIRES = (None, "blob", "vlink")
_BY_NAME = ("npz", "safetensors")  # these need not read the others to give one
_WORDS = {
    "bt601": "encoding",
    "bt709": "encoding",
    "bt2020": "encoding",
    "full": "range",
    "limited": "range",
}
_EXTRAS = ("import", "mcap", "edgefirst-schemas")


def missing_extra(error: FerryError) -> bool:
    """Whether ``error`` is about a package that is not installed: then no data are to blame."""
    return isinstance(error, Unsupported) and error.field in _EXTRAS


# ---- reading ----


def read_all(input: Input, format: str | None = None, **options: Any) -> list[Entry]:
    """Every tensor in a file of ``format``, which None leaves to its content and its suffix.

    BadData, naming the file and the place, where one cannot be read; BadUsage for ``options`` that make no sense.
    """
    format = format or files.format_of(input.data, input.name)
    if format in _WIRES and not options:
        return [Entry("", _loaded(input, piece)) for piece in input.pieces()]
    return _read(input, format or "blob", options)


def read_one(input: Input, index: int | None, name: str | None, format: str | None = None, **options: Any) -> Entry:
    """The tensor number ``index``, or the one called ``name``, or the only one. Raises as ``read_all``."""
    format = format or files.format_of(input.data, input.name)
    if format in _WIRES and name is None and not options:
        return Entry("", _loaded(input, pick(input, index)))
    if name is not None and format in _BY_NAME:
        options["name"] = name
    entries = read_all(input, format, **options)
    if name is not None:
        entries = [entry for entry in entries if name in (entry.name, entry.tensor.labels and entry.tensor.labels.name)]
        if len(entries) != 1:
            raise BadUsage(f"{input.name}: {len(entries) or 'no'} tensors in it are called {name!r}: see --index")
    if index is None:
        if len(entries) != 1:
            raise BadUsage(f"{input.name}: it holds {_called(entries)}: pick one with --index or --name")
        return entries[0]
    if not 0 <= index < len(entries):
        raise BadUsage(f"{input.name}: there is no tensor {index}: it holds {_called(entries)}, counted from 0")
    return entries[index]


def _loaded(input: Input, piece: Piece) -> Tensor:
    try:
        return piece.load()
    except FerryError as error:
        which = f"blob {piece.index} at {piece.offset:#x}: " if piece.index else ""
        raise BadData(f"{input.name}: {which}{told(error)}") from None


def _read(input: Input, format: str, options: dict[str, Any]) -> list[Entry]:
    try:
        return files.read(input.data, format=format, **options)
    except FerryError as error:
        if missing_extra(error):
            raise BadUsage(f"{input.name}: {error}") from None
        if "name" in options and (error.field, error.value) == ("name", options["name"]):
            raise BadUsage(f"{input.name}: {error}") from None
        raise BadData(f"{input.name}: {told(error)}") from None
    except ValueError as error:
        raise BadUsage(f"{input.name}: {error}") from None


def _called(entries: Sequence[Entry]) -> str:
    names = [entry.name for entry in entries if entry.name]
    return counted(len(entries), "tensor") + (f" ({', '.join(names[:8])}{', …' * (len(names) > 8)})" if names else "")


# ---- writing ----


def format_for(target: str, to: str | None) -> str:
    """The format to write: ``to``, which is one or a suffix of one; without, what the suffix of ``target`` says."""
    if to is not None:
        name = to if to in files.FORMATS else files.format_of(path=f"x.{to}")
        if name is None:
            raise BadUsage(f"--to {to}: it must be one of {', '.join(FORMATS)}")
        return name
    name = files.format_of(path=Path(target))
    if name is None:
        raise BadUsage(f"{target}: its suffix names no format: add --to {'|'.join(FORMATS)}")
    return name


def encoded(entries: Sequence[tuple[str, Tensor]], to: str, *, lossy: bool, **options: Any) -> Written:
    """Tensors as a file of format ``to``.

    Raises Lossy, naming everything, for what would be left behind without ``lossy``, and for what cannot be
    helped with it; Unsupported where there is no such file of it; BadUsage for what was asked.
    """
    what = files.FORMATS[to].what
    try:
        written = files.encode(entries, to, **options)
    except Lossy as error:
        named = ", ".join(error.fields)
        raise Lossy(f"{what} cannot carry {named}, and --lossy cannot help it", fields=error.fields) from None
    except FerryError as error:
        if missing_extra(error):
            raise BadUsage(str(error)) from None
        raise
    except ValueError as error:
        raise BadUsage(str(error)) from None
    if written.lost and not lossy:
        named = ", ".join(dict.fromkeys(loss.named for loss in written.lost))
        fields = tuple(dict.fromkeys(loss.field for loss in written.lost))
        raise Lossy(f"{what} cannot carry {named}: --lossy leaves behind what can be", fields=fields)
    return written


# ---- pixels ----


def as_pixels(
    tensor: Tensor, pixels: str | None, wanted: Colorimetry | None, *, lossy: bool
) -> tuple[Tensor, list[Loss]]:
    """``tensor`` as an image of format ``pixels`` (None: as it is), and what that costs.

    Raises Lossy and Unsupported as ``colour.convert`` does, BadUsage where there is no such format.
    """
    if pixels is None:
        return tensor, []
    try:
        lost = colour.losses(tensor, pixels, colorimetry=wanted)
    except FerryError:
        raise
    except ValueError:
        raise BadUsage(f"--pixels {pixels}: there is no such pixel format here") from None
    if lost and not lossy:
        raise Lossy(f"{tensor.format} as {pixels} loses {', '.join(lost)}: --lossy allows that", fields=lost)
    said = [Loss(field, str(tensor.format), pixels) if field == "values" else Loss(field) for field in lost]
    return colour.convert(tensor, pixels, colorimetry=wanted, lossy=lossy), said


def colorimetry(text: str | None, option: str) -> Colorimetry | None:
    """What "bt709,limited" or "space=bt2020,transfer=pq" says. BadUsage for other words."""
    if text is None:
        return None
    said: dict[str, str] = {}
    for word in text.split(","):
        field, given, value = word.strip().partition("=")
        if not given:
            field, value = _WORDS.get(field, ""), field
        if field not in ("space", "transfer", "encoding", "range") or not value or field in said:
            raise BadUsage(
                f"{option} {text}: say it as bt709,limited or encoding=bt709,range=limited,space=…,transfer=…"
            )
        said[field] = value
    return Colorimetry(**said)
