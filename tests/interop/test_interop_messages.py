"""Messages that edgefirst-schemas wrote are read whole, and ours are read by it: every plane mode and quantization."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import BLOB_DTYPES, bare_tensors, images

import tensorferry as ferry
from tensorferry import DType, PixelFormat, Quantization, Tensor, messages
from tensorferry.blob import TransportMode

schemas = pytest.importorskip("edgefirst.schemas")
msgs = schemas.edgefirst_msgs

QUANTIZATIONS: list[dict[str, Any]] = [
    {},
    {"quant_axis": -1, "quant_scales": [0.5]},
    {"quant_axis": -1, "quant_scales": [0.5], "quant_zero_points": [-3]},
    *({"quant_axis": axis, "quant_scales": [0.25 * (i + 1) for i in range(n)]} for axis, n in ((0, 2), (1, 3), (2, 4))),
    {"quant_axis": 1, "quant_scales": [1.0, 2.0, 3.0], "quant_zero_points": [1, -2, 2**31 - 1]},
]
VALUES = np.arange(24, dtype=np.int8).reshape(2, 3, 4)
FIELDS = [
    "storage_kind", "pid", "fence_fd", "dtype", "quant_axis", "shape", "strides", "quant_scales", "quant_zero_points",
    "format", "color_space", "color_transfer", "color_encoding", "color_range", "num_planes",
]  # fmt: skip


def wrapped(kind: str, tensor: Any) -> bytes:
    if kind == "Tensor":
        return bytes(tensor.to_bytes())
    stamp = schemas.builtin_interfaces.Time(sec=5, nanosec=7)
    return bytes(getattr(msgs, kind)(stamp=stamp, frame_id="cam", seq=9, tensor=tensor).to_bytes())


@pytest.mark.parametrize("kind", messages.KINDS)
@pytest.mark.parametrize("strides", [[], [12, 4, 1]])
@pytest.mark.parametrize("quantization", QUANTIZATIONS, ids=str)
def test_inline_as_the_package_wrote_it(kind: str, strides: list[int], quantization: dict[str, Any]) -> None:
    plane = msgs.TensorPlane(data=VALUES.tobytes(), size=24, used=24, stride=24)
    wire = wrapped(kind, msgs.Tensor(dtype=1, shape=[2, 3, 4], strides=strides, planes=[plane], **quantization))
    tensor = messages.decode(wire, kind)
    assert tensor.numpy().tolist() == VALUES.tolist()
    assert tensor.strides_given is bool(strides)
    if quantization:
        assert tensor.quantization is not None
        assert tensor.quantization.scales.tolist() == quantization["quant_scales"]
        points = tensor.quantization.zero_points
        assert (None if points is None else points.tolist()) == quantization.get("quant_zero_points")
        assert tensor.quantization.axis == (None if quantization["quant_axis"] < 0 else quantization["quant_axis"])
    else:
        assert tensor.quantization is None
    if kind != "Tensor":
        assert tensor.labels == ferry.Labels(frame_id="cam", seq=9, time_meas=5_000_000_007)
    assert messages.encode(tensor, kind) == wire


@pytest.mark.parametrize("kind", messages.KINDS)
@pytest.mark.parametrize("row", [row for row in DType if row.blob is not None])
def test_every_element_type_as_the_package_reads_it(kind: str, row: DType) -> None:
    array = np.arange(6).astype(row.numpy).reshape(2, 3)
    quantization = Quantization([0.5, 1, 2], [1, 2, 3], axis=1)
    message = getattr(msgs, kind).from_cdr(messages.encode(Tensor.from_array(array, quantization=quantization), kind))
    theirs = message if kind == "Tensor" else message.tensor
    assert (theirs.dtype, theirs.shape) == (row.blob, [2, 3])
    assert theirs.strides == list(array.strides)
    assert (theirs.quant_axis, theirs.quant_scales, theirs.quant_zero_points) == (1, [0.5, 1, 2], [1, 2, 3])
    assert bytes(theirs.plane_data(0).view()) == array.tobytes()
    assert theirs.planes[0].is_inline
    assert (theirs.pid, theirs.fence_fd, theirs.storage_kind) == (0, -1, 0)


@pytest.mark.parametrize("format", list(PixelFormat))
def test_every_pixel_format_as_the_package_reads_it(format: PixelFormat) -> None:
    colour = ferry.Colorimetry("bt709", "srgb", "bt601", "limited")
    image = ferry.allocate_image(format, 6, 4)
    for i in range(len(image.planes)):
        image.plane(i)[...] = i + 1
    image = image.replace(colorimetry=colour)
    theirs = msgs.CameraFrame.from_cdr(messages.encode(image, "CameraFrame")).tensor
    assert theirs.format == format
    assert (theirs.color_space, theirs.color_transfer, theirs.color_encoding, theirs.color_range) == (
        "bt709", "srgb", "bt601", "limited",
    )  # fmt: skip
    assert [bytes(theirs.plane_data(i).view()) for i in range(theirs.num_planes)] == [
        bytes(plane.data or b"") for plane in image.planes
    ]


@pytest.mark.parametrize(("kind", "format"), list(itertools.product(messages.KINDS, ["rgb8", "NV12", "rgb8_planar"])))
def test_by_reference_there_and_back(kind: str, format: str) -> None:
    image = ferry.allocate_image(format, 16, 8, storage="shm")
    for i in range(len(image.planes)):
        image.plane(i)[...] = i + 3
    wire = messages.encode(image, kind, mode=TransportMode.REFERENCE)
    message = getattr(msgs, kind).from_cdr(wire)
    theirs = message if kind == "Tensor" else message.tensor
    assert (theirs.pid, theirs.storage_kind) == (os.getpid(), 1)
    assert not any(plane.is_inline or plane.data for plane in theirs.planes)
    back = messages.decode(wire, kind, by_pid=True)
    assert all((back.plane(i) == i + 3).all() for i in range(len(back.planes)))


def test_a_message_is_the_blob_field_for_field() -> None:
    image = ferry.allocate_image("NV16", 8, 6).replace(quantization=Quantization(0.5, 3))
    theirs = msgs.Tensor.from_cdr(messages.encode(image))
    view = ferry.blob.BlobView.parse(ferry.dumps(image))
    ours = {**view.header._asdict(), **view.strings._asdict(), "shape": list(view.shape), "strides": list(view.strides)}
    ours |= {"quant_scales": [0.5], "quant_zero_points": [3], "num_planes": 2}
    assert {field: getattr(theirs, field) for field in FIELDS} == {field: ours[field] for field in FIELDS}
    for mine, plane in zip(view.planes, theirs.planes, strict=True):
        for field in ("handle", "offset", "stride", "size", "used", "modifier"):
            assert getattr(mine, field) == getattr(plane, field), field
        assert bytes(mine.data) == plane.data


@given(images() | bare_tensors(BLOB_DTYPES), st.sampled_from(messages.KINDS))
def test_our_bytes_are_the_packages(tensor: Tensor, kind: str) -> None:
    """Planes are laid into the message here: as the package lays them."""
    if tensor.format is None:
        tensor = tensor.replace(colorimetry=None)
    tensor = tensor.replace(labels=None if kind == "Tensor" else ferry.Labels(frame_id="camera", seq=3, time_meas=7))
    view = ferry.blob.BlobView.parse(ferry.dumps(tensor, lossy=True))
    fields = {**view.header._asdict(), **view.strings._asdict()}
    theirs = msgs.Tensor(
        shape=list(view.shape),
        strides=list(view.strides),
        quant_scales=view.quantization.scales.tolist(),
        quant_zero_points=view.quantization.zero_points.tolist(),
        planes=[msgs.TensorPlane(stride=p.stride, size=p.size, used=p.used, data=bytes(p.data)) for p in view.planes],
        **{name: value for name, value in fields.items() if name in FIELDS},
    )
    if kind != "Tensor":
        stamp = schemas.builtin_interfaces.Time(sec=0, nanosec=7)
        theirs = getattr(msgs, kind)(stamp=stamp, frame_id="camera", seq=3, tensor=theirs)
    assert messages.encode(tensor, kind) == theirs.to_bytes()


def test_the_definition_is_that_of_the_bytes() -> None:
    """Decoded by the definition's text alone, as a stranger's tool would."""
    text = messages.definition("Tensor")
    fields = [line.split()[1] for line in text.split("=" * 80)[0].splitlines()]
    assert fields == [name for name in FIELDS if name != "num_planes"] + ["planes"]
    planes = [line.split()[1] for line in text.split("MSG: edgefirst_msgs/TensorPlane\n")[1].splitlines()]
    assert planes == ["handle", "offset", "stride", "size", "used", "modifier", "handle_bytes", "data"]
    assert "MSG: builtin_interfaces/Time" in messages.definition("CameraFrame")
