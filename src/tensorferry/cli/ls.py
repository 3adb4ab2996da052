"""``tensorferry ls``: a line for each tensor of a recording."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Annotated

import typer

from ..image import PixelFormat
from ..record import Record
from .ending import safe
from .look import Facts, to_json
from .recordings import (
    From,
    RecordingPath,
    Selection,
    Topics,
    Until,
    damage_facts,
    damage_of,
    leave_damaged,
    opened,
    progress,
    records,
    seconds,
)
from .words import counted, described

__all__ = ["ls"]


def ls(
    recording: RecordingPath,
    topic: Topics = None,
    start: From = None,
    until: Until = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document, for programs; times in ns.")] = False,
) -> None:
    """List the tensors of a recording: number, time from the start, topic, what it is, bytes.

    They are numbered as they are chosen. Every record is read and checked: damage is told, with its place, at
    the end, and then it leaves with 1.
    """
    with opened(recording) as rec:
        selection = Selection(recording, rec, topic, start, until)
        wide = max((len(safe(one.name)) for one in selection.topics), default=0)
        rows: list[Facts] = []
        total = selection.count if limit is None else limit
        with progress("listing", total, shown=as_json or not sys.stdout.isatty()) as step:
            for i, one in enumerate(islice(records(recording, selection), limit)):
                if as_json:
                    rows.append(_facts(i, one))
                else:
                    print(_line(i, one, selection.first, wide))
                step(1)
        if as_json:
            print(to_json({"recording": recording, "records": rows, "damage": damage_facts(damage_of(rec))}))
        leave_damaged(recording, rec)


def _line(i: int, one: Record, first: int | None, wide: int) -> str:
    time = "–" if first is None else seconds(one.log_time - first)
    size = counted(one.tensor.nbytes, "byte")
    return f"{i:>6}  {time:>14}  {safe(one.topic):<{wide}}  {safe(described(one.tensor))}  {size}"


def _facts(i: int, one: Record) -> Facts:
    tensor = one.tensor
    return {
        "index": i,
        "topic": one.topic,
        "log_time": one.log_time,
        "publish_time": one.publish_time,
        "dtype": str(tensor.dtype),
        "shape": list(tensor.shape),
        "pixel_format": None if tensor.format is None else str(tensor.format),
        "size": [tensor.width, tensor.height] if isinstance(tensor.format, PixelFormat) else None,
        "bytes": tensor.nbytes,
    }
