"""``tensorferry recv``: tensors from a process on this host, counted, timed and saved."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .. import blob
from ..errors import Disconnected, EndOfStream, FerryError, TimedOut
from ..link import Link
from ..parts import Buffer
from ..tensor import Tensor
from .ending import BAD_DATA, BadUsage, complain, safe, told
from .ends import Listens, SocketPath, Timeout, open_link
from .flow import Flow, live
from .interrupt import Interrupt
from .look import Facts, refused, to_json
from .words import counted, described

__all__ = ["recv"]

_TICK = 0.25
_REMEMBERED = 20
_TEMPORARY = ".tensorferry-part"


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
    receiving = _Receiving(folder)
    with open_link(socket, listens=listens, timeout=timeout, other="sender") as link:
        try:
            receiving.run(link, count)
        finally:  # Ctrl-C too: what came is worth a summary
            receiving.report(socket, as_json)
    if receiving.bad:
        raise typer.Exit(BAD_DATA)


class _Receiving:
    """Frames as they come, good and bad."""

    def __init__(self, folder: _Folder | None) -> None:
        self.flow = Flow()
        self.folder = folder
        self.bad = 0
        self.refusals: list[FerryError] = []
        self.kinds: dict[str, int] = {}
        self._ended = False

    def run(self, link: Link, count: int | None) -> None:
        with live(self.flow, "receiving") as follow, Interrupt() as interrupt:
            while not self._ended and (count is None or self.flow.frames < count):
                follow()
                interrupt.check()
                try:
                    with link.recv(_TICK) as tensor:
                        self._take(tensor)
                except TimedOut:
                    continue
                except EndOfStream:
                    return
                except FerryError as error:
                    self._refuse(error)

    def _take(self, tensor: Tensor) -> None:
        if self.folder is not None:
            self.folder.save(blob.export_parts(tensor))
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

    def report(self, socket: str, as_json: bool) -> None:
        saved = None if self.folder is None else self.folder.saved
        if as_json:
            facts: Facts = {"socket": socket, **self.flow.facts(), "kinds": self.kinds, "saved": saved, "bad": self.bad}
            print(to_json({**facts, "refusals": [refused(error) for error in self.refusals]}))
        else:
            print(f"received {self.flow.summary()}")
            for kind, number in self.kinds.items():
                print(safe(f"  {number:,} × {kind}"))
            if self.folder is not None:
                print(safe(f"saved {counted(self.folder.saved, 'file')} in {self.folder.path}"))
        if self.bad:
            first = self.refusals[0]
            complain(f"{counted(self.bad, 'bad frame')} passed over, the first: {told(first)}")


class _Folder:
    """Where frames are saved: each whole, under the next number."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.saved = 0
        try:
            self.path.mkdir(exist_ok=True)
            # Asking for permissions would believe file systems that are read-only, and root.
            tempfile.TemporaryFile(dir=self.path).close()
            taken = [re.fullmatch(r"(\d+)\.blob", name) for name in os.listdir(self.path)]
        except FileExistsError:
            raise BadUsage(f"{path}: it is a file: --save needs a directory") from None
        except OSError as error:
            raise BadUsage(f"{path}: it cannot be written to: {(error.strerror or str(error)).lower()}") from None
        self._number = max((int(match[1]) for match in taken if match), default=0)

    def save(self, parts: Sequence[Buffer]) -> None:
        """Write a file beside its place, and put it there once it is whole."""
        target = self.path / f"{self._number + 1:06}.blob"
        beside = target.with_name(f".{target.name}.{os.getpid()}{_TEMPORARY}")
        try:
            with beside.open("xb") as file:
                for part in parts:
                    file.write(part)
            beside.replace(target)
        except OSError as error:
            raise BadUsage(f"{target}: {(error.strerror or str(error)).lower()}") from None
        finally:
            beside.unlink(missing_ok=True)
        self._number += 1
        self.saved += 1
