"""The map of a blob's bytes: each byte in one field, whatever the bytes are."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import bare_tensors, damaged, images

import tensorferry as ferry
from tensorferry import blob
from tensorferry.blob.fields import fields
from tensorferry.fields import UNREAD, Field, refusal_in

DATA = Path(__file__).parents[1] / "data" / "blob"
CASES = json.loads((DATA / "cases.json").read_text())["cases"]
HOSTILE = json.loads((DATA / "hostile.json").read_text())["cases"]
NV12 = (DATA / "image_NV12_64x38.blob").read_bytes()


def harmed(case: dict[str, Any]) -> bytes:
    data = bytearray((DATA / case["base"]).read_bytes())
    for offset, patch in case["patches"]:
        data[offset : offset + len(patch) // 2] = bytes.fromhex(patch)
    if case["truncate"] is not None:
        del data[case["truncate"] :]
    return bytes(data) + bytes.fromhex(case["append"])


def check_tiles(data: bytes, found: list[Field]) -> None:
    """No gap, no overlap, and no empty field but a refusal at the end."""
    at = 0
    for field in found:
        assert field.offset == at
        assert field.length > 0 or (field is found[-1] and field.name == UNREAD)
        at += field.length
    assert at == len(data)
    names = [field.name for field in found]
    assert len(set(names)) == len(names)


def values(found: list[Field]) -> dict[str, Any]:
    return {field.name: field.value for field in found}


def parse_error(data: bytes) -> ferry.FerryError | None:
    try:
        blob.BlobView.parse(data)
    except ferry.FerryError as error:
        return error
    return None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_says_what_the_vectors_describe(case: dict[str, Any]) -> None:
    data = (DATA / case["file"]).read_bytes()
    found = fields(data)
    check_tiles(data, found)
    assert refusal_in(found) is None
    said = values(found)
    assert {name: said[name] for name in case["header"]} == case["header"]
    for name in ("shape", "strides", "quant_scales", "quant_zero_points"):
        assert [value for key, value in said.items() if key.startswith(f"{name}[")] == case[name]
    for name, text in case["strings"].items():
        assert said[f"strings.{name}_len"] == len(text.encode())
        assert said.get(f"strings.{name}", "") == text
    for i, plane in enumerate(case["planes"]):
        for name in ("handle", "offset", "stride", "size", "used", "modifier", "data_len"):
            assert said[f"planes[{i}].{name}"] == plane[name]
        assert len(said[f"planes[{i}].data"]) == plane["data_len"]


def test_covers_every_damaged_vector_and_stops_where_parsing_does() -> None:
    for case in HOSTILE:
        data = harmed(case)
        found = fields(data)
        check_tiles(data, found)
        error, refusal = parse_error(data), refusal_in(found)
        assert type(refusal) is type(error), case
        assert str(refusal) == str(error) or (refusal is error is None)


@given(st.binary(max_size=400))
def test_takes_any_bytes(data: bytes) -> None:
    check_tiles(data, fields(data))


@given(bare_tensors([row for row in ferry.DType if row.blob is not None]) | images(), st.data())
def test_takes_any_damage(tensor: ferry.Tensor, data: st.DataObject) -> None:
    wire = data.draw(damaged(ferry.dumps(tensor)))
    found = fields(wire)
    check_tiles(wire, found)
    assert (refusal_in(found) is None) == (parse_error(wire) is None)


def test_a_truncated_blob_is_read_up_to_the_cut() -> None:
    for length in range(len(NV12)):
        found = fields(NV12[:length])
        check_tiles(NV12[:length], found)
        assert isinstance(refusal_in(found), ferry.Truncated)
        whole = [field for field in fields(NV12) if field.offset + field.length <= length]
        assert [field[:3] for field in found[:-1]] == [field[:3] for field in whole]


def test_bytes_behind_and_bytes_of_a_later_revision_have_names() -> None:
    size = len(NV12)
    later = struct.pack("<Q", size + 8) + NV12[8:] + b"revision"
    assert fields(later)[-1][:3] == (size, 8, "appended")
    assert fields(NV12 + b"more")[-1][:3] == (size, 4, "behind")
    assert refusal_in(fields(NV12 + b"more")) is None


def test_more_numbers_than_are_told_apart_are_one_field() -> None:
    tensor = ferry.Tensor.from_array(bytes(100), quantization=ferry.Quantization.per_channel(0, [0.5] * 100))
    found = fields(ferry.dumps(tensor))
    check_tiles(ferry.dumps(tensor), found)
    scales = [field for field in found if field.name.startswith("quant_scales[")]
    assert len(scales) == 65
    assert scales[-1].name == "quant_scales[64:100]"
    assert scales[-1].length == 36 * 4


def test_a_forged_count_makes_few_fields() -> None:
    data = bytearray(NV12 + bytes(1 << 20))
    struct.pack_into("<Q", data, 0, len(data))
    struct.pack_into("<I", data, 52, 1 << 18)
    assert len(fields(data)) < 200
    struct.pack_into("<I", data, 52, 0)
    struct.pack_into("<QI", data, 16, len(data) - 128, 0)
    struct.pack_into("<I", data, 48, 10_000)
    assert len(fields(data)) < 200


def test_values_of_payloads_borrow() -> None:
    data = bytearray(NV12)
    payload = values(fields(data))["planes[0].data"]
    assert isinstance(payload, memoryview)
    assert payload.obj is data
