"""Every exception that tensorferry raises on purpose.

Three families, so that a caller can tell whose fault it is: ``WireError`` for bytes that cannot be
believed, ``Unsupported`` for what is believed but cannot be represented or reached here, ``Lossy`` for a
conversion that would drop something. The five kinds of ``WireError`` are those of the blob's seed page
(``BlobError``); the VLink envelope uses the same five.
"""

from __future__ import annotations

__all__ = [
    "Closed",
    "Disconnected",
    "EndOfStream",
    "FerryError",
    "FetchRefused",
    "ForgedLength",
    "InUse",
    "InvalidUtf8",
    "Lossy",
    "Malformed",
    "NoSuchDescriptor",
    "ProcessGone",
    "TimedOut",
    "Truncated",
    "Unsupported",
    "UnsupportedRequirement",
    "WireError",
]


class FerryError(Exception):
    """The root of every error that tensorferry raises on purpose.

    ``field`` names what is at fault in the wire format's or the API's own words, ``value`` is what was
    found there; either may be None where there is nothing to name.
    """

    def __init__(self, message: str, *, field: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.field = field
        self.value = value


class WireError(FerryError, ValueError):
    """Bytes that cannot be believed; one of the five kinds below says why.

    ``offset`` is the byte at which the refused field stands, counted from the start of the blob or the
    envelope, where one place is to blame. ``need`` and ``have`` are byte counts.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: object = None,
        offset: int | None = None,
        need: int | None = None,
        have: int | None = None,
    ) -> None:
        super().__init__(message, field=field, value=value)
        self.offset = offset
        self.need = need
        self.have = have


class Truncated(WireError):
    """Fewer bytes are there than the format needs: ``need`` and ``have`` say how many."""


class UnsupportedRequirement(WireError):
    """The producer asks for something that this reader does not know how to honour."""


class ForgedLength(WireError):
    """A length or count, named by ``field``, that does not fit the bytes in hand."""


class InvalidUtf8(WireError):
    """The text ``field`` is not UTF-8."""


class Malformed(WireError):
    """The bytes fit but contradict each other or the format, at ``field``."""


class Unsupported(FerryError):
    """Believed, but it cannot be represented or reached here; the message says what to do."""


class Lossy(FerryError):
    """A conversion that would drop something; ``fields`` names everything that would be lost."""

    def __init__(self, message: str, *, fields: tuple[str, ...], value: object = None) -> None:
        super().__init__(message, field=fields[0] if fields else None, value=value)
        self.fields = fields


class Closed(FerryError, ValueError):
    """A tensor, a link or a buffer that is used after it was closed."""


class InUse(FerryError, BufferError):
    """Something that cannot be closed yet, because views over its memory are alive, or that another process writes."""


class EndOfStream(FerryError, EOFError):
    """The other side closed after its last whole message; nothing more will come."""


class Disconnected(FerryError, ConnectionError):
    """The other side is gone, or this side was closed: nothing can be sent, or a message came only in part."""


class TimedOut(FerryError, TimeoutError):
    """Nothing came, or nothing was free, within the time that the caller gave."""


class ProcessGone(FerryError, ProcessLookupError):
    """No process has the pid any more: whatever it shared is out of reach."""


class FetchRefused(FerryError, PermissionError):
    """The kernel does not let this process take descriptors of that one."""


class NoSuchDescriptor(FerryError, LookupError):
    """The process is there, but has no such descriptor (any more)."""
