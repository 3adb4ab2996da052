"""The engines as commands take them: places by their scheme, topics that frames come from, and that they go to."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import typer

from ..errors import Disconnected, EndOfStream, FerryError, Lossy, TimedOut, Unsupported
from ..net import iceoryx2, zenoh
from ..net.arrivals import Counts
from ..net.iceoryx2.publishing import DEFAULT_MAX_BYTES
from ..net.payloads import parts_of
from ..net.zenoh.engine import key_of, load
from ..tensor import Tensor
from .ending import BAD_DATA, BadData, BadUsage, complain, told
from .ends import CONNECT_SECONDS, open_link
from .flow import Flow, status
from .formats import encoded, missing_extra
from .interrupt import Interrupt
from .look import Facts, refused
from .recv import Receiving, Source
from .send import Frames
from .words import counted

__all__ = [
    "ENGINES",
    "RECORDINGS",
    "SOURCES",
    "Blocks",
    "Carried",
    "Config",
    "Connect",
    "Depth",
    "Ends",
    "Engine",
    "ListenAt",
    "MaxBytes",
    "Outlet",
    "Paced",
    "Place",
    "Publication",
    "Reach",
    "Said",
    "Scouting",
    "Subscription",
    "Wanted",
    "ZenohConnect",
    "ZenohListen",
    "asked",
    "checked_engine",
    "place_of",
    "publish",
    "topic_of",
]

ENGINES = ("zenoh", "iox2")
"""Zenoh across hosts, iceoryx2 on one."""

RECORDINGS = (".tblob", ".mcap", ".vcap", ".vdb", ".vcapx", ".vdbx")
"""What recordings' names end in, where files of other kinds are taken too."""

_TICK = 0.25
_FOUND_SECONDS = 0.5
_TAKEN = {"zenoh": zenoh.FORMATS, "iox2": iceoryx2.FORMATS}
_HOST_ONLY = {"scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}}}

_CONNECT = "Zenoh: a peer or router, such as tcp/192.168.1.2:7447; may be repeated."
_LISTEN = "Zenoh: where to listen; may be repeated."

Engine = Annotated[
    str | None,
    typer.Option(metavar="|".join(ENGINES), help="The engine, where TOPIC does not say; by default zenoh."),
]
Connect = Annotated[list[str] | None, typer.Option("--connect", metavar="ENDPOINT", help=_CONNECT)]
ListenAt = Annotated[list[str] | None, typer.Option("--listen", metavar="ENDPOINT", help=_LISTEN)]
ZenohConnect = Annotated[list[str] | None, typer.Option("--zenoh-connect", metavar="ENDPOINT", help=_CONNECT)]
ZenohListen = Annotated[list[str] | None, typer.Option("--zenoh-listen", metavar="ENDPOINT", help=_LISTEN)]
Config = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE|JSON5", help="Zenoh's configuration; by default ZENOH_CONFIG's, or its own."
    ),
]
Scouting = Annotated[
    bool, typer.Option("--scouting/--no-scouting", help="Zenoh: look for others on the network, or only where told.")
]
Depth = Annotated[int, typer.Option("--depth", metavar="N", min=1, help="Messages that may wait here unread.")]
Blocks = Annotated[
    bool, typer.Option("--block", help="Wait for a network or subscribers that are slow, instead of dropping.")
]
MaxBytes = Annotated[
    int | None,
    typer.Option("--max-bytes", metavar="BYTES", min=0, help="iceoryx2: the largest tensor; by default 16 MiB."),
]


# ---- places ----


class Place(NamedTuple):
    """Where frames come from or go to."""

    scheme: str
    name: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.name}"


def place_of(text: str, known: Collection[str], default: str) -> Place:
    """What ``text`` names: SCHEME:NAME with a scheme that is ``known``, or NAME of the ``default`` scheme."""
    match = re.fullmatch(r"([a-z][a-z0-9+.-]*):(.*)", text, re.DOTALL)
    if match is None:
        return Place(default, text)
    if match[1] not in known:
        schemes = ", ".join(f"{scheme}:" for scheme in known)
        raise BadUsage(
            f"{text}: {match[1]}: is none of {schemes} (./{text} is a path, {default}:{text} says it in full)"
        )
    if not match[2]:
        raise BadUsage(f"{text} names nothing: say what behind the colon")
    return Place(match[1], match[2])


def topic_of(text: str, engine: str | None) -> Place:
    """The topic that ``text`` names, with its engine in front or in ``engine``."""
    checked_engine(engine)
    place = place_of(text, ENGINES, engine or ENGINES[0])
    if engine not in (None, place.scheme):
        raise BadUsage(f"{text} is not for --engine {engine}: leave one of the two away")
    return place


