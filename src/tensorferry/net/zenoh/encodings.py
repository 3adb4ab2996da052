"""What a payload is called on the wire, and what a name stands for."""

from __future__ import annotations

from typing import NamedTuple

from ... import wire
from ...errors import Unsupported
from ...messages import definitions
from ...parts import Buffer
from ..payloads import FORMATS as PLAIN

__all__ = ["FORMATS", "Kind", "encoding_of", "kind_of"]

FORMATS = (*PLAIN, "cdr")
"""Formats that a message may have: "blob", "vlink", and "cdr", the messages of EdgeFirst devices."""

_BLOB = "application/x-tensor-blob"
_VLINK = "application/x-vlink-tensor"
_CDR = "application/cdr"
_UNSAID = frozenset({"", "zenoh/bytes", "application/octet-stream"})


class Kind(NamedTuple):
    """What a payload is."""

    format: str
    message: str = "Tensor"
    """Which of the device's messages, of format "cdr"."""


def encoding_of(format: str, *, reference: bool = False) -> str:
    """Zenoh's encoding, schema included, of what a publisher sends."""
    if format == "cdr":
        return f"{_CDR};{definitions.type_name('Tensor')}"
    if format == "vlink":
        return f"{_VLINK};2"
    return f"{_BLOB};{'reference' if reference else 'inline'}"


def kind_of(encoding: str, payload: Buffer, wanted: str | None) -> Kind:
    """What ``payload`` is by its ``encoding``; told by its content where that does not say.

    ``wanted`` is the one format that the subscriber takes, None any. Unsupported for anything else.
    """
    name, _, schema = encoding.partition(";")
    kind = _known(name, schema, payload, wanted)
    if kind is None or wanted not in (None, kind.format):
        takes = f"only {wanted!r} is taken here" if wanted else f"tensors are {_BLOB}, {_VLINK} or {_CDR} with a schema"
        raise Unsupported(f"encoding {encoding!r} is not what is wanted: {takes}", field="encoding", value=encoding)
    return kind


def _known(name: str, schema: str, payload: Buffer, wanted: str | None) -> Kind | None:
    if name == _BLOB:
        return Kind("blob")
    if name == _VLINK:
        return Kind("vlink")
    if name == _CDR:
        message = definitions.kind_of(schema) if schema or wanted != "cdr" else "Tensor"
        return None if message is None else Kind("cdr", message)
    if name in _UNSAID:
        return Kind(wanted or wire.format_of(payload))
    return None
