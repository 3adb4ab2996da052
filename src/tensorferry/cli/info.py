"""``tensorferry info``: what a recording holds."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import FerryError
from ..image import PixelFormat
from ..record import BlobStream, Record, Recording, TopicInfo
from .ending import safe
from .flow import sized, status
from .look import Facts, to_json
from .recordings import (
    RecordingPath,
    damage_facts,
    damage_of,
    kind_of,
    leave_damaged,
    moment,
    opened,
    seconds,
)
from .show import output
from .words import counted, described

__all__ = ["info"]

_NS = 1e9


def info(
    recording: RecordingPath,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document, for programs.")] = False,
) -> None:
    """Show what is recorded: topics, counts, rates, times, and what the first tensor of each is.

    What is not decoded is listed with the reason. Little of the file is read: ls reads all of it.
    A damaged recording is shown as far as it goes; then it leaves with 1.
    """
    with opened(recording) as rec:
        with status(f"looking at {recording}"):
            found = _Found(recording, rec)
        if as_json:
            print(to_json(found.facts()))
        else:
            found.show(output())
        leave_damaged(recording, rec)


class _Found:
    """What a recording says of itself, and its topics' first records."""

    def __init__(self, path: str, recording: Recording) -> None:
        self.path = path
        self.recording = recording
        self.bytes = Path(path).stat().st_size
        self.topics = recording.topics
        self.kind = kind_of(path, recording)
        self.compression = _compression(path, recording)
        self.firsts = [_first(recording, topic) for topic in self.topics]
        firsts = [topic.first for topic in self.topics if topic.first is not None]
        lasts = [topic.last for topic in self.topics if topic.last is not None]
        self.start, self.end = min(firsts, default=None), max(lasts, default=None)

    @property
    def duration(self) -> int | None:
        return None if self.start is None or self.end is None else self.end - self.start

    def facts(self) -> Facts:
        """For programs; times in ns, duration in seconds."""
        return {
            "recording": self.path,
            "kind": self.kind,
            "bytes": self.bytes,
            "compression": self.compression,
            "start": self.start,
            "end": self.end,
            "duration": None if self.duration is None else self.duration / _NS,
            "topics": [_topic_facts(*pair) for pair in zip(self.topics, self.firsts, strict=True)],
            "damage": damage_facts(damage_of(self.recording)),
        }

    def show(self, console: Console) -> None:
        """For people."""
        records = sum(topic.messages for topic in self.topics)
        console.print(Text(safe(self.path), "bold"), soft_wrap=True)
        packed = "" if self.compression is None else f", compression {', '.join(self.compression) or 'none'}"
        what = f"{self.kind}, {sized(self.bytes)}{packed}, {counted(records, 'record')}"
        console.print(f"{what} in {counted(len(self.topics), 'topic')}", soft_wrap=True)
        if self.duration is not None:
            console.print(f"{moment(self.start)} to {moment(self.end)}, {seconds(self.duration)}", soft_wrap=True)
        console.print()
        console.print(self._table())

    def _table(self) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("topic", "records", "rate", "payload", "the first"):
            table.add_column(name, justify="right" if name in ("records", "rate") else "left", overflow="fold")
        for topic, first in zip(self.topics, self.firsts, strict=True):
            rate = _rate(topic)
            shown = Text("–", "dim") if first is None else Text(safe(described(first.tensor)))
            if topic.undecoded is not None:
                shown = Text(safe(f"not decoded: {topic.undecoded}"), "yellow")
            hertz = "–" if rate is None else f"{rate:,.2f}/s"
            table.add_row(safe(topic.name), f"{topic.messages:,}", hertz, safe(topic.kind or topic.encoding), shown)
        return table


def _first(recording: Recording, topic: TopicInfo) -> Record | None:
    """A topic's first record that can be read."""
    if topic.undecoded is not None or not topic.messages:
        return None
    with suppress(FerryError):  # what is wrong is in the recording's damage, or will be said by what reads all
        return next(iter(recording.select([topic.name])), None)
    return None


def _rate(topic: TopicInfo) -> float | None:
    """Records a second, from the first to the last."""
    if topic.first is None or topic.last is None or topic.last <= topic.first:
        return None
    return (topic.messages - 1) / (topic.last - topic.first) * _NS


def _topic_facts(topic: TopicInfo, first: Record | None) -> Facts:
    tensor = None if first is None else first.tensor
    return {
        "name": topic.name,
        "records": topic.messages,
        "payload": topic.kind,
        "encoding": topic.encoding,
        "first": topic.first,
        "last": topic.last,
        "rate": _rate(topic),
        "undecoded": topic.undecoded,
        "dtype": None if tensor is None else str(tensor.dtype),
        "shape": None if tensor is None else list(tensor.shape),
        "pixel_format": None if tensor is None or tensor.format is None else str(tensor.format),
        "size": [tensor.width, tensor.height] if tensor and isinstance(tensor.format, PixelFormat) else None,
    }


def _compression(path: str, recording: Recording) -> list[str] | None:
    """How an MCAP file's chunks are compressed, as far as its summary says; None where nothing says it."""
    if isinstance(recording, BlobStream) or kind_of(path, recording) not in ("MCAP", "VLink bag (MCAP)"):
        return None
    from ..record.mcap_file import McapFile  # it is there, since the recording was opened by it

    file = McapFile(path)
    try:
        return sorted({chunk.compression for chunk in file.chunks.values()} - {""}) if file.indexed else None
    finally:
        file.close()
