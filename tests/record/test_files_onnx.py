"""ONNX TensorProtos: the onnx wheel's own test tensors, every type, both ways of storing, and damage."""

from __future__ import annotations

import collections
import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from strategies import arrays, damaged, same_bits

from tensorferry import DType, FerryError, Labels, Lossy, Malformed, Tensor, Unsupported, dumps, loads
from tensorferry.record import files

Array = npt.NDArray[Any]

CARRIED = {
    "FLOAT": DType.FLOAT32,
    "UINT8": DType.UINT8,
    "INT8": DType.INT8,
    "UINT16": DType.UINT16,
    "INT16": DType.INT16,
    "INT32": DType.INT32,
    "INT64": DType.INT64,
    "BOOL": DType.BOOL,
    "FLOAT16": DType.FLOAT16,
    "DOUBLE": DType.FLOAT64,
    "UINT32": DType.UINT32,
    "UINT64": DType.UINT64,
    "BFLOAT16": DType.BFLOAT16,
}


def shipped() -> list[bytes]:
    """Every tensor file of the wheel's backend tests."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    return [path.read_bytes() for path in sorted(folder.rglob("*.pb"))]


def generated() -> Iterator[bytes]:
    """What the wheel's node tests make, as the files that onnx releases before 1.17 shipped them as."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    for case in cases:
        for values in (value for data_set in case.data_sets or () for part in data_set for value in part):
            if isinstance(values, TensorProto):
                yield values.SerializeToString()
            elif isinstance(values, (np.ndarray, np.generic)):
                yield numpy_helper.from_array(np.asarray(values), name=case.name).SerializeToString()


def there_and_back(wire: bytes) -> str | None:
    """The element type of a tensor that went through blob, VLink and pb bit-exactly; None where it is refused."""
    proto = TensorProto.FromString(wire)
    kind: str = TensorProto.DataType.Name(proto.data_type)
    if kind not in CARRIED:
        with pytest.raises(Unsupported, match=kind):
            files.read(wire, format="onnx")
        return None
    ((name, tensor),) = files.read(wire, format="onnx")
    expected = numpy_helper.to_array(proto)
    if kind == "BFLOAT16":
        expected = expected.astype(ml_dtypes.bfloat16)
    assert name == proto.name
    assert tensor.dtype is CARRIED[kind]
    assert same_bits(tensor.numpy(), np.asarray(expected))
    bare = tensor.replace(labels=None)
    for format in ("blob", "vlink"):
        if format == "blob" and tensor.dtype.blob is None:
            with pytest.raises(Lossy):
                dumps(bare, format=format)
            continue
        if format == "vlink" and len(tensor.shape) > 8:
            continue
        back = loads(dumps(bare, format=format))
        assert same_bits(back.numpy(), tensor.numpy())
        again = b"".join(files.encode([(name, back)], "onnx").parts)
        assert same_bits(numpy_helper.to_array(TensorProto.FromString(again)), np.asarray(expected))
    return kind


def test_the_wheels_files() -> None:
    wires = shipped()
    kinds = collections.Counter(there_and_back(wire) for wire in wires)
    assert sum(kinds.values()) - kinds[None] >= 300
    assert {"FLOAT", "DOUBLE", "INT64"} <= set(kinds)


def test_the_wheels_node_tests() -> None:
    kinds = collections.Counter(there_and_back(wire) for wire in generated())
    assert sum(kinds.values()) - kinds[None] >= 5000
    assert set(CARRIED) <= set(kinds)


@given(arrays(list(DType)))
def test_every_tensor(array: Array) -> None:
    tensor = Tensor.from_array(array, labels=Labels(name="x"))
    wire = b"".join(files.encode(tensor, "onnx").parts)
    theirs = TensorProto.FromString(wire)
    assert theirs.name == "x"
    assert same_bits(np.asarray(numpy_helper.to_array(theirs)), np.array(array, order="C"))
    ((name, back),) = files.read(wire, format="onnx")
    assert (name, back.labels) == ("x", Labels(name="x"))
    assert same_bits(back.numpy(), np.array(array, order="C"))


