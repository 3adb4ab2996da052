"""``tensorferry convert``: a tensor from one format into another, with nothing lost in silence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..errors import FerryError
from ..parts import Buffer
from .ending import BadData, BadUsage, complain, safe, told
from .formats import WRITERS, read, write
from .inputs import open_input
from .words import counted, described

__all__ = ["convert"]

STDOUT = "-"
_TEMPORARY = ".tensorferry-part"


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A blob, a VLink tensor or an npy file; - is stdin.")],
    target: Annotated[str, typer.Argument(metavar="OUT", help="The file to write; - is stdout.")],
    to: Annotated[
        str | None, typer.Option(metavar="|".join(WRITERS), help="The format to write; by default, OUT's suffix.")
    ] = None,
    lossy: Annotated[bool, typer.Option("--lossy", help="Leave behind what the format cannot say.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT.")] = False,
    index: Annotated[int | None, typer.Option(metavar="N", help="Which of several blobs, from 0.")] = None,
) -> None:
    """Write the tensor in IN to OUT in another format.

    What the other format cannot say is refused and named; --lossy leaves it behind.
    OUT appears whole or not at all.
    """
    name = _format(target, to)
    if target != STDOUT:
        _check_target(Path(target), force)
    elif sys.stdout.isatty():
        raise BadUsage("stdout is a terminal: redirect it, or name a file")
    input = open_input(source)
    try:
        parts, tensor, lost = write(read(input, index), name, lossy=lossy)
    except FerryError as error:
        raise BadData(f"{input.name}: {told(error)}") from None
    if target == STDOUT:
        for part in parts:
            sys.stdout.buffer.write(part)
    else:
        _write_beside(Path(target), parts, force)
        size = sum(len(part) for part in parts)
        print(safe(f"{input.name} → {target}: {name}, {described(tensor)}, {counted(size, 'byte')}"))
    if lost:
        complain(f"{target}: left behind: {', '.join(lost)}")


def _format(target: str, to: str | None) -> str:
    if to is not None:
        if to not in WRITERS:
            raise BadUsage(f"--to {to}: it must be one of {', '.join(WRITERS)}")
        return to
    suffix = Path(target).suffix.lower()
    for name, writer in WRITERS.items():
        if suffix in writer.suffixes:
            return name
    raise BadUsage(f"{target}: its suffix names no format: add --to {'|'.join(WRITERS)}")


def _check_target(target: Path, force: bool) -> None:
    if target.is_dir():
        raise BadUsage(f"{target}: it is a directory: name the file to write")
    if not target.parent.is_dir():
        raise BadUsage(f"{target}: there is no directory {target.parent}")
    if target.exists() and not force:
        raise BadUsage(f"{target}: it is there already: --force overwrites it")


def _write_beside(target: Path, parts: Sequence[Buffer], force: bool) -> None:
    """Write a file beside ``target`` and put it in its place once it is whole."""
    beside = target.with_name(f".{target.name}.{os.getpid()}{_TEMPORARY}")
    try:
        with beside.open("xb") as file:
            for part in parts:
                file.write(part)
        _check_target(target, force)
        beside.replace(target)
    except OSError as error:
        raise BadUsage(f"{target}: {(error.strerror or str(error)).lower()}") from None
    finally:
        beside.unlink(missing_ok=True)
