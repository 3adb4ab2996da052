"""ONNX TensorProto files (``.pb``), through the ``onnx`` package.

A TensorProto's name is the tensor's ``labels.name``. Its doc_string and metadata_props are carried, for another
TensorProto.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...dtypes import DType
from ...errors import Malformed, Unsupported
from ...tensor import Tensor
from .entry import Entry, Format, Notes, Written, dense, named, unsaid
from .extras import need

__all__ = ["ONNX"]

Array = npt.NDArray[Any]

_EXTRA = "record"
_ORIGIN = "onnx"
_LARGEST = (1 << 31) - 1  # a protobuf message
_LONGEST_EXTRAS = 1 << 16  # names and the like beside the values, with room to spare


class _Row(NamedTuple):
    """An element type: its ``TensorProto.DataType``, and where its values stand when they are no raw_data."""

    dtype: DType
    code: int
    field: str
    stored: npt.DTypeLike
    """What one number of ``field`` holds: the value, or its bits."""


# onnx.proto, TensorProto: "float_data", "int32_data" and so on say which types they hold, and how.
_ROWS = {
    row.code: row
    for row in (
        _Row(DType.FLOAT32, 1, "float_data", "<f4"),
        _Row(DType.UINT8, 2, "int32_data", "<u1"),
        _Row(DType.INT8, 3, "int32_data", "<i1"),
        _Row(DType.UINT16, 4, "int32_data", "<u2"),
        _Row(DType.INT16, 5, "int32_data", "<i2"),
        _Row(DType.INT32, 6, "int32_data", "<i4"),
        _Row(DType.INT64, 7, "int64_data", "<i8"),
        _Row(DType.BOOL, 9, "int32_data", "<u1"),
        _Row(DType.FLOAT16, 10, "int32_data", "<u2"),
        _Row(DType.FLOAT64, 11, "double_data", "<f8"),
        _Row(DType.UINT32, 12, "uint64_data", "<u4"),
        _Row(DType.UINT64, 13, "uint64_data", "<u8"),
        _Row(DType.BFLOAT16, 16, "int32_data", "<u2"),
    )
}
_CODES = {row.dtype: code for code, row in _ROWS.items()}
_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


def _read(data: memoryview) -> list[Entry]:
    onnx = need("onnx", _EXTRA)
    proto = onnx.TensorProto()
    try:
        proto.ParseFromString(bytes(data))
    # protobuf has a class of errors for each of its implementations.
    except Exception as error:
        raise Malformed(f"no TensorProto can be read: {error}", field="protobuf") from None
    if not proto.data_type:
        raise Malformed(
            "the protobuf message has no data_type: it is no TensorProto (a model, perhaps)", field="data_type"
        )
    row = _ROWS.get(proto.data_type)
    if row is None:
        known = {value: key for key, value in onnx.TensorProto.DataType.items()}
        raise Unsupported(
            f"element type {known.get(proto.data_type, proto.data_type)} is none that a tensor here has",
            field="data_type",
            value=proto.data_type,
        )
    if proto.external_data or proto.data_location == onnx.TensorProto.EXTERNAL or proto.HasField("segment"):
        raise Unsupported("the values stand in other files: those are not opened", field="data_location")
    array = _values(proto, row, _dims(proto))
    notes = {"doc_string": proto.doc_string} if proto.doc_string else {}
    if len(proto.metadata_props):
        notes["metadata_props"] = [(entry.key, entry.value) for entry in proto.metadata_props]
    tensor = Tensor.from_array(array, labels=named(proto.name))
    return [Entry(proto.name, Notes(_ORIGIN, notes).on(tensor))]


def _dims(proto: Any) -> tuple[int, ...]:
    dims = tuple(proto.dims)
    if any(n < 0 for n in dims):
        raise Malformed(f"dims {list(dims[:8])} has a negative dimension", field="dims", value=dims)
    return dims


def _values(proto: Any, row: _Row, dims: tuple[int, ...]) -> Array:
    """The elements, borrowed from the message's own bytes, or gathered from its numbers."""
    given = [name for name in _FIELDS if len(getattr(proto, name))]
    raw: bytes = proto.raw_data
    if proto.HasField("raw_data") and (raw or not given):
        given.append("raw_data")
    if len(given) > 1 or (given and given[0] not in ("raw_data", row.field)):
        raise Malformed(f"values of {row.dtype} cannot stand in {' and '.join(given)}", field=given[0])
    if given == ["raw_data"]:
        found, unit = len(raw), row.dtype.size
    else:
        found, unit = len(getattr(proto, row.field)), 1
    wanted = math.prod(dims) * unit
    if found != wanted:
        where = given[0] if given else row.field
        raise Malformed(
            f"dims {list(dims[:8])} ask for {wanted:,} {'bytes' if where == 'raw_data' else 'values'},"
            f" {where} has {found:,}",
            field="dims",
            value=dims,
            need=wanted,
            have=found,
        )
    try:
        if given == ["raw_data"]:
            return np.frombuffer(raw, row.dtype.numpy).reshape(dims)
        return _gathered(getattr(proto, row.field), row).reshape(dims)
    except (ValueError, OverflowError) as error:
        raise Unsupported(f"NumPy has no array of these dims: {error}", field="dims", value=dims) from None


def _gathered(numbers: Sequence[float], row: _Row) -> Array:
    stored = np.dtype(row.stored)
    if stored.kind == "f":
        return np.array(numbers, stored)
    wide = np.array(numbers, np.uint64 if row.field == "uint64_data" else np.int64)
    limits = np.iinfo(stored)
    low, high = (0, 1) if row.dtype is DType.BOOL else (limits.min, limits.max)
    if wide.size and (int(wide.min()) < low or int(wide.max()) > high):
        raise Malformed(f"{row.field} has numbers that are no {row.dtype}", field=row.field)
    return wide.astype(stored).view(row.dtype.numpy)


def _write(entries: Sequence[Entry]) -> Written:
    onnx = need("onnx", _EXTRA)
    ((name, tensor),) = entries
    label = "" if tensor.labels is None else tensor.labels.name
    key = name or label
    array = dense(tensor)
    if array.nbytes > _LARGEST - _LONGEST_EXTRAS:
        raise Unsupported(
            f"{array.nbytes:,} bytes of values are too many for a protobuf message: 2 GiB is its limit",
            field="raw_data",
        )
    proto = onnx.TensorProto(dims=array.shape, data_type=_CODES[tensor.dtype], raw_data=array.tobytes())
    if key:
        proto.name = key
    carried = tensor.carried
    if isinstance(carried, Notes) and carried.origin == _ORIGIN:
        proto.doc_string = carried.items.get("doc_string", "")
        for prop, value in carried.items.get("metadata_props", ()):
            proto.metadata_props.add(key=prop, value=value)
    lost = unsaid(tensor, keeps={"labels.name"} if key == label else (), origin=_ORIGIN)
    return Written([proto.SerializeToString()], [Entry(key, Tensor.from_array(array, labels=named(label)))], lost)


ONNX = Format("an ONNX TensorProto", (".pb",), lambda head, size: False, _read, _write)