def checked_engine(engine: str | None) -> str | None:
    """``engine`` as --engine says it. BadUsage for one that is not known."""
    if engine is not None and engine not in ENGINES:
        raise BadUsage(f"--engine {engine}: it must be one of {', '.join(ENGINES)}")
    return engine


@contextmanager
def asked() -> Iterator[None]:
    """BadUsage for what an engine cannot be asked, or where it cannot be had."""
    try:
        yield
    except (ValueError, Unsupported, Disconnected, TimedOut) as error:
        raise BadUsage(str(error)) from None


class _Closable(Protocol):
    def close(self) -> None: ...


_End = TypeVar("_End", bound=_Closable)


def _whole(open: Callable[[], _End]) -> _End:
    """What ``open`` opens; Ctrl-C meanwhile waits until it is, and closes it: Zenoh aborts where nobody does."""
    with Interrupt() as interrupt:
        with asked():
            end = open()
        try:
            interrupt.check()
        except KeyboardInterrupt:
            end.close()
            raise
    return end


class Reach(NamedTuple):
    """How Zenoh's sessions reach each other, as it was asked."""

    connect: list[str] | None
    listen: list[str] | None
    config: str | None
    scouting: bool

    def check(self, *schemes: str) -> Reach:
        """BadUsage where something is asked for, and nothing among ``schemes`` takes it."""
        if "zenoh" not in schemes and (self.connect or self.listen or self.config is not None or not self.scouting):
            raise BadUsage("endpoints, --config and --no-scouting are Zenoh's: there is none of it here")
        return self

    def settings(self) -> dict[str, Any]:
        """The same as ``net.zenoh`` takes it."""
        config: Any = self.config
        listen: Any = self.listen or None
        if config is not None and not config.lstrip().startswith("{") and not os.path.isfile(config):
            raise BadUsage(f"--config {config}: there is no such file")
        if not self.scouting:
            if config is not None or os.environ.get("ZENOH_CONFIG"):
                raise BadUsage("--no-scouting: say so in the configuration that is given: scouting/multicast/enabled")
            # Nobody could find a place to listen at that nobody was told of.
            config, listen = _HOST_ONLY, listen or ()
        return {"config": config, "connect": self.connect or None, "listen": listen}


def _intersect(one: str, other: str) -> bool:
    """Whether some topic is among both of these key expressions."""
    kind = load().KeyExpr
    return bool(kind(key_of(one, wildcards=True)).intersects(kind(key_of(other, wildcards=True))))


# ---- where frames come from ----


class Said:
    """What a source says beside its last frame."""

    topic: str | None = None
    log_time = 0
    """When it was published, or recorded, in ns; 0 where that is not said."""


class Subscription(Said):
    """A topic as a source of frames. What is refused and dropped is counted, and told by ``complain``."""

    def __init__(self, place: Place, reach: Reach, format: str | None, depth: int) -> None:
        self._place = place
        self._waiting: Tensor | None = None
        _check_format(place, format)
        self._subscriber = _whole(lambda: self._opened(reach, format, depth))

    def _opened(self, reach: Reach, format: str | None, depth: int) -> zenoh.Subscriber | iceoryx2.Subscriber:
        if self._place.scheme == "zenoh":
            return zenoh.Subscriber(self._place.name, format=format, depth=depth, **reach.settings())
        return iceoryx2.Subscriber(self._place.name, format=format, depth=depth)

    def recv(self, timeout: float | None = None) -> Tensor:
        """The next frame; TimedOut where none comes."""
        if self._waiting is not None:
            tensor, self._waiting = self._waiting, None
            return tensor
        received = self._subscriber.receive(timeout)
        if received is None:
            raise TimedOut(f"nothing came from {self._place}")
        self.topic, self.log_time, tensor = received
        return tensor

    def wait(self, timeout: float | None) -> None:
        """Wait until a frame has come. BadUsage where none does for ``timeout`` seconds; None does not wait here."""
        if timeout is None:
            return
        end = time.monotonic() + timeout
        with status(f"waiting for {self._place}"):
            while self._waiting is None:
                left = end - time.monotonic()
                try:
                    self._waiting = self.recv(max(0.0, min(left, _TICK)))
                except TimedOut:
                    if left <= 0:
                        self.complain()
                        raise BadUsage(f"no tensor came from {self._place} within {timeout:g} s") from None

    def refuse_loop(self, target: Place) -> None:
        """BadUsage where what is published under ``target`` would come back here."""
        if target.scheme != self._place.scheme:
            return
        ours, theirs = self._place.name.removeprefix("/"), target.name.removeprefix("/")
        with asked():
            comes_back = ours == theirs or (target.scheme == "zenoh" and _intersect(ours, theirs))
        if comes_back:
            raise BadUsage(f"{target} is among {self._place}: what goes there would come back for ever")

    @property
    def counts(self) -> Counts:
        return self._subscriber.counts

    def facts(self) -> Facts:
        """For programs."""
        counts = self.counts
        last = None if counts.last_refusal is None else refused(counts.last_refusal)
        return {"dropped": counts.dropped, "refused": counts.refused, "last_refusal": last}

    def complain(self) -> None:
        """Say what was dropped and refused, if anything was."""
        counts = self.counts
        if counts.dropped:
            complain(
                f"{self._place}: {counted(counts.dropped, 'message')} dropped: they came faster than they were taken"
            )
        if counts.last_refusal is not None:
            last = told(counts.last_refusal)
            complain(f"{self._place}: {counted(counts.refused, 'message')} refused, the last: {last}")

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *how: object) -> None:
        self._subscriber.close()


