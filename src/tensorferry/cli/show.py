"""What inspect prints for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..blob import BlobStrings
from ..errors import FerryError, WireError
from ..fields import Field
from ..image import PixelFormat
from .ending import safe, told
from .inputs import Input
from .look import Look
from .statistics import Statistics
from .words import FORMATS, counted, described, dimensions, meaning, number, worded

__all__ = ["output", "show", "show_list", "show_title"]

_PIPED_WIDTH = 160
_MOST_CHANNELS = 8
_BARS = "▁▂▃▄▅▆▇█"
_STRINGS = "strings."
_WRONG = "bold red"


class _Output(Console):
    def on_broken_pipe(self) -> None:
        raise  # rich would leave with 1, which means bad data here


def output() -> Console:
    """The console on stdout; wide where nobody looks, so that nothing is cut."""
    return _Output(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def show_title(console: Console, input: Input, look: Look) -> None:
    piece = look.piece
    console.print(Text(safe(input.name), "bold"), soft_wrap=True)
    what = _kind(look) if look.tensor is None else f"{FORMATS[piece.format]}, {described(look.tensor)}"
    console.print(Text(f"{safe(what)}, {counted(len(piece.data), 'byte')}"), soft_wrap=True)
    if piece.index or piece.offset:
        place = f"number {piece.index} in the file, from byte {piece.offset:#x} on; offsets here count from there"
        console.print(Text(place, "dim"), soft_wrap=True)


def _kind(look: Look) -> str:
    state = "damaged" if isinstance(look.refusal, WireError) else "unreadable"
    return f"{state} {FORMATS[look.piece.format]}"


def show(console: Console, look: Look) -> None:
    """All that is known of a tensor; of a damaged one, what could be read of it."""
    _show_fields(console, look)
    _show_dimensions(console, look)
    _show_quantization(console, look)
    _show_planes(console, look)
    if look.tensor is not None:
        _show_statistics(console, look.statistics)


def show_list(console: Console, looks: Iterable[Look]) -> None:
    """A table of the tensors that stand in one file."""
    table = _table("index", "offset", "bytes", "dtype", "shape", "format", right=(0, 2))
    for look in looks:
        piece, tensor = look.piece, look.tensor
        row = [str(piece.index), f"{piece.offset:#010x}", f"{len(piece.data):,}"]
        if tensor is None:
            assert look.refusal is not None
            table.add_row(*row, Text("refused", "red"), "", Text(safe(type(look.refusal).__name__), "red"))
        else:
            table.add_row(
                *row, str(tensor.dtype), dimensions(tensor.shape) or "scalar", safe(str(tensor.format or "–"))
            )
    console.print(table)


def _table(*columns: str, right: Iterable[int] = ()) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i in right else "left", overflow="fold")
    return table


def _heading(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, "bold cyan"))


# ---- the parts ----


def _show_fields(console: Console, look: Look) -> None:
    """Every field that stands alone: not those of shape, strides, quantization and planes, which have tables."""
    _heading(console, "header and strings" if look.piece.format == "blob" else "envelope and struct")
    table = _table("offset", "field", "value", "")
    for field in _standing_alone(look):
        is_wrong = look.wrong is not None and look.wrong.offset == field.offset
        style, note = (_WRONG, "◀ refused") if is_wrong else ("", meaning(look.piece.format, field))
        name = field.name.removeprefix(_STRINGS)
        cells = (Text(name, style), Text(worded(field), style), Text(note, style or "dim"))
        table.add_row(Text(f"{field.offset:#06x}", "dim"), *cells)
    console.print(table)


def _standing_alone(look: Look) -> Iterable[Field]:
    texts = {_STRINGS + name for name in BlobStrings._fields}
    for field in look.fields:
        if field.name.startswith("planes[") or field.name.endswith(("]", "padding")):
            continue
        if field.name.startswith(_STRINGS) and field.name.endswith("_len"):
            # A length and its text are one row; an empty text has no field of its own.
            text = field.name.removesuffix("_len")
            if field.value == 0 or text in look.values:
                yield field._replace(name=text, value=look.values.get(text, ""))
                continue
        if field.name not in texts:
            yield field


def _show_dimensions(console: Console, look: Look) -> None:
    names = ("shape", "strides") if look.piece.format == "blob" else ("shape_", "strides_")
    shape, strides = (look.array(name) for name in names)
    if look.piece.format == "vlink":
        rank = look.values.get("rank_")
        shape, strides = (numbers[: rank if isinstance(rank, int) else 0] for numbers in (shape, strides))
    if not shape:
        return
    unit = "bytes" if look.piece.format == "blob" else "elements"
    _heading(console, "shape and strides")
    table = _table("offset", "dimension", "size", f"stride, {unit}", right=(2, 3))
    for i, size in enumerate(shape):
        step = str(strides[i]) if i < len(strides) else "dense, unsaid"
        table.add_row(
            Text(f"{look.offsets[f'{names[0]}[{i}]']:#06x}", "dim"), f"{i} {_axis(look, i)}".strip(), str(size), step
        )
    console.print(table)


def _axis(look: Look, i: int) -> str:
    """What dimension ``i`` is, where an image's grid or a layout says so."""
    tensor = look.tensor
    if tensor is None:
        return ""
    if isinstance(tensor.format, PixelFormat):
        return ("channel", "row", "column")[i] if tensor.format.is_planar else ("row", "column", "sample")[i]
    layout = tensor.labels.layout if tensor.labels is not None else ""
    return safe(layout[i]) if len(layout) == len(tensor.shape) else ""


