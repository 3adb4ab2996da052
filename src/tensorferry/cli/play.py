"""``tensorferry play``: a recording to a process on this host, as fast as it was recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from ..errors import Disconnected, FerryError
from ..record import Record, Recording
from ..tensor import Tensor
from .ending import BadData, BadUsage, complain, safe, told
from .ends import Listens, SocketPath, Timeout, open_link
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
from .send import Sending, as_blob

__all__ = ["play"]

_NS = 1e9
_KINDS = 4  # of tensors that go through shared memory; each has buffers of its own


def play(
    recording: RecordingPath,
    socket: SocketPath,
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
    as_json: Annotated[bool, typer.Option("--json", help="The summary as one JSON document.")] = False,
) -> None:
    """Send a recording over a Unix socket to `tensorferry recv`, or anyone else who has a link.

    Frames keep the distances of their log times. A link has no topics: frames of several come as recorded, mixed.
    A .tblob has no times: its frames go as they are taken, or --hz times a second.
    Damage is passed over and told at the end; then it leaves with 1.
    """
    factor = _factor(rate)
    if hertz is not None and not hertz > 0:
        raise BadUsage(f"--hz {hertz:g}: it must be above 0")
    with opened(recording) as rec:
        selection = Selection(recording, rec, topic, start, until)
        playing = _Playing(recording, selection, None if hertz else factor, hertz, lossy)
        playing.check()
        sending = Sending(_KINDS, lossy=lossy, doing="playing")
        with open_link(socket, listens=listens, timeout=timeout, other="receiver") as link:
            try:
                sending.run(link, playing.frames(loop))
            except Disconnected as error:
                raise BadData(f"the receiver left after {sending.flow.frames:,} frames: {error}") from None
            finally:
                _report(recording, rec, socket, sending, playing, as_json)
        leave_damaged(recording, rec)


def _report(recording: str, rec: Recording, socket: str, sending: Sending, playing: _Playing, as_json: bool) -> None:
    if as_json:
        facts: Facts = {"recording": recording, "socket": socket, **sending.flow.facts()}
        print(
            to_json(
                {**facts, "latest": sending.latest, "rounds": playing.rounds, "damage": damage_facts(damage_of(rec))}
            )
        )
    else:
        late = f"; up to {sending.latest * 1e3:,.2f} ms late" if sending.latest else ""
        print(safe(f"played {sending.flow.summary()}{late}"))
    if playing.lost:
        complain(f"{recording}: left behind: {', '.join(playing.lost)}")


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


class _Playing:
    """A recording's records, and when each is due."""

    def __init__(self, path: str, selection: Selection, factor: float | None, hertz: float | None, lossy: bool) -> None:
        self.rounds = 0
        self.lost: dict[str, None] = {}
        self._path = path
        self._selection = selection
        self._factor = None if selection.first is None else factor
        self._hertz = hertz
        self._lossy = lossy

    def check(self) -> None:
        """BadData where there is nothing to play, or where the first record is none that a blob can carry."""
        for one in records(self._path, self._selection):
            self._as_blob(one)
            return
        raise BadData(f"{self._path}: there is no tensor to play")

    def frames(self, loop: bool) -> Iterator[tuple[float | None, Tensor]]:
        """Each record with the moment at which it is due; another round follows at the mean distance of two."""
        begun = time.monotonic()
        number = 0
        while loop or not self.rounds:
            length = 0.0
            first: int | None = None
            for i, one in enumerate(records(self._path, self._selection)):  # noqa: B007
                first = one.log_time if first is None else first
                due = None
                if self._hertz is not None:
                    due = begun + number / self._hertz
                elif self._factor is not None:
                    # In the file's order, even where a record's time is before that of the one before.
                    length = max(length, (one.log_time - first) / _NS / self._factor)
                    due = begun + length
                yield due, self._as_blob(one)
                number += 1
            self.rounds += 1
            if first is None:
                return
            if self._hertz is None:
                begun += length + (length / i if i else 0.0)

    def _as_blob(self, one: Record) -> Tensor:
        try:
            tensor, lost = as_blob(one.tensor, self._lossy)
        except FerryError as error:
            raise BadData(f"{self._path}: {one.topic} at {one.log_time} ns: {told(error)}") from None
        self.lost.update(dict.fromkeys(lost))
        return tensor