def _check_format(place: Place, format: str | None) -> None:
    if format is not None and format not in _TAKEN[place.scheme]:
        raise BadUsage(f"--format {format}: {place.scheme}: knows {', '.join(_TAKEN[place.scheme])}")


class Ends(NamedTuple):
    """How a source is reached."""

    listens: bool
    timeout: float | None
    reach: Reach
    depth: int = 16
    format: str | None = None


def _unix(path: str, ends: Ends) -> AbstractContextManager[Source]:
    return open_link(path, listens=ends.listens, timeout=ends.timeout, other="sender")


@contextmanager
def _engine(place: Place, ends: Ends) -> Iterator[Source]:
    with Subscription(place, ends.reach, ends.format, ends.depth) as subscription:
        subscription.wait(ends.timeout)
        yield subscription


SOURCES: dict[str, Callable[[str, Ends], AbstractContextManager[Source]]] = {
    "unix": _unix,
    "zenoh": lambda name, ends: _engine(Place("zenoh", name), ends),
    "iox2": lambda name, ends: _engine(Place("iox2", name), ends),
}
"""What stands before the colon, and how such a source is opened."""


class Paced(Said):
    """Frames that come when each is due, as a source. ``latest`` is how late one came, in seconds, at the most."""

    def __init__(self, frames: Frames, said: Said | None = None) -> None:
        """``said`` is of the frame that ``frames`` gave last; without it nothing is said."""
        self.latest = 0.0
        self._frames = iter(frames)
        self._said = Said() if said is None else said
        self._next: tuple[float | None, Tensor] | None = None

    def recv(self, timeout: float | None = None) -> Tensor:
        """The next frame; TimedOut where it is not due within ``timeout`` seconds; EndOfStream behind the last."""
        if self._next is None:
            self._next = next(self._frames, None)
            if self._next is None:
                raise EndOfStream("that was the last frame")
        due, tensor = self._next
        if due is not None:
            early = due - time.monotonic()
            if early > 0:
                time.sleep(early if timeout is None else min(early, timeout))
            if timeout is not None and early > timeout:
                raise TimedOut("the next frame is not due yet")
            self.latest = max(self.latest, time.monotonic() - due)
        self._next = None
        self.topic, self.log_time = self._said.topic, self._said.log_time
        # Whoever takes it closes it, and it may have to go again.
        return tensor.replace()


# ---- where frames go ----


class Wanted(NamedTuple):
    """How frames are to be published."""

    format: str | None = None
    lossy: bool = False
    blocks: bool = False
    max_bytes: int | None = None


