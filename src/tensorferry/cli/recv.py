"""``tensorferry recv``: tensors from a process on this host, counted, timed and saved."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Annotated, Protocol

import typer

from .. import blob
from ..errors import Disconnected, EndOfStream, FerryError, TimedOut
from ..tensor import Tensor
from .ending import BAD_DATA, complain, safe, told
from .ends import Listens, SocketPath, Timeout, open_link
from .files import made_folder, write_file
from .flow import Flow, live
from .interrupt import Interrupt
from .look import Facts, refused, to_json
from .words import counted, described

__all__ = ["Receiving", "Source", "recv"]

_TICK = 0.25
_REMEMBERED = 20


def recv(
    socket: SocketPath,
    save: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write each frame to a numbered file in DIR, made if need be.")
    ] = None,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Leave after N frames.")] = None,
    listens: Listens = True,
    timeout: Timeout = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as one JSON document.")] = False,
) -> None:
    """Receive tensors over a Unix socket from `tensorferry send`, or anyone else who has a link.

    Ends when the sender does, after --count frames, or with Ctrl-C.
    Saved files are whole blobs, numbered on from the highest number in DIR.
    Damaged frames are counted and passed over; then it leaves with 1.
    """
    folder = None if save is None else _Folder(save)
    receiving = Receiving(None if folder is None else folder.save)
    with open_link(socket, listens=listens, timeout=timeout, other="sender") as link:
        try:
            receiving.run(link, count)
        finally:  # Ctrl-C too: what came is worth a summary
            _report(receiving, socket, folder, as_json)
    if receiving.bad:
        raise typer.Exit(BAD_DATA)


def _report(receiving: Receiving, socket: str, folder: _Folder | None, as_json: bool) -> None:
    if as_json:
        saved = None if folder is None else folder.saved
        print(to_json({"socket": socket, **receiving.facts(), "saved": saved}))
    else:
        receiving.show("received")
        if folder is not None:
            print(safe(f"saved {counted(folder.saved, 'file')} in {folder.path}"))
    receiving.complain()


class Source(Protocol):
    """Where frames come from: a link, or what receives as one does."""

    def recv(self, timeout: float | None = None) -> Tensor:
        """The next frame. TimedOut where none comes; EndOfStream behind the last."""


class Receiving:
    """Frames as they come, good and bad; each good one is given to ``keep``, and counted once that is done."""

    def __init__(self, keep: Callable[[Tensor], None] | None, *, doing: str = "receiving") -> None:
        self.flow = Flow()
        self.bad = 0
        self.refusals: list[FerryError] = []
        self.kinds: dict[str, int] = {}
        self._keep = keep
        self._doing = doing
        self._ended = False

    def run(self, source: Source, count: int | None, *, idle: Callable[[], None] = lambda: None) -> None:
        """Take frames until ``source`` ends, or until there are ``count``. ``idle`` is called between frames."""
        with live(self.flow, self._doing) as follow, Interrupt() as interrupt:
            while not self._ended and (count is None or self.flow.frames < count):
                follow()
                interrupt.check()
                idle()
                try:
                    tensor = source.recv(_TICK)
                except TimedOut:
                    continue
                except EndOfStream:
                    return
                except FerryError as error:
                    self._refuse(error)
                    continue
                with tensor:
                    self._take(tensor)

    def _take(self, tensor: Tensor) -> None:
        try:
            if self._keep is not None:
                self._keep(tensor)
        except FerryError as error:
            self._refuse(error)
            return
        self.flow.passed(tensor.nbytes, by_reference=tensor.storage != "mem")
        kind = described(tensor)
        if kind in self.kinds or len(self.kinds) < _REMEMBERED:
            self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def _refuse(self, error: FerryError) -> None:
        before = self.refusals[-1] if self.refusals else None
        # What ended the stream is raised again by every later recv: the same message, not one like it.
        if before is not None and before.args[0] is error.args[0]:
            self._ended = True
            return
        self._ended = isinstance(error, Disconnected)
        self.bad += 1
        if len(self.refusals) == _REMEMBERED:
            self.refusals.pop()
        self.refusals.append(error)

    def facts(self) -> Facts:
        """The whole, for programs."""
        refusals = [refused(error) for error in self.refusals]
        return {**self.flow.facts(), "kinds": self.kinds, "bad": self.bad, "refusals": refusals}

    def show(self, done: str) -> None:
        """The whole, for people."""
        print(f"{done} {self.flow.summary()}")
        for kind, number in self.kinds.items():
            print(safe(f"  {number:,} × {kind}"))

    def complain(self) -> None:
        """Say what was passed over, if anything was."""
        if self.bad:
            complain(f"{counted(self.bad, 'bad frame')} passed over, the first: {told(self.refusals[0])}")


class _Folder:
    """Where frames are saved: each whole, under the next number."""

    def __init__(self, path: str) -> None:
        self.path = made_folder(path, "--save")
        self.saved = 0
        taken = [re.fullmatch(r"(\d+)\.blob", name) for name in os.listdir(self.path)]
        self._number = max((int(match[1]) for match in taken if match), default=0)

    def save(self, tensor: Tensor) -> None:
        write_file(self.path / f"{self._number + 1:06}.blob", blob.export_parts(tensor))
        self._number += 1
        self.saved += 1
