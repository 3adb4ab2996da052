"""What every reader of recordings yields, and what every recording can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from ..closing import Closing
from ..errors import FerryError
from ..tensor import Tensor

__all__ = ["Damage", "Record", "Recording", "TopicInfo"]


class Record(NamedTuple):
    """One recorded tensor. Times are nanoseconds, counted from what the recording counts from; 0 where it has none."""

    topic: str
    log_time: int
    """When it was written down."""
    publish_time: int
    """When its sender sent it."""
    tensor: Tensor


class TopicInfo(NamedTuple):
    """What a recording holds under one name."""

    name: str
    messages: int
    """How many there are, decoded or not."""
    kind: str | None
    """ "blob", "vlink" or "edgefirst_msgs/Tensor" where the payloads are tensors; None where they are not."""
    encoding: str
    """What the recording itself calls the payloads: a schema or serialization type. "" where it does not say."""
    first: int | None
    """Log time of the first message in ns; None where there is no message, or the recording has no times."""
    last: int | None
    undecoded: str | None
    """Why iteration skips this topic, in a sentence for people; None where it does not."""


class Damage(NamedTuple):
    """A stretch of a recording that could not be read, and was passed over."""

    offset: int
    """Bytes from the start of the file."""
    length: int
    """Bytes passed over; 0 where that is not known."""
    error: FerryError


class Recording(Closing, ABC):
    """A recording that is open for reading: iterate it for Records, in the order of the file.

    Every ``iter`` starts again at the first record. Tensors may borrow from the recording's memory, which
    then lives as long as they and their views do, whether the recording is closed or not.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Record]:
        """Records one by one. WireError, its ``offset`` counted from the file's start, at damage."""

    @property
    @abstractmethod
    def topics(self) -> list[TopicInfo]:
        """What is in the recording, those topics included whose payloads are no tensors."""

    @property
    def damage(self) -> Sequence[Damage]:
        """What was passed over so far because it could not be read; empty while all is well."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Let the file go. Closing twice is fine."""

    def select(
        self, topics: Collection[str] | None = None, *, start: int | None = None, end: int | None = None
    ) -> Iterator[Record]:
        """Only records of ``topics`` (None: all) logged from ``start`` on and before ``end`` (ns; None: unbounded)."""
        for record in self:
            if topics is not None and record.topic not in topics:
                continue
            if (start is None or record.log_time >= start) and (end is None or record.log_time < end):
                yield record