class Outlet(ABC):
    """Where frames go. ``lost`` is what was left behind because there is no room for it there."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.lost: dict[str, None] = {}

    @abstractmethod
    def send(self, tensor: Tensor, log_time: int, timeout: float) -> bool:
        """Hand a frame on, with its ``log_time`` in ns (0: now); False where that is held up for so long."""

    def idle(self) -> None:  # noqa: B027  most have nothing to do
        """What is to be done between frames."""

    def complain(self) -> None:
        """Say what was left behind, if anything was."""
        if self.lost:
            complain(f"{self.place}: left behind: {', '.join(self.lost)}")


class Publication(Outlet):
    """A topic that frames go to."""

    def __init__(self, place: Place, reach: Reach, wanted: Wanted) -> None:
        super().__init__(place)
        self._wanted = wanted
        self._format = wanted.format or "blob"
        _check_format(place, wanted.format)
        if wanted.max_bytes is not None and place.scheme != "iox2":
            raise BadUsage("--max-bytes is for iox2: only")
        self._publisher = _whole(lambda: self._opened(reach))
        self._since = time.monotonic()
        self._sent = False

    def _opened(self, reach: Reach) -> zenoh.Publisher | iceoryx2.Publisher:
        name, wanted = self.place.name, self._wanted
        if self.place.scheme == "zenoh":
            settings = {**reach.settings(), "congestion_control": "block" if wanted.blocks else None}
            return zenoh.Publisher(name, format=self._format, lossy=wanted.lossy, **settings)
        size = DEFAULT_MAX_BYTES if wanted.max_bytes is None else wanted.max_bytes
        overflow = "block" if wanted.blocks else "drop"
        return iceoryx2.Publisher(name, format=self._format, lossy=wanted.lossy, overflow=overflow, max_bytes=size)

    def wait(self, timeout: float | None) -> None:
        """Wait until somebody subscribes. BadUsage where nobody does for ``timeout`` seconds, None 10."""
        seconds = CONNECT_SECONDS if timeout is None else timeout
        with asked(), status(f"waiting for a subscriber to {self.place}"):
            if not self._publisher.wait_for_subscriber(seconds):
                raise BadUsage(f"nobody subscribed to {self.place} within {seconds:g} s")

    def send(self, tensor: Tensor, log_time: int, timeout: float) -> bool:
        try:
            self._put(self._fitting(tensor), log_time or None, timeout)
        except TimedOut:
            return False
        except (Lossy, Disconnected) as error:
            raise BadData(f"{self.place}: {told(error)}") from None
        except FerryError as error:
            if missing_extra(error):
                raise BadUsage(str(error)) from None
            if error.field == "max_bytes":
                raise BadUsage(f"{error}: give --max-bytes") from None
            raise
        self._sent = True
        return True

    def _put(self, tensor: Tensor, log_time: int | None, timeout: float) -> None:
        if isinstance(self._publisher, zenoh.Publisher):
            self._publisher.publish(tensor, log_time=log_time)
        else:
            self._publisher.publish(tensor, log_time=log_time, timeout=timeout)

    def _fitting(self, tensor: Tensor) -> Tensor:
        """``tensor`` as the format can carry it; labels travel beside a blob, and in a VLink tensor."""
        if self._format == "cdr":  # only its publisher knows
            return tensor
        try:
            parts_of(tensor, self._format)
        except Lossy:
            in_blob = self._format == "blob"
            bare = tensor.replace(labels=None) if in_blob else tensor
            written = encoded([("", bare)], self._format, lossy=self._wanted.lossy)
            self.lost.update(dict.fromkeys(loss.said for loss in written.lost))
            fitting = written.entries[0].tensor
            return fitting.replace(labels=tensor.labels) if in_blob else fitting
        return tensor

    def __enter__(self) -> Publication:
        return self

    def __exit__(self, *how: object) -> None:
        if self.place.scheme == "iox2" and self._sent:
            # A subscriber finds a publisher when it is woken. What it had not found by its end is lost.
            time.sleep(max(0.0, self._since + _FOUND_SECONDS - time.monotonic()))
        self._publisher.close()


class Carried:
    """A source whose frames have gone to ``outlet`` when they come."""

    def __init__(self, source: Source, outlet: Outlet) -> None:
        self._source = source
        self._outlet = outlet
        self._held: Tensor | None = None

    def recv(self, timeout: float | None = None) -> Tensor:
        """The next frame, handed on; TimedOut where none comes, or where it is held up."""
        tensor = self._source.recv(timeout) if self._held is None else self._held
        self._held = tensor
        log_time = self._source.log_time if isinstance(self._source, Said) else 0
        try:
            sent = self._outlet.send(tensor, log_time, _TICK if timeout is None else timeout)
        except FerryError:
            self._held = None
            with tensor:
                raise
        if not sent:
            raise TimedOut("whoever receives is not ready")
        self._held = None
        return tensor


def publish(
    publication: Publication,
    frames: Paced,
    report: Callable[[Flow, float], None],
    *,
    waits: bool,
    timeout: float | None,
    doing: str,
) -> None:
    """Publish ``frames``, each when it is due; ``report`` gets what went by and how late a frame was at the most.

    ``waits`` for a subscriber before, for ``timeout`` seconds, None 10. Leaves with 1 where a frame could not go.
    """
    receiving = Receiving(None, doing=doing)
    with publication:
        if waits:
            publication.wait(timeout)
        try:
            receiving.run(Carried(frames, publication), None)
        finally:
            report(receiving.flow, frames.latest)
            receiving.complain()
            publication.complain()
    if receiving.bad:
        raise typer.Exit(BAD_DATA)
