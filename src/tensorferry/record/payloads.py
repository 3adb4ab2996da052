"""What the messages of a recording are: told by the names that go with them, or by their bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

from .. import blob, messages, vlink
from ..errors import FerryError, Unsupported
from ..messages.definitions import codec, kind_of
from ..tensor import Tensor
from ..wire import format_of

__all__ = ["BLOB_ENCODING", "VLINK_ENCODING", "VLINK_TENSOR", "Payload", "named", "recognised"]

BLOB_ENCODING = "tensor-blob"
"""The message encoding of blobs, as our MCAP files have it."""

VLINK_ENCODING = "zerocopy"
"""The message encoding of VLink's own containers, as VLink writes it."""

VLINK_TENSOR = "vlink::zerocopy::Tensor"
"""VLink's name of the container that is a tensor."""

# MCAP's registry: payloads that say what they are, and are not tensors of ours.
_FOREIGN = frozenset({"ros1", "protobuf", "flatbuffer", "flatbuffers", "capnproto", "cbor", "msgpack", "json"})

Read = Callable[[memoryview], Tensor]


class Payload(NamedTuple):
    """What one topic's messages are. ``read`` is None where they are not decoded, and ``why`` says why."""

    kind: str | None
    encoding: str
    read: Read | None = None
    why: str | None = None


BLOB = Payload("blob", BLOB_ENCODING, blob.import_)
VLINK = Payload("vlink", VLINK_TENSOR, vlink.import_)


def named(encoding: str, schema: str) -> Payload | None:
    """What the message encoding and the schema's name tell; None where the bytes must be asked."""
    said = schema or encoding
    if encoding == BLOB_ENCODING:
        return BLOB._replace(encoding=said)
    if schema == VLINK_TENSOR:
        return VLINK
    if encoding == "cdr":
        return _cdr(schema)
    if encoding in _FOREIGN:
        return Payload(None, said, why=f"{said} messages ({encoding}) are no tensors that are read here")
    if schema:
        return Payload(None, said, why=f"{said} is no tensor that is read here")
    return None


def recognised(encoding: str, first: memoryview) -> Payload:
    """What a topic's first message is, which nothing names: a tensor only where it is one from first to last byte."""
    try:
        if format_of(first) == "vlink":
            vlink.import_(first)
            return VLINK._replace(encoding=encoding)
        if blob.parse_header(first).size == len(first):
            blob.import_(first)
            return BLOB._replace(encoding=encoding)
    except FerryError:
        pass
    said = f"its encoding, {encoding!r}, is unknown here" if encoding else "nothing says what they are"
    return Payload(None, encoding, why=f"{said}, and the first message is neither a blob nor a VLink envelope")


@cache  # so that channels of one type are of one payload
def _cdr(schema: str) -> Payload:
    kind = kind_of(schema)
    if kind is None:
        return Payload(None, schema, why=f"{schema or 'CDR without a schema'} is no message that holds a tensor")
    name = f"edgefirst_msgs/{kind}"
    try:
        codec()
    except Unsupported as error:
        return Payload(name, schema, why=str(error))
    # Tensors in a recording may carry what labels cannot say: that is no reason to lose them.
    return Payload(name, schema, partial(messages.decode, kind=kind, lossy=True))
