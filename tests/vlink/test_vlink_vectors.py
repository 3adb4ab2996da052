"""The 26 envelopes that a C++ compiler laid out: what each says, and the same bytes again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorferry import Device, Labels, Quantization, Unsupported, vlink

DATA = Path(__file__).parents[1] / "data" / "vlink"
CASES: list[dict[str, Any]] = json.loads((DATA / "cases.json").read_text())["cases"]
NUMPY = [
    None, np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
    np.float16, ml_dtypes.bfloat16, np.float32, np.float64,
]  # fmt: skip
SIZES = [0, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8]
KNOWN = [case for case in CASES if case["dtype"]]


def names(cases: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case["name"])


def wire(case: dict[str, Any]) -> bytes:
    return DATA.joinpath(str(case["file"])).read_bytes()


def canonical(data: bytes) -> bytes:
    """The envelope as a writer here must write it: our version, no pointer, no owner, an honest element size."""
    out = bytearray(data)
    out[4:8] = (2_001_000).to_bytes(4, "little")
    out[8 + 40 : 8 + 48] = bytes(8)
    out[8 + 239] = 0
    out[8 + 240] = SIZES[out[8 + 236]]
    return bytes(out)


def case(name: str) -> dict[str, Any]:
    return next(case for case in CASES if case["name"] == name)


def test_all_26_are_here() -> None:
    assert len(CASES) == 26


@names(CASES)
def test_container_says_what_the_compiler_laid_out(case: dict[str, Any]) -> None:
    data = wire(case)
    t = vlink.Tensor()
    assert vlink.Tensor.check_valid(data)
    assert t.from_bytes(data) is True
    header = t.header
    assert (header.frame_id, header.seq, header.reserved) == (case["frame_id"], case["seq"], case["reserved"])
    assert (header.time_meas, header.time_pub) == (case["time_meas"], case["time_pub"])
    assert (t.name(), t.model_id(), t.layout()) == (case["tensor_name"], case["model_id"], case["layout"])
    assert (t.shape(), t.strides(), t.rank()) == (case["shape"], case["strides"], case["rank"])
    assert [t.shape_at(i) for i in range(t.rank())] == case["shape"]
    assert [t.stride_at(i) for i in range(t.rank())] == case["strides"]
    for field in ("size", "update_time_ns", "num_elements", "channel", "freq", "batch_size", "quant_zero_point"):
        assert getattr(t, field)() == case[field], field
    assert t.quant_scale() == np.float32(case["quant_scale"])
    assert (t.dtype(), t.device()) == (case["dtype"], case["device"])
    assert t.element_size() == SIZES[case["dtype"]]
    assert (t.reserved, t.reserved2, t.reserved3) == (
        case["reserved_buf"], case["reserved_buf2"], case["reserved_buf3"]
    )  # fmt: skip
    assert bytes(t.data()) == data[256:-4]
    assert not t.is_owner()
    assert t.is_valid() == (case["size"] > 0)
    assert t.get_serialized_size() == len(data)


@names(CASES)
def test_container_writes_the_same_bytes(case: dict[str, Any]) -> None:
    t = vlink.Tensor()
    t.from_bytes(wire(case))
    assert t.to_bytes() == canonical(wire(case))


@names(KNOWN)
def test_import_gives_the_described_tensor(case: dict[str, Any]) -> None:
    data = wire(case)
    t = vlink.import_(data)
    size = SIZES[case["dtype"]]
    assert t.dtype.numpy == np.dtype(NUMPY[case["dtype"]])
    assert t.shape == tuple(case["shape"])
    assert t.strides == tuple(stride * size for stride in case["strides"])
    assert t.strides_given
    assert t.format is None
    assert len(t.planes) == 1
    plane = t.planes[0]
    assert plane.data is not None
    assert bytes(plane.data) == data[256:-4]
    assert plane.data.readonly
    assert plane.stride == plane.size == plane.used == case["size"]
    # The elements, one by one, at the offsets that the strides give.
    flat = np.frombuffer(data[256:-4], np.dtype(f"V{size}"))
    expected = [bytes(flat[int(np.dot(index, case["strides"]))]) for index in np.ndindex(*case["shape"])]
    assert t.numpy().tobytes() == b"".join(expected)


@names(KNOWN)
def test_export_writes_the_same_bytes(case: dict[str, Any]) -> None:
    assert vlink.export(vlink.import_(wire(case))) == canonical(wire(case))


def test_a_tensor_of_unknown_type_is_refused() -> None:
    with pytest.raises(Unsupported) as caught:
        vlink.import_(wire(case("empty")))
    assert (caught.value.field, caught.value.value) == ("dtype", 0)


def test_labels_of_a_new_container_are_none() -> None:
    for plain in ("dtype_float32", "rank8", "zero_sized_dimension", "reserved_bytes_set", "version_2_10_8"):
        assert vlink.import_(wire(case(plain))).labels is None


def test_full_metadata() -> None:
    t = vlink.import_(wire(case("full_metadata")))
    assert t.labels == Labels(
        name="image", model_id="resnet18", layout="NCHW", frame_id="infer", seq=7, time_meas=111111,
        time_pub=222222, update_time_ns=999, channel=2, freq=30, batch_size=1, device=Device.GPU,
    )  # fmt: skip
    assert t.labels is not None
    assert isinstance(t.labels.device, Device)
    assert t.quantization == Quantization.per_tensor(0.025, -128)


def test_quantized_int8() -> None:
    t = vlink.import_(wire(case("quantized_int8")))
    assert t.quantization == Quantization.per_tensor(0.5, -7)
    assert t.labels == Labels(layout="BL", batch_size=2)


def test_unterminated_texts_come_whole() -> None:
    labels = vlink.import_(wire(case("unterminated_strings"))).labels
    assert labels == Labels(
        name="n" * 32, model_id="m" * 32, layout="L" * 16, frame_id="sixteen_chars_16", batch_size=5
    )


def test_reserved_slots_are_carried() -> None:
    carried = vlink.import_(wire(case("reserved_bytes_set"))).carried
    assert isinstance(carried, vlink.Reserved)
    assert carried.fields == ("reserved", "reserved_buf", "reserved_buf2", "reserved_buf3")
    assert carried.reserved == 0x01020304
    assert (carried.reserved_buf, carried.reserved_buf2, carried.reserved_buf3) == (0xAB, 0xCDEF, 0xDEADBEEF)
