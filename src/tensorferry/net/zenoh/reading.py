"""From a message of Zenoh to a tensor, believing nothing that was not checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import blob
from ...errors import Malformed, Unsupported
from ...parts import Buffer
from ...tensor import Tensor
from ..arrivals import Received
from ..attachment import MAX_BYTES as MAX_ATTACHMENT
from ..attachment import Attachment, References, read_attachment
from ..payloads import checked_format, tensor_in
from .encodings import FORMATS, kind_of
from .references import fetched

if TYPE_CHECKING:
    import zenoh

__all__ = ["DEFAULT_MAX_BYTES", "Reader"]

DEFAULT_MAX_BYTES = 1 << 30


class Reader:
    """Reads messages as one subscriber wants them; ``Subscriber`` documents the options."""

    def __init__(self, format: str | None, reference: bool, policy: str, max_bytes: int) -> None:
        self._format = None if format is None else checked_format(format, FORMATS)
        self._reference = reference
        self._policy = policy
        self._max_bytes = max_bytes

    def read(self, sample: zenoh.Sample) -> Received:
        """The tensor in ``sample``. WireError, Unsupported and what ``memory.fetch`` raises are its refusals."""
        size = len(sample.payload)
        if size > self._max_bytes:
            raise Unsupported(
                f"a message of {size} bytes is more than the {self._max_bytes} that are taken (max_bytes)",
                field="max_bytes",
                value=size,
            )
        beside = _attachment(sample.attachment)
        tensor = self._tensor(str(sample.encoding), _own_bytes(sample.payload), beside.references)
        if beside.labels is not None:
            tensor = tensor.replace(labels=beside.labels)
        return Received(str(sample.key_expr), beside.log_time, tensor)

    def _tensor(self, encoding: str, payload: bytes, references: References | None) -> Tensor:
        kind = kind_of(encoding, payload, self._format)
        if kind.format == "cdr":
            from ... import messages  # needs an extra of its own, which those without such topics do without

            return messages.decode(payload, kind.message, by_pid=self._reference, policy=self._policy)
        if references is None or kind.format != "blob":
            return tensor_in(payload, kind.format)
        return self._referred(payload, references)

    def _referred(self, payload: Buffer, references: References) -> Tensor:
        if not self._reference:
            raise Unsupported(
                "this tensor was published by reference: pass reference=True to fetch descriptors of the process that"
                " the message names, or have it published inline (reference=False)",
                field="reference",
            )
        with fetched(payload, references) as table:
            return blob.import_(payload, table, policy=self._policy)


def _attachment(attached: zenoh.ZBytes | None) -> Attachment:
    if attached is None:
        return Attachment()
    if len(attached) > MAX_ATTACHMENT:
        raise Malformed(
            f"an attachment of {len(attached)} bytes is longer than the {MAX_ATTACHMENT} that one can have",
            field="attachment",
            value=len(attached),
        )
    return read_attachment(attached.to_bytes())


def _own_bytes(payload: zenoh.ZBytes) -> bytes:
    """The payload as bytes that nobody can change: one copy, since the binding (1.10) lends no buffer.

    On one host Zenoh passes shared memory. Its sender takes that back from a process that was stopped for some
    100 ms, and may have written the next frame into it: what was copied counts only if it was still ours after.
    """
    data = payload.to_bytes()
    shared = payload.as_shm()
    if shared is not None and not shared.is_valid():
        raise Unsupported(
            "the sender took its shared memory back before this message was read: receive sooner, or turn Zenoh's"
            " shared memory off (transport/shared_memory/enabled)",
            field="payload",
        )
    return data
