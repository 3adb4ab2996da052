"""``tensorferry bridge``: frames from one carrier to another."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ..errors import Disconnected, Lossy
from ..link import Link
from ..record import Recording
from ..tensor import Tensor
from .ending import BAD_DATA, BadData, BadUsage, told
from .ends import open_link
from .engines import (
    ENGINES,
    RECORDINGS,
    SOURCES,
    Blocks,
    Carried,
    Config,
    Depth,
    Ends,
    MaxBytes,
    Outlet,
    Paced,
    Place,
    Publication,
    Reach,
    Said,
    Scouting,
    Subscription,
    Wanted,
    ZenohConnect,
    ZenohListen,
    place_of,
)
from .look import to_json
from .play import Playing
from .pub import Rate
from .record import Asked, Recorder, made
from .recordings import Selection, leave_damaged, opened
from .recv import Receiving, Source
from .send import as_blob

__all__ = ["bridge"]

_SCHEMES = ("unix", *ENGINES, "file")


def bridge(
    origin: Annotated[
        str, typer.Argument(metavar="FROM", help="unix:PATH, zenoh:TOPIC, iox2:TOPIC, or the path of a recording.")
    ],
    target: Annotated[str, typer.Argument(metavar="TO", help="The same; a recording is a new .tblob, .mcap or .vcap.")],
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Leave after N frames.")] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="HZ|max|recorded", help="From a recording: frames a second; by default recorded, to a file max."
        ),
    ] = None,
    lossy: Annotated[bool, typer.Option("--lossy", help="Leave behind what TO cannot say.")] = False,
    format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="To a topic: blob, vlink, cdr; to an .mcap: as in record.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a .mcap or .vcap once the new one is whole.")] = False,
    blocks: Blocks = False,
    max_bytes: MaxBytes = None,
    depth: Depth = 16,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="How long to wait for FROM (for ever) and for TO (10)."),
    ] = None,
    connect: ZenohConnect = None,
    listen: ZenohListen = None,
    config: Config = None,
    scouting: Scouting = True,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as one JSON document.")] = False,
) -> None:
    """Carry tensors from one place to another: a Unix socket, a topic of Zenoh or iceoryx2, a recording.

    Labels and log times go along where TO has room for them: a link has none for either, a blob none for labels.
    FROM unix: is waited on, TO unix: is gone to. Ends when FROM does (topics have no end), after --count frames, or
    with Ctrl-C. Frames that cannot be believed are counted and passed over; then it leaves with 1.
    """
    ends = _place(origin, is_origin=True), _place(target, is_origin=False)
    if ends[0] == ends[1]:
        raise BadUsage(f"{origin}: from there to the same place nothing needs to be carried")
    reach = Reach(connect, listen, config, scouting).check(*(place.scheme for place in ends))
    asked = _Asked(*ends, reach, Wanted(format, lossy, blocks, max_bytes), rate, force, depth, timeout)
    asked.check()
    receiving = Receiving(None, doing="carrying")
    with ExitStack() as stack:
        rec = stack.enter_context(opened(ends[0].name)) if ends[0].scheme == "file" else None
        source = stack.enter_context(_reached(asked)) if rec is None else _paced(rec, asked)
        outlet = stack.enter_context(_OUTLETS[ends[1].scheme](asked, source))
        try:
            receiving.run(Carried(source, outlet), count, idle=outlet.idle)
        finally:  # Ctrl-C too: a recording is made whole, and what went is worth a summary
            stack.close()
            _report(receiving, asked, source, as_json)
            outlet.complain()
    if rec is not None:
        leave_damaged(ends[0].name, rec)
    if receiving.bad or (isinstance(source, Subscription) and source.counts.refused):
        raise typer.Exit(BAD_DATA)


def _report(receiving: Receiving, asked: _Asked, source: Source, as_json: bool) -> None:
    subscription = source if isinstance(source, Subscription) else None
    if as_json:
        beside = {} if subscription is None else subscription.facts()
        print(to_json({"from": str(asked.origin), "to": str(asked.target), **receiving.facts(), **beside}))
    else:
        receiving.show("carried")
    receiving.complain()
    if subscription is not None:
        subscription.complain()


def _place(text: str, *, is_origin: bool) -> Place:
    """A bare path is a recording where it looks like one, otherwise a socket."""
    path = Path(text)
    is_file = path.suffix.lower() in RECORDINGS or (is_origin and path.is_file())
    return place_of(text, _SCHEMES, "file" if is_file else "unix")


class _Asked(NamedTuple):
    """What is to be carried where."""

    origin: Place
    target: Place
    reach: Reach
    wanted: Wanted
    rate: str | None
    force: bool
    depth: int
    timeout: float | None

    @property
    def recording(self) -> Asked:
        """The recording to write."""
        return Asked(Path(self.target.name), None, self.wanted.format, None)

    def check(self) -> None:
        """BadUsage for what cannot be, before anybody waits."""
        scheme, wanted = self.target.scheme, self.wanted
        for option, value, fits in (
            ("--rate", self.rate is not None, self.origin.scheme == "file"),
            ("--force", self.force, scheme == "file"),
            ("--format", wanted.format is not None, scheme != "unix"),
            ("--block", wanted.blocks, scheme in ENGINES),
            ("--max-bytes", wanted.max_bytes is not None, scheme == "iox2"),
        ):
            if value and not fits:
                raise BadUsage(f"{option} is not for this: see tensorferry bridge --help")
        if scheme == "file":
            self.recording.check(False, self.force)


def _paced(rec: Recording, asked: _Asked) -> Paced:
    name = asked.origin.name
    pace = Rate(asked.rate, "max" if asked.target.scheme == "file" else "recorded")
    factor = 1.0 if pace.recorded else None
    selection = Selection(name, rec, None, None, None)
    playing = Playing(name, selection, factor, pace.hertz, asked.wanted.lossy, as_blobs=False)
    playing.check()
    return Paced(playing.frames(), playing)


def _reached(asked: _Asked) -> AbstractContextManager[Source]:
    return SOURCES[asked.origin.scheme](asked.origin.name, Ends(True, asked.timeout, asked.reach, asked.depth))


# ---- where frames go ----


class _ToLink(Outlet):
    """A link: what is in shared memory goes by reference, everything else inline."""

    def __init__(self, place: Place, link: Link, lossy: bool) -> None:
        super().__init__(place)
        self._link = link
        self._lossy = lossy
        self._frames = 0

    def send(self, tensor: Tensor, log_time: int, timeout: float) -> bool:
        poll = select.poll()
        poll.register(self._link, select.POLLOUT)
        if not poll.poll(timeout * 1000):
            return False
        try:
            try:
                self._link.send(tensor)
            except Lossy:
                fitting, lost = as_blob(tensor, self._lossy)
                self.lost.update(dict.fromkeys(lost))
                self._link.send(fitting, lossy=self._lossy)
        except Lossy as error:
            raise BadData(f"{self.place}: {told(error)}") from None
        except Disconnected as error:
            raise BadData(f"the receiver left after {self._frames:,} frames: {error}") from None
        self._frames += 1
        return True


@contextmanager
def _to_link(asked: _Asked, source: Source) -> Iterator[Outlet]:
    with open_link(asked.target.name, listens=False, timeout=asked.timeout, other="receiver") as link:
        yield _ToLink(asked.target, link, asked.wanted.lossy)


@contextmanager
def _to_topic(asked: _Asked, source: Source) -> Iterator[Outlet]:
    if isinstance(source, Subscription):
        source.refuse_loop(asked.target)
    with Publication(asked.target, asked.reach, asked.wanted) as publication:
        if isinstance(source, Paced):  # what has an end should not go where nobody is
            publication.wait(asked.timeout)
        yield publication


class _ToRecording(Outlet):
    """A new recording, which keeps the log times that the source says."""

    def __init__(self, place: Place, recorder: Recorder) -> None:
        super().__init__(place)
        self._recorder = recorder

    def send(self, tensor: Tensor, log_time: int, timeout: float) -> bool:
        self._recorder.keep(tensor)
        return True

    def idle(self) -> None:
        self._recorder.flush()

    def complain(self) -> None:
        self._recorder.complain()


@contextmanager
def _to_recording(asked: _Asked, source: Source) -> Iterator[Outlet]:
    recorder = Recorder(asked.recording, asked.wanted.lossy, keeps_times=True)
    if isinstance(source, Said):
        recorder.said = source
    with made(asked.recording) as recorder.out:
        yield _ToRecording(asked.target, recorder)


_OUTLETS: dict[str, Callable[[_Asked, Source], AbstractContextManager[Outlet]]] = {
    "unix": _to_link,
    "zenoh": _to_topic,
    "iox2": _to_topic,
    "file": _to_recording,
}
"""What stands before the colon, and how frames go there."""