def _show_quantization(console: Console, look: Look) -> None:
    if look.piece.format == "vlink":
        return  # two fields of the struct, shown with the others
    scales, points = look.array("quant_scales"), look.array("quant_zero_points")
    if not scales:
        return
    _heading(console, "quantization: real = (stored - zero point) × scale")
    table = _table("offset", "channel", "scale", "zero point", right=(1, 3))
    axis = look.values.get("quant_axis")
    for i, scale in enumerate(scales[:_MOST_CHANNELS]):
        channel = "all" if axis == -1 else str(i)
        point = number(points[i]) if i < len(points) else "–"
        table.add_row(Text(f"{look.offsets[f'quant_scales[{i}]']:#06x}", "dim"), channel, number(scale), point)
    console.print(table)
    count = look.values.get("quant_scales_len")
    if isinstance(count, int) and count > _MOST_CHANNELS:
        console.print(Text(f"and {count - _MOST_CHANNELS} more (--json has those told apart)", "dim"))


def _show_planes(console: Console, look: Look) -> None:
    rows = look.planes()
    if not rows:
        return
    _heading(console, "planes")
    columns = ("record", "plane", "handle", "offset", "stride", "size", "used", "modifier", "data")
    table = _table(*columns, right=range(1, 8))
    wrong = "" if look.wrong is None else look.wrong.name
    for i, row in enumerate(rows):
        cells = {name: number(row[name]) for name in ("handle", "offset", "stride", "size", "used")}
        modifier, data_at = row["modifier"], row["data_at"]
        cells["handle"] += " inline" if row["handle"] == -1 else ""
        cells["modifier"] = "linear" if modifier == 0 else "–" if modifier is None else f"{modifier:#x}"
        cells["data"] = "–" if data_at is None else f"{row['data_len']:,} bytes at {data_at:#x}"
        if wrong == f"planes[{i}].data_len":
            cells["data"], wrong = f"{number(row['data_len'])} bytes claimed", f"planes[{i}].data"
        styled = [Text(cell, _WRONG if wrong == f"planes[{i}].{name}" else "") for name, cell in cells.items()]
        table.add_row(Text(f"{row['at']:#06x}", "dim"), str(i), *styled)
    console.print(table)


def _show_statistics(console: Console, found: list[Statistics] | FerryError) -> None:
    _heading(console, "values")
    if isinstance(found, FerryError):
        console.print(Text(safe(told(found)), "yellow"), soft_wrap=True)
        return
    several = len(found) > 1
    floats = any(row.nan or row.inf for row in found)
    real = any(row.real_min is not None for row in found)
    columns = ["plane"] * several + ["count", "min", "max", "mean", "std", "zeros"]
    columns += ["NaN", "inf"] * floats + ["real values"] * real + ["histogram, min to max"]
    table = _table(*columns, right=range(several, 6 + several + 2 * floats))
    for row in found:
        cells = [row.of] * several + [f"{row.count:,}"]
        cells += [number(value) for value in (row.min, row.max, row.mean, row.std)] + [f"{row.zeros:,}"]
        cells += [f"{row.nan:,}", f"{row.inf:,}"] * floats
        cells += [f"{number(row.real_min)} … {number(row.real_max)}"] * real
        table.add_row(*cells, Text(_histogram(row), "cyan"))
    console.print(table)
    for row in found:
        if row.seen < row.count:
            console.print(Text(f"{row.of}: the first {row.seen:,} of {row.count:,} were looked at", "yellow"))


def _histogram(row: Statistics) -> str:
    if not row.histogram:
        return "all the same" if row.min is not None else "–"
    top = max(row.histogram)
    return "".join(" " if not count else _BARS[(len(_BARS) - 1) * count // top] for count in row.histogram)
