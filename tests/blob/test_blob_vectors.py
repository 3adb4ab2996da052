"""The published library's own bytes: 60 blobs, and 1,292 damaged ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tensorferry as ferry
from tensorferry import blob

DATA = Path(__file__).parents[1] / "data" / "blob"
CASES = json.loads((DATA / "cases.json").read_text())["cases"]
HOSTILE = json.loads((DATA / "hostile.json").read_text())["cases"]


def test_there_are_as_many_as_the_vectors_say() -> None:
    assert len(CASES) == 60
    assert len(HOSTILE) == 1292


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_parses_to_the_described_fields(case: dict[str, Any]) -> None:
    view = blob.BlobView.parse((DATA / case["file"]).read_bytes())
    assert view.header._asdict() == case["header"]
    assert list(view.shape) == case["shape"]
    assert list(view.strides) == case["strides"]
    assert view.quantization.scales.tolist() == case["quant_scales"]
    assert view.quantization.zero_points.tolist() == case["quant_zero_points"]
    assert view.strings._asdict() == case["strings"]
    assert len(view.planes) == len(case["planes"])
    for plane, wanted in zip(view.planes, case["planes"], strict=True):
        for field in ("handle", "offset", "stride", "size", "used", "modifier"):
            assert getattr(plane, field) == wanted[field], field
        assert bytes(plane.handle_bytes).hex() == wanted["handle_bytes"]
        assert len(plane.data) == wanted["data_len"]
        assert hashlib.sha256(plane.data).hexdigest() == wanted["data_sha256"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_means_what_it_describes_and_exports_to_the_same_bytes(case: dict[str, Any]) -> None:
    wire = (DATA / case["file"]).read_bytes()
    tensor = ferry.loads(wire)
    assert list(tensor.shape) == case["shape"]
    assert list(tensor.strides) == case["strides"]
    assert (tensor.format or "") == case["strings"]["format"]
    assert [hashlib.sha256(p.data or b"").hexdigest() for p in tensor.planes] == [
        p["data_sha256"] for p in case["planes"]
    ]
    axis = case["header"]["quant_axis"]
    if axis == -2:
        assert tensor.quantization is None
    else:
        assert tensor.quantization is not None
        assert tensor.quantization.axis == (None if axis == -1 else axis)
        assert tensor.quantization.scales.tolist() == case["quant_scales"]
        points = tensor.quantization.zero_points
        assert ([] if points is None else points.tolist()) == case["quant_zero_points"]
    assert tensor.numpy().shape == tensor.shape
    assert blob.export(tensor) == (wire, [])
    assert ferry.dumps(tensor) == wire
    buffer = bytearray(len(wire) + 3)
    assert blob.export_into(tensor, buffer) == len(wire)
    assert buffer == wire + bytes(3)


def damaged(case: dict[str, Any]) -> bytes:
    data = bytearray((DATA / case["base"]).read_bytes())
    for offset, patch in case["patches"]:
        data[offset : offset + len(patch) // 2] = bytes.fromhex(patch)
    if case["truncate"] is not None:
        del data[case["truncate"] :]
    return bytes(data + bytes.fromhex(case["append"]))


def ways_in(wire: bytes) -> Iterator[tuple[str, object]]:
    """Outcome of each reader: the class and field of its refusal, or the tensor that it gave."""
    for name, read in (
        ("import_", blob.import_),
        ("again", blob.import_),  # what was believed may be remembered: a refusal must not be
        ("loads", ferry.loads),
        ("view", lambda data: blob.import_(blob.BlobView.parse(data))),
        ("middle", lambda data: blob.import_(memoryview(b"\0\0\0" + data)[3:])),
    ):
        try:
            yield name, read(wire)
        except ferry.FerryError as error:
            yield name, (type(error).__name__, error.field)


@pytest.mark.parametrize("base", sorted({case["base"] for case in HOSTILE}))
def test_damaged_blobs_are_refused_as_they_should_be(base: str) -> None:
    for case in HOSTILE:
        if case["base"] != base:
            continue
        for way, outcome in ways_in(damaged(case)):
            wanted = case["expect"]
            told = f"{case['note']} by {way}: {outcome}"
            if wanted is None:
                assert isinstance(outcome, ferry.Tensor), told
            elif wanted != "any":
                assert outcome == (wanted["error"], wanted["field"]), told


def test_refusals_say_where_and_what() -> None:
    for case in HOSTILE:
        if not isinstance(case["expect"], dict):
            continue
        with pytest.raises(ferry.FerryError) as caught:
            blob.import_(damaged(case))
        error = caught.value
        message = str(error)
        assert len(message) > 20
        assert "\n" not in message
        if isinstance(error, ferry.Truncated):
            assert error.need is not None
            assert error.have is not None
            assert error.need > error.have
        if isinstance(error, ferry.WireError) and not isinstance(error, ferry.Truncated):
            assert error.offset is not None
            assert 0 <= error.offset < len(damaged(case))


def test_an_accepted_blob_exports_to_the_same_planes() -> None:
    """What the format leaves to a later revision is written again; what it calls meaningless is normal form."""
    for case in HOSTILE:
        if case["expect"] is not None:
            continue
        wire = damaged(case)
        tensor = blob.import_(wire)
        again = blob.import_(blob.export(tensor)[0])
        assert [bytes(p.data or b"") for p in again.planes] == [bytes(p.data or b"") for p in tensor.planes]
        assert [p.stride for p in again.planes] == [p.stride for p in tensor.planes]
        if "later revision" in case["note"]:
            assert blob.export(tensor)[0] == wire
