"""``tensorferry record``: tensors as they come into a recording."""

from __future__ import annotations

import importlib
import re
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
from .ends import Listens, Timeout, open_link
from .files import check_target
from .flow import sized
from .formats import encoded, missing_extra
from .look import to_json
from .recv import Receiving, Source

__all__ = ["record"]

_FORMATS = ("blob", "vlink", *KINDS)
_COMPRESSIONS = {".mcap": ("zstd", "lz4", "none"), ".vcap": ("zstd", "none")}
_FLUSH_SECONDS = 1.0


class _Ends(NamedTuple):
    """How a source is reached."""

    listens: bool
    timeout: float | None


def _unix(path: str, ends: _Ends) -> AbstractContextManager[Source]:
    return open_link(path, listens=ends.listens, timeout=ends.timeout, other="sender")


_SOURCES: dict[str, Callable[[str, _Ends], AbstractContextManager[Source]]] = {"unix": _unix}
"""What stands before the colon, and how such a source is opened. A bare path is a Unix socket's."""


def record(
    source: Annotated[str, typer.Argument(metavar="SOCKET", help="The path of a Unix socket, or unix:PATH.")],
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
    as_json: Annotated[bool, typer.Option("--json", help="The summary as one JSON document.")] = False,
) -> None:
    """Record tensors from `tensorferry send` or `play`, or anyone else who has a link.

    Log times are those of arrival; a .tblob has none. Ends when the sender does, after --count frames, or with
    Ctrl-C: OUT is whole then. Damaged frames are counted and passed over; then it leaves with 1.
    """
    reach, place = _source(source)
    target = Path(out)
    asked = _Asked(target, topic, format, compression)
    asked.check(appends, force)
    recording = _Recording(asked, lossy)
    receiving = Receiving(recording.keep, doing="recording")
    with ExitStack() as stack:
        if appends:  # what is wrong with the end of a file is said before anybody waits
            recording.out = stack.enter_context(_opened(asked))
        link = stack.enter_context(reach(place, _Ends(listens, timeout)))
        if not appends:
            recording.out = stack.enter_context(_opened(asked))
        try:
            receiving.run(link, count, idle=recording.flush)
        finally:  # Ctrl-C too: the recording is made whole, and what came is worth a summary
            stack.close()
            _report(receiving, source, target, as_json)
            recording.complain()
    if receiving.bad:
        raise typer.Exit(BAD_DATA)


def _source(name: str) -> tuple[Callable[[str, _Ends], AbstractContextManager[Source]], str]:
    match = re.fullmatch(r"([a-z][a-z0-9+.-]*):(.*)", name)
    if match is None:
        return _SOURCES["unix"], name
    if match[1] not in _SOURCES:
        known = ", ".join(f"{scheme}:" for scheme in _SOURCES)
        raise BadUsage(f"{name}: {match[1]}: is no source here: there is {known} (./{name} is a path)")
    return _SOURCES[match[1]], match[2]


def _report(receiving: Receiving, source: str, target: Path, as_json: bool) -> None:
    size = target.stat().st_size if target.exists() else 0
    if as_json:
        print(to_json({"source": source, "recording": str(target), "size": size, **receiving.facts()}))
    else:
        receiving.show("recorded")
        print(safe(f"{target}: {sized(size)}"))
    receiving.complain()


# ---- what is written ----


class _Asked(NamedTuple):
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
        if self.kind not in _WRITERS:
            raise BadUsage(f"{self.target}: name a {', '.join(_WRITERS)} to record to")
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


class _Out(NamedTuple):
    """A recording that is being written. ``wire`` is the format of its tensors, where it is one of the two."""

    write: Callable[[Tensor, int, bool], object]
    flush: Callable[[], None] | None
    wire: str | None


@contextmanager
def _stream(asked: _Asked) -> Iterator[_Out]:
    with append(asked.target) as writer:
        if writer.dropped is not None:
            at, length, why = writer.dropped
            complain(f"{asked.target}: {length:,} bytes at {at:#x}, which a crash left, were taken off: {why}")
        # What was written is the kernel's: there is nothing to flush.
        yield _Out(lambda tensor, time, lossy: writer.write(tensor, lossy=lossy), None, "blob")


@contextmanager
def _mcap(asked: _Asked) -> Iterator[_Out]:
    topic, format = asked.topic or asked.target.stem, asked.format or "blob"
    with McapWriter(asked.target, format=format, compression=asked.compression or "zstd") as writer:
        wire = format if format in ("blob", "vlink") else None
        yield _Out(
            lambda tensor, time, lossy: writer.write(topic, tensor, log_time=time, lossy=lossy), writer.flush, wire
        )


@contextmanager
def _vcap(asked: _Asked) -> Iterator[_Out]:
    url = asked.topic or f"dds://{asked.target.stem}"
    with VcapWriter(asked.target, compression=asked.compression or "zstd", process="tensorferry") as writer:
        yield _Out(
            lambda tensor, time, lossy: writer.write(url, tensor, log_time=time, lossy=lossy), writer.flush, "vlink"
        )


_WRITERS: dict[str, Callable[[_Asked], AbstractContextManager[_Out]]] = {
    ".tblob": _stream,
    ".mcap": _mcap,
    ".vcap": _vcap,
}


@contextmanager
def _opened(asked: _Asked) -> Iterator[_Out]:
    with ExitStack() as stack:
        try:
            out = stack.enter_context(_WRITERS[asked.kind](asked))
        except WireError as error:
            raise BadData(f"{asked.target}: {told(error)}") from None
        except FerryError as error:
            raise BadUsage(str(error)) from None
        yield out


class _Recording:
    """Frames on their way into ``out``."""

    out: _Out

    def __init__(self, asked: _Asked, lossy: bool) -> None:
        self._asked = asked
        self._lossy = lossy
        self._lost: dict[str, None] = {}
        self._last = 0
        self._flushed = time.monotonic()
        self._unflushed = False

    def keep(self, tensor: Tensor) -> None:
        """Write a frame that has just come. BadData for one that a recording cannot carry without ``lossy``."""
        # Somebody may set the clock back: recordings do not go back.
        self._last = max(self._last, time.time_ns())
        try:
            try:
                self.out.write(tensor, self._last, False)
            except Lossy as error:
                self.out.write(self._reduced(tensor, error), self._last, True)
        except Lossy as error:
            raise BadData(f"{self._asked.target}: {told(error)}") from None
        except FerryError as error:
            if missing_extra(error):
                raise BadUsage(str(error)) from None
            raise
        self._unflushed = True

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
