"""The container: each rule of "Container behaviour" in spec/vlink-tensor.md."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorferry.vlink import Header, Tensor

Build = Callable[..., bytes]


def full() -> Tensor:
    """A container with every field set and eight bytes of its own."""
    t = Tensor()
    t.header.frame_id, t.header.seq, t.header.reserved = "cam", 9, 77
    t.header.time_meas, t.header.time_pub = 11, 12
    t.set_name("n")
    t.set_model_id("m")
    t.set_layout("HW")
    t.set_dtype(Tensor.kInt16)
    t.set_shape([2, 2])
    t.set_update_time_ns(13)
    t.set_channel(14)
    t.set_freq(15)
    t.set_batch_size(16)
    t.set_quant_scale(0.5)
    t.set_quant_zero_point(-17)
    t.set_device(Tensor.kNpu)
    t.reserved, t.reserved2, t.reserved3 = 1, 2, 3
    t.create(8)
    t.data()[:] = bytes(range(8))
    return t


def assert_empty(t: Tensor) -> None:
    assert not t.is_valid()
    assert not t.is_owner()
    assert t.size() == 0
    assert bytes(t.data()) == b""
    assert (t.name(), t.model_id(), t.layout()) == ("", "", "")
    assert (t.shape(), t.strides(), t.rank(), t.num_elements(), t.batch_size()) == ([], [], 0, 0, 0)
    assert (t.dtype(), t.element_size(), t.device()) == (Tensor.kUnknown, 0, Tensor.kCpu)
    assert (t.update_time_ns(), t.channel(), t.freq(), t.quant_scale(), t.quant_zero_point()) == (0, 0, 0, 0.0, 0)


# ---- a new one ----


def test_a_new_container_is_empty_and_its_frame_is_unknown(build: Build) -> None:
    t = Tensor()
    assert_empty(t)
    assert t.header.frame_id == "unknown"
    assert (t.header.seq, t.header.reserved, t.header.time_meas, t.header.time_pub) == (0, 0, 0, 0)
    assert (t.reserved, t.reserved2, t.reserved3) == (0, 0, 0)
    assert t.to_bytes() == build(num_elements=0)
    assert t.get_serialized_size() == 260


def test_the_seeds_example() -> None:
    t = Tensor()
    t.set_name("image")
    t.set_layout("NCHW")
    t.set_dtype(Tensor.kFloat32)
    t.set_shape([1, 3, 224, 224])
    assert t.create(t.num_elements() * 4)
    wire = bytearray(b"what was there before")
    assert (t >> wire) is True
    assert len(wire) == 260 + 602_112 == t.get_serialized_size()
    assert wire == t.to_bytes()

    u = Tensor()
    assert (u << wire) is True
    assert (u.name(), u.layout(), u.dtype()) == ("image", "NCHW", Tensor.kFloat32)
    assert (u.shape(), u.strides()) == ([1, 3, 224, 224], [150_528, 50_176, 224, 1])
    assert (u.num_elements(), u.batch_size(), u.element_size(), u.size()) == (150_528, 1, 4, 602_112)


def test_the_envelope_is_laid_out_as_the_seed_says(build: Build) -> None:
    assert full().to_bytes() == build(
        bytes(range(8)), shape=(2, 2), dtype=4, frame_id=b"cam", seq=9, reserved=77, time_meas=11, time_pub=12,
        name=b"n", model_id=b"m", layout=b"HW", update_time_ns=13, channel=14, freq=15, batch_size=16,
        quant_scale=0.5, quant_zero_point=-17, device=2, reserved_buf=1, reserved_buf2=2, reserved_buf3=3,
    )  # fmt: skip


def test_shifting_out_needs_a_bytearray() -> None:
    with pytest.raises(TypeError):
        Tensor() >> b""  # type: ignore[operator]


# ---- enums ----


def test_codes_are_the_published_ones() -> None:
    names = [
        "Unknown", "Bool", "Int8", "Uint8", "Int16", "Uint16", "Int32", "Uint32", "Int64", "Uint64",
        "Float16", "Bfloat16", "Float32", "Float64",
    ]  # fmt: skip
    sizes = [0, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8]
    for code, (name, size) in enumerate(zip(names, sizes, strict=True)):
        dtype = Tensor.DataType(code)
        assert getattr(Tensor, f"k{name}") is dtype
        assert getattr(Tensor.DataType, f"k{name}") is dtype
        assert getattr(Tensor.DataType, name) is dtype
        assert Tensor.element_size_of(dtype) == size
    assert Tensor.kDataUnknown is Tensor.DataType.kUnknown
    assert Tensor.element_size_of(14) == Tensor.element_size_of(255) == 0
    for code, name in enumerate(["Cpu", "Gpu", "Npu", "Dsp"]):
        device = Tensor.Device(code)
        assert getattr(Tensor, f"k{name}") is getattr(Tensor, f"kDevice{name}") is device
        assert getattr(Tensor.Device, name) is getattr(Tensor.Device, f"k{name}") is device
    assert Tensor.kMaxRank == 8


def test_set_dtype_sets_the_element_size() -> None:
    t = Tensor()
    for dtype in Tensor.DataType:
        t.set_dtype(dtype)
        assert t.dtype() is dtype
        assert t.element_size() == Tensor.element_size_of(dtype)
    t.set_dtype(200)
    assert (t.dtype(), t.element_size()) == (200, 0)


# ---- shape ----


def test_set_shape_computes_everything() -> None:
    t = Tensor()
    t.set_shape([4, 3, 5])
    assert (t.shape(), t.strides()) == ([4, 3, 5], [15, 5, 1])
    assert (t.rank(), t.num_elements(), t.batch_size()) == (3, 60, 4)
    t.set_shape((7,))
    assert (t.shape(), t.strides(), t.num_elements(), t.batch_size()) == ([7], [1], 7, 7)
    assert [t.shape_at(i) for i in range(8)] == [7, 0, 0, 0, 0, 0, 0, 0]


def test_set_shape_keeps_the_first_eight() -> None:
    t = Tensor()
    t.set_shape([1, 2, 1, 2, 1, 2, 1, 2, 99, 99])
    assert t.shape() == [1, 2, 1, 2, 1, 2, 1, 2]
    assert t.strides() == [16, 8, 8, 4, 4, 2, 2, 1]
    assert (t.rank(), t.num_elements()) == (8, 16)


@pytest.mark.parametrize(
    "shape",
    [
        [],
        [2**32 - 1, 2**32 - 1, 2],  # the product is past u64, a stride past u32
        [2**32 - 1, 2**32 - 1, 2**32 - 1],
        [2, 2**16, 2**16],  # stride 0 is 2**32
        [0, 2**16, 2**16],
        [2, 3, 2**31, 2],
    ],
)
def test_set_shape_clears_on_none_and_overflow(shape: list[int]) -> None:
    t = Tensor()
    t.set_shape([2, 3])
    t.set_shape(shape)
    assert (t.shape(), t.strides(), t.rank(), t.num_elements(), t.batch_size()) == ([], [], 0, 0, 0)
    assert [t.shape_at(i) for i in range(8)] == [t.stride_at(i) for i in range(8)] == [0] * 8


def test_set_shape_takes_what_just_fits() -> None:
    t = Tensor()
    t.set_shape([2**32 - 1, 2**32 - 1])
    assert (t.strides(), t.num_elements()) == ([2**32 - 1, 1], (2**32 - 1) ** 2)
    t.set_shape([2**32 - 1, 2**16 - 1, 2**16 + 1])  # a stride of 2**32 - 1
    assert t.strides() == [2**32 - 1, 2**16 + 1, 1]


def test_zero_sized_dimensions_are_fine() -> None:
    t = Tensor()
    t.set_shape([4, 0, 3])
    assert (t.shape(), t.strides(), t.num_elements(), t.batch_size()) == ([4, 0, 3], [0, 3, 1], 0, 4)


@pytest.mark.parametrize("shape", [[2**32], [3, -1]])
def test_dimensions_that_are_no_u32_are_an_error(shape: list[int]) -> None:
    t = Tensor()
    t.set_shape([2])
    with pytest.raises(ValueError, match=r"shape\["):
        t.set_shape(shape)
    assert t.shape() == [2]


def test_single_slots() -> None:
    t = Tensor()
    t.set_shape([2, 3])
    t.set_shape_at(1, 9)
    t.set_stride_at(0, 5)
    assert (t.shape(), t.strides()) == ([2, 9], [5, 1])
    assert (t.num_elements(), t.batch_size(), t.rank()) == (6, 2, 2)


@pytest.mark.parametrize("dim", [8, 9, 255, -1])
def test_slots_out_of_range(dim: int) -> None:
    t = Tensor()
    t.set_shape([2] * 8)
    before = t.to_bytes()
    t.set_shape_at(dim, 5)
    t.set_stride_at(dim, 5)
    assert t.to_bytes() == before
    assert t.shape_at(dim) == t.stride_at(dim) == 0


# ---- texts ----


@pytest.mark.parametrize(("field", "room"), [("name", 31), ("model_id", 31), ("layout", 15)])
def test_texts_are_cut_between_characters(field: str, room: int) -> None:
    t = Tensor()
    put: Any = getattr(t, f"set_{field}")
    get: Any = getattr(t, field)
    for text, kept in [
        ("x" * 100, "x" * room),
        ("x" * room, "x" * room),
        ("x" * (room - 1) + "é", "x" * (room - 1)),
        ("x" * (room - 2) + "éy", "x" * (room - 2) + "é"),
        ("x" * (room - 2) + "€", "x" * (room - 2)),
        ("x" * (room - 3) + "€", "x" * (room - 3) + "€"),
        ("x" * (room - 3) + "🚢", "x" * (room - 3)),
        ("", ""),
        ("short", "short"),
    ]:
        put(text)
        assert get() == kept


def test_frame_id_may_fill_all_sixteen_bytes() -> None:
    header = Header()
    header.frame_id = "sixteen_chars_16"
    assert header.frame_id == "sixteen_chars_16"
    header.frame_id = "sixteen_chars_é"
    assert header.frame_id == "sixteen_chars_é"
    header.frame_id = "sixteen_chars_1é"
    assert header.frame_id == "sixteen_chars_1"


def test_bytes_that_are_no_utf8_go_through(build: Build) -> None:
    wire = build(name=b"\xff\xfe\x80", layout=b"\x80" * 16)
    t = Tensor()
    assert t.from_bytes(wire)
    assert t.name().encode("utf-8", "surrogateescape") == b"\xff\xfe\x80"
    u = Tensor()
    u.set_name(t.name())
    u.set_layout(t.layout())
    assert u.to_bytes()[80:112] == wire[80:112]
    assert u.to_bytes()[144:160] == b"\x80" * 15 + b"\0"


def test_what_stands_behind_a_nul_stays_on_the_wire(build: Build) -> None:
    wire = build(name=b"ab\0cd")
    t = Tensor()
    t.from_bytes(wire)
    assert t.name() == "ab"
    assert t.to_bytes() == wire


# ---- numbers ----


@pytest.mark.parametrize(
    ("field", "lowest", "highest"),
    [
        ("update_time_ns", 0, 2**64 - 1),
        ("channel", 0, 2**32 - 1),
        ("freq", 0, 2**32 - 1),
        ("batch_size", 0, 2**32 - 1),
        ("quant_zero_point", -(2**31), 2**31 - 1),
        ("dtype", 0, 255),
        ("device", 0, 255),
    ],
)
def test_numbers_fill_their_fields(field: str, lowest: int, highest: int) -> None:
    t = Tensor()
    put: Any = getattr(t, f"set_{field}")
    for value in (lowest, highest):
        put(value)
        assert getattr(t, field)() == value
    for value in (lowest - 1, highest + 1):
        with pytest.raises(ValueError, match=field):
            put(value)
    assert getattr(t, field)() == highest


def test_quant_scale_is_a_float32() -> None:
    t = Tensor()
    t.set_quant_scale(0.1)
    assert t.quant_scale() == float(np.float32(0.1))
    with pytest.raises(ValueError, match="quant_scale"):
        t.set_quant_scale(1e300)


@pytest.mark.parametrize(("field", "highest"), [("reserved", 255), ("reserved2", 65535), ("reserved3", 2**32 - 1)])
def test_reserved_slots(field: str, highest: int) -> None:
    t = Tensor()
    setattr(t, field, highest)
    assert getattr(t, field) == highest
    with pytest.raises(ValueError, match=field):
        setattr(t, field, highest + 1)


def test_a_header_is_the_containers_own() -> None:
    t = Tensor()
    header = t.header
    header.seq = 5
    assert t.to_bytes()[24:28] == struct.pack("<I", 5)
    other = Header()
    other.frame_id, other.seq, other.time_meas, other.time_pub = "lidar", 6, 7, 8
    t.header = other
    assert t.header == other
    assert header.seq == 6
    other.seq = 0
    assert t.header.seq == 6
    assert len(other.to_bytes()) == 40
    with pytest.raises(ValueError, match="seq"):
        header.seq = 2**32


# ---- the buffer ----


def test_create_replaces_the_buffer() -> None:
    t = Tensor()
    assert t.create(0) is False
    assert t.create(-1) is False
    assert_empty(t)
    assert t.create(4) is True
    assert (t.size(), t.is_owner(), t.is_valid()) == (4, True, True)
    old = t.data()
    old[:] = b"abcd"
    assert t.create(4) is True
    t.data()[:] = b"wxyz"
    assert bytes(old) == b"abcd"
    assert t.create(0) is False
    assert bytes(t.data()) == b"wxyz"


def test_create_of_more_than_there_is() -> None:
    t = full()
    for size in (2**62, 2**70):
        assert t.create(size) is False
        assert (t.size(), t.is_owner(), t.is_valid()) == (0, False, False)
    assert t.name() == "n"


def test_data_is_memory() -> None:
    t = full()
    array = np.asarray(t.data())
    assert array.dtype == np.uint8
    array[0] = 200
    assert t.data()[0] == 200
    assert not t.data().readonly


def test_clear_keeps_only_the_reserved_slots() -> None:
    t = full()
    t.clear()
    assert_empty(t)
    header = t.header
    assert (header.frame_id, header.seq, header.reserved, header.time_meas, header.time_pub) == ("", 0, 0, 0, 0)
    assert (t.reserved, t.reserved2, t.reserved3) == (1, 2, 3)
    wire = t.to_bytes()
    assert wire[8:249] == bytes(241)
    assert wire[249:256] == struct.pack("<BHI", 1, 2, 3)


# ---- from_bytes ----


def test_from_bytes_borrows(build: Build) -> None:
    wire = bytearray(build(b"abcd", shape=(4,), dtype=3))
    t = Tensor()
    assert t.from_bytes(wire) is True
    assert t.data().readonly
    assert not t.is_owner()
    wire[256] = ord("z")
    assert bytes(t.data()) == b"zbcd"
    assert np.asarray(t.data()).ctypes.data == np.frombuffer(wire, np.uint8).ctypes.data + 256


def test_a_failed_from_bytes_leaves_it_empty(build: Build) -> None:
    good = build(b"abcd", shape=(4,), dtype=3)
    for bad in (b"", good[:-1], good + b"\0", b"\0" + good[1:], build(version=3_000_000), build(b"abcd", size_=5)):
        t = full()
        assert Tensor.check_valid(bad) is False
        assert t.from_bytes(bad) is False
        assert_empty(t)
        assert (t.reserved, t.reserved2, t.reserved3) == (1, 2, 3)
        assert (t << bad) is False


def test_a_rank_above_eight_is_clamped(build: Build) -> None:
    t = Tensor()
    assert t.from_bytes(build(b"ab", shape=(1, 1, 1, 1, 1, 1, 1, 2), dtype=3, rank=9)) is True
    assert t.rank() == 8
    assert t.shape() == [1, 1, 1, 1, 1, 1, 1, 2]
    assert t.from_bytes(build(rank=255))
    assert t.rank() == 8


def test_codes_unknown_here_come_as_numbers(build: Build) -> None:
    t = Tensor()
    assert t.from_bytes(build(dtype=14, device=4, element_size=7))
    assert (t.dtype(), t.device(), t.element_size()) == (14, 4, 0)
    assert "14" in repr(t)


def test_pointer_and_ownership_never_get_onto_the_wire(build: Build) -> None:
    t = Tensor()
    assert t.from_bytes(build(b"ab", data_=0x7FFF_0000_1234, is_owner=1, shape=(2,), dtype=3, element_size=9))
    assert not t.is_owner()
    assert t.to_bytes() == build(b"ab", shape=(2,), dtype=3, element_size=1)
    assert t.deep_copy(t.data())
    assert t.is_owner()
    assert t.to_bytes() == build(b"ab", shape=(2,), dtype=3, element_size=1)


def test_writing_over_the_bytes_it_reads(build: Build) -> None:
    wire = bytearray(build(b"abcd", shape=(4,), dtype=3))
    t = Tensor()
    t << wire
    t.set_name("x")
    assert t >> wire
    assert bytes(wire) == build(b"abcd", shape=(4,), dtype=3, name=b"x")
    assert bytes(t.data()) == b"abcd"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_of_bytes_will_do(build: Build, kind: Any) -> None:
    assert Tensor().from_bytes(kind(build(b"ab")))


# ---- copies of another container ----


def test_shallow_copy_borrows() -> None:
    source, t = full(), Tensor()
    assert t.shallow_copy(source) is True
    assert t.to_bytes() == source.to_bytes()
    assert not t.is_owner()
    assert source.is_owner()
    assert t.data().readonly
    source.data()[0] = 99
    assert t.data()[0] == 99
    source.clear()
    assert t.data()[0] == 99  # what is borrowed stays alive


def test_deep_copy_owns() -> None:
    source, t = full(), Tensor()
    assert t.deep_copy(source) is True
    assert t.to_bytes() == source.to_bytes()
    assert t.is_owner()
    source.data()[0] = 99
    assert t.data()[0] == 0
    assert not t.data().readonly


def test_deep_copy_writes_over_a_buffer_of_the_right_size() -> None:
    source, t = full(), Tensor()
    t.create(8)
    view = t.data()
    assert t.deep_copy(source)
    assert bytes(view) == bytes(range(8))
    t.create(4)
    assert t.deep_copy(source)
    assert (t.size(), t.is_owner()) == (8, True)


def test_deep_copy_of_one_without_a_buffer() -> None:
    source, t = Tensor(), full()
    source.set_name("bare")
    assert t.deep_copy(source) is True
    assert (t.name(), t.size(), t.is_owner(), t.is_valid()) == ("bare", 0, False, False)


def test_move_copy_empties_the_source() -> None:
    source, t = full(), Tensor()
    wire, data = source.to_bytes(), source.data()
    assert t.move_copy(source) is True
    assert t.to_bytes() == wire
    assert t.is_owner()
    data[0] = 99
    assert t.data()[0] == 99
    assert not t.data().readonly
    assert_empty(source)
    assert (source.reserved, source.reserved2, source.reserved3) == (0, 0, 0)
    assert source.header.frame_id == ""


def test_move_copy_of_a_borrower_borrows(build: Build) -> None:
    source, t = Tensor(), Tensor()
    source.from_bytes(build(b"abcd"))
    assert t.move_copy(source)
    assert (bytes(t.data()), t.is_owner(), t.data().readonly) == (b"abcd", False, True)


def test_copying_from_oneself_is_false() -> None:
    t = full()
    wire = t.to_bytes()
    assert t.shallow_copy(t) is False
    assert t.deep_copy(t) is False
    assert t.move_copy(t) is False
    assert t.to_bytes() == wire
    assert t.is_owner()
    empty = Tensor()
    assert not empty.shallow_copy(empty)
    assert not empty.deep_copy(empty)
    assert not empty.move_copy(empty)


def test_copying_from_a_borrower_of_ones_own_buffer_is_false() -> None:
    t, borrower = full(), Tensor()
    assert borrower.shallow_copy(t)
    wire = t.to_bytes()
    assert t.shallow_copy(borrower) is False
    assert t.deep_copy(borrower) is False
    assert t.move_copy(borrower) is False
    assert (t.to_bytes(), borrower.to_bytes()) == (wire, wire)
    assert t.is_owner()
    assert borrower.deep_copy(t) is True  # the other way round is fine
    assert borrower.is_owner()


def test_reserved_slots_travel_with_copies() -> None:
    for copy in (Tensor.shallow_copy, Tensor.deep_copy, Tensor.move_copy):
        t = Tensor()
        assert copy(t, full())
        assert (t.reserved, t.reserved2, t.reserved3, t.header.reserved) == (1, 2, 3, 77)


# ---- copies of bytes ----


def test_fill_data_copies() -> None:
    t = Tensor()
    source = bytearray(b"abcd")
    assert t.fill_data(source) is True
    source[0] = 0
    assert (bytes(t.data()), t.is_owner(), t.size()) == (b"abcd", True, 4)
    view = t.data()
    assert t.fill_data(b"wxyz")
    assert bytes(view) == b"wxyz"
    assert t.fill_data(b"longer")
    assert bytes(t.data()) == b"longer"
    assert t.fill_data(b"") is False
    assert bytes(t.data()) == b"longer"


@pytest.mark.parametrize("dtype", [np.float32, np.int64, ml_dtypes.bfloat16, np.bool_])
def test_fill_data_takes_arrays(dtype: Any) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    t = Tensor()
    assert t.fill_data(array)
    assert bytes(t.data()) == array.tobytes()
    assert t.fill_data(array.T)
    assert bytes(t.data()) == array.T.tobytes()


def test_bytes_of_ones_own_buffer_are_refused() -> None:
    t = full()
    for part in (t.data(), t.data()[3:5], t.data()[7:], np.asarray(t.data())[2:]):
        assert t.fill_data(part) is False
        assert t.deep_copy(part) is False
        assert t.shallow_copy(part) is False
    assert bytes(t.data()) == bytes(range(8))
    assert t.is_owner()


def test_shallow_copy_of_bytes_borrows() -> None:
    t = full()
    source = bytearray(b"abcdef")
    assert t.shallow_copy(source) is True
    source[0] = ord("z")
    assert (bytes(t.data()), t.is_owner(), t.data().readonly) == (b"zbcdef", False, True)
    assert t.name() == "n"
    assert t.shallow_copy(source) is False  # it is borrowed already
    assert t.shallow_copy(b"") is False
    assert bytes(t.data()) == b"zbcdef"
    with pytest.raises(ValueError, match="gaps"):
        t.shallow_copy(np.zeros((4, 4), np.uint8)[:, :2])
    with pytest.raises(TypeError):
        t.shallow_copy(7)


def test_a_borrowed_buffer_may_become_ones_own(build: Build) -> None:
    wire = bytearray(build(b"abcd"))
    t = Tensor()
    t.from_bytes(wire)
    assert t.fill_data(t.data()) is True
    wire[256] = 0
    assert (bytes(t.data()), t.is_owner()) == (b"abcd", True)
