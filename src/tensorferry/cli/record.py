"""``tensorferry record``: tensors as they come into a recording."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ..errors import FerryError, Lossy, WireError
from ..messages import KINDS
from ..record import append
from ..record.mcap import McapWriter, missing_mcap
from ..record.mcap_output import PART
from ..record.vlink_bags import VcapWriter
from ..tensor import Tensor
from .ending import BAD_DATA, BadData, BadUsage, complain, safe, told
from .ends import Listens, Timeout
from .engines import (
    SOURCES,
    Config,
    Depth,
    Ends,
    Reach,
    Said,
    Scouting,
    Subscription,
    ZenohConnect,
    ZenohListen,
    place_of,
)
from .files import check_target
from .flow import sized
from .formats import encoded, missing_extra
from .look import Facts, to_json
from .recv import Receiving, Source

__all__ = ["WRITERS", "Asked", "Recorder", "made", "record"]

_FORMATS = ("blob", "vlink", *KINDS)
_COMPRESSIONS = {".mcap": ("zstd", "lz4", "none"), ".vcap": ("zstd", "none")}
_FLUSH_SECONDS = 1.0


def record(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="The path of a Unix socket, or unix:PATH, zenoh:TOPIC, iox2:TOPIC.")
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="What to write: a .tblob, .mcap or .vcap.")],
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", help="What to call it; by default OUT's stem (in .vcap: dds://STEM).")
    ] = None,
    format: Annotated[
        str | None, typer.Option(metavar="|".join(_FORMATS), help="In .mcap: what the messages are; by default blob.")
    ] = None,
    compression: Annotated[
        str | None, typer.Option(metavar="zstd|lz4|none", help="In .mcap and .vcap; by default zstd.")
    ] = None,
    appends: Annotated[bool, typer.Option("--append", help="Go on at the end of a .tblob.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a .mcap or .vcap once the new one is whole.")] = False,
    lossy: Annotated[bool, typer.Option("--lossy", help="Leave behind what the recording cannot say.")] = False,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Leave after N frames.")] = None,
    listens: Listens = True,
    timeout: Timeout = None,
    depth: Depth = 16,
    connect: ZenohConnect = None,
    endpoints: ZenohListen = None,
    config: Config = None,
    scouting: Scouting = True,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as one JSON document.")] = False,
) -> None:
    """Record tensors from `tensorferry send` or `play`, anyone else who has a link, or a topic of an engine.

    Log times are those of arrival; a .tblob has none. Ends when the sender does, after --count frames, or with
    Ctrl-C: OUT is whole then. Damaged frames are counted and passed over; then it leaves with 1.
    From an engine the publish times are what publishers said, and topics keep their names. A topic has no end.
    """
    place = place_of(source, SOURCES, "unix")
    reach = Reach(connect, endpoints, config, scouting).check(place.scheme)
    target = Path(out)
    asked = Asked(target, topic, format, compression)
    asked.check(appends, force)
    recorder = Recorder(asked, lossy)
    receiving = Receiving(recorder.keep, doing="recording")
    with ExitStack() as stack:
        if appends:  # what is wrong with the end of a file is said before anybody waits
            recorder.out = stack.enter_context(made(asked))
        origin = stack.enter_context(SOURCES[place.scheme](place.name, Ends(listens, timeout, reach, depth)))
        if isinstance(origin, Said):
            recorder.said = origin
        if not appends:
            recorder.out = stack.enter_context(made(asked))
        try:
            receiving.run(origin, count, idle=recorder.flush)
        finally:  # Ctrl-C too: the recording is made whole, and what came is worth a summary
            stack.close()
            _report(receiving, origin, source, target, as_json)
            recorder.complain()
    if receiving.bad or (isinstance(origin, Subscription) and origin.counts.refused):
        raise typer.Exit(BAD_DATA)


def _report(receiving: Receiving, origin: Source, source: str, target: Path, as_json: bool) -> None:
    size = target.stat().st_size if target.exists() else 0
    subscription = origin if isinstance(origin, Subscription) else None
    if as_json:
        facts: Facts = {"source": source, "recording": str(target), "size": size, **receiving.facts()}
        print(to_json({**facts, **({} if subscription is None else subscription.facts())}))
    else:
        receiving.show("recorded")
        print(safe(f"{target}: {sized(size)}"))
    receiving.complain()
    if subscription is not None:
        subscription.complain()


# ---- what is written ----


class Asked(NamedTuple):
    """The recording that is asked for."""

    target: Path
    topic: str | None
    format: str | None
    compression: str | None

    @property
    def kind(self) -> str:
        return self.target.suffix.lower()

    def check(self, appends: bool, force: bool) -> None:
        """BadUsage for what cannot be, before anybody waits for a sender."""
        stream = self.kind == ".tblob"
        if self.kind not in WRITERS:
            raise BadUsage(f"{self.target}: name a {', '.join(WRITERS)} to record to")
        for option, value, fits in (
            ("--topic", self.topic, not stream),
            ("--format", self.format, self.kind == ".mcap"),
            ("--compression", self.compression, not stream),
            ("--append", appends, stream),
            ("--force", force, not stream),
        ):
            if value and not fits:
                raise BadUsage(f"{option} is not for a {self.kind}: see tensorferry record --help")
        for option, value, known in (
            ("--format", self.format, _FORMATS),
            ("--compression", self.compression, _COMPRESSIONS.get(self.kind, ())),
        ):
            if value is not None and value not in known:
                raise BadUsage(f"{option} {value}: it must be one of {', '.join(known)}")
        instead = "--append goes on at its end" if stream else "--force replaces it"
        check_target(self.target, force or appends, instead=instead)
        if not stream:
            self._check_mcap()

    def _check_mcap(self) -> None:
        try:
            importlib.import_module("mcap.writer")
        except ImportError as error:
            raise BadUsage(str(missing_mcap(error))) from None
        part = self.target.with_name(self.target.name + PART)
        if part.exists():
            raise BadUsage(f"{part}: it is there already, from another recorder or a crash: look at it, then move it")


class _Stamp(NamedTuple):
    """What is written down beside a tensor; ``topic`` None where nobody said one."""

    topic: str | None
    log_time: int
    publish_time: int | None


class _Out(NamedTuple):
    """A recording that is being written. ``wire`` is the format of its tensors, where it is one of the two."""

    write: Callable[[Tensor, _Stamp, bool], object]
    flush: Callable[[], None] | None
    wire: str | None


@contextmanager
def _stream(asked: Asked) -> Iterator[_Out]:
    with append(asked.target) as writer:
        if writer.dropped is not None:
            at, length, why = writer.dropped
            complain(f"{asked.target}: {length:,} bytes at {at:#x}, which a crash left, were taken off: {why}")
        # What was written is the kernel's: there is nothing to flush.
        yield _Out(lambda tensor, stamp, lossy: writer.write(tensor, lossy=lossy), None, "blob")


@contextmanager
def _mcap(asked: Asked) -> Iterator[_Out]:
    format = asked.format or "blob"
    with McapWriter(asked.target, format=format, compression=asked.compression or "zstd") as writer:

        def write(tensor: Tensor, stamp: _Stamp, lossy: bool) -> None:
            topic = asked.topic or stamp.topic or asked.target.stem
            writer.write(topic, tensor, log_time=stamp.log_time, publish_time=stamp.publish_time, lossy=lossy)

        yield _Out(write, writer.flush, format if format in ("blob", "vlink") else None)


@contextmanager
def _vcap(asked: Asked) -> Iterator[_Out]:
    with VcapWriter(asked.target, compression=asked.compression or "zstd", process="tensorferry") as writer:

        def write(tensor: Tensor, stamp: _Stamp, lossy: bool) -> None:
            url = asked.topic or _url(stamp.topic or asked.target.stem)
            writer.write(url, tensor, log_time=stamp.log_time, publish_time=stamp.publish_time, lossy=lossy)

        yield _Out(write, writer.flush, "vlink")


def _url(topic: str) -> str:
    return topic if "://" in topic else f"dds://{topic.lstrip('/')}"


WRITERS: dict[str, Callable[[Asked], AbstractContextManager[_Out]]] = {
    ".tblob": _stream,
    ".mcap": _mcap,
    ".vcap": _vcap,
}


@contextmanager
def made(asked: Asked) -> Iterator[_Out]:
    with ExitStack() as stack:
        try:
            out = stack.enter_context(WRITERS[asked.kind](asked))
        except WireError as error:
            raise BadData(f"{asked.target}: {told(error)}") from None
        except FerryError as error:
            raise BadUsage(str(error)) from None
        yield out


class Recorder:
    """Frames on their way into ``out``; ``said`` is what their source says beside them."""

    out: _Out

    def __init__(self, asked: Asked, lossy: bool, *, keeps_times: bool = False) -> None:
        """``keeps_times`` takes the log times of the source, where it says any, instead of those of arrival."""
        self.said = Said()
        self._asked = asked
        self._lossy = lossy
        self._keeps_times = keeps_times
        self._lost: dict[str, None] = {}
        self._last = 0
        self._flushed = time.monotonic()
        self._unflushed = False

    def keep(self, tensor: Tensor) -> None:
        """Write a frame that has just come. BadData for one that a recording cannot carry without ``lossy``."""
        stamp = self._stamp()
        try:
            try:
                self.out.write(tensor, stamp, False)
            except Lossy as error:
                self.out.write(self._reduced(tensor, error), stamp, True)
        except Lossy as error:
            raise BadData(f"{self._asked.target}: {told(error)}") from None
        except FerryError as error:
            if missing_extra(error):
                raise BadUsage(str(error)) from None
            raise
        self._unflushed = True

    def _stamp(self) -> _Stamp:
        said = self.said
        if self._keeps_times and said.log_time:
            return _Stamp(said.topic, said.log_time, None)
        # Somebody may set the clock back: recordings do not go back.
        self._last = max(self._last, time.time_ns())
        return _Stamp(said.topic, self._last, said.log_time or None)

    def _reduced(self, tensor: Tensor, error: Lossy) -> Tensor:
        """``tensor`` as the recording can carry it."""
        if self.out.wire is None:
            if not self._lossy:
                raise Lossy(f"{error}: --lossy leaves behind what can be", fields=error.fields)
            self._lost.update(dict.fromkeys(error.fields))
            return tensor
        written = encoded([("", tensor)], self.out.wire, lossy=self._lossy)
        self._lost.update(dict.fromkeys(loss.said for loss in written.lost))
        return written.entries[0].tensor

    def flush(self) -> None:
        """Hand over what came, once a second: it then survives this process."""
        now = time.monotonic()
        if self._unflushed and self.out.flush is not None and now - self._flushed >= _FLUSH_SECONDS:
            self.out.flush()
            self._flushed, self._unflushed = now, False

    def complain(self) -> None:
        if self._lost:
            complain(f"{self._asked.target}: left behind: {', '.join(self._lost)}")
