from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import mmap
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import arrays, images, same_bits

from tensorferry import (
    Closed,
    Colorimetry,
    Device,
    DType,
    FerryError,
    Labels,
    Malformed,
    PixelFormat,
    Plane,
    Quantization,
    StorageKind,
    Tensor,
    Unsupported,
)
from tensorferry.tensor import Description

# ---- from_array ----


@given(arrays(list(DType)))
def test_any_array_is_borrowed_and_seen_as_it_is(a: np.ndarray[Any, Any]) -> None:
    t = Tensor.from_array(a)
    assert t.shape == a.shape
    assert t.dtype.numpy == a.dtype
    view = t.numpy()
    assert same_bits(view, a)
    assert view.flags.writeable == (a.flags.writeable and a.size > 0) or a.size == 0
    assert a.size == 0 or np.shares_memory(view, a)
    assert same_bits(np.asarray(t), a)
    assert same_bits(t.packed().numpy(), a)
    assert t.packed().strides == tuple(int(np.prod(a.shape[i + 1 :], dtype=int)) * a.itemsize for i in range(a.ndim))


def test_a_write_through_the_view_is_seen_by_the_lender() -> None:
    a = np.zeros((2, 3), np.float32)
    Tensor.from_array(a).numpy()[1, 2] = 7
    assert a[1, 2] == 7


def test_a_tensor_keeps_the_lender_alive_and_lets_go() -> None:
    a = np.zeros(1000)
    t, lender = Tensor.from_array(a), weakref.ref(a)
    view = t.numpy()
    del a, t
    gc.collect()
    assert view.sum() == 0
    del view
    gc.collect()
    assert lender() is None


@pytest.mark.parametrize(
    ("lent", "dtype", "values"),
    [
        (b"\1\2\3", "uint8", [1, 2, 3]),
        (bytearray(b"\1\2\3"), "uint8", [1, 2, 3]),
        (memoryview(b"\1\2\3\4")[::2], "uint8", [1, 3]),
        (array.array("f", [1.5, 2.5]), "float32", [1.5, 2.5]),
        (array.array("h", [-1, 2]), "int16", [-1, 2]),
        ((ctypes.c_double * 2)(1.0, 2.0), "float64", [1.0, 2.0]),
        (np.float32(3.5), "float32", 3.5),
    ],
)
def test_the_buffer_protocol(lent: object, dtype: str, values: object) -> None:
    t = Tensor.from_array(lent)
    assert (t.dtype, t.numpy().tolist()) == (dtype, values)


def test_a_map() -> None:
    with mmap.mmap(-1, 4096) as memory:
        t = Tensor.from_array(memory)
        t.numpy()[5] = 9
        assert memory[5] == 9
        with pytest.raises(BufferError):
            memory.close()
        del t


def test_dlpack_lends_and_borrows() -> None:
    class Lender:
        def __init__(self, lent: np.ndarray[Any, Any]) -> None:
            self.lent = lent

        def __dlpack__(self, **request: Any) -> Any:
            return self.lent.__dlpack__(**request)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.lent.__dlpack_device__()

    a = np.arange(6, dtype=np.int16).reshape(2, 3)
    t = Tensor.from_array(Lender(a))
    assert np.shares_memory(t.numpy(), a)
    assert np.shares_memory(np.from_dlpack(Tensor.from_array(a)), a)
    assert t.__dlpack_device__() == (1, 0)


def test_big_endian_is_refused_or_swapped_on_request() -> None:
    big = np.array([1, 2, 70000], ">u4")
    with pytest.raises(Unsupported, match="byteswap=True"):
        Tensor.from_array(big)
    t = Tensor.from_array(big, byteswap=True)
    assert t.numpy().tolist() == [1, 2, 70000]
    assert t.dtype.numpy.byteorder != ">"


@pytest.mark.parametrize("lent", [[1, 2], 3, None, "text", {1: 2}])
def test_what_lends_no_memory(lent: object) -> None:
    with pytest.raises(TypeError, match=r"lends no memory|NumPy array"):
        Tensor.from_array(lent)


@pytest.mark.parametrize("dtype", [np.complex128, "M8[s]", "O", "S2", [("a", "u1")]])
def test_other_element_types_are_refused(dtype: object) -> None:
    with pytest.raises(Unsupported, match="cannot be carried"):
        Tensor.from_array(np.zeros(2, dtype))  # type: ignore[call-overload]


