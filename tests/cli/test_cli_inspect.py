"""``tensorferry inspect`` against the vectors, sound and damaged."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorferry as ferry
from tensorferry.dtypes import DType

Ferry = Callable[..., Any]
Case = dict[str, Any]

BLOB_DTYPES = {row.blob: row.value for row in DType if row.blob is not None}
VLINK_DTYPES = {row.vlink: row.value for row in DType}


def inspected(ran: Any) -> dict[str, Any]:
    document = ran.json
    assert len(document["tensors"]) == 1
    tensor: dict[str, Any] = document["tensors"][0]
    return tensor


def field_values(tensor: dict[str, Any]) -> dict[str, Any]:
    return {field["name"]: field["value"] for field in tensor["fields"]}


def test_every_number_of_a_blob(ferry_cli: Ferry, data: Path, blob_case: Case) -> None:
    ran = ferry_cli("inspect", "--json", data / "blob" / blob_case["file"])
    assert ran.status == 0
    assert ran.err == ""
    tensor = inspected(ran)
    assert tensor["format"] == "blob"
    assert tensor["bytes"] == blob_case["header"]["size"]
    assert tensor["refusal"] is None
    said = field_values(tensor)
    assert {name: said[name] for name in blob_case["header"]} == blob_case["header"]
    assert tensor["dtype"] == BLOB_DTYPES[blob_case["header"]["dtype"]]
    assert tensor["shape"] == blob_case["shape"]
    assert tensor["strides"] == blob_case["strides"]
    assert (tensor["pixel_format"] or "") == blob_case["strings"]["format"]
    colours = tensor["colorimetry"] or dict.fromkeys(("space", "transfer", "encoding", "range"), "")
    assert {f"color_{name}": value for name, value in colours.items()} == {
        name: value for name, value in blob_case["strings"].items() if name != "format"
    }
    for plane, wanted in zip(tensor["planes"], blob_case["planes"], strict=True):
        assert {name: plane[name] for name in wanted if name in plane} == {
            name: value for name, value in wanted.items() if name in plane
        }
    axis = blob_case["header"]["quant_axis"]
    quantization = tensor["quantization"]
    if axis == -2:
        assert quantization is None
    else:
        assert quantization["axis"] == (None if axis == -1 else axis)
        assert quantization["scales"] == blob_case["quant_scales"]
        assert (quantization["zero_points"] or []) == blob_case["quant_zero_points"]
        assert all(row["real_min"] <= row["real_max"] for row in tensor["statistics"])


def test_every_number_of_a_vlink_tensor(ferry_cli: Ferry, data: Path, vlink_case: Case) -> None:
    ran = ferry_cli("inspect", "--json", data / "vlink" / vlink_case["file"])
    tensor = inspected(ran)
    said = field_values(tensor)
    assert said["size_"] == vlink_case["size"]
    assert said["name_"] == vlink_case["tensor_name"]
    if vlink_case["dtype"] == 0:
        assert ran.status == 1
        assert tensor["refusal"]["error"] == "Unsupported"
        return
    assert ran.status == 0
    assert tensor["dtype"] == VLINK_DTYPES[vlink_case["dtype"]]
    assert tensor["shape"] == vlink_case["shape"]
    size = DType.of(tensor["dtype"]).size
    assert tensor["strides"] == [step * size for step in vlink_case["strides"]]
    labels = tensor["labels"]
    if labels is not None:
        wanted = {name: vlink_case[name] for name in labels if name in vlink_case and name != "name"}
        assert {name: labels[name] for name in wanted} == wanted
        assert labels["name"] == vlink_case["tensor_name"]
    quantization = tensor["quantization"]
    if quantization is not None:
        assert quantization["scales"] == [pytest.approx(vlink_case["quant_scale"])]


def test_statistics_are_numpys(ferry_cli: Ferry, data: Path, blob_case: Case) -> None:
    file = data / "blob" / blob_case["file"]
    tensor = ferry.loads(file.read_bytes())
    rows = inspected(ferry_cli("inspect", "--json", file))["statistics"]
    arrays = [tensor.numpy()] if len(rows) == 1 else [tensor.plane(i) for i in range(len(rows))]
    for row, array in zip(rows, arrays, strict=True):
        values = array.astype(np.float64)
        finite = values[np.isfinite(values)]
        assert row["count"] == row["seen"] == array.size
        assert row["zeros"] == int((array == 0).sum())
        assert row["nan"] == int(np.isnan(values).sum())
        assert row["inf"] == int(np.isinf(values).sum())
        assert row["min"] == pytest.approx(finite.min())
        assert row["max"] == pytest.approx(finite.max())
        with np.errstate(all="ignore"):
            if isinstance(row["mean"], float):
                assert row["mean"] == pytest.approx(finite.mean())
            if isinstance(row["std"], float):
                assert row["std"] == pytest.approx(finite.std())


@pytest.mark.parametrize("args", [[], ["--hex"], ["--hex", "--all"], ["--json"]])
def test_shows_every_vector(ferry_cli: Ferry, data: Path, args: list[str]) -> None:
    for file in [*data.glob("blob/*.blob"), *data.glob("vlink/*.vlt")]:
        ran = ferry_cli("inspect", *args, file)
        assert ran.status == (1 if file.stem == "empty" else 0), file
        assert ran.out


def test_takes_stdin(ferry_cli: Ferry, data: Path) -> None:
    wire = (data / "blob" / "bare_i64_3x8.blob").read_bytes()
    ran = ferry_cli("inspect", "-", input=wire)
    assert ran.status == 0
    assert ran.out.startswith("stdin\ntensor blob, int64[3×8], 376 bytes\n")


def test_what_people_see_of_an_image(ferry_cli: Ferry, data: Path) -> None:
    out = ferry_cli("inspect", data / "blob" / "image_NV12_64x48.blob").out
    assert "tensor blob, NV12 image 64×48 uint8, 2 planes, 4,848 bytes" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["0x0024", "dtype", "0", "uint8"] in rows
    assert ["0x0068", "format", '"NV12"'] in rows
    assert ["0x0048", "0", "row", "48", "64"] in rows
    assert ["0x0080", "0", "-1", "inline", "0", "64", "3072", "3072", "linear", "3,072", "bytes", "at", "0xb8"] in rows
    assert any(row[:2] == ["luma", "3,072"] for row in rows)
    assert any(row[:2] == ["chroma", "1,536"] for row in rows)


def test_what_people_see_of_a_quantized_tensor(ferry_cli: Ferry, data: Path) -> None:
    out = ferry_cli("inspect", data / "blob" / "quant_u8_pc_asym_odd.blob").out
    rows = [line.split() for line in out.splitlines()]
    assert ["0x006c", "1", "0.25", "-2"] in rows
    assert "3.25 … 125.5" in out


def test_what_people_see_of_labels(ferry_cli: Ferry, data: Path) -> None:
    out = ferry_cli("inspect", data / "vlink" / "full_metadata.vlt").out
    assert "1970-01-01 00:00:00.000111111 UTC" in out
    assert '"resnet18"' in out
    assert [line.split()[1:3] for line in out.splitlines() if line.startswith("0x00a")] == [
        ["0", "N"],
        ["1", "C"],
        ["2", "H"],
        ["3", "W"],
    ]


def test_many_scales_are_cut_short_for_people(ferry_cli: Ferry, tmp_path: Path) -> None:
    array = np.zeros((100, 2), np.int8)
    tensor = ferry.Tensor.from_array(array, quantization=ferry.Quantization.per_channel(0, [0.5] * 100))
    file = tmp_path / "a.blob"
    file.write_bytes(ferry.dumps(tensor))
    assert "and 92 more" in ferry_cli("inspect", file).out
    assert len(inspected(ferry_cli("inspect", "--json", file))["quantization"]["scales"]) == 100


def test_json_is_json_whatever_the_values(ferry_cli: Ferry, tmp_path: Path) -> None:
    array = np.array([np.nan, np.inf, -np.inf, 1.7e308, -1.7e308])
    file = tmp_path / "a.blob"
    file.write_bytes(ferry.dumps(ferry.Tensor.from_array(array, quantization=ferry.Quantization([np.inf]))))

    def no_constant(name: str) -> float:
        raise AssertionError(name)

    document = json.loads(ferry_cli("inspect", "--json", file).out, parse_constant=no_constant)
    row = document["tensors"][0]["statistics"][0]
    assert (row["nan"], row["inf"]) == (1, 2)
    assert document["tensors"][0]["quantization"]["scales"] == ["Infinity"]


# ---- several in a file ----


@pytest.fixture
def several(data: Path, tmp_path: Path) -> Path:
    file = tmp_path / "several.blob"
    names = ("image_NV12_64x48", "quant_i8_pt_asym", "bare_f32_rank8")
    file.write_bytes(b"".join((data / "blob" / f"{name}.blob").read_bytes() for name in names))
    return file


def test_several_blobs_are_listed(ferry_cli: Ferry, several: Path) -> None:
    ran = ferry_cli("inspect", several)
    assert ran.status == 0
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["0", "0x00000000", "4,848", "uint8", "48×64", "NV12"] in rows
    assert ["1", "0x000012f0", "216", "int8", "3×8", "–"] in rows
    document = ferry_cli("inspect", "--json", several).json
    assert [tensor["offset"] for tensor in document["tensors"]] == [0, 4848, 5064]
    assert all("fields" not in tensor for tensor in document["tensors"])


def test_index_shows_one(ferry_cli: Ferry, several: Path) -> None:
    ran = ferry_cli("inspect", several, "--index", 1)
    assert "tensor blob, int8[3×8], quantized, 216 bytes" in ran.out
    assert "from byte 0x12f0 on" in ran.out
    assert inspected(ferry_cli("inspect", several, "--index", 2, "--json"))["dtype"] == "float32"
    assert "--index goes from 0 to 2" in ferry_cli("inspect", several, "--index", 3).refused(2)
    assert "there is no blob -1" in ferry_cli("inspect", several, "--index", -1).refused(2)


def test_a_damaged_one_among_them(ferry_cli: Ferry, several: Path) -> None:
    wire = bytearray(several.read_bytes())
    struct.pack_into("<I", wire, 4848 + 36, 99)  # dtype
    several.write_bytes(wire)
    ran = ferry_cli("inspect", several)
    assert "blob 1 at 0x12f0: Unsupported: dtype 99" in ran.refused(1)
    assert "refused" in ran.out
    assert "float32" in ran.out
    assert ferry_cli("inspect", several, "--index", 2).status == 0


def test_a_blob_and_something_behind_it(ferry_cli: Ferry, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.blob"
    file.write_bytes((data / "blob" / "quant_i8_pt_asym.blob").read_bytes() + b"junk")
    ran = ferry_cli("inspect", file)
    assert "the last 4 bytes of the file are no blob" in ran.refused(1)
    assert "quant_axis" in ran.out
    document = ferry_cli("inspect", file, "--json").json
    assert [tensor["refusal"] is None for tensor in document["tensors"]] == [True, False]


# ---- damaged ----


@pytest.mark.parametrize("args", [[], ["--hex"], ["--json"]])
def test_damaged_blobs_are_shown_as_far_as_they_go(
    ferry_cli: Ferry,
    hostile: list[tuple[Case, bytes]],
    refusal: Callable[[bytes], ferry.FerryError | None],
    args: list[str],
) -> None:
    # One of each kind, by what is expected of it.
    kinds = {str(case["expect"]): (case, wire) for case, wire in hostile if not case["append"]}
    for case, wire in kinds.values():
        ran = ferry_cli("inspect", *args, "-", input=wire)
        error = refusal(wire)
        if error is None:
            assert ran.status == 0
            continue
        assert type(error).__name__ in ran.refused(1), case
        assert (str(error) if wire else "it is empty") in ran.err, case
        if args == ["--json"]:
            assert ran.json["tensors"][0]["refusal"]["error"] == type(error).__name__
        elif len(wire) >= 72:
            assert "planes_bytes" in ran.out


def test_the_refused_field_is_marked(ferry_cli: Ferry, data: Path) -> None:
    wire = bytearray((data / "blob" / "image_NV12_64x48.blob").read_bytes())
    struct.pack_into("<I", wire, 64, 7)
    ran = ferry_cli("inspect", "-", input=bytes(wire))
    assert any(line.split() == ["0x0040", "strides_len", "7", "◀", "refused"] for line in ran.out.splitlines())
    assert "ForgedLength: strides_len 7" in ran.refused(1)


def test_values_that_cannot_be_looked_at(ferry_cli: Ferry, data: Path) -> None:
    wire = (data / "blob" / "image_rgb8_64x48.blob").read_bytes().replace(b"rgb8", b"xyz8")
    ran = ferry_cli("inspect", "-", input=wire)
    assert ran.status == 0
    assert "pixel format 'xyz8', unknown here" in ran.out
    assert "Unsupported: pixel format 'xyz8' is unknown here" in ran.out
    statistics = inspected(ferry_cli("inspect", "--json", "-", input=wire))["statistics"]
    assert statistics["unavailable"]["error"] == "Unsupported"
