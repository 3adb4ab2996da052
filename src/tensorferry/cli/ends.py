"""The two ends of a socket, as ``send`` and ``recv`` take them."""

from __future__ import annotations

import os
import stat
from typing import Annotated

import typer

from ..errors import Disconnected, TimedOut, Unsupported
from ..link import Link, Listener, connect
from .ending import BadUsage
from .flow import status

__all__ = ["CONNECT_SECONDS", "Listens", "SocketPath", "Timeout", "open_link"]

CONNECT_SECONDS = 10.0

SocketPath = Annotated[str, typer.Argument(metavar="SOCKET", help="The path of a Unix socket.")]
Listens = Annotated[
    bool, typer.Option("--listen/--connect", help="Make SOCKET and wait for the other side, or go to it.")
]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="How long to wait for the other side to appear: with --listen for ever, otherwise 10.",
        show_default=False,
    ),
]


def open_link(path: str, *, listens: bool, timeout: float | None, other: str) -> Link:
    """A link over the socket at ``path``; ``other`` says who is waited for. BadUsage where it cannot be had."""
    try:
        if listens:
            with Listener(path) as listener, status(f"waiting on {path} for a {other}"):
                return listener.accept(timeout)
        _check_is_socket(path)
        with status(f"waiting for a {other} on {path}"):
            return connect(path, CONNECT_SECONDS if timeout is None else timeout)
    except (Unsupported, Disconnected, TimedOut) as error:
        raise BadUsage(str(error)) from None


def _check_is_socket(path: str) -> None:
    """What is no socket refuses connections as a socket does on which nobody listens yet."""
    try:
        mode = os.stat(path).st_mode
    except OSError:  # connecting says why, or it comes to be there
        return
    if not stat.S_ISSOCK(mode):
        raise BadUsage(f"{path}: it is {'a directory' if stat.S_ISDIR(mode) else 'a file'}, not a socket")
