"""Bytes as people read them: sixteen a line, each in the colour of its field, the fields' names beside them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from ..fields import UNREAD, Field
from .words import worded

__all__ = ["Elided", "Line", "dump", "lines"]

WIDTH = 16
_KEEP_FIRST = 4
_KEEP_LAST = 2
_SHORTEST_ELISION = 4
_OFFSET_WIDTH = 10
_GAPS = (" ", *[" "] * 7, "  ", *[" "] * 7)
"""What stands before each byte of a line."""
_BYTES_WIDTH = _OFFSET_WIDTH + 3 * WIDTH + 2 + WIDTH
_ROOM_BESIDE = _BYTES_WIDTH + 32
"""Columns from which on the names stand beside the bytes; else they stand below."""

# Neighbours differ; which one a field gets means nothing.
_COLOURS = ("cyan", "yellow", "green", "magenta", "bright_blue")
_PAYLOAD = "default"
_PADDING = "bright_black"
_UNREAD = "red"
_REFUSED = "bold white on red"


class Line(NamedTuple):
    """At most sixteen bytes from ``offset`` on: for each, the number of the field that it belongs to."""

    offset: int
    owners: tuple[int, ...]
    starting: tuple[int, ...]
    """Fields whose first byte is here."""


class Elided(NamedTuple):
    """``length`` bytes from ``offset`` on, all in the middle of one field, that are not shown."""

    offset: int
    length: int
    owner: int


def lines(fields: list[Field], *, everything: bool) -> Iterator[Line | Elided]:
    """The lines of a dump of the bytes that ``fields`` cover, long fields without their middles."""
    total = fields[-1].offset + fields[-1].length if fields else 0
    offset = current = 0
    while offset < total:
        while fields[current].offset + fields[current].length <= offset:
            current += 1
        if not everything:
            end = _elide(fields[current], offset)
            if end > offset:
                yield Elided(offset, end - offset, current)
                offset = end
                continue
        stop = min(offset + WIDTH, total)
        owners: list[int] = []
        starting: list[int] = []
        i = current
        while len(owners) < stop - offset:
            field = fields[i]
            if field.offset >= offset and field.length:
                starting.append(i)
            owners += [i] * (min(field.offset + field.length, stop) - max(field.offset, offset))
            i += 1
        yield Line(offset, tuple(owners), tuple(starting))
        offset = stop


def _elide(field: Field, offset: int) -> int:
    """Where the dump goes on, if a long field's middle starts at ``offset``; else ``offset``."""
    first = -(-field.offset // WIDTH) * WIDTH + _KEEP_FIRST * WIDTH
    last = ((field.offset + field.length) // WIDTH - _KEEP_LAST) * WIDTH
    return last if offset == first and last - first >= _SHORTEST_ELISION * WIDTH else offset


def dump(console: Console, data: memoryview, fields: list[Field], wrong: Field | None, *, everything: bool) -> None:
    """Print the dump. ``wrong`` is the field that was refused."""
    styles = _styles(fields, wrong)
    beside = console.width >= _ROOM_BESIDE
    indent = _BYTES_WIDTH + 2 if beside else _OFFSET_WIDTH
    for line in lines(fields, everything=everything):
        if isinstance(line, Elided):
            middle = (
                f"{' ' * _OFFSET_WIDTH}⋯ {line.length:,} more bytes of {fields[line.owner].name} (--all shows them)"
            )
            console.print(Text(middle, style="dim"), no_wrap=True, overflow="ellipsis")
            continue
        text = _bytes(data, line, styles)
        names = _names(fields, line, styles, console.width - indent)
        if beside and names:
            text.append("  ").append_text(names.pop(0))
        console.print(text, no_wrap=True, overflow="crop")
        for more in names:
            console.print(Text(" " * indent).append_text(more), no_wrap=True, overflow="ellipsis")
    console.print(_legend(styles))


def _bytes(data: memoryview, line: Line, styles: list[str]) -> Text:
    raw = bytes(data[line.offset : line.offset + len(line.owners)])
    text = Text.assemble((f"{line.offset:08x} ", "dim"))
    shown = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in raw)
    letters = Text()
    for owner, run in groupby(range(len(raw)), line.owners.__getitem__):
        places = list(run)
        text.append(_GAPS[places[0]])
        text.append("".join(_GAPS[i] * (i > places[0]) + f"{raw[i]:02x}" for i in places), styles[owner])
        letters.append(shown[places[0] : places[-1] + 1], styles[owner])
    text.append(" " * (_BYTES_WIDTH - WIDTH - text.cell_len))
    return text.append_text(letters).append(" " * (WIDTH - len(raw)))


def _names(fields: list[Field], line: Line, styles: list[str], room: int) -> list[Text]:
    """The names of the fields that start on a line, in lines of their own of ``room`` columns at most."""
    rows: list[Text] = []
    owner = ""
    for i in line.starting:
        before, dot, name = fields[i].name.rpartition(".")
        text = Text()
        if before != owner and dot:
            text.append(f"{before}: ", "dim")
        owner = before
        text.append(f"{name} {worded(fields[i])}", styles[i])
        if rows and rows[-1].cell_len + 2 + text.cell_len <= room:
            rows[-1].append("  ").append_text(text)
        else:
            rows.append(text)
    return rows


def _styles(fields: list[Field], wrong: Field | None) -> list[str]:
    styles = []
    turn = 0
    for field in fields:
        last = field.name.rpartition(".")[2]
        if field == wrong:
            styles.append(_REFUSED)
        elif field.name == UNREAD:
            styles.append(_UNREAD)
        elif last == "padding":
            styles.append(_PADDING)
        elif isinstance(field.value, memoryview):
            styles.append(_PAYLOAD)
        else:
            styles.append(_COLOURS[turn % len(_COLOURS)])
            turn += 1
    return styles


def _legend(styles: list[str]) -> Text:
    text = Text(f"\n{' ' * _OFFSET_WIDTH}")
    for colour in _COLOURS:
        text.append("■", colour)
    text.append(" fields, in turn")
    for name, style in (("payload", _PAYLOAD), ("padding", _PADDING), ("refused", _REFUSED), ("not read", _UNREAD)):
        if style in styles:
            text.append("   ").append("■", style).append(f" {name}")
    return text
