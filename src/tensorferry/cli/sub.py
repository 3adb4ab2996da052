"""``tensorferry sub``: tensors of a topic of Zenoh or iceoryx2, counted, timed, saved or recorded."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from ..errors import FerryError, Lossy
from ..record.files import FORMATS as FILES
from ..tensor import Tensor
from .ending import BAD_DATA, BadData, BadUsage, complain, safe, told
from .engines import (
    Config,
    Connect,
    Depth,
    Engine,
    ListenAt,
    Reach,
    Scouting,
    Subscription,
    topic_of,
)
from .files import made_folder, write_file
from .flow import Flow
from .formats import encoded, format_for, missing_extra
from .look import Facts, to_json
from .record import Asked, Recorder, made
from .recv import Receiving
from .words import counted

__all__ = ["sub"]

_REMEMBERED = 1 << 16
_RECENT = 64


def sub(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic, or zenoh:TOPIC (a/*, a/**), iox2:TOPIC.")],
    engine: Engine = None,
    save: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write each frame to a numbered file in DIR, made if need be.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--record", metavar="OUT", help="Write a .tblob, .mcap or .vcap; see record for more.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="What --save writes (blob), as in convert; or the messages of an .mcap."),
    ] = None,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Leave after N frames.")] = None,
    format: Annotated[
        str | None, typer.Option(metavar="blob|vlink|cdr", help="Take only this; by default all there is.")
    ] = None,
    lossy: Annotated[bool, typer.Option("--lossy", help="Leave behind what the files cannot say.")] = False,
    depth: Depth = 16,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="How long to wait for the first; by default for ever."),
    ] = None,
    connect: Connect = None,
    listen: ListenAt = None,
    config: Config = None,
    scouting: Scouting = True,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as one JSON document.")] = False,
) -> None:
    """Subscribe to a topic of Zenoh or iceoryx2: rate, latency, what was dropped and refused.

    Latency is from the publisher's log time to when the frame is here, by the two hosts' clocks.
    Ends after --count frames, or with Ctrl-C. What cannot be believed is counted and passed over; then it leaves
    with 1.
    """
    place = topic_of(topic, engine)
    reach = Reach(connect, listen, config, scouting).check(place.scheme)
    keeping = _Keeping(save, out, to, lossy)
    receiving = Receiving(keeping.keep)
    receiving.flow = flow = _Flow()
    with ExitStack() as stack:
        subscription = stack.enter_context(Subscription(place, reach, format, depth))
        keeping.follow(flow, subscription)
        subscription.wait(timeout)
        keeping.open(stack)
        try:
            receiving.run(subscription, count, idle=keeping.idle)
        finally:  # Ctrl-C too: what came is worth a summary
            stack.close()
            if as_json:
                facts: Facts = {"topic": str(place), **receiving.facts(), **subscription.facts(), **keeping.facts()}
                print(to_json(facts))
            else:
                receiving.show("received")
                keeping.show()
            receiving.complain()
            subscription.complain()
            keeping.complain()
    if receiving.bad or subscription.counts.refused:
        raise typer.Exit(BAD_DATA)


class _Flow(Flow):
    """Frames with how long each was under way; of the last 65,536 the median is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._latencies: deque[float] = deque(maxlen=_REMEMBERED)
        self._longest_latency = 0.0

    def arrived(self, log_time: int) -> None:
        """A frame that was published at ``log_time`` (ns, 0 unsaid) is here."""
        if log_time:
            latency = (time.time_ns() - log_time) / 1e9
            self._latencies.append(latency)
            self._longest_latency = max(self._longest_latency, latency)

    def facts(self) -> Facts:
        median = statistics.median(self._latencies) if self._latencies else None
        longest = self._longest_latency if self._latencies else None
        return {**super().facts(), "latency_median": median, "latency_longest": longest}

    def summary(self) -> str:
        said = super().summary()
        if self._latencies:
            median = statistics.median(self._latencies)
            said += f"; latency {median * 1e3:,.2f} ms (median), {self._longest_latency * 1e3:,.2f} ms (longest)"
        return said

    def line(self) -> str:
        recent = list(self._latencies)[-_RECENT:]
        return f"{super().line()}  latency {statistics.median(recent) * 1e3:,.2f} ms" if recent else super().line()


class _Keeping:
    """What becomes of frames: files of their own, a recording, or nothing."""

    def __init__(self, save: str | None, out: str | None, to: str | None, lossy: bool) -> None:
        if save is not None and out is not None:
            raise BadUsage("--save and --record: one of the two")
        if to is not None and save is None and out is None:
            raise BadUsage("--to says what --save or --record writes: give one of them")
        self._folder = None if save is None else _Folder(save, to or "blob", lossy)
        self._asked = None if out is None else Asked(Path(out), None, to, None)
        if self._asked is not None:
            self._asked.check(False, False)
        self._recorder = None if self._asked is None else Recorder(self._asked, lossy)

    def follow(self, flow: _Flow, subscription: Subscription) -> None:
        self._flow, self._subscription = flow, subscription
        if self._recorder is not None:
            self._recorder.said = subscription

    def open(self, stack: ExitStack) -> None:
        if self._recorder is not None and self._asked is not None:
            self._recorder.out = stack.enter_context(made(self._asked))

    def keep(self, tensor: Tensor) -> None:
        self._flow.arrived(self._subscription.log_time)
        if self._folder is not None:
            self._folder.save(tensor)
        if self._recorder is not None:
            self._recorder.keep(tensor)

    def idle(self) -> None:
        if self._recorder is not None:
            self._recorder.flush()

    def facts(self) -> Facts:
        facts: Facts = {"saved": None if self._folder is None else self._folder.saved}
        if self._asked is not None:
            facts["recording"] = str(self._asked.target)
        return facts

    def show(self) -> None:
        if self._folder is not None:
            print(safe(f"saved {counted(self._folder.saved, 'file')} in {self._folder.path}"))
        if self._asked is not None:
            print(safe(f"recorded to {self._asked.target}"))

    def complain(self) -> None:
        if self._folder is not None and self._folder.lost:
            complain(f"{self._folder.path}: left behind: {', '.join(self._folder.lost)}")
        if self._recorder is not None:
            self._recorder.complain()


class _Folder:
    """Where frames are saved: each whole, under the next number."""

    def __init__(self, path: str, to: str, lossy: bool) -> None:
        self._format = format_for("", to)
        self._suffix = FILES[self._format].suffixes[0] if to in FILES else f".{to}"
        self.path = made_folder(path, "--save")
        self.saved = 0
        self.lost: dict[str, None] = {}
        self._lossy = lossy
        taken = (re.match(r"(\d+)\.", name) for name in os.listdir(self.path))
        self._number = max((int(match[1]) for match in taken if match), default=0)

    def save(self, tensor: Tensor) -> None:
        """Write a frame. BadData for one that would lose something, without ``lossy``."""
        try:
            written = encoded([("", tensor)], self._format, lossy=self._lossy)
        except Lossy as error:
            raise BadData(f"{self.path}: {told(error)}") from None
        except FerryError as error:
            if missing_extra(error):
                raise BadUsage(str(error)) from None
            raise
        write_file(self.path / f"{self._number + 1:06}{self._suffix}", written.parts)
        self.lost.update(dict.fromkeys(loss.said for loss in written.lost))
        self._number += 1
        self.saved += 1
