"""``.safetensors`` files, through the package of that name.

Names are the tensors' names, the texts of ``__metadata__`` are carried. What an array cannot say (pixel format,
colorimetry, quantization, labels) stands as JSON under the key ``tensorferry`` of ``__metadata__``: see
docs/files.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...dtypes import DType
from ...errors import Malformed, Unsupported
from ...tensor import Tensor
from .entry import Entry, Format, Loss, Notes, Written, named
from .extras import need
from .meaning import Facts, array_of, facts_of, tensor_of, text_of, told

__all__ = ["SAFETENSORS"]

_EXTRA = "record"
_KEY = "tensorferry"
_METADATA = "__metadata__"
_ORIGIN = "safetensors"

_DTYPES = {
    "BOOL": DType.BOOL,
    "I8": DType.INT8,
    "U8": DType.UINT8,
    "I16": DType.INT16,
    "U16": DType.UINT16,
    "I32": DType.INT32,
    "U32": DType.UINT32,
    "I64": DType.INT64,
    "U64": DType.UINT64,
    "F16": DType.FLOAT16,
    "BF16": DType.BFLOAT16,
    "F32": DType.FLOAT32,
    "F64": DType.FLOAT64,
}


def _read(data: memoryview, *, name: str | None = None) -> list[Entry]:
    """Every tensor, or the one called ``name``. They own their memory: the package hands out copies."""
    package = need("safetensors", _EXTRA)
    try:
        found = package.deserialize(bytes(data))
    except package.SafetensorError as error:
        raise Malformed(f"the safetensors file cannot be read: {error}", field="header") from None
    # The package believes the header by now, but hands no metadata on.
    length = int.from_bytes(data[:8], "little")
    metadata: dict[str, str] = json.loads(bytes(data[8 : 8 + length])).get(_METADATA) or {}
    text = metadata.pop(_KEY, "")
    facts = told(text, [key for key, _ in found]) if text else {}
    notes = Notes(_ORIGIN, metadata)
    entries = [
        Entry(key, notes.on(_tensor(key, tensor, facts.get(key, {})))) for key, tensor in found if name in (None, key)
    ]
    if name is not None and not entries:
        raise Unsupported(f"the file has no tensor {name!r}", field="name", value=name)
    return entries


def _tensor(name: str, found: dict[str, Any], facts: Facts) -> Tensor:
    row = _DTYPES.get(found["dtype"])
    if row is None:
        raise Unsupported(
            f"tensor {name!r} has dtype {found['dtype']}, which no tensor here has; name= picks another",
            field="dtype",
            value=found["dtype"],
        )
    try:
        array = np.frombuffer(found["data"], row.numpy).reshape(found["shape"])
    except (ValueError, OverflowError) as error:
        raise Unsupported(f"NumPy has no array of the shape of {name!r}: {error}", field="shape") from None
    return tensor_of(array, name, facts, named(name))


def _write(entries: Sequence[Entry]) -> Written:
    save = need("safetensors.numpy", _EXTRA).save
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    facts: dict[str, Facts] = {}
    metadata: dict[str, str] = {}
    held, lost = [], []
    for i, (name, tensor) in enumerate(entries):
        label = "" if tensor.labels is None else tensor.labels.name
        key = name or label or f"tensor_{i}"
        if key in arrays or key == _METADATA:
            raise ValueError(f"the name {key!r} is there twice: a safetensors file needs one name for each tensor")
        facts[key] = facts_of(tensor, key)
        arrays[key] = array_of(tensor)
        lost += _merge(metadata, tensor)
        held.append(Entry(key, tensor))
    if text := text_of(facts):
        metadata[_KEY] = text
    return Written([save(arrays, metadata or None)], held, lost)


def _merge(metadata: dict[str, str], tensor: Tensor) -> list[Loss]:
    """Add the texts that ``tensor`` came with; what is lost where files that said different things come together."""
    carried = tensor.carried
    if carried is None:
        return []
    if not isinstance(carried, Notes) or carried.origin != _ORIGIN:
        return [Loss(field) for field in carried.fields]
    lost = []
    for key, value in carried.items.items():
        if metadata.setdefault(key, value) != value:
            lost.append(Loss(f"{_ORIGIN}.{key}", value))
    return lost


def _starts(head: bytes, size: int) -> bool:
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8


SAFETENSORS = Format("a safetensors file", (".safetensors",), _starts, _read, _write, many=True)
