"""How the command line ends, and what it says then."""

from __future__ import annotations

import sys

from ..errors import FerryError

__all__ = [
    "BAD_DATA",
    "BAD_USAGE",
    "INTERRUPTED",
    "PIPE_CLOSED",
    "BadData",
    "BadUsage",
    "NotATensor",
    "complain",
    "safe",
    "told",
]

BAD_DATA = 1
"""Bytes were read, and they are no sound tensor, or none that the command can do its work on."""

BAD_USAGE = 2
"""The command could not be done as it was asked: options, paths, permissions."""

INTERRUPTED = 130
PIPE_CLOSED = 141
"""What a shell makes of SIGINT and SIGPIPE."""


class BadUsage(Exception):
    """The message is the one line that the user gets."""


class BadData(Exception):
    """As BadUsage, where the data is to blame."""


class NotATensor(FerryError):
    """Bytes that are plainly something else."""


def complain(message: str) -> None:
    """One line on stderr, behind what was printed before it."""
    sys.stdout.flush()
    print(f"tensorferry: {safe(message)}", file=sys.stderr, flush=True)


def safe(text: str) -> str:
    """``text`` as one printable line: a name or a string from the wire must not steer the terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def told(error: FerryError) -> str:
    """An error as users get it: its kind, what it says, and where."""
    offset = getattr(error, "offset", None)
    where = "" if offset is None else f" (at byte {offset:#x})"
    kind = "" if isinstance(error, NotATensor) else f"{type(error).__name__}: "
    return f"{kind}{error}{where}"
