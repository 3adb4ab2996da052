"""What an envelope means as a tensor, and each check that stands before it, in the specification's order."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from tensorferry import (
    Device,
    ForgedLength,
    InvalidUtf8,
    Labels,
    Malformed,
    Quantization,
    Truncated,
    Unsupported,
    UnsupportedRequirement,
    vlink,
)

Build = Callable[..., bytes]


# ---- the envelope's checks ----


@pytest.mark.parametrize("length", range(260))
def test_less_than_an_envelope_is_truncated(build: Build, length: int) -> None:
    data = build(b"abcd", shape=(4,), dtype=3)[:length]
    with pytest.raises(Truncated) as caught:
        vlink.import_(data)
    assert (caught.value.need, caught.value.have) == (260, length)
    assert not vlink.Tensor.check_valid(data)


def test_every_cut_of_an_envelope_is_refused(build: Build) -> None:
    data = build(bytes(range(100)), shape=(100,), dtype=3)
    for length in range(260, len(data)):
        with pytest.raises(Malformed) as caught:
            vlink.import_(data[:length])
        assert caught.value.field == "magic_end"
        assert not vlink.Tensor().from_bytes(data[:length])


def test_checks_come_in_order(build: Build) -> None:
    wrong = {"begin": 1, "version": 3_000_000, "end": 2, "size_": 7}
    expected = [
        ("begin", Malformed, "magic_begin", 1, 0),
        ("version", UnsupportedRequirement, "version", 3_000_000, 4),
        ("end", Malformed, "magic_end", 2, 260),
        ("size_", ForgedLength, "size_", 7, 56),
    ]
    for name, kind, field, value, offset in expected:
        with pytest.raises(kind) as caught:
            vlink.import_(build(b"abcd", shape=(4,), dtype=3, **wrong))
        error = caught.value
        assert (type(error), error.field, error.value, error.offset) == (kind, field, value, offset)
        del wrong[name]
    assert vlink.import_(build(b"abcd", shape=(4,), dtype=3)).shape == (4,)


@pytest.mark.parametrize("version", [0, 1_999_999, 3_000_000, 2**32 - 1])
def test_another_major_names_both_versions(build: Build, version: int) -> None:
    with pytest.raises(UnsupportedRequirement, match=r"2\.1\.0") as caught:
        vlink.import_(build(version=version, dtype=3, shape=(0,)))
    assert f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}" in str(caught.value)
    assert not vlink.Tensor.check_valid(build(version=version))


@pytest.mark.parametrize("version", [2_000_000, 2_001_000, 2_010_008, 2_999_999])
def test_minor_and_patch_do_not_matter(build: Build, version: int) -> None:
    assert vlink.import_(build(version=version, dtype=3, shape=(0,))).shape == (0,)


@pytest.mark.parametrize("size", [0, 3, 5, 4 + 2**32, 2**63 - 1, 2**63, 2**64 - 260, 2**64 - 1])
def test_a_forged_size(build: Build, size: int) -> None:
    data = build(b"abcd", shape=(1,), dtype=3, size_=size)
    with pytest.raises(ForgedLength) as caught:
        vlink.import_(data)
    error = caught.value
    assert (error.field, error.value, error.need, error.have) == ("size_", size, 260 + size, 264)
    assert not vlink.Tensor().from_bytes(data)


def test_bytes_behind_an_envelope_are_refused(build: Build) -> None:
    end = (0x98B7F19F).to_bytes(4, "little")
    with pytest.raises(ForgedLength):
        vlink.import_(build(b"abcd", shape=(4,), dtype=3) + end)


# ---- what the struct says ----


@pytest.mark.parametrize("rank", [9, 255])
def test_a_rank_above_eight_is_refused_not_clamped(build: Build, rank: int) -> None:
    with pytest.raises(Unsupported) as caught:
        vlink.import_(build(b"a", shape=(1,) * 8, dtype=3, rank=rank))
    assert (caught.value.field, caught.value.value) == ("rank", rank)


@pytest.mark.parametrize("dtype", [0, 14, 255])
def test_an_unknown_element_type_is_refused(build: Build, dtype: int) -> None:
    with pytest.raises(Unsupported) as caught:
        vlink.import_(build(bytes(8), shape=(1,), dtype=dtype))
    assert (caught.value.field, caught.value.value) == ("dtype", dtype)


def test_all_zero_strides_are_unsaid_and_dense(build: Build) -> None:
    t = vlink.import_(build(bytes(range(12)), shape=(2, 3), strides=(0, 0), dtype=5))
    assert not t.strides_given
    assert t.strides == (6, 2)
    assert t.numpy().tobytes() == bytes(range(12))
    assert vlink.export(t) == build(bytes(range(12)), shape=(2, 3), strides=(0, 0), dtype=5)


def test_some_zero_strides_are_a_broadcast(build: Build) -> None:
    t = vlink.import_(build(b"abc", shape=(2, 3), strides=(0, 1), dtype=3))
    assert t.strides_given
    assert t.numpy().tobytes() == b"abcabc"


def test_slots_behind_the_rank_do_not_count(build: Build) -> None:
    data = bytearray(build(b"ab", shape=(2,), strides=(0,), dtype=3))
    data[8 + 156 : 8 + 160] = data[8 + 188 : 8 + 192] = b"\xff" * 4
    t = vlink.import_(data)
    assert (t.shape, t.strides, t.strides_given) == ((2,), (1,), False)


def test_the_element_count_on_the_wire_does_not_count(build: Build) -> None:
    t = vlink.import_(build(b"abcd", shape=(2, 2), dtype=3, num_elements=2**64 - 1, element_size=77))
    assert t.shape == (2, 2)
    assert vlink.export(t) == build(b"abcd", shape=(2, 2), dtype=3)


@pytest.mark.parametrize(
    ("shape", "strides", "dtype", "needed"),
    [
        ((4,), (1,), 12, 16),
        ((4,), (0,), 12, 16),
        ((4,), (3,), 12, 40),
        ((2, 3), (5, 1), 5, 16),
        ((2, 3), (1, 5), 3, 12),
        ((1, 1), (99, 99), 3, 1),
        ((), (), 13, 8),
        ((2**32 - 1,) * 8, (0,) * 7 + (1,), 3, 2**32 - 1),
        ((2**32 - 1,) * 8, (0,) * 8, 13, None),
        ((2,) * 8, (2**32 - 1,) * 8, 13, None),
    ],
)
def test_a_view_stays_inside_the_elements(
    build: Build, shape: tuple[int, ...], strides: tuple[int, ...], dtype: int, needed: int | None
) -> None:
    small = needed is not None and needed < 1000
    if needed is not None and small:
        assert vlink.import_(build(bytes(needed), shape=shape, strides=strides, dtype=dtype)).shape == shape
    have = needed - 1 if needed is not None and small else 100
    with pytest.raises(Malformed) as caught:
        vlink.import_(build(bytes(have), shape=shape, strides=strides, dtype=dtype, num_elements=0))
    assert (caught.value.field, caught.value.value, caught.value.offset) == ("size_", have, 56)


def test_zero_sized_dimensions_need_no_bytes(build: Build) -> None:
    for strides in ((7, 2**32 - 1), (0, 0), (0, 1)):
        t = vlink.import_(build(shape=(2**32 - 1, 0), strides=strides, dtype=13))
        assert t.numpy().shape == (2**32 - 1, 0)


def test_a_scalar(build: Build) -> None:
    t = vlink.import_(build(b"\0\0\x80\x3f", dtype=12))
    assert t.shape == ()
    assert t.numpy()[()] == 1.0
    assert t.labels is None
    assert vlink.export(t) == build(b"\0\0\x80\x3f", dtype=12)


def test_the_plane_holds_all_the_bytes(build: Build) -> None:
    data = bytearray(build(b"abcdefgh", shape=(2,), dtype=3))
    t = vlink.import_(data)
    plane = t.planes[0]
    assert plane.data is not None
    assert (plane.size, plane.stride, plane.used, bytes(plane.data)) == (8, 8, 8, b"abcdefgh")
    assert not t.numpy().flags.writeable
    data[256] = ord("z")
    assert t.numpy()[0] == ord("z")
    assert vlink.export(t) == bytes(data)


def test_sizes_are_checked_though_the_description_is_remembered(build: Build) -> None:
    for _ in range(2):
        assert vlink.import_(build(b"abcd", shape=(4,), dtype=3)).shape == (4,)
        with pytest.raises(Malformed):
            vlink.import_(build(b"abc", shape=(4,), dtype=3))


# ---- quantization ----


@pytest.mark.parametrize(
    ("scale", "zero_point", "expected"),
    [
        (0.0, 0, None),
        (0.5, 0, Quantization.per_tensor(0.5)),
        (0.5, 3, Quantization.per_tensor(0.5, 3)),
        (0.0, -3, Quantization.per_tensor(0.0, -3)),
        (float("nan"), 0, Quantization.per_tensor(float("nan"))),
        (-1.0, -(2**31), Quantization.per_tensor(-1.0, -(2**31))),
    ],
)
def test_quantization(build: Build, scale: float, zero_point: int, expected: Quantization | None) -> None:
    data = build(b"ab", shape=(2,), dtype=2, quant_scale=scale, quant_zero_point=zero_point)
    t = vlink.import_(data)
    assert t.quantization == expected
    if expected is not None and zero_point == 0:
        assert t.quantization is not None
        assert t.quantization.zero_points is None
    assert vlink.export(t) == data


def test_a_scale_keeps_its_bits(build: Build) -> None:
    data = bytearray(build(b"ab", shape=(2,), dtype=2))
    data[8 + 228 : 8 + 232] = (0x7F800001).to_bytes(4, "little")  # a signalling NaN, which a cast would quieten
    assert vlink.export(vlink.import_(data)) == bytes(data)


# ---- labels ----


@pytest.mark.parametrize(
    ("said", "labels"),
    [
        ({"name": b"n" * 32}, Labels(name="n" * 32, batch_size=2)),
        ({"model_id": b"m"}, Labels(model_id="m", batch_size=2)),
        ({"layout": "é".encode()}, Labels(layout="é", batch_size=2)),
        ({"frame_id": b""}, Labels(frame_id="", batch_size=2)),
        ({"seq": 2**32 - 1}, Labels(seq=2**32 - 1, batch_size=2)),
        ({"time_meas": 2**64 - 1}, Labels(time_meas=2**64 - 1, batch_size=2)),
        ({"time_pub": 1}, Labels(time_pub=1, batch_size=2)),
        ({"update_time_ns": 1}, Labels(update_time_ns=1, batch_size=2)),
        ({"channel": 1}, Labels(channel=1, batch_size=2)),
        ({"freq": 1}, Labels(freq=1, batch_size=2)),
        ({"device": 3}, Labels(device=Device.DSP, batch_size=2)),
        ({"device": 200}, Labels(device=200, batch_size=2)),
        ({"batch_size": 0}, Labels(batch_size=0)),
        ({"batch_size": 7}, Labels(batch_size=7)),
    ],
)
def test_each_label(build: Build, said: dict[str, object], labels: Labels) -> None:
    data = build(b"ab", shape=(2,), dtype=3, **said)
    assert vlink.import_(data).labels == labels
    assert vlink.export(vlink.import_(data)) == data


def test_a_batch_of_a_scalar_is_a_label(build: Build) -> None:
    assert vlink.import_(build(b"a", dtype=3, batch_size=1)).labels == Labels(batch_size=1)


def test_bytes_behind_a_nul_are_no_label(build: Build) -> None:
    t = vlink.import_(build(b"ab", shape=(2,), dtype=3, frame_id=b"unknown\0junk", name=b"\0\xff"))
    assert t.labels is None
    assert vlink.export(t) == build(b"ab", shape=(2,), dtype=3)


@pytest.mark.parametrize(("field", "offset"), [("frame_id", 8), ("name", 80), ("model_id", 112), ("layout", 144)])
def test_texts_must_be_utf8(build: Build, field: str, offset: int) -> None:
    with pytest.raises(InvalidUtf8) as caught:
        vlink.import_(build(b"a", shape=(1,), dtype=3, **{field: b"ok\xff"}))
    assert (caught.value.field, caught.value.offset) == (field, offset)


@pytest.mark.parametrize("field", ["reserved", "reserved_buf", "reserved_buf2", "reserved_buf3"])
def test_each_reserved_slot_is_carried(build: Build, field: str) -> None:
    data = build(b"a", shape=(1,), dtype=3, **{field: 5})
    t = vlink.import_(data)
    assert t.carried is not None
    assert t.carried.fields == (field,)
    assert t.labels is None
    assert vlink.export(t) == data


# ---- how it is given ----


def test_any_flat_buffer_will_do(build: Build) -> None:
    data = build(bytes(4), shape=(4,), dtype=3)
    for buffer in (data, bytearray(data), memoryview(data), memoryview(data).cast("I"), np.frombuffer(data, "<u4")):
        assert vlink.import_(buffer).shape == (4,)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="gaps"):
        vlink.import_(memoryview(data)[::2])


def test_importing_copies_nothing(build: Build) -> None:
    data = build(bytes(8 << 20), shape=(8 << 20,), dtype=3)
    tracemalloc.start()
    try:
        array = vlink.import_(data).numpy()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert array.ctypes.data == np.frombuffer(data, np.uint8).ctypes.data + 256
    assert peak < 64 << 10
