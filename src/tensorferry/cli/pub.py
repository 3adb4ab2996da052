"""``tensorferry pub``: files or a recording to a topic of Zenoh or iceoryx2."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ..net.iceoryx2.publishing import DEFAULT_MAX_BYTES
from ..tensor import Tensor
from .ending import BadData, BadUsage, safe
from .engines import (
    RECORDINGS,
    Blocks,
    Config,
    Connect,
    Engine,
    ListenAt,
    MaxBytes,
    Paced,
    Place,
    Publication,
    Reach,
    Scouting,
    Wanted,
    publish,
    topic_of,
)
from .flow import Flow
from .formats import read_all
from .inputs import open_input
from .look import to_json
from .play import Playing
from .recordings import Selection, leave_damaged, opened
from .send import Frames

__all__ = ["Rate", "pub"]


class Rate:
    """How fast frames are to go: as they were recorded, as fast as can be, or so many a second."""

    def __init__(self, text: str | None, default: str) -> None:
        """``text`` as --rate says it, None is the ``default``. BadUsage for what it cannot be."""
        said = text or default
        self.recorded = said == "recorded"
        self.hertz: float | None = None
        if said in ("recorded", "max"):
            return
        try:
            self.hertz = float(said)
        except ValueError:
            self.hertz = 0.0
        if not 0 < self.hertz < float("inf"):
            raise BadUsage(f"--rate {said}: it must be a number above 0, max or recorded")


def pub(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic, or zenoh:TOPIC, iox2:TOPIC.")],
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES|REC", help="Files of tensors, or pictures, - is stdin; or one recording."),
    ],
    engine: Engine = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="HZ|max|recorded", help="Frames a second; by default a recording's own pace, else max."),
    ] = None,
    repeat: Annotated[int, typer.Option(metavar="N", min=0, help="Publish it all N times; 0: until Ctrl-C.")] = 1,
    format: Annotated[
        str | None, typer.Option(metavar="blob|vlink|cdr", help="What the messages are; by default blob.")
    ] = None,
    lossy: Annotated[bool, typer.Option("--lossy", help="Leave behind what the format cannot say.")] = False,
    blocks: Blocks = False,
    max_bytes: MaxBytes = None,
    waits: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until somebody subscribes.")] = True,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="How long to wait for a subscriber; by default 10.")
    ] = None,
    connect: Connect = None,
    listen: ListenAt = None,
    config: Config = None,
    scouting: Scouting = True,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as one JSON document.")] = False,
) -> None:
    """Publish the tensors in FILES, or a recording, under a topic of Zenoh or iceoryx2.

    Each of several tensors in a file is a frame of its own. Labels travel with every format; log times are now.
    While it runs, Zenoh's latest tensor can be had with `tensorferry get`.
    """
    place = topic_of(topic, engine)
    reach = Reach(connect, listen, config, scouting).check(place.scheme)
    wanted = Wanted(format, lossy, blocks, max_bytes)
    out = _Out(place, reach, waits, timeout, as_json)
    if any(Path(name).suffix.lower() in RECORDINGS for name in files):
        if len(files) > 1:
            raise BadUsage(f"{files[0]} and others: one recording at a time, and no files beside it")
        _publish_recording(files[0], Rate(rate, "recorded"), repeat or None, wanted, out)
    else:
        _publish_files(files, Rate(rate, "max"), repeat or None, wanted, out)


class _Out(NamedTuple):
    """Where it goes."""

    place: Place
    reach: Reach
    waits: bool
    timeout: float | None
    as_json: bool

    def publish(self, wanted: Wanted, frames: Paced) -> None:
        publication = Publication(self.place, self.reach, wanted)
        publish(publication, frames, self._report, waits=self.waits, timeout=self.timeout, doing="publishing")

    def _report(self, flow: Flow, latest: float) -> None:
        if self.as_json:
            print(to_json({"topic": str(self.place), **flow.facts(), "latest": latest}))
        else:
            late = f"; up to {latest * 1e3:,.2f} ms late" if latest else ""
            print(safe(f"published {flow.summary()}{late}"))


def _publish_files(names: list[str], pace: Rate, rounds: int | None, wanted: Wanted, out: _Out) -> None:
    if pace.recorded:
        raise BadUsage("--rate recorded: only recordings have times")
    tensors = [entry.tensor for name in names for entry in read_all(open_input(name))]
    if not tensors:
        raise BadData(f"{names[0]}: there is no tensor to publish")
    largest = max(sum(plane.size for plane in tensor.planes) for tensor in tensors)
    if out.place.scheme == "iox2" and wanted.max_bytes is None and largest > DEFAULT_MAX_BYTES:
        wanted = wanted._replace(max_bytes=largest)
    out.publish(wanted, Paced(_timed(tensors, rounds, pace.hertz)))


def _timed(tensors: list[Tensor], rounds: int | None, hertz: float | None) -> Frames:
    """Each tensor in turn, so many times over (None: for ever), and when it is due."""
    begun = time.monotonic()
    turns = itertools.count() if rounds is None else range(rounds)
    every = (tensor for _ in turns for tensor in tensors)
    for number, tensor in enumerate(every):
        yield None if hertz is None else begun + number / hertz, tensor


def _publish_recording(name: str, pace: Rate, rounds: int | None, wanted: Wanted, out: _Out) -> None:
    with opened(name) as rec:
        selection = Selection(name, rec, None, None, None)
        factor = 1.0 if pace.recorded else None
        playing = Playing(name, selection, factor, pace.hertz, wanted.lossy, as_blobs=False)
        playing.check()
        out.publish(wanted, Paced(playing.frames(rounds)))
        leave_damaged(name, rec)
