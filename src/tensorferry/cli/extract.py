"""``tensorferry extract``: a recording's tensors as files, each whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ..errors import FerryError, Lossy
from ..record import Record
from ..record.files import FORMATS as FILES
from .convert import LOSSY, Pixels, Quality, ToColorimetry
from .ending import BAD_DATA, BadData, BadUsage, complain, safe, told
from .files import check_target, made_folder, write_file
from .formats import FORMATS, as_pixels, colorimetry, encoded, format_for
from .interrupt import Interrupt
from .look import Facts, refused, to_json
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
    progress,
    records,
)
from .words import counted

__all__ = ["extract"]

_NS = 1_000_000_000
_REMEMBERED = 20
_LONGEST = 100  # characters of a topic in a file's name
_NAMINGS = ("number", "time")


def extract(
    recording: RecordingPath,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the files go; made if need be.")],
    to: Annotated[str, typer.Option(metavar="|".join(FORMATS), help="The format to write.")] = "npy",
    topic: Topics = None,
    start: From = None,
    until: Until = None,
    every: Annotated[int, typer.Option(metavar="N", min=1, help="One in N of each topic.")] = 1,
    naming: Annotated[
        str, typer.Option("--names", metavar="number|time", help="Name files TOPIC-000000, or TOPIC-SECONDS.")
    ] = "number",
    pixels: Pixels = None,
    to_colorimetry: ToColorimetry = None,
    quality: Quality = None,
    lossy: Annotated[bool, typer.Option("--lossy", help=LOSSY)] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="What was done as one JSON document.")] = False,
) -> None:
    """Write each tensor of a recording to a file of its own.

    Tensors that have no such file are counted and passed over, damage as well; then it leaves with 1.
    """
    if naming not in _NAMINGS:
        raise BadUsage(f"--names {naming}: it must be number or time")
    if to_colorimetry is not None and pixels is None:
        raise BadUsage("--to-colorimetry says what --pixels makes: give both")
    format = format_for("", to)
    options = {} if quality is None else {"quality": quality}
    wanted = colorimetry(to_colorimetry, "--to-colorimetry")
    with opened(recording) as rec:
        selection = Selection(recording, rec, topic, start, until)
        if naming == "time" and selection.first is None and selection.topics:
            raise BadUsage(f"{recording}: it has no times to name files by")
        suffix = FILES[format].suffixes[0] if to in FORMATS else f".{to}"
        names = _Names(made_folder(out, "--out"), suffix, naming)
        done = _Done(recording)
        seen: dict[str, int] = {}
        try:
            with Interrupt() as interrupt, progress("extracting", selection.count) as step:
                for one in records(recording, selection):
                    interrupt.check()
                    number = seen.get(one.topic, 0)
                    seen[one.topic] = number + 1
                    if number % every == 0:
                        target = names.of(one, number)
                        check_target(target, force)
                        try:
                            tensor, cost = as_pixels(one.tensor, pixels, wanted, lossy=lossy)
                            written = encoded([("", tensor)], format, lossy=lossy, **options)
                        except Lossy as error:
                            raise BadData(f"{recording}: {one.topic} {number}: {told(error)}") from None
                        except FerryError as error:
                            done.refuse(error)
                        else:
                            write_file(target, written.parts, force=force)
                            done.wrote(target, [loss.said for loss in (*cost, *written.lost)])
                    step(1)
        finally:
            if as_json:
                print(to_json({**done.facts(), "damage": damage_facts(damage_of(rec))}))
            else:
                print(safe(f"{recording} → {out}: {counted(done.files, f'{to} file')}, {counted(done.bytes, 'byte')}"))
        done.complain()
        leave_damaged(recording, rec)
        if done.refused:
            raise typer.Exit(BAD_DATA)


class _Names:
    """What the files are called."""

    def __init__(self, folder: Path, suffix: str, naming: str) -> None:
        self._folder = folder
        self._suffix = suffix
        self._naming = naming
        self._stems: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, one: Record, number: int) -> Path:
        """The file for record ``number`` of its topic: no two records have the same."""
        stem = self._stems.get(one.topic)
        if stem is None:
            plain = re.sub(r"\W+", "_", one.topic).strip("_")[:_LONGEST] or "topic"
            stem = _apart(plain, set(self._stems.values()))
            self._stems[one.topic] = stem
        if self._naming == "number":
            return self._folder / f"{stem}-{number:06}{self._suffix}"
        name = _apart(f"{stem}-{one.log_time // _NS}.{one.log_time % _NS:09}", self._taken)
        self._taken.add(name)
        return self._folder / f"{name}{self._suffix}"


def _apart(name: str, taken: set[str]) -> str:
    """``name``, or the first of name_2, name_3 … that is not ``taken``."""
    found, i = name, 1
    while found in taken:
        i += 1
        found = f"{name}_{i}"
    return found


class _Done:
    """What became of the records."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.files = self.bytes = self.refused = 0
        self._refusals: list[FerryError] = []
        self._lost: dict[str, None] = {}

    def wrote(self, target: Path, lost: list[str]) -> None:
        self.files += 1
        self.bytes += target.stat().st_size
        self._lost.update(dict.fromkeys(lost))

    def refuse(self, error: FerryError) -> None:
        self.refused += 1
        if len(self._refusals) < _REMEMBERED:
            self._refusals.append(error)

    def facts(self) -> Facts:
        return {
            "recording": self.path,
            "files": self.files,
            "bytes": self.bytes,
            "left_behind": list(self._lost),
            "refused": self.refused,
            "refusals": [refused(error) for error in self._refusals],
        }

    def complain(self) -> None:
        if self._lost:
            complain(f"{self.path}: left behind: {', '.join(self._lost)}")
        if self._refusals:
            first = told(self._refusals[0])
            complain(f"{self.path}: {counted(self.refused, 'record')} passed over, the first: {first}")