def test_dense_strides_are_plain_products() -> None:
    """As both formats write them: a dimension of 0 makes the strides before it 0; one of 1 has no odd stride."""
    assert Tensor.from_array(np.zeros((4, 0, 3), np.float32)).strides == (0, 12, 4)
    odd = np.lib.stride_tricks.as_strided(np.zeros(8, np.uint8), (1, 8), (999, 1))
    assert Tensor.from_array(odd).strides == (8, 1)


def test_a_strided_view_keeps_its_strides_and_packs_when_asked() -> None:
    a = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    t = Tensor.from_array(a[::-1, :, ::2])
    assert t.strides == (-24, 8, 4)
    assert t.planes[0].size == 46  # first to last element touched
    packed = t.packed()
    assert packed.strides == (12, 4, 2)
    assert not np.shares_memory(packed.numpy(), a)
    dense = Tensor.from_array(a)
    assert dense.packed() is dense


# ---- image ----


@pytest.mark.parametrize("format", PixelFormat)
@pytest.mark.parametrize(("width", "height"), [(64, 48), (33, 17), (1, 1), (0, 0), (2, 0)])
def test_an_image_over_one_allocation(format: PixelFormat, width: int, height: int) -> None:
    total = sum(p.size for p in format.plane_table(width, height))
    memory = np.arange(total, dtype=np.uint32).astype(np.uint8)
    t = Tensor.image(format, width, height, memory)
    assert (t.width, t.height, t.format, t.dtype) == (width, height, format, "uint8")
    assert t.shape == format.grid(width, height)
    at = 0
    for i, layout in enumerate(format.plane_table(width, height)):
        rows = memory[at : at + layout.size].reshape(layout.rows, layout.pitch)[:, : layout.row_bytes]
        assert np.array_equal(t.plane(i), rows)
        assert rows.size == 0 or np.shares_memory(t.plane(i), memory)
        at += layout.size
    view = t.numpy()
    assert view.shape == t.shape
    if format.is_planar and view.size:
        assert np.array_equal(view, np.stack([t.plane(i) for i in range(format.plane_count)]))
        assert np.shares_memory(view, memory)


@given(images())
def test_any_image_shows_its_planes(t: Tensor) -> None:
    assert isinstance(t.format, PixelFormat)
    for i, layout in enumerate(t.format.plane_table(t.width, t.height, t.planes[0].stride, t.dtype.size)):
        assert t.plane(i).shape == (layout.rows, layout.row_bytes // t.dtype.size)
    try:
        view = t.numpy()
    except Unsupported:
        assert t.format.is_planar
        return
    assert view.shape == t.shape
    assert same_bits(view.reshape(-1)[: t.plane(0).size].reshape(t.plane(0).shape), t.plane(0))


def test_planes_given_apart_or_as_rows() -> None:
    luma, chroma = np.zeros((17, 34), np.uint8), np.zeros((9, 34), np.uint8)
    t = Tensor.image("NV12", 33, 17, [luma, chroma])
    assert [p.stride for p in t.planes] == [34, 34]
    assert t.strides == (34, 1)
    whole = np.zeros((26, 40), np.uint8)  # the allocation, at a pitch of its own
    t = Tensor.image("NV12", 33, 17, whole)
    assert [p.stride for p in t.planes] == [40, 40]
    assert t.plane(1).shape == (9, 34)
    assert np.shares_memory(t.plane(1), whole)


def test_a_pitch_asked_for() -> None:
    t = Tensor.image("rgb8", 33, 17, bytes(128 * 17), stride=128)
    assert t.strides == (128, 3, 1)
    assert t.numpy().shape == (17, 33, 3)
    assert not t.numpy().flags.writeable
    t = Tensor.image("NV12", 32, 2, [bytes(80), bytes(48)], stride=[40, 48])
    assert [p.stride for p in t.planes] == [40, 48]


def test_nv24_chroma_as_the_plane_or_as_the_allocation_has_it() -> None:
    luma = np.zeros((4, 6), np.uint8)
    for shape in ((4, 12), (8, 6)):
        t = Tensor.image("NV24", 6, 4, [luma, np.arange(48, dtype=np.uint8).reshape(shape)])
        assert t.planes[1].stride == 6
        assert t.plane(1).tolist() == np.arange(48).reshape(4, 12).tolist()


def test_a_crop_is_an_image_whose_gaps_stay_at_home() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (50, 100, 3), dtype=np.uint8)
    crop = frame[10:30, 20:60]
    t = Tensor.image("rgb8", 40, 20, crop)
    assert np.shares_memory(t.numpy(), frame)
    assert np.array_equal(t.numpy(), crop)
    assert t.strides == (300, 3, 1)
    packed = t.packed()
    assert packed.planes[0].size == 40 * 20 * 3
    assert np.array_equal(packed.numpy(), crop)


