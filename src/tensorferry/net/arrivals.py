"""What a subscriber hands out, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..errors import FerryError
from ..tensor import Tensor

__all__ = ["Counts", "Received"]


@dataclass(slots=True)
class Counts:
    """What became of the messages that reached a subscriber, up to when it was asked."""

    received: int = 0
    """Handed out as tensors."""
    dropped: int = 0
    """Let go unread, the oldest first, because this subscriber was slower than its publishers."""
    refused: int = 0
    """Not believed, or not reachable here."""
    last_refusal: FerryError | None = None
    """Why the last of them was refused."""

    def refuse(self, why: FerryError) -> None:
        """One more refusal."""
        self.refused += 1
        # Its frames, and those of what led to it, would keep the message's bytes alive.
        why.__cause__ = why.__context__ = None
        self.last_refusal = why.with_traceback(None)


class Received(NamedTuple):
    """A tensor, with what its message said beside it."""

    topic: str
    """The name it was published under."""
    log_time: int
    """When, in nanoseconds since the Unix epoch by the publisher's clock; 0 where the message does not say."""
    tensor: Tensor
