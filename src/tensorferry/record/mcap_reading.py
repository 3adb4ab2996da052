"""An MCAP file as a recording: which channels hold tensors, and the tensors in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from mcap.records import Channel, Schema

from ..errors import FerryError, WireError
from .mcap_file import McapFile, Message, Tally, sum_tallies
from .payloads import Payload, named, recognised
from .record import Damage, Record, Recording, TopicInfo

__all__ = ["McapRecording"]

Naming = Callable[[Channel, "Schema | None"], "Payload | None"]
"""What a channel's messages are, by what the file says of it; None where their bytes must be asked."""


class McapRecording(Recording):
    """An MCAP file, open for reading: see ``open_mcap``.

    ``complete`` is False where the file has no footer, as a crash leaves it.
    """

    def __init__(self, file: McapFile, *, strict: bool = True, naming: Naming | None = None) -> None:
        """Takes ``file`` over."""
        self._file = file
        self._strict = strict
        self._naming = naming or _by_names
        self._payloads: dict[int, tuple[Channel, Payload]] = {}
        self._damage: dict[int, Damage] = {}

    @property
    def complete(self) -> bool:
        return self._file.complete

    def __iter__(self) -> Iterator[Record]:
        """Records in the file's order; WireError or Unsupported at damage with ``strict``, passed over without."""
        return self.select()

    def select(
        self, topics: Collection[str] | None = None, *, start: int | None = None, end: int | None = None
    ) -> Iterator[Record]:
        """As ``Recording.select``; chunks that have nothing of it are not unpacked."""
        on_damage = self._raise if self._strict else self._note
        wanted = None if topics is None else lambda channel: channel.topic in topics
        for message in self._file.messages(on_damage, self._note, channels=wanted, start=start, end=end):
            read = self._payload(message.channel, message.data).read
            if read is None:
                continue
            try:
                tensor = read(message.data)
            except FerryError as error:
                on_damage(message.offset, len(message.data), _placed(error, message))
                continue
            yield Record(message.channel.topic, message.log_time, message.publish_time, tensor)

    @property
    def topics(self) -> list[TopicInfo]:
        """By the summary and the message indexes, without a payload unpacked; where those are missing, by a scan.

        Damage that a scan meets is listed in ``damage``, not raised.
        """
        tallies = self._file.tallies()
        if tallies is None:
            tallies = self._scan()
        merged: dict[tuple[str, Payload], Tally | None] = {}
        for number, channel in sorted(self._file.channels.items()):
            tally = tallies.get(number)
            key = channel.topic, self._payload(channel, None if tally is None else self._first(number))
            one = merged.get(key)
            merged[key] = sum_tallies(one, tally) if one and tally else one or tally
        return [_info(topic, payload, tally) for (topic, payload), tally in merged.items()]

    @property
    def damage(self) -> Sequence[Damage]:
        """What was passed over so far, and where a file without a footer ends."""
        return tuple(self._damage[offset] for offset in sorted(self._damage))

    @property
    def metadata(self) -> dict[str, dict[str, str]]:
        """The file's metadata records, by name."""
        return self._file.metadata()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> McapRecording:
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self._file.path)!r}>"

    # ---- inside ----

    def _raise(self, offset: int, length: int, error: FerryError) -> None:
        raise error

    def _note(self, offset: int, length: int, error: FerryError) -> None:
        self._damage[offset] = Damage(offset, length, error.with_traceback(None))

    def _payload(self, channel: Channel, first: memoryview | None) -> Payload:
        """What a channel's messages are; ``first`` is one of them, None where there is none at hand."""
        known = self._payloads.get(channel.id)
        if known is not None and known[0] is channel:
            return known[1]
        payload = self._naming(channel, self._file.schemas.get(channel.schema_id))
        if payload is None:
            if first is None:
                return Payload(None, channel.message_encoding, why="there is no message that would say what they are")
            payload = recognised(channel.message_encoding, first)
        self._payloads[channel.id] = channel, payload
        return payload

    def _first(self, number: int) -> memoryview | None:
        """The first message of a channel, where it is needed to tell what the channel holds."""
        channel = self._file.channels[number]
        if self._naming(channel, self._file.schemas.get(channel.schema_id)) is not None:
            return None
        of_it = self._file.messages(self._note, self._note, channels=lambda other: other.id == number)
        return next((message.data for message in of_it), None)

    def _scan(self) -> dict[int, Tally]:
        found: dict[int, Tally] = {}
        for message in self._file.messages(self._note, self._note):
            number, time = message.channel.id, message.log_time
            one = Tally(1, time, time)
            found[number] = sum_tallies(found[number], one) if number in found else one
            if found[number].messages == 1:
                with suppress(FerryError):
                    self._payload(message.channel, message.data)
        return found


def _by_names(channel: Channel, schema: Schema | None) -> Payload | None:
    return named(channel.message_encoding, "" if schema is None else schema.name)


def _placed(error: FerryError, message: Message) -> FerryError:
    if isinstance(error, WireError):
        error.offset = message.offset + (error.offset or 0) if message.exact else message.offset
    return error


def _info(topic: str, payload: Payload, tally: Tally | None) -> TopicInfo:
    count, first, last = (0, None, None) if tally is None else tally
    return TopicInfo(topic, count, payload.kind, payload.encoding, first, last, payload.why)