@pytest.mark.parametrize(
    ("format", "width", "height", "given", "stride", "message"),
    [
        ("mono8", 640, 480, np.zeros((640, 480), np.uint8), None, "640 rows of 480 bytes"),  # transposed
        ("rgb8", 4, 4, np.zeros((4, 4, 4), np.uint8), None, "no rgb8 grid"),
        ("rgb8", 4, 4, np.zeros((4, 5, 3), np.uint8), None, "no rgb8 image of 4 × 4"),
        ("rgb8", 4, 4, bytes(47), None, "ends at byte 48"),
        ("rgb8", 4, 4, bytes(999), 11, "stride 11 is below"),
        ("NV12", 4, 4, [bytes(16)] * 3, None, "NV12 has 2 planes"),
        ("NV12", 4, 4, [bytes(16), bytes(7)], None, "plane 1"),
        ("NV12", 4, 4, [bytes(16), bytes(8)], [4, 4, 4], "3 strides for 2 planes"),
        ("rgb8", 4, 4, np.zeros((4, 4, 3), np.uint8)[::-1], None, "ascontiguousarray"),
        ("rgb8", 4, 4, np.zeros((4, 4, 3), np.uint8)[..., ::-1], None, "ascontiguousarray"),
        ("rgb8", -1, 4, b"", None, "sizes of 0 or more"),
        ("P010", 4, 4, b"", None, "P010"),
    ],
)
def test_images_that_contradict_their_memory(
    format: str, width: int, height: int, given: object, stride: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Tensor.image(format, width, height, given, stride=stride)


# ---- looking at values ----


def bare(data: bytes, shape: tuple[int, ...], **plane: Any) -> Tensor:
    return Tensor(Description(DType.UINT8, shape, None), (Plane(memoryview(data), len(data), **plane),))


def test_where_there_is_no_array() -> None:
    tiled = bare(bytes(6), (6,), modifier=0x100000000000001)
    away = Tensor(Description(DType.UINT8, (6,)), (Plane(None, 6, 6),), storage=StorageKind.CUDA)
    unknown = Tensor(Description(DType.UINT8, (6,), format="P010"), (Plane(memoryview(bytes(6)), 6),))
    deep = bare(b"\0", (1,) * 65)
    for t, field in ((tiled, "modifier"), (away, "storage"), (unknown, "format"), (deep, "shape")):
        with pytest.raises(Unsupported) as caught:
            t.numpy()
        assert caught.value.field == field
    assert bytes(unknown.planes[0].data or b"") == bytes(6)
    for t in (unknown, deep):
        with pytest.raises(Unsupported):
            np.asarray(t)
    with pytest.raises(Unsupported, match="no format"):
        _ = deep.width
    with pytest.raises(IndexError):
        deep.plane(1)


def test_planes_apart_are_no_one_array() -> None:
    t = Tensor.image("rgb8_planar", 2, 2, [bytes(4), bytes(4), bytes(4)])
    with pytest.raises(Unsupported, match=r"numpy\.stack"):
        t.numpy()
    assert t.plane(2).shape == (2, 2)


def test_a_stride_that_lies_is_refused_when_rows_are_asked_for() -> None:
    description = Description(DType.UINT8, (2, 4), (4, 1), format=PixelFormat.MONO8)
    for stride, field in ((3, "stride"), (5, "size"), (2**63, "size")):
        t = Tensor(description, (Plane(memoryview(bytes(8)), stride),))
        assert t.numpy().shape == (2, 4)
        with pytest.raises(Malformed) as caught:
            t.plane(0)
        assert caught.value.field == field


def test_asarray_converts_only_when_asked() -> None:
    t = Tensor.from_array(np.arange(3, dtype=np.int16))
    assert np.asarray(t, dtype=np.float64).tolist() == [0.0, 1.0, 2.0]
    assert not np.shares_memory(np.array(t), t.numpy())
    with pytest.raises(ValueError, match="needs a copy"):
        t.__array__(np.float64, copy=False)


# ---- what it says, and letting go ----


def test_replace_is_another_over_the_same_planes() -> None:
    a = np.zeros((2, 3), np.int8)
    t = Tensor.from_array(a)
    q, labels = Quantization.per_channel(1, [1, 2, 3]), Labels(name="x")
    u = t.replace(quantization=q, labels=labels)
    assert (u.quantization, u.labels) == (q, labels)
    assert (t.quantization, t.labels) == (None, None)
    assert u.planes is t.planes
    v = u.replace(labels=None)
    assert (v.quantization, v.labels) == (q, None)
    assert v.replace(quantization=None).quantization is None
    image = Tensor.image("mono8", 1, 1, b"\0").replace(colorimetry=Colorimetry(range="full"))
    assert image.colorimetry == Colorimetry(range="full")
    assert image.format == "mono8"
    with pytest.raises(ValueError, match="needs 2"):
        t.replace(quantization=Quantization.per_channel(0, [1, 2, 3]))


def test_immutable() -> None:
    t = Tensor.from_array(np.zeros(3))
    for name in ("shape", "dtype", "labels", "quantization", "planes", "nonsense"):
        with pytest.raises(AttributeError):
            setattr(t, name, None)


def test_closing_lets_go_and_views_live_on() -> None:
    with Tensor.from_array(np.arange(3)) as t:
        view = t.numpy()
    assert view.tolist() == [0, 1, 2]
    t.close()
    for look in (t.numpy, lambda: t.planes, lambda: t.plane(0), lambda: np.asarray(t), lambda: t.nbytes):
        with pytest.raises(Closed, match="was closed"):
            look()
    assert repr(t) == "<Tensor int64 [3], closed>"


@pytest.mark.parametrize(
    ("tensor", "line"),
    [
        (Tensor.from_array(np.zeros((1, 3, 8, 8), np.float32)), "<Tensor float32 1×3×8×8, 768 bytes, mem>"),
        (Tensor.from_array(np.float64(1)), "<Tensor float64 scalar, 8 bytes, mem>"),
        (
            Tensor.from_array(np.zeros(2, ml_dtypes.bfloat16), labels=Labels(name="hidden")),
            "<Tensor bfloat16 2, 4 bytes, mem, 'hidden'>",
        ),
        (
            Tensor.image("NV12", 4, 2, bytes(12), colorimetry=Colorimetry("bt709", range="full")),
            "<Tensor NV12 uint8 2×4, 2 planes, 12 bytes, mem, bt709/-/-/full>",
        ),
        (
            Tensor.from_array(np.zeros(2, np.int8), quantization=Quantization.per_tensor(0.5, 3)),
            "<Tensor int8 2, 2 bytes, mem, Quantization(0.5, zero_points=3)>",
        ),
    ],
)
def test_repr_is_one_useful_line(tensor: Tensor, line: str) -> None:
    assert repr(tensor) == line


def test_labels() -> None:
    assert Labels().said() == ()
    assert Labels(name="a", device=Device.NPU).said() == ("name", "device")


@pytest.mark.parametrize(
    ("field", "bits"),
    [
        ("seq", 32),
        ("time_meas", 64),
        ("time_pub", 64),
        ("update_time_ns", 64),
        ("channel", 32),
        ("freq", 32),
        ("batch_size", 32),
        ("device", 8),
    ],
)
def test_labels_fit_their_fields_on_the_wire(field: str, bits: int) -> None:
    largest: dict[str, Any] = {field: 2**bits - 1}
    assert getattr(Labels(**largest), field) == 2**bits - 1
    for wrong in (-1, 2**bits):
        outside: dict[str, Any] = {field: wrong}
        with pytest.raises(ValueError, match=f"labels.{field}"):
            Labels(**outside)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2**63 - 1), max_size=4).map(tuple), st.sampled_from(DType))
def test_shapes_past_any_array_give_an_error_of_ours(shape: tuple[int, ...], dtype: DType) -> None:
    t = Tensor(Description(dtype, shape), (Plane(memoryview(b""), 0),))
    with contextlib.suppress(FerryError):
        assert t.numpy().shape == shape
