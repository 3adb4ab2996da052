"""``tensorferry repair``: what is left of a damaged stream of blobs, as a sound one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .. import record
from ..errors import Unsupported, UnsupportedRequirement
from ..record import BlobStream, Repaired
from .ending import BadData, BadUsage, complain, safe
from .files import check_target
from .flow import sized, status
from .look import Facts, to_json
from .recordings import RecordingPath, damage_facts, damage_said, kind_of, opened, progress
from .words import counted

__all__ = ["repair"]

_BACKUP = ".damaged"
_MOST_SHOWN = 20


def repair(
    recording: RecordingPath,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", help="Where to; by default beside REC, as NAME.repaired.tblob."),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help=f"Take REC's place; the damaged file is kept as REC{_BACKUP}.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="What was done as one JSON document.")] = False,
) -> None:
    """Write every blob of a damaged .tblob that can be read to a sound one, byte for byte.

    The damaged file is never changed. A sound one needs no repair: then nothing is written, but for --out.
    """
    if in_place and (out is not None or force):
        raise BadUsage("--in-place makes the only file there is, and overwrites none: leave --out and --force away")
    source = Path(recording)
    whole, damaged = _looked_at(recording)
    if not damaged and out is None:
        _say(recording, None, None, Repaired(whole, source.stat().st_size, ()), as_json)
        return
    if damaged and not whole:
        raise BadData(f"{recording}: no blob in it can be read: nothing was written")
    target = Path(out) if out is not None else source.with_name(f"{source.stem}.repaired{source.suffix}")
    backup = source.with_name(source.name + _BACKUP) if in_place else None
    if backup is not None and backup.exists():
        raise BadUsage(f"{backup}: it is there already, from another repair: move it away")
    if target.exists() and target.samefile(source):
        raise BadUsage(f"{target}: it is the damaged file itself: --in-place keeps it and takes its place")
    check_target(target, force, instead="move it away" if in_place else "--force overwrites it")
    with _alone(source, in_place), _bar(source) as step:
        done = record.repair(source, target, progress=step)
        if backup is not None:
            _exchange(source, target, backup)
    _say(recording, source if in_place else target, backup, done, as_json)
    if any(isinstance(damage.error, (Unsupported, UnsupportedRequirement)) for damage in done.dropped):
        complain(f"{recording}: keep the damaged file: a later version may read some of what was dropped")


def _looked_at(path: str) -> tuple[int, bool]:
    """How many blobs can be read, and whether anything else is there. BadUsage for other recordings."""
    with opened(path) as recording, status(f"looking at {path}"):
        if not isinstance(recording, BlobStream):
            raise BadUsage(
                f"{path}: {kind_of(path, recording)}: only streams of blobs are repaired; others are read as far as"
                " they go, by ls, extract and play"
            )
        return len(recording), bool(recording.damage)


@contextmanager
def _bar(source: Path) -> Iterator[Callable[[int, int], None]]:
    """Moves a bar on with the megabytes done."""
    done = 0
    with progress("repairing, MB", source.stat().st_size >> 20) as step:

        def follow(at: int, total: int) -> None:
            nonlocal done
            step((at >> 20) - done)
            done = at >> 20

        yield follow


@contextmanager
def _alone(source: Path, in_place: bool) -> Iterator[None]:
    """Keep writers of ``source`` out while another file takes its place. BadUsage where it has one."""
    if not in_place or sys.platform == "win32":
        yield
        return
    import fcntl

    with source.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadUsage(f"{source}: somebody is writing to it: repair it when they are done") from None
        yield


def _exchange(source: Path, repaired: Path, backup: Path) -> None:
    """``source`` becomes ``backup``, and ``repaired`` takes its place: at every moment one of them is there."""
    try:
        os.link(source, backup)
    except FileExistsError:
        raise BadUsage(f"{backup}: it is there already: the repaired stream is {repaired}") from None
    except OSError:  # a file system without links
        source.rename(backup)
    repaired.replace(source)


def _say(recording: str, out: Path | None, backup: Path | None, done: Repaired, as_json: bool) -> None:
    if as_json:
        print(to_json(_facts(recording, out, backup, done)))
        return
    if out is None:
        print(safe(f"{recording}: {counted(done.kept, 'blob')}, nothing to repair"))
        return
    print(safe(f"{recording} → {out}: {counted(done.kept, 'blob')} kept, {sized(done.kept_bytes)}"))
    if backup is not None:
        print(safe(f"the damaged file is {backup}"))
    if done.dropped:
        print(f"dropped {counted(done.dropped_bytes, 'byte')} in {counted(len(done.dropped), 'place')}:")
    for damage in done.dropped[:_MOST_SHOWN]:
        print(safe(f"  {damage_said(recording, damage)}"))
    if len(done.dropped) > _MOST_SHOWN:
        print(f"  and {len(done.dropped) - _MOST_SHOWN:,} more")


def _facts(recording: str, out: Path | None, backup: Path | None, done: Repaired) -> Facts:
    return {
        "recording": recording,
        "out": None if out is None else str(out),
        "backup": None if backup is None else str(backup),
        "kept": done.kept,
        "kept_bytes": done.kept_bytes,
        "dropped_bytes": done.dropped_bytes,
        "dropped": damage_facts(done.dropped),
    }
