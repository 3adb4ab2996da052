"""``tensorferry convert``: tensors from one format into another, with nothing lost in silence."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..dtypes import DType
from ..errors import FerryError
from ..image import PixelFormat
from ..record import files
from ..record.files import Entry
from .ending import BadData, BadUsage, complain, safe, told
from .files import check_target, write_file
from .formats import FORMATS, as_pixels, colorimetry, encoded, format_for, read_all, read_one
from .inputs import open_input
from .words import counted, described

__all__ = ["LOSSY", "Pixels", "Quality", "ToColorimetry", "convert"]

STDOUT = "-"
LOSSY = "Leave behind what the format cannot say."
_RAW = "Raw IN"

Pixels = Annotated[
    str | None, typer.Option(metavar="|".join(PixelFormat), help="Convert the image to this pixel format first.")
]
ToColorimetry = Annotated[
    str | None, typer.Option(metavar="WORDS", help="With --pixels: matrix and range of the result, as bt709,limited.")
]
Quality = Annotated[int | None, typer.Option(metavar="1…100", min=1, max=100, help="Of a JPEG, or a lossy WebP.")]


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A file of tensors or a picture; - is stdin.")],
    target: Annotated[str, typer.Argument(metavar="OUT", help="The file to write; - is stdout.")],
    to: Annotated[
        str | None, typer.Option(metavar="|".join(FORMATS), help="The format to write; by default, OUT's suffix.")
    ] = None,
    lossy: Annotated[bool, typer.Option("--lossy", help=LOSSY)] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT.")] = False,
    index: Annotated[int | None, typer.Option(metavar="N", help="Which of several tensors, from 0.")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Which of several tensors, by name.")] = None,
    pixels: Pixels = None,
    to_colorimetry: ToColorimetry = None,
    colors: Annotated[
        str | None,
        typer.Option(
            "--colorimetry", metavar="WORDS", help="What the image in IN means, whatever it says: bt709,limited."
        ),
    ] = None,
    quality: Quality = None,
    shape: Annotated[str | None, typer.Option(metavar="N,N,…", help=f"{_RAW}: the values' shape.")] = None,
    dtype: Annotated[str | None, typer.Option(metavar="TYPE", help=f"{_RAW}: their type, as float32.")] = None,
    format: Annotated[str | None, typer.Option(metavar="NV12|…", help=f"{_RAW}: the pixel format.")] = None,
    size: Annotated[str | None, typer.Option(metavar="WxH", help=f"{_RAW}: the image's size.")] = None,
    stride: Annotated[
        int | None, typer.Option(metavar="BYTES", min=1, help="From row to row, in raw IN; otherwise in raw OUT.")
    ] = None,
    many: Annotated[bool, typer.Option("--many", help=f"{_RAW}: several such tensors, end to end.")] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="BYTES", min=0, help="How much a compressed npz may unpack to.")
    ] = None,
) -> None:
    """Write the tensor in IN to OUT in another format; all of several where OUT holds several.

    What the other format cannot say is refused and named; --lossy leaves it behind.
    Raw IN says nothing of itself: say --shape and --dtype, or --format and --size.
    OUT appears whole or not at all.
    """
    out_format = format_for(target, to)
    raw = _raw(shape, dtype, format, size, stride, many)
    if stride is not None and not raw and out_format != "raw":
        raise BadUsage("--stride is about raw pixels: neither IN nor OUT are some")
    if to_colorimetry is not None and pixels is None:
        raise BadUsage("--to-colorimetry says what --pixels makes: give both, or --colorimetry for what is in IN")
    options = {"quality": quality, "stride": None if raw else stride}
    if target != STDOUT:
        check_target(Path(target), force)
    elif sys.stdout.isatty():
        raise BadUsage("stdout is a terminal: redirect it, or name a file")
    options = {key: value for key, value in options.items() if value is not None}
    means, wanted = colorimetry(colors, "--colorimetry"), colorimetry(to_colorimetry, "--to-colorimetry")
    input = open_input(source)
    in_format = "raw" if raw else None
    if limit is not None:
        raw["limit"] = limit
    if index is None and name is None and files.FORMATS[out_format].many:
        entries = read_all(input, in_format, **raw)
    else:
        entries = [read_one(input, index, name, in_format, **raw)]
    try:
        lost = []
        for i, (called, tensor) in enumerate(entries):
            if means is not None:
                tensor = tensor.replace(colorimetry=means)
            tensor, cost = as_pixels(tensor, pixels, wanted, lossy=lossy)
            entries[i] = Entry(called, tensor)
            lost += cost
        written = encoded(entries, out_format, lossy=lossy, **options)
    except FerryError as error:
        raise BadData(f"{input.name}: {told(error)}") from None
    lost += written.lost
    if target == STDOUT:
        for part in written.parts:
            sys.stdout.buffer.write(part)
    else:
        write_file(Path(target), written.parts, force=force)
        length = sum(len(part) for part in written.parts)
        print(safe(f"{input.name} → {target}: {out_format}, {_described(written.entries)}, {counted(length, 'byte')}"))
    if lost:
        complain(f"{target}: left behind: {', '.join(dict.fromkeys(loss.said for loss in lost))}")


def _described(entries: Sequence[Entry]) -> str:
    if len(entries) == 1:
        return described(entries[0].tensor)
    return counted(len(entries), "tensor") + (f", the first {described(entries[0].tensor)}" if entries else "")


def _raw(
    shape: str | None, dtype: str | None, format: str | None, size: str | None, stride: int | None, many: bool
) -> dict[str, Any]:
    """What is said of raw values or pixels, in the words of ``record.files``; empty where IN is not raw."""
    found: dict[str, Any] = {}
    if shape is not None:
        if not re.fullmatch(r"\d*(,\d+)*,?", shape):
            raise BadUsage(f"--shape {shape}: say it as 1,3,224,224")
        found["shape"] = tuple(int(number) for number in shape.split(",") if number)
    if size is not None:
        match = re.fullmatch(r"(\d+)[x×](\d+)", size)
        if match is None:
            raise BadUsage(f"--size {size}: say it as 1920x1080")
        found["size"] = int(match[1]), int(match[2])
    if format is not None:
        if format not in list(PixelFormat):
            raise BadUsage(f"--format {format}: it must be one of {', '.join(PixelFormat)}")
        found["pixels"] = format
    if dtype is not None:
        if dtype not in map(str, DType):
            raise BadUsage(f"--dtype {dtype}: it must be one of {', '.join(map(str, DType))}")
        found["dtype"] = dtype
    if found:
        found.update({key: value for key, value in (("stride", stride), ("many", many)) if value})
        if (shape is None) == (format is None) or (format is None) != (size is None) or (format is None and not dtype):
            raise BadUsage("raw values say nothing of themselves: give --shape and --dtype, or --format and --size")
        if shape is not None and stride is not None:
            raise BadUsage("--stride is an image's: give --format and --size with it")
    elif many:
        raise BadUsage("--many is about raw values: give --shape and --dtype, or --format and --size")
    return found
