"""``tensorferry inspect``: one tensor, byte by byte and value by value."""

from __future__ import annotations

from typing import Annotated

import typer

from ..fields import UNREAD
from .ending import BAD_DATA, BadUsage, NotATensor, complain, told
from .hexdump import dump
from .inputs import Input, Piece, open_input, pick
from .look import Look, to_json
from .show import output, show, show_list, show_title

__all__ = ["inspect"]


def inspect(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of blobs or one VLink tensor; - is stdin.")],
    dumped: Annotated[bool, typer.Option("--hex", help="Dump the bytes, each in the colour of its field.")] = False,
    whole: Annotated[bool, typer.Option("--all", help="With --hex: payloads whole, not only their ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
    index: Annotated[int | None, typer.Option(metavar="N", help="Which of several blobs, from 0.")] = None,
) -> None:
    """Show what a tensor says: header, shape, strides, quantization, planes, labels, values.

    Several blobs end to end are listed; --index N shows one of them.
    What is refused is shown as far as it can be read.
    """
    if as_json and (dumped or whole):
        raise BadUsage("--json and --hex are two answers: ask for one")
    input = open_input(file)
    looks = [Look(piece) for piece in _wanted(input, index)]
    # One blob with something behind it is that blob, and a complaint.
    listing = index is None and len(looks) > 1 and not (len(looks) == 2 and looks[1].refusal is not None)
    if as_json:
        tensors = [look.summary() if listing else look.facts() for look in looks]
        print(to_json({"file": input.name, "bytes": len(input.data), "tensors": tensors}))
    elif listing:
        _list(input, looks)
    else:
        _show(input, looks[0], dumped or whole, whole)
    refused = [look for look in looks if look.refusal is not None]
    if refused:
        complain(f"{input.name}: {_complaint(refused)}")
        raise typer.Exit(BAD_DATA)


def _complaint(refused: list[Look]) -> str:
    """The first refusal: what follows a damaged blob is often damaged only by it."""
    look = refused[0]
    assert look.refusal is not None
    which = f"blob {look.piece.index} at {look.piece.offset:#x}: " if look.piece.index else ""
    more = f"; {len(refused) - 1} more are refused" if len(refused) > 1 else ""
    return f"{which}{told(look.refusal)}{more}"


def _wanted(input: Input, index: int | None) -> list[Piece]:
    return list(input.pieces()) if index is None else [pick(input, index)]


def _list(input: Input, looks: list[Look]) -> None:
    console = output()
    console.print(f"[bold]{len(looks)} blobs[/], --index N shows one\n")
    show_list(console, looks)


def _show(input: Input, look: Look, dumped: bool, everything: bool) -> None:
    if isinstance(look.refusal, NotATensor) or all(field.name == UNREAD for field in look.fields):
        return
    console = output()
    show_title(console, input, look)
    if dumped:
        console.print()
        dump(console, look.piece.data, look.fields, look.wrong, everything=everything)
    else:
        show(console, look)
    if look.refusal is not None:
        console.print()
