"""``tensorferry check``: is every byte of these files as it should be?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..errors import FerryError
from .ending import BAD_DATA, BAD_USAGE, BadUsage, safe, told
from .inputs import open_input
from .look import Facts, refused, to_json
from .show import output
from .words import FORMATS, counted, described

__all__ = ["check"]

_MANY_FILES = 50
_LARGE = 1 << 30


def check(
    files: Annotated[list[str], typer.Argument(metavar="FILES…", help="Files of blobs or VLink tensors; - is stdin.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document, for programs.")] = False,
) -> None:
    """Say of each file whether it is sound, and if not, what is wrong and where.

    A file is sound when each of its blobs is, from the first byte to the last.
    """
    out = output()
    rows: list[Facts] = []
    with _progress(files, out) as done:
        for name in files:
            row = _checked(name)
            rows.append(row)
            if not as_json:
                out.print(_line(row), soft_wrap=True)
            done(bool(row["ok"]))
    if as_json:
        print(to_json({"ok": all(row["ok"] for row in rows), "files": rows}))
    if any(row["unreadable"] for row in rows):
        raise typer.Exit(BAD_USAGE)
    if not all(row["ok"] for row in rows):
        raise typer.Exit(BAD_DATA)


def _checked(name: str) -> Facts:
    """What there is to say of one file; ``refusal`` is the first of its tensors' that was refused."""
    row: Facts = {
        "file": name,
        "ok": False,
        "bytes": None,
        "tensors": 0,
        "what": None,
        "unreadable": None,
        "refusal": None,
    }
    try:
        input = open_input(name)
    except BadUsage as error:
        row["unreadable"] = str(error).removeprefix(f"{name}: ")
        return row
    count = 0
    row["bytes"] = len(input.data)
    for piece in input.pieces():
        try:
            tensor = piece.load()
        except FerryError as error:
            refusal = refused(error)
            refusal.update(index=piece.index, blob_offset=piece.offset, told=told(error))
            row.update(refusal=refusal, tensors=count)
            return row
        if not count:
            row["what"] = f"{FORMATS[piece.format]}, {described(tensor)}"
        count += 1
    row.update(ok=True, tensors=count)
    if count > 1:
        row["what"] = f"{count:,} blobs, the first a {row['what']}"
    return row


def _line(row: Facts) -> Text:
    name = safe(str(row["file"]))
    if row["ok"]:
        size = row["bytes"]
        assert isinstance(size, int)
        return Text.assemble(("ok   ", "green"), f"{name}: {safe(str(row['what']))}, {counted(size, 'byte')}")
    refusal = row["refusal"]
    if isinstance(refusal, dict):
        which = f"blob {refusal['index']} at {refusal['blob_offset']:#x}: " if refusal["index"] else ""
        return Text.assemble(("BAD  ", "bold red"), f"{name}: {which}{safe(refusal['told'])}")
    return Text.assemble(("BAD  ", "bold red"), f"{name}: {safe(str(row['unreadable']))}")


@contextmanager
def _progress(files: list[str], out: Console) -> Iterator[Callable[[bool], None]]:
    """A bar while it takes long, and what was done at the end. Tell what it yields whether a file was sound."""
    if not sys.stderr.isatty() or not _takes_long(files):
        yield lambda ok: None
        return
    # The lines go to stdout: where that is the terminal, the bar must be there too, or they would mix.
    console = out if sys.stdout.isatty() else Console(stderr=True, highlight=False)
    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    sound = 0
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(files))

        def done(ok: bool) -> None:
            nonlocal sound
            sound += ok
            progress.advance(task)

        yield done
    bad = len(files) - sound
    console.print(f"{counted(len(files), 'file')} checked, {f'{bad:,} bad' if bad else 'all sound'}")


def _takes_long(files: list[str]) -> bool:
    if len(files) >= _MANY_FILES:
        return True
    total = 0
    for name in files:
        try:
            total += Path(name).stat().st_size
        except OSError:
            continue
    return total >= _LARGE
