"""A tensor as an envelope: what is written, what is refused, what is copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorferry import (
    Closed,
    Colorimetry,
    Device,
    DType,
    Labels,
    Lossy,
    Plane,
    Quantization,
    StorageKind,
    Tensor,
    Unsupported,
    blob,
    vlink,
)
from tensorferry.tensor import Description

Build = Callable[..., bytes]
# In the order of their codes, from 1 on.
NUMPY = [
    np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
    np.float16, ml_dtypes.bfloat16, np.float32, np.float64,
]  # fmt: skip


def lost(tensor: Tensor, *, lossy: bool = False) -> tuple[str, ...]:
    with pytest.raises(Lossy) as caught:
        vlink.export(tensor, lossy=lossy)
    assert all(name in str(caught.value) for name in caught.value.fields)
    return caught.value.fields


def bare(shape: tuple[int, ...], strides: tuple[int, ...] | None, data: bytes, dtype: str = "uint8") -> Tensor:
    """A tensor with the strides (bytes) as a wire might have said them."""
    return Tensor(Description(DType.of(dtype), shape, strides), (Plane(memoryview(data), len(data)),))


# ---- what is written ----


@pytest.mark.parametrize(("code", "dtype"), list(enumerate(NUMPY, start=1)))
def test_every_element_type(build: Build, code: int, dtype: Any) -> None:
    array = (np.arange(6).reshape(2, 3) % 2).astype(dtype)
    assert vlink.export(Tensor.from_array(array)) == build(array.tobytes(), shape=(2, 3), dtype=code)


def test_labels_and_quantization_stand_in_their_fields(build: Build) -> None:
    labels = Labels("n", "m", "L", "f", 1, 2, 3, 4, 5, 6, 7, Device.NPU)
    t = Tensor.from_array(np.zeros(2, np.int8), labels=labels, quantization=Quantization.per_tensor(0.25, -9))
    assert vlink.export(t) == build(
        bytes(2), shape=(2,), dtype=2, name=b"n", model_id=b"m", layout=b"L", frame_id=b"f", seq=1, time_meas=2,
        time_pub=3, update_time_ns=4, channel=5, freq=6, batch_size=7, device=2, quant_scale=0.25, quant_zero_point=-9,
    )  # fmt: skip


def test_a_batch_that_is_not_said_follows_the_shape(build: Build) -> None:
    for shape in ((), (0,), (3, 2)):
        array = np.zeros(shape, np.uint8)
        t = Tensor.from_array(array, labels=Labels(name="x"))
        assert vlink.export(t) == build(array.tobytes(), shape=shape, dtype=3, name=b"x")


def test_a_scalar_has_one_element(build: Build) -> None:
    t = Tensor.from_array(np.array(1.5, np.float64))
    assert vlink.export(t) == build(np.float64(1.5).tobytes(), dtype=13, num_elements=1, batch_size=0)


@pytest.mark.parametrize("shape", [(0,), (4, 0, 3), (2, 3, 0), (1,) * 8, (2, 1, 2)])
def test_shapes_at_the_edge(build: Build, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    assert vlink.export(Tensor.from_array(array)) == build(array.tobytes(), shape=shape, dtype=12)


def test_the_pieces_join_to_the_envelope_and_copy_nothing() -> None:
    array = np.arange(12, dtype=np.uint16).reshape(3, 4)
    t = Tensor.from_array(array)
    parts = vlink.export_parts(t)
    assert b"".join(parts) == vlink.export(t)
    assert [len(part) for part in parts] == [256, 24, 4]
    assert isinstance(parts[1], memoryview)
    assert np.frombuffer(parts[1], np.uint8).ctypes.data == array.ctypes.data


def test_export_into() -> None:
    t = Tensor.from_array(np.arange(5, dtype=np.uint8))
    wire = vlink.export(t)
    buffer = bytearray(300)
    assert vlink.export_into(t, buffer) == 265
    assert buffer == wire + bytes(35)
    assert vlink.export_into(t, memoryview(bytearray(265))) == 265
    short = bytearray(264)
    with pytest.raises(ValueError, match="265"):
        vlink.export_into(t, short)
    assert not any(short)


@pytest.mark.parametrize(
    "view", [np.s_[::-1], np.s_[:, ::2], np.s_[1:, 1:], np.s_[:, None], np.s_[::-1, ::-1]], ids=str
)
def test_arrays_with_gaps_are_packed(build: Build, view: Any) -> None:
    array = np.arange(24, dtype=np.int32).reshape(4, 6)[view]
    assert vlink.export(Tensor.from_array(array)) == build(array.tobytes(), shape=array.shape, dtype=6)


def test_broadcasts_and_transposes_are_packed(build: Build) -> None:
    for array in (np.broadcast_to(np.uint8(7), (2, 3)), np.arange(6, dtype=np.uint8).reshape(2, 3).T):
        t = Tensor.from_array(array, labels=Labels(name="x"))
        assert vlink.export(t) == build(array.tobytes(), shape=array.shape, dtype=3, name=b"x")


def test_strides_that_were_said_are_written(build: Build) -> None:
    assert vlink.export(bare((2, 3), (8, 2), bytes(14), "int16")) == build(
        bytes(14), shape=(2, 3), strides=(4, 1), dtype=4
    )


def test_the_elements_start_at_the_first(build: Build) -> None:
    t = Tensor(Description(DType.UINT8, (2,), (1,)), (Plane(memoryview(b"abcd"), 4),), origin=1)
    assert vlink.export(t) == build(b"bcd", shape=(2,), dtype=3)


def test_blob_to_vlink_to_blob_is_the_identity() -> None:
    t = Tensor.from_array(np.arange(6, dtype=np.int8).reshape(2, 3), quantization=Quantization.per_tensor(0.5, 3))
    for strides_given in (True, False):
        description = Description(t.dtype, t.shape, t.strides if strides_given else None, quantization=t.quantization)
        wire, _ = blob.export(Tensor(description, t.planes))
        crossed = vlink.import_(vlink.export(blob.import_(wire)))
        assert crossed.strides_given == strides_given
        assert blob.export(crossed)[0] == wire


# ---- what is refused ----


def test_quantization_per_channel() -> None:
    for channels in (1, 3):
        t = Tensor.from_array(
            np.zeros((2, channels), np.int8), quantization=Quantization.per_channel(1, [0.5] * channels)
        )
        assert lost(t) == lost(t, lossy=True) == ("quantization",)


def test_a_scale_that_would_read_as_none() -> None:
    for quantization in (Quantization.per_tensor(0.0), Quantization.per_tensor(0.0, 0), Quantization.per_tensor(-0.0)):
        t = Tensor.from_array(np.zeros(2, np.int8), quantization=quantization)
        assert lost(t) == lost(t, lossy=True) == ("quantization",)


def test_images() -> None:
    image = Tensor.image("NV12", 4, 4, np.zeros(24, np.uint8), colorimetry=Colorimetry(range="full"))
    assert lost(image) == lost(image, lossy=True) == ("format", "colorimetry")
    grey = Tensor.image("mono8", 4, 4, np.zeros((4, 4), np.uint8))
    assert lost(grey) == ("format",)


@pytest.mark.parametrize(
    "shape",
    [(1,) * 9, (0, 2**32), (2**32, 0), (2**32 - 1,) * 7 + (2,)],
)
def test_shapes_past_the_struct(shape: tuple[int, ...]) -> None:
    t = bare(shape, None, b"")
    assert lost(t) == lost(t, lossy=True) == ("shape",)


@pytest.mark.parametrize(
    ("shape", "strides", "dtype"),
    [
        ((2,), (-1,), "uint8"),
        ((2, 2), (3, 2), "int16"),
        ((1, 2), (2**32, 1), "uint8"),
        ((2, 3), (0, 0), "uint8"),
        ((2,), (0,), "uint8"),
    ],
)
def test_strides_past_the_struct(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> None:
    t = bare(shape, strides, bytes(16), dtype)
    assert lost(t) == lost(t, lossy=True) == ("strides",)


def test_zero_strides_over_one_element_lose_nothing(build: Build) -> None:
    assert vlink.export(bare((1, 1), (0, 0), b"a")) == build(b"a", shape=(1, 1), strides=(0, 0), dtype=3)


def test_the_largest_stride(build: Build) -> None:
    t = bare((1,), ((2**32 - 1) * 8,), bytes(8), "float64")
    assert vlink.export(t) == build(bytes(8), shape=(1,), strides=(2**32 - 1,), dtype=13)


@pytest.mark.parametrize(("field", "room"), [("name", 32), ("model_id", 32), ("layout", 16), ("frame_id", 16)])
def test_texts_that_do_not_fit(build: Build, field: str, room: int) -> None:
    for text, cut in [
        ("x" * (room + 1), b"x" * room),
        ("x" * (room - 1) + "é", b"x" * (room - 1)),
        ("a\0b", b"a"),
        ("\0", b""),
        ("\ud800", b"?"),
    ]:
        t = Tensor.from_array(np.zeros(1, np.uint8), labels=Labels(**{field: text}))  # type: ignore[arg-type]
        assert lost(t) == (f"labels.{field}",)
        assert vlink.export(t, lossy=True) == build(b"\0", shape=(1,), dtype=3, **{field: cut})
    full = Tensor.from_array(np.zeros(1, np.uint8), labels=Labels(**{field: "é" * (room // 2)}))  # type: ignore[arg-type]
    assert vlink.export(full) == build(b"\0", shape=(1,), dtype=3, **{field: ("é" * (room // 2)).encode()})


class Leftovers:
    fields = ("appended", "other")


def test_another_formats_leftovers(build: Build) -> None:
    t = Tensor(Description(DType.UINT8, (1,)), (Plane(memoryview(b"a"), 1),), carried=Leftovers())
    assert lost(t) == ("appended", "other")
    assert vlink.export(t, lossy=True) == build(b"a", shape=(1,), strides=(0,), dtype=3)


def test_everything_is_named_at_once() -> None:
    t = Tensor(
        Description(
            DType.INT16, (2,) * 9, (-2,) + (1,) * 8, quantization=Quantization.per_channel(0, [1, 2]),
            format="from the future", colorimetry=Colorimetry(range="full"),
        ),
        (Plane(memoryview(bytes(8)), 8),),
        labels=Labels(name="x" * 33, layout="a\0"),
        carried=Leftovers(),
    )  # fmt: skip
    never = {"shape", "strides", "quantization", "format", "colorimetry"}
    assert set(lost(t, lossy=True)) == never
    assert set(lost(t)) == never | {"labels.name", "labels.layout", "appended", "other"}


def test_a_blob_refuses_what_vlink_carries(build: Build) -> None:
    t = vlink.import_(build(b"a", shape=(1,), dtype=3, reserved=1, reserved_buf2=2, name=b"n"))
    with pytest.raises(Lossy) as caught:
        blob.export(t)
    assert set(caught.value.fields) == {"reserved", "reserved_buf2", "labels.name", "labels.batch_size"}


# ---- memory that is not here ----


def test_planes_without_bytes_here() -> None:
    description = Description(DType.UINT8, (4,))
    for plane, field in [(Plane(None, 4, size=4), "storage"), (Plane(memoryview(b"abcd"), 4, modifier=1), "modifier")]:
        with pytest.raises(Unsupported) as caught:
            vlink.export(Tensor(description, (plane,), storage=StorageKind.CUDA))
        assert caught.value.field == field


def test_a_closed_tensor() -> None:
    t = Tensor.from_array(np.zeros(1))
    t.close()
    with pytest.raises(Closed):
        vlink.export(t)
