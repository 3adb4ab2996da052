"""``tensorferry play``: a recording to a process on this host, or to a topic, as fast as it was recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import typer

from ..errors import Disconnected, FerryError
from ..record import Record, Recording
from ..tensor import Tensor
from .ending import BadData, BadUsage, complain, safe, told
from .ends import Listens, Timeout, open_link
from .engines import (
    ENGINES,
    Blocks,
    Config,
    MaxBytes,
    Paced,
    Place,
    Publication,
    Reach,
    Said,
    Scouting,
    Wanted,
    ZenohConnect,
    ZenohListen,
    place_of,
    publish,
)
from .flow import Flow
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
    records,
)
from .send import Frames, Sending, as_blob

__all__ = ["Playing", "play"]

_NS = 1e9
_KINDS = 4  # of tensors that go through shared memory; each has buffers of its own


def play(
    recording: RecordingPath,
    to: Annotated[
        str, typer.Argument(metavar="TO", help="The path of a Unix socket, or unix:PATH, zenoh:TOPIC, iox2:TOPIC.")
    ],
    rate: Annotated[str, typer.Option(metavar="FACTOR|max", help="How many times as fast as recorded.")] = "1.0",
    hertz: Annotated[
        float | None, typer.Option("--hz", metavar="HZ", help="Frames a second, whatever the recorded times are.")
    ] = None,
    loop: Annotated[bool, typer.Option("--loop", help="Again and again, until Ctrl-C.")] = False,
    topic: Topics = None,
    start: From = None,
    until: Until = None,
    lossy: Annotated[bool, typer.Option("--lossy", help="Leave behind what a blob cannot say.")] = False,
    listens: Listens = False,
    timeout: Timeout = None,
    blocks: Blocks = False,
    max_bytes: MaxBytes = None,
    connect: ZenohConnect = None,
    endpoints: ZenohListen = None,
    config: Config = None,
    scouting: Scouting = True,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as one JSON document.")] = False,
) -> None:
    """Send a recording over a Unix socket to `tensorferry recv`, anyone else who has a link, or to a topic.

    Frames keep the distances of their log times. All go to one place: frames of several topics come as recorded,
    mixed. A .tblob has no times: its frames go as they are taken, or --hz times a second.
    Damage is passed over and told at the end; then it leaves with 1.
    """
    place = place_of(to, ("unix", *ENGINES), "unix")
    reach = Reach(connect, endpoints, config, scouting).check(place.scheme)
    if place.scheme == "unix" and (blocks or max_bytes is not None):
        raise BadUsage("--block and --max-bytes are for zenoh: and iox2:: a link waits for its receiver anyway")
    factor = _factor(rate)
    if hertz is not None and not hertz > 0:
        raise BadUsage(f"--hz {hertz:g}: it must be above 0")
    with opened(recording) as rec:
        selection = Selection(recording, rec, topic, start, until)
        to_link = place.scheme == "unix"
        playing = Playing(recording, selection, None if hertz else factor, hertz, lossy, as_blobs=to_link)
        playing.check()
        report = _Report(recording, rec, to, playing, as_json)
        rounds = None if loop else 1
        if to_link:
            _play_to_link(place, listens, timeout, lossy, playing.frames(rounds), report)
        else:
            publication = Publication(place, reach, Wanted(None, lossy, blocks, max_bytes))
            publish(
                publication, Paced(playing.frames(rounds)), report.say, waits=True, timeout=timeout, doing="playing"
            )
        leave_damaged(recording, rec)


def _play_to_link(
    place: Place, listens: bool, timeout: float | None, lossy: bool, frames: Frames, report: _Report
) -> None:
    sending = Sending(_KINDS, lossy=lossy, doing="playing")
    with open_link(place.name, listens=listens, timeout=timeout, other="receiver") as link:
        try:
            sending.run(link, frames)
        except Disconnected as error:
            raise BadData(f"the receiver left after {sending.flow.frames:,} frames: {error}") from None
        finally:
            report.say(sending.flow, sending.latest)


class _Report(NamedTuple):
    """What is said at the end."""

    recording: str
    rec: Recording
    to: str
    playing: Playing
    as_json: bool

    def say(self, flow: Flow, latest: float) -> None:
        if self.as_json:
            facts: Facts = {"recording": self.recording, "socket": self.to, **flow.facts()}
            damage = damage_facts(damage_of(self.rec))
            print(to_json({**facts, "latest": latest, "rounds": self.playing.rounds, "damage": damage}))
        else:
            late = f"; up to {latest * 1e3:,.2f} ms late" if latest else ""
            print(safe(f"played {flow.summary()}{late}"))
        if self.playing.lost:
            complain(f"{self.recording}: left behind: {', '.join(self.playing.lost)}")


def _factor(text: str) -> float | None:
    """How many times as fast as recorded; None is as fast as can be."""
    if text == "max":
        return None
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise BadUsage(f"--rate {text}: it must be a number above 0, or max")
    return factor


class Playing(Said):
    """A recording's records, and when each is due; what it says is of the one that was taken last."""

    def __init__(
        self,
        path: str,
        selection: Selection,
        factor: float | None,
        hertz: float | None,
        lossy: bool,
        *,
        as_blobs: bool = True,
    ) -> None:
        """``as_blobs`` leaves nothing but what a blob can carry, which a link needs."""
        self.rounds = 0
        self.lost: dict[str, None] = {}
        self._path = path
        self._selection = selection
        self._factor = None if selection.first is None else factor
        self._hertz = hertz
        self._lossy = lossy
        self._as_blobs = as_blobs

    def check(self) -> None:
        """BadData where there is nothing to play, or where the first record is none that a blob can carry."""
        for one in records(self._path, self._selection):
            self._as_blob(one)
            return
        raise BadData(f"{self._path}: there is no tensor to play")

    def frames(self, rounds: int | None = 1) -> Iterator[tuple[float | None, Tensor]]:
        """Each record with the moment at which it is due, so many times over (None: for ever).

        Another round follows at the mean distance of two.
        """
        begun = time.monotonic()
        number = 0
        while rounds is None or self.rounds < rounds:
            length = 0.0
            first: int | None = None
            for i, one in enumerate(records(self._path, self._selection)):  # noqa: B007  # used behind the loop
                first = one.log_time if first is None else first
                due = None
                if self._hertz is not None:
                    due = begun + number / self._hertz
                elif self._factor is not None:
                    # In the file's order, even where a record's time is before that of the one before.
                    length = max(length, (one.log_time - first) / _NS / self._factor)
                    due = begun + length
                self.topic, self.log_time = one.topic, one.log_time
                yield due, self._as_blob(one)
                number += 1
            self.rounds += 1
            if first is None:
                return
            if self._hertz is None:
                begun += length + (length / i if i else 0.0)

    def _as_blob(self, one: Record) -> Tensor:
        if not self._as_blobs:
            return one.tensor
        try:
            tensor, lost = as_blob(one.tensor, self._lossy)
        except FerryError as error:
            raise BadData(f"{self._path}: {one.topic} at {one.log_time} ns: {told(error)}") from None
        self.lost.update(dict.fromkeys(lost))
        return tensor
