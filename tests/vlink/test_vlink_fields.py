"""The map of an envelope's bytes: each byte in one field, whatever the bytes are."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import damaged

import tensorferry as ferry
from tensorferry.fields import UNREAD, Field, refusal_in
from tensorferry.vlink.envelope import read_record
from tensorferry.vlink.fields import fields

DATA = Path(__file__).parents[1] / "data" / "vlink"
CASES = json.loads((DATA / "cases.json").read_text())["cases"]
FULL = (DATA / "full_metadata.vlt").read_bytes()

# Ours, the vectors'. The latter keep no trailing underscore.
NAMES = {
    "version": "version",
    "header.frame_id": "frame_id",
    "header.seq": "seq",
    "header.reserved": "reserved",
    "header.time_meas": "time_meas",
    "header.time_pub": "time_pub",
    "size_": "size",
    "update_time_ns_": "update_time_ns",
    "num_elements_": "num_elements",
    "name_": "tensor_name",
    "model_id_": "model_id",
    "layout_": "layout",
    "channel_": "channel",
    "freq_": "freq",
    "batch_size_": "batch_size",
    "quant_zero_point_": "quant_zero_point",
    "dtype_": "dtype",
    "rank_": "rank",
    "device_": "device",
    "element_size_": "element_size",
    "reserved_buf_": "reserved_buf",
    "reserved_buf2_": "reserved_buf2",
    "reserved_buf3_": "reserved_buf3",
}


def check_tiles(data: bytes, found: list[Field]) -> None:
    at = 0
    for field in found:
        assert field.offset == at
        assert field.length > 0 or (field is found[-1] and field.name == UNREAD)
        at += field.length
    assert at == len(data)


def read_error(data: bytes) -> ferry.WireError | None:
    try:
        read_record(memoryview(data))
    except ferry.WireError as error:
        return error
    return None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_says_what_the_vectors_describe(case: dict[str, Any]) -> None:
    data = (DATA / case["file"]).read_bytes()
    found = fields(data)
    check_tiles(data, found)
    assert refusal_in(found) is None
    said: dict[str, Any] = {field.name: field.value for field in found}
    assert {ours: said[ours] for ours in NAMES} == {ours: case[theirs] for ours, theirs in NAMES.items()}
    assert said["quant_scale_"] == pytest.approx(case["quant_scale"])
    for name in ("shape", "strides"):
        assert [said[f"{name}_[{i}]"] for i in range(case["rank"])] == case[name]
    assert len(said.get("elements", b"")) == case["size"]
    assert (said["magic_begin"], said["magic_end"]) == (0x98B7F19A, 0x98B7F19F)


def test_offsets_are_the_seeds() -> None:
    at = {field.name: field.offset - 8 for field in fields(FULL)}
    assert at["data_"] == 40
    assert at["name_"] == 72
    assert at["shape_[0]"] == 152
    assert at["strides_[7]"] == 212
    assert at["quant_scale_"] == 228
    assert at["reserved_buf3_"] == 244
    assert at["elements"] == 248


@given(st.data())
def test_takes_any_damage_and_refuses_as_the_reader_does(data: st.DataObject) -> None:
    wire = data.draw(damaged(FULL) | st.binary(max_size=300))
    found = fields(wire)
    check_tiles(wire, found)
    refusal, error = refusal_in(found), read_error(wire)
    assert (refusal is None) == (error is None)
    assert type(refusal) is type(error)


@pytest.mark.parametrize("length", [0, 3, 4, 8, 23, 24, 255, 256, 1000, len(FULL) - 1])
def test_an_envelope_cut_short_is_read_up_to_the_cut(length: int) -> None:
    found = fields(FULL[:length])
    check_tiles(FULL[:length], found)
    assert refusal_in(found) is not None
    whole = [field[:3] for field in fields(FULL) if field.offset + field.length <= length]
    assert [field[:3] for field in found[:-1]] == whole


def test_stops_at_what_is_no_envelope() -> None:
    assert [field.name for field in fields(b"\0" * 300)] == ["magic_begin", UNREAD]
    other = FULL[:4] + struct.pack("<I", 3_000_000) + FULL[8:]
    assert [field.name for field in fields(other)] == ["magic_begin", "version", UNREAD]
    assert isinstance(refusal_in(fields(other)), ferry.UnsupportedRequirement)


def test_bytes_behind_an_envelope_are_not_read() -> None:
    last = fields(FULL + b"more")[-1]
    assert last[:3] == (len(FULL), 4, UNREAD)
