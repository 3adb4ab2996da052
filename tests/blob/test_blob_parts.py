"""The seed's functions, one by one, against bytes written out by hand from the seed's table."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import text, u32, u64

from tensorferry import ForgedLength, InvalidUtf8, Malformed, Truncated, Unsupported, UnsupportedRequirement, WireError
from tensorferry.blob import (
    D3D11_HANDLE_BYTES,
    HEADER_LEN,
    HEADER_PID_OFFSET,
    PLANE_RECORD_LEN,
    SUPPORTED_REQUIRED_MASK,
    BlobError,
    BlobHeader,
    BlobPlane,
    BlobStrings,
    BlobView,
    D3D11Handle,
    iter_blobs,
    parse_header,
    parse_planes,
    parse_strings,
    region_offsets,
    strings_encoded_len,
    write_plane,
    write_strings,
)

# Offset and type of every header field, from the seed's table.
LAYOUT = [
    (0, "<Q", "size"),
    (8, "<Q", "required_mask"),
    (16, "<Q", "planes_bytes"),
    (24, "<I", "storage_kind"),
    (28, "<I", "pid"),
    (32, "<i", "fence_fd"),
    (36, "<I", "dtype"),
    (40, "<i", "quant_axis"),
    (44, "<I", "ndim"),
    (48, "<I", "plane_count"),
    (52, "<I", "quant_scales_len"),
    (56, "<I", "quant_zero_points_len"),
    (60, "<I", "strings_bytes"),
    (64, "<I", "strides_len"),
    (68, "<I", "reserved"),
]


def header(**fields: int) -> BlobHeader:
    return BlobHeader.empty()._replace(**fields)


def test_constants() -> None:
    assert (HEADER_LEN, HEADER_PID_OFFSET, PLANE_RECORD_LEN, D3D11_HANDLE_BYTES) == (72, 28, 56, 24)
    assert SUPPORTED_REQUIRED_MASK == 0
    assert BlobError is WireError


@given(st.fixed_dictionaries({name: u64 if kind == "<Q" else u32 for _, kind, name in LAYOUT}))
def test_header_fields_stand_where_the_table_says(fields: dict[str, int]) -> None:
    fields["fence_fd"] -= 2**31
    fields["quant_axis"] -= 2**31
    out = bytearray(b"before")
    BlobHeader(**fields).write_to(out)
    assert len(out) == 6 + HEADER_LEN
    for offset, kind, name in LAYOUT:
        assert struct.unpack_from(kind, out, 6 + offset) == (fields[name],)


def test_an_empty_header_parses() -> None:
    out = bytearray()
    BlobHeader.empty().write_to(out)
    parsed = parse_header(out)
    assert parsed == BlobHeader.empty()
    assert (parsed.size, parsed.fence_fd, parsed.quant_axis) == (72, -1, -2)
    assert region_offsets(parsed) == (72,) * 7
    assert parse_header(bytes(out) + b"next").size == 72


@pytest.mark.parametrize(
    ("fields", "have", "error", "facts"),
    [
        ({}, 71, Truncated, {"need": 72, "have": 71}),
        ({}, 0, Truncated, {"need": 72, "have": 0}),
        ({"required_mask": 2, "size": 5, "reserved": 1}, 72, UnsupportedRequirement, {"value": 2, "offset": 8}),
        ({"size": 71, "reserved": 1}, 72, ForgedLength, {"field": "size", "value": 71, "offset": 0}),
        ({"size": 2**64 - 1, "reserved": 1}, 80, Truncated, {"need": 2**64 - 1, "have": 80}),
        ({"reserved": 7}, 72, Malformed, {"value": 7, "offset": 68}),
    ],
)
def test_header_refusals_in_order(
    fields: dict[str, int], have: int, error: type[WireError], facts: dict[str, Any]
) -> None:
    out = bytearray()
    header(**fields).write_to(out)
    with pytest.raises(error) as caught:
        parse_header((out + bytes(8))[:have])
    assert {name: getattr(caught.value, name) for name in facts} == facts


def test_regions_follow_one_another() -> None:
    h = header(
        size=1000,
        ndim=3,
        strides_len=3,
        quant_scales_len=3,
        quant_zero_points_len=3,
        strings_bytes=24,
        planes_bytes=600,
        plane_count=2,
    )
    assert region_offsets(h) == (72, 96, 120, 132, 144, 168, 768)
    assert region_offsets(h._replace(strides_len=0)) == (72, 96, 96, 108, 120, 144, 744)


BIG = 2**32 - 1


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({"ndim": 2, "strides_len": 1}, ForgedLength, "strides_len"),
        ({"ndim": 0, "strides_len": 1}, ForgedLength, "strides_len"),
        ({"ndim": BIG}, ForgedLength, "ndim"),
        ({"ndim": 3, "strides_len": 3}, ForgedLength, "strides_len"),
        ({"quant_scales_len": BIG}, ForgedLength, "quant_scales_len"),
        ({"quant_zero_points_len": BIG}, ForgedLength, "quant_zero_points_len"),
        ({"strings_bytes": BIG}, ForgedLength, "strings_bytes"),
        ({"strings_bytes": 20}, Malformed, None),
        ({"planes_bytes": 2**64 - 1}, ForgedLength, "planes_bytes"),
        ({"plane_count": 1}, ForgedLength, "plane_count"),
        ({"planes_bytes": 40, "plane_count": BIG}, ForgedLength, "plane_count"),
    ],
)
def test_region_refusals(fields: dict[str, int], error: type[WireError], field: str | None) -> None:
    with pytest.raises(error) as caught:
        region_offsets(header(**{"size": 112, **fields}))
    assert caught.value.field == field


# ---- strings ----


def test_strings_by_hand() -> None:
    strings = BlobStrings("NV12", "bt709", "", "é", "full")
    out = bytearray(b"\xee" * 72)
    write_strings(out, strings)
    wanted = b"\4\0\0\0NV12\5\0\0\0bt709\0\0\0\0\2\0\0\0\xc3\xa9\4\0\0\0full"
    assert out[72:] == wanted + bytes(-len(wanted) % 8)
    assert parse_strings(memoryview(out)[72:]) == strings


@given(st.tuples(text, text, text, text, text), st.integers(0, 100))
def test_any_strings_at_any_start(texts: tuple[str, ...], start: int) -> None:
    strings = BlobStrings(*texts)
    out = bytearray(b"\xee" * start)
    write_strings(out, strings)
    assert len(out) % 8 == 0
    assert len(out) == start + strings_encoded_len(strings, start)
    assert len(out) - start - sum(4 + len(t.encode()) for t in texts) < 8
    assert parse_strings(bytes(out[start:])) == strings


def word(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


@pytest.mark.parametrize(
    ("region", "error", "field", "offset"),
    [
        (b"", Truncated, None, 0),
        (word(0, 0, 0, 0) + b"\0\0\0", Truncated, None, 16),
        (word(5) + b"NV12", ForgedLength, "format", 0),
        (word(0, BIG, 0, 0, 0), ForgedLength, "color_space", 4),
        (word(0, 0, 9, 0, 0), ForgedLength, "color_transfer", 8),
        (word(0, 0, 0, 5, 0), ForgedLength, "color_encoding", 12),
        (word(0, 0, 0, 0, 1), ForgedLength, "color_range", 16),
        (word(2) + b"\xff\xfe" + word(0, 0, 0, 0), InvalidUtf8, "format", 4),
        (word(0, 0, 0, 0, 1) + b"\x80", InvalidUtf8, "color_range", 20),
    ],
)
def test_string_refusals(region: bytes, error: type[WireError], field: str | None, offset: int) -> None:
    with pytest.raises(error) as caught:
        parse_strings(region)
    assert (caught.value.field, caught.value.offset) == (field, offset)


# ---- planes ----


def test_a_plane_record_by_hand() -> None:
    plane = BlobPlane(3, 1, 2, 7, 6, 5, b"hand", b"data!")
    out = bytearray()
    write_plane(out, plane)
    assert out == struct.pack("<qQQQQQII", 3, 1, 2, 7, 6, 5, 4, 5) + b"handdata!" + bytes(7)
    assert plane.encoded_len == len(out) == 72
    assert not plane.is_inline
    assert BlobPlane().is_inline
    (parsed,) = parse_planes(memoryview(out), 1)
    assert parsed == plane
    assert parsed != BlobPlane()
    assert parsed != "a plane"


@given(
    st.lists(
        st.builds(
            BlobPlane,
            st.integers(-(2**63), 2**63 - 1),
            u64,
            u64,
            u64,
            u64,
            u64,
            st.binary(max_size=20),
            st.binary(max_size=20),
        ),
        max_size=4,
    )
)
def test_any_planes(planes: list[BlobPlane]) -> None:
    out = bytearray()
    for plane in planes:
        before = len(out)
        write_plane(out, plane)
        assert len(out) - before == plane.encoded_len
        assert len(out) % 8 == 0
    assert list(parse_planes(memoryview(out), len(planes))) == planes


@pytest.mark.parametrize(
    ("region", "error", "field", "offset"),
    [
        (bytes(55), Truncated, None, 0),
        (bytes(48) + word(1, 0), ForgedLength, "handle_bytes_len", 48),
        (bytes(48) + word(0, 1), ForgedLength, "data_len", 52),
        (bytes(48) + word(BIG, BIG) + bytes(8), ForgedLength, "handle_bytes_len", 48),
        (bytes(48) + word(8, BIG) + bytes(8), ForgedLength, "data_len", 52),
    ],
)
def test_plane_refusals(region: bytes, error: type[WireError], field: str | None, offset: int) -> None:
    with pytest.raises(error) as caught:
        parse_planes(memoryview(region), 1)
    assert (caught.value.field, caught.value.offset) == (field, offset)


def test_d3d11_handles() -> None:
    handle = D3D11Handle(0x1122334455667788, 2, 3)
    assert handle.pack() == struct.pack("<QQQ", 0x1122334455667788, 2, 3)
    assert D3D11Handle.unpack(handle.pack()) == handle
    assert D3D11Handle.unpack(D3D11Handle(5).pack()) == (5, 0, 0)
    with pytest.raises(Malformed, match="fence value 3 without a fence"):
        D3D11Handle(1, 0, 3).pack()
    with pytest.raises(Malformed, match="without a fence"):
        D3D11Handle.unpack(struct.pack("<QQQ", 1, 0, 3))
    with pytest.raises(Malformed, match="24 bytes, not 23"):
        D3D11Handle.unpack(bytes(23))


# ---- view, and blobs end to end ----


def minimal(**fields: int) -> bytes:
    out = bytearray()
    header(**{"size": 96, "strings_bytes": 24, **fields}).write_to(out)
    write_strings(out, BlobStrings())
    return bytes(out)


def test_what_a_view_takes_on_is_bounded() -> None:
    """Forged counts that fit the bytes must not become Python objects many times their size."""
    for field, unit in (("ndim", 8), ("plane_count", 56), ("strings_bytes", 1)):
        count = 70_000 if unit == 1 else 65
        body = {field: count, "size": 96 + 80_000, **({"planes_bytes": 65 * 56} if unit == 56 else {})}
        body["strings_bytes"] = body.get("strings_bytes", 24)
        with pytest.raises(Unsupported) as caught:
            BlobView.parse(minimal(**body) + bytes(80_000))
        assert caught.value.field == field


def test_blobs_end_to_end() -> None:
    blobs = [minimal(), minimal(size=103) + b"seven!!", minimal()]
    joined = b"".join(blobs)
    assert [bytes(view) for view in iter_blobs(joined)] == blobs
    assert [bytes(view) for view in iter_blobs(bytearray(joined))] == blobs
    assert list(iter_blobs(b"")) == []
    walk = iter_blobs(joined[:-1])
    assert [bytes(next(walk)), bytes(next(walk))] == blobs[:2]
    with pytest.raises(Truncated) as caught:
        next(walk)
    assert caught.value.offset == len(blobs[0]) + len(blobs[1])
