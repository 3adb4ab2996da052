"""``tensorferry topics``: which topics there are now."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import Disconnected, Unsupported
from ..net import iceoryx2, zenoh
from .ending import BadUsage, safe
from .engines import ENGINES, Config, Connect, ListenAt, Reach, Scouting, checked_engine
from .look import Facts, to_json
from .words import counted

__all__ = ["topics"]


def topics(
    engine: Annotated[
        str | None,
        typer.Option(metavar="|".join(ENGINES), help="Only this engine's; by default those of all that are installed."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Zenoh: how long to look until there is one.")
    ] = 1.0,
    connect: Connect = None,
    listen: ListenAt = None,
    config: Config = None,
    scouting: Scouting = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document, for programs.")] = False,
) -> None:
    """List the topics that are published now: of Zenoh each publisher, of iceoryx2 each topic of this host.

    Only tensorferry's: what others publish does not say that it is tensors.
    """
    engines = ENGINES if engine is None else (str(checked_engine(engine)),)
    reach = Reach(connect, listen, config, scouting).check(*engines)
    rows: list[Facts] = []
    missing: list[str] = []
    for name in engines:
        try:
            rows += _of_zenoh(reach, timeout) if name == "zenoh" else _of_iox2()
        except Unsupported as error:
            missing.append(str(error))
        except (ValueError, Disconnected) as error:
            raise BadUsage(str(error)) from None
    if len(missing) == len(engines):
        raise BadUsage("; ".join(missing))
    if as_json:
        print(to_json({"topics": rows}))
        return
    names = [safe(f"{row['engine']}:{row['topic']}") for row in rows]
    wide = max(map(len, names), default=0)
    for name, row in zip(names, rows, strict=True):
        print(f"{name:<{wide}}  {_said(row)}")
    if not rows:
        print("no topics")


def _of_zenoh(reach: Reach, timeout: float) -> list[Facts]:
    found = zenoh.topics(timeout=timeout, **reach.settings())
    return [{"engine": "zenoh", "topic": one.name, "format": one.format, "session": one.session} for one in found]


def _of_iox2() -> list[Facts]:
    found = iceoryx2.topics()
    return [{"engine": "iox2", "topic": name, "publishers": pubs, "subscribers": subs} for name, pubs, subs in found]


def _said(row: Facts) -> str:
    if row["engine"] == "zenoh":
        return safe(f"{row['format']}, from {row['session']}")
    return ", ".join(counted(int(str(row[f"{who}s"])), who) for who in ("publisher", "subscriber"))
