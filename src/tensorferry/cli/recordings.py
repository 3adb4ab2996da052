"""A recording as commands take it: opened whatever became of it, its records chosen, its damage told at the end."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .. import record
from ..errors import FerryError, Unsupported
from ..record import BlobStream, Damage, Record, Recording, TopicInfo
from ..record.manifest import ManifestRecording
from ..record.vdb import VdbRecording
from .ending import BAD_DATA, BadData, BadUsage, complain, told
from .formats import missing_extra
from .look import Facts, refused
from .words import counted

__all__ = [
    "From",
    "RecordingPath",
    "Selection",
    "Topics",
    "Until",
    "damage_facts",
    "damage_of",
    "damage_said",
    "kind_of",
    "leave_damaged",
    "moment",
    "opened",
    "progress",
    "records",
    "seconds",
]

_NS = 1_000_000_000
_SINCE_1970 = 10**17  # ns: log times above are dates (after 1973), below they count from something else
_MOST_TOLD = 10

RecordingPath = Annotated[
    str, typer.Argument(metavar="REC", help="A .tblob, .mcap, .vcap or .vdb, or a bag's manifest.")
]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="Only this topic; may be repeated.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHEN",
        help="From then on: seconds from the start, @seconds since 1970, or 2024-05-01T12:30:00.",
    ),
]
Until = Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Before then; as --from.")]


@contextmanager
def opened(path: str) -> Iterator[Recording]:
    """The recording at ``path``, which passes damage over. BadUsage where there is none, BadData for other files."""
    try:
        if Path(path).is_dir():
            raise BadUsage(f"{path}: it is a directory: name the recording in it")
        with record.open(path, strict=False) as recording:
            yield recording
    except FileNotFoundError as error:
        if error.filename != path:
            raise
        raise BadUsage(f"{path}: there is no such file") from None
    except FerryError as error:
        of_usage = missing_extra(error) or (isinstance(error, Unsupported) and error.field == "path")
        raise (BadUsage(str(error)) if of_usage else BadData(f"{path}: {told(error)}")) from None


def kind_of(path: str, recording: Recording) -> str:
    """What the recording is, for people."""
    if isinstance(recording, BlobStream):
        return "stream of blobs"
    if isinstance(recording, ManifestRecording):
        return "split VLink bag"
    if isinstance(recording, VdbRecording):
        return "VLink bag (SQLite)"
    return "VLink bag (MCAP)" if Path(path).suffix.lower() == ".vcap" else "MCAP"


# ---- which records ----


class Selection:
    """Which of a recording's records are wanted. ``topics`` are those of the tensors among them."""

    def __init__(
        self, path: str, recording: Recording, topics: list[str] | None, start: str | None, until: str | None
    ) -> None:
        """BadUsage for a topic that is not there or holds no tensors, and for times that make no sense."""
        every = recording.topics
        readable = [topic for topic in every if topic.undecoded is None]
        for name in topics or []:
            _check_topic(path, name, every)
        self.topics = [topic for topic in readable if not topics or topic.name in topics]
        self.first = min((topic.first for topic in readable if topic.first is not None), default=None)
        self.start = _time(path, "--from", start, self.first)
        self.end = _time(path, "--until", until, self.first)
        self._recording = recording
        self._names = topics or None

    @property
    def count(self) -> int | None:
        """How many records there are; None where that is not known beforehand."""
        if self.start is not None or self.end is not None:
            return None
        return sum(topic.messages for topic in self.topics)

    def __iter__(self) -> Iterator[Record]:
        return self._recording.select(self._names, start=self.start, end=self.end)


def records(path: str, selection: Iterable[Record]) -> Iterator[Record]:
    """``selection``; BadData, naming the file, where reading cannot go on, as when somebody cuts the file meanwhile."""
    try:
        yield from selection
    except FerryError as error:
        raise BadData(f"{path}: {told(error)}") from None


def _check_topic(path: str, name: str, every: list[TopicInfo]) -> None:
    found = [topic for topic in every if topic.name == name]
    if not found:
        raise BadUsage(f"{path}: there is no topic {name}: it has {', '.join(topic.name for topic in every) or 'none'}")
    if all(topic.undecoded is not None for topic in found):
        raise BadUsage(f"{path}: {name}: {found[0].undecoded}")


def _time(path: str, option: str, text: str | None, first: int | None) -> int | None:
    """A log time in ns. Exact: floats have no nanoseconds since 1970."""
    if text is None:
        return None
    if first is None:
        raise BadUsage(f"{path}: it has no times for {option} to choose by")
    try:
        if re.fullmatch(r"@?\d+(\.\d+)?", text):
            since = 0 if text.startswith("@") else first
            return since + int(Decimal(text.removeprefix("@")).scaleb(9))
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except (ValueError, InvalidOperation):
        raise BadUsage(
            f"{option} {text}: say it as 2.5 (seconds from the start), @1700000000.5 (since 1970)"
            " or 2024-05-01T12:30:00"
        ) from None
    when = when if when.tzinfo is not None else when.replace(tzinfo=timezone.utc)
    since_1970 = when - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since_1970.days * 86_400 + since_1970.seconds) * _NS + since_1970.microseconds * 1000


def moment(time: int | None) -> str:
    """A log time for people: a date where it is one, otherwise seconds."""
    if time is None:
        return "–"
    if time < _SINCE_1970:
        return seconds(time)
    # Whole seconds by datetime, the rest by hand: it has no nanoseconds.
    date = datetime.fromtimestamp(time // _NS, timezone.utc)
    return f"{date:%Y-%m-%d %H:%M:%S}.{time % _NS:09d} UTC"


def seconds(time: int) -> str:
    return f"{'-' if time < 0 else ''}{abs(time) // _NS:,}.{abs(time) % _NS // 1000:06d} s"


# ---- damage ----


def damage_of(recording: Recording) -> list[Damage]:
    """What was passed over so far, each stretch once."""
    return list({(damage.offset, damage.length, str(damage.error)): damage for damage in recording.damage}.values())


def damage_facts(found: Iterable[Damage]) -> list[Facts]:
    """For programs."""
    return [
        {"offset": damage.offset, "bytes": damage.length or None, "refusal": refused(damage.error)} for damage in found
    ]


def damage_said(path: str, damage: Damage) -> str:
    """Where it is and what is wrong there."""
    error = damage.error
    # What reads streams says where it was, for those who see the error alone.
    why = str(error).removeprefix(f"{path}: the blob at byte {damage.offset}: ")
    if not damage.offset and not damage.length:  # what counts no bytes, as SQLite
        return f"{type(error).__name__}: {why}"
    length = f", {counted(damage.length, 'byte')}" if damage.length else ""
    return f"at {damage.offset:#x}{length}: {type(error).__name__}: {why}"


def leave_damaged(path: str, recording: Recording) -> None:
    """Say what was passed over, if anything was, and leave with 1 then."""
    found = damage_of(recording)
    for damage in found[:_MOST_TOLD]:
        complain(f"{path}: damage {damage_said(path, damage)}")
    if len(found) > _MOST_TOLD:
        complain(f"{path}: {len(found) - _MOST_TOLD:,} more damaged stretches")
    if found:
        raise typer.Exit(BAD_DATA)


# ---- while it takes long ----


@contextmanager
def progress(doing: str, total: int | None, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal, which what this yields moves on by some; nothing elsewhere, or unless ``shown``."""
    if not shown or not sys.stderr.isatty():
        yield lambda some: None
        return
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda some: bar.advance(task, some)