@pytest.mark.parametrize("kind", CARRIED)
def test_typed_fields(kind: str) -> None:
    """The other way of storing: one number of a field for each value."""
    row = CARRIED[kind]
    bits = np.random.default_rng(2).integers(0, 256, 12 * row.size, dtype=np.uint8)
    if kind == "BOOL":
        bits &= 1
    array = bits.view(row.numpy).reshape(3, 4)
    if row.numpy.kind == "f":
        array = np.linspace(-3, 3, 12).astype(row.numpy).reshape(3, 4)
    proto = TensorProto(dims=array.shape, data_type=TensorProto.DataType.Value(kind))
    if kind in ("FLOAT16", "BFLOAT16"):
        proto.int32_data.extend(array.view(np.uint16).ravel().tolist())
    elif kind in ("UINT32", "UINT64"):
        proto.uint64_data.extend(array.ravel().tolist())
    elif kind in ("FLOAT", "DOUBLE", "INT64"):
        field = {"FLOAT": "float_data", "DOUBLE": "double_data", "INT64": "int64_data"}[kind]
        getattr(proto, field).extend(array.ravel().tolist())
    else:
        proto.int32_data.extend(array.ravel().astype(int).tolist())
    ((_, tensor),) = files.read(proto.SerializeToString(), format="onnx")
    assert same_bits(tensor.numpy(), array)


def test_words_beside_the_values_are_carried() -> None:
    proto = numpy_helper.from_array(np.zeros(2, np.float32), "x")
    proto.doc_string = "two zeros"
    proto.metadata_props.add(key="unit", value="m")
    ((_, tensor),) = files.read(proto.SerializeToString(), format="onnx")
    with pytest.raises(Lossy) as caught:
        dumps(tensor)
    assert caught.value.fields == ("labels.name", "onnx.doc_string", "onnx.metadata_props")
    written = files.encode(tensor, "onnx")
    assert list(written.lost) == []
    assert TensorProto.FromString(b"".join(written.parts)) == proto


def test_losses_are_named() -> None:
    tensor = Tensor.image("NV12", 2, 2, np.zeros(6, np.uint8), labels=Labels(name="a", seq=3))
    named = [loss.named for loss in files.encode([("b", tensor)], "onnx").lost]
    assert named == ["format (NV12)", "planes[1] (chroma)", "labels.name", "labels.seq"]


def proto(**fields: Any) -> bytes:
    return bytes(TensorProto(**fields).SerializeToString())


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"\xff\xff\xff",
        proto(dims=[2], data_type=1, raw_data=bytes(7)),
        proto(dims=[2], data_type=1, raw_data=bytes(9)),
        proto(dims=[2], data_type=1, float_data=[1]),
        proto(dims=[2], data_type=1),
        proto(dims=[-1, -2], data_type=1, raw_data=bytes(8)),
        proto(dims=[2**62, 4], data_type=1, raw_data=bytes(8)),
        proto(dims=[0, 2**62], data_type=1),
        proto(dims=[1] * 70, data_type=1, raw_data=bytes(4)),
        proto(dims=[1], data_type=1, raw_data=bytes(4), float_data=[1]),
        proto(dims=[1], data_type=1, double_data=[1]),
        proto(dims=[1], data_type=2, int32_data=[256]),
        proto(dims=[1], data_type=3, int32_data=[-129]),
        proto(dims=[1], data_type=9, int32_data=[2]),
        proto(dims=[1], data_type=10, int32_data=[-1]),
        proto(dims=[1], data_type=12, uint64_data=[2**32]),
        proto(dims=[1], data_type=8, string_data=[b"x"]),
        proto(dims=[1], data_type=99, raw_data=b"x"),
        proto(dims=[1], data_type=1, data_location=TensorProto.EXTERNAL),
        onnx.ModelProto(ir_version=8, producer_name="x").SerializeToString(),
    ],
)
def test_what_is_refused(wire: bytes) -> None:
    with pytest.raises((Malformed, Unsupported)):
        files.read(wire, format="onnx")


@given(st.data(), arrays(list(DType)))
def test_damage(data: st.DataObject, array: Array) -> None:
    wire = b"".join(files.encode(Tensor.from_array(array), "onnx").parts)
    with contextlib.suppress(FerryError):
        files.read(data.draw(damaged(wire)), format="onnx")
