"""``tensorferry get``: the latest tensor of a topic, without a stream."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..errors import Disconnected, FerryError, TimedOut, Unsupported
from ..net import zenoh
from ..tensor import Tensor
from .ending import BadData, BadUsage, complain, safe, told
from .engines import Config, Connect, Engine, ListenAt, Reach, Scouting, topic_of
from .files import check_target, write_file
from .formats import encoded, format_for, missing_extra
from .look import Facts, to_json
from .words import counted, described

__all__ = ["get"]


def get(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic, or zenoh:TOPIC.")],
    out: Annotated[str | None, typer.Argument(metavar="OUT", help="The file to write; its suffix says which.")] = None,
    engine: Engine = None,
    to: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="What OUT is, where its suffix does not say.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(metavar="blob|vlink|cdr", help="Take only this; by default all there is.")
    ] = None,
    lossy: Annotated[bool, typer.Option("--lossy", help="Leave behind what OUT cannot say.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to ask.")] = 5.0,
    connect: Connect = None,
    listen: ListenAt = None,
    config: Config = None,
    scouting: Scouting = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document, for programs.")] = False,
) -> None:
    """Ask for the latest tensor that was published under a topic of Zenoh; say what it is, and write it to OUT.

    Publishers of tensorferry answer as long as they are there; of several the newest counts.
    """
    place = topic_of(topic, engine)
    if place.scheme != "zenoh":
        raise BadUsage(f"{place}: iceoryx2 keeps nothing to ask for: tensorferry sub --count 1 takes the next")
    reach = Reach(connect, listen, config, scouting)
    target = None if out is None else Path(out)
    kind = None
    if target is not None:
        kind = format_for(str(target), to)
        check_target(target, force)
    elif to is not None:
        raise BadUsage(f"--to {to}: it says what OUT is: name one")
    try:
        tensor = zenoh.get(place.name, format=format, timeout=timeout, **reach.settings())
    except (TimedOut, Disconnected) as error:
        raise BadUsage(str(error)) from None
    except FerryError as error:
        if missing_extra(error) or (isinstance(error, Unsupported) and error.field == "zenoh"):
            raise BadUsage(str(error)) from None
        raise BadData(f"{place}: {told(error)}") from None
    except ValueError as error:
        raise BadUsage(str(error)) from None
    if target is not None and kind is not None:
        _write(tensor, target, kind, lossy, force)
    if as_json:
        print(to_json({"topic": str(place), **_facts(tensor), "file": out}))
    else:
        print(safe(f"{place}: {described(tensor)}, {counted(tensor.nbytes, 'byte')}{f' → {out}' * (out is not None)}"))


def _write(tensor: Tensor, target: Path, kind: str, lossy: bool, force: bool) -> None:
    try:
        written = encoded([("", tensor)], kind, lossy=lossy)
    except FerryError as error:
        raise BadData(f"{target}: {told(error)}") from None
    write_file(target, written.parts, force=force)
    if written.lost:
        complain(f"{target}: left behind: {', '.join(loss.said for loss in written.lost)}")


def _facts(tensor: Tensor) -> Facts:
    return {
        "what": described(tensor),
        "dtype": str(tensor.dtype),
        "shape": list(tensor.shape),
        "pixel_format": None if tensor.format is None else str(tensor.format),
        "bytes": tensor.nbytes,
        "labels": None if tensor.labels is None else asdict(tensor.labels),
    }
