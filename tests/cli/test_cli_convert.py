"""``tensorferry convert``: round trips, losses that are named, files that appear whole or not at all."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from strategies import same_bits

import tensorferry as ferry
from tensorferry.dtypes import DType

Ferry = Callable[..., Any]

BARE = [row for row in DType if row.blob is not None]
SUFFIX = {"blob": ".blob", "vlink": ".vlt", "npy": ".npy"}


def load(file: Path) -> Any:
    return np.load(file) if file.suffix == ".npy" else ferry.loads(file.read_bytes()).numpy()


@pytest.mark.parametrize("source", SUFFIX)
@pytest.mark.parametrize("target", SUFFIX)
@pytest.mark.parametrize("row", BARE, ids=str)
def test_round_trips(ferry_cli: Ferry, tmp_path: Path, source: str, target: str, row: DType) -> None:
    array = np.random.default_rng(1).integers(0, 256, 24 * row.size, dtype=np.uint8).view(row.numpy).reshape(2, 3, 4)
    first, there, back = (
        tmp_path / name for name in (f"a{SUFFIX[source]}", f"b{SUFFIX[target]}", f"c{SUFFIX[source]}")
    )
    if source == "npy":
        np.save(first, array)
    else:
        first.write_bytes(ferry.dumps(array, format=source))
    assert ferry_cli("convert", first, there).status == 0
    assert same_bits(load(there), array)
    assert ferry_cli("convert", there, back).status == 0
    assert back.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 8])
def test_odd_shapes(ferry_cli: Ferry, tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "a.npy", np.zeros(shape, np.float32))
    for target in ("b.vlt", "b.blob", "b.npy"):
        assert ferry_cli("convert", tmp_path / "a.npy", tmp_path / target).status == 0
        assert load(tmp_path / target).shape == shape


def test_npy_of_other_orders(ferry_cli: Ferry, tmp_path: Path) -> None:
    array = np.arange(24, dtype=">i4").reshape(2, 3, 4)
    for form in (array, np.asfortranarray(array), np.asfortranarray(array.astype("<i4"))):
        np.save(tmp_path / "a.npy", form)
        for target in ("b.blob", "b.vlt", "c.npy"):
            assert ferry_cli("convert", tmp_path / "a.npy", tmp_path / target, "--force").status == 0
            assert (load(tmp_path / target) == array).all()


def test_strided_vectors_become_dense_npy(ferry_cli: Ferry, data: Path, tmp_path: Path) -> None:
    for name in ("strided_padded_rows", "strided_slice_of_last_axis"):
        source = data / "vlink" / f"{name}.vlt"
        assert ferry_cli("convert", source, tmp_path / "a.npy", "--force").status == 0
        array = ferry.loads(source.read_bytes()).numpy()
        assert same_bits(np.load(tmp_path / "a.npy"), np.ascontiguousarray(array))


def test_stdin_to_stdout(ferry_process: Ferry, data: Path, tmp_path: Path) -> None:
    source = data / "blob" / "bare_u8_5.blob"
    with source.open("rb") as stdin:
        ran = ferry_process("convert", "-", tmp_path / "a.npy", stdin=stdin)
    assert ran.status == 0
    assert ran.out.endswith("a.npy: npy, uint8[5], 133 bytes\n")
    assert np.load(tmp_path / "a.npy").shape == (5,)


def test_to_stdout(ferry_cli: Ferry, data: Path) -> None:
    from typer.testing import CliRunner

    from tensorferry.cli.app import app

    source = data / "blob" / "bare_f32_1x3x8x8.blob"
    out = CliRunner().invoke(app, ["convert", str(source), "-", "--to", "npy"]).stdout_bytes
    assert same_bits(np.load(io.BytesIO(out)), ferry.loads(source.read_bytes()).numpy())
    assert "its suffix names no format" in ferry_cli("convert", source, "-").refused(2)


def test_one_of_several(ferry_cli: Ferry, data: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.blob"
    names = ("bare_u8_5", "bare_i8_3x8")
    source.write_bytes(b"".join((data / "blob" / f"{name}.blob").read_bytes() for name in names))
    assert "pick one with --index" in ferry_cli("convert", source, tmp_path / "b.npy").refused(2)
    assert ferry_cli("convert", source, tmp_path / "b.npy", "--index", 1).status == 0
    assert np.load(tmp_path / "b.npy").shape == (3, 8)


# ---- several tensors, and the other formats ----


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    np.savez(tmp_path / "pair.npz", a=np.arange(3.0), b=np.ones((2, 2), np.int8))
    return tmp_path / "pair.npz"


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_all_of_several(ferry_cli: Ferry, pair: Path, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("safetensors")
    ran = ferry_cli("convert", pair, tmp_path / f"there.{suffix}")
    assert (ran.status, ran.err) == (0, "")
    assert f"{suffix}, 2 tensors, the first float64[3], 'a', " in ran.out
    assert ferry_cli("convert", tmp_path / f"there.{suffix}", tmp_path / "back.npz").status == 0
    with np.load(tmp_path / "back.npz") as back:
        assert sorted(back) == ["a", "b"]
        assert same_bits(back["a"], np.arange(3.0))
        assert same_bits(back["b"], np.ones((2, 2), np.int8))


def test_one_of_several_by_name(ferry_cli: Ferry, pair: Path, tmp_path: Path) -> None:
    line = ferry_cli("convert", pair, tmp_path / "x.npy").refused(2)
    assert "it holds 2 tensors (a, b): pick one with --index or --name" in line
    assert ferry_cli("convert", pair, tmp_path / "b.npy", "--name", "b", "--lossy").status == 0
    assert np.load(tmp_path / "b.npy").shape == (2, 2)
    assert ferry_cli("convert", pair, tmp_path / "a.npy", "--index", 0, "--lossy").status == 0
    assert np.load(tmp_path / "a.npy").shape == (3,)
    assert "labels.name" in ferry_cli("convert", pair, tmp_path / "c.npy", "--name", "b").refused(1)
    assert "there is no tensor 2" in ferry_cli("convert", pair, tmp_path / "x.npy", "--index", 2).refused(2)
    assert "no array 'c'" in ferry_cli("convert", pair, tmp_path / "x.npy", "--name", "c").refused(2)
    np.save(tmp_path / "n.npy", np.zeros(2))
    assert "no tensors in it are called" in ferry_cli("convert", tmp_path / "n.npy", "x.vlt", "--name", "n").refused(2)


def test_blobs_end_to_end_into_one_file(ferry_cli: Ferry, tmp_path: Path) -> None:
    (tmp_path / "a.tblob").write_bytes(ferry.dumps(np.zeros(3)) + ferry.dumps(np.ones(4)))
    assert ferry_cli("convert", tmp_path / "a.tblob", tmp_path / "a.npz").status == 0
    with np.load(tmp_path / "a.npz") as found:
        assert [found[name].tolist() for name in ("arr_0", "arr_1")] == [[0] * 3, [1] * 4]
    assert ferry_cli("convert", tmp_path / "a.npz", tmp_path / "b.tblob").status == 0
    assert (tmp_path / "b.tblob").read_bytes() == (tmp_path / "a.tblob").read_bytes()


def test_onnx(ferry_cli: Ferry, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    (tmp_path / "a.pb").write_bytes(onnx.numpy_helper.from_array(array, "weights").SerializeToString())
    assert ferry_cli("convert", tmp_path / "a.pb", tmp_path / "a.vlt").status == 0
    assert ferry_cli("convert", tmp_path / "a.vlt", tmp_path / "b.pb", "--lossy").status == 0
    proto = onnx.TensorProto.FromString((tmp_path / "b.pb").read_bytes())
    assert proto.name == "weights"
    assert same_bits(onnx.numpy_helper.to_array(proto), array)


def test_pictures(ferry_cli: Ferry, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    from tensorferry.record import colour

    rgb = ferry.Tensor.image("rgb8", 8, 6, np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8))
    (tmp_path / "a.blob").write_bytes(ferry.dumps(rgb))
    for suffix in ("png", "webp"):
        assert ferry_cli("convert", tmp_path / "a.blob", tmp_path / f"a.{suffix}").status == 0
        assert ferry_cli("convert", tmp_path / f"a.{suffix}", tmp_path / "b.blob", "--force").status == 0
        assert (tmp_path / "b.blob").read_bytes() == (tmp_path / "a.blob").read_bytes()
    args = ["convert", tmp_path / "a.blob", tmp_path / "a.jpg"]
    assert "a JPEG cannot carry values: --lossy" in ferry_cli(*args).refused(1)
    assert "compressed by JPEG of quality 60" in ferry_cli(*args, "--lossy", "--quality", 60).err
    assert "png has no option 'quality'" in ferry_cli(*args[:2], tmp_path / "x.png", "--quality", 60).refused(2)
    pixels = ["convert", tmp_path / "a.png", tmp_path / "c.blob", "--pixels", "NV12", "--to-colorimetry"]
    assert "rgb8 as NV12 loses values: --lossy" in ferry_cli(*pixels, "bt709,full").refused(1)
    ran = ferry_cli(*pixels, "bt709,full", "--lossy")
    assert "left behind: values (rgb8 became NV12)" in ran.err
    found = ferry.loads((tmp_path / "c.blob").read_bytes())
    wanted = ferry.Colorimetry(encoding="bt709", range="full")
    assert found.colorimetry == wanted
    expected = colour.convert(rgb, "NV12", colorimetry=wanted, lossy=True)
    assert all((found.plane(i) == expected.plane(i)).all() for i in range(2))
    # What the file leaves unsaid, the caller says.
    there = ["convert", tmp_path / "c.blob", tmp_path / "d.png", "--lossy", "--colorimetry"]
    assert "became rgb8 by bt2020 limited" in ferry_cli(*there, "encoding=bt2020,range=limited").err


def test_raw_values(ferry_cli: Ferry, tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    (tmp_path / "a.raw").write_bytes(array.tobytes())
    shape = ["--dtype", "float32", "--shape"]
    assert ferry_cli("convert", tmp_path / "a.raw", tmp_path / "a.npy", *shape, "2,3,4").status == 0
    assert same_bits(np.load(tmp_path / "a.npy"), array)
    assert ferry_cli("convert", tmp_path / "a.npy", tmp_path / "b.raw").status == 0
    assert (tmp_path / "b.raw").read_bytes() == array.tobytes()
    assert ferry_cli("convert", tmp_path / "a.raw", tmp_path / "a.npz", *shape, "3,4", "--many").status == 0
    with np.load(tmp_path / "a.npz") as found:
        assert same_bits(found["1"], array[1])
    one = ferry_cli("convert", tmp_path / "a.raw", tmp_path / "c.npy", *shape, "3,4", "--many", "--index", 1)
    assert one.status == 0
    assert same_bits(np.load(tmp_path / "c.npy"), array[1])
    assert "has 4 bytes, the file has 96" in ferry_cli("convert", tmp_path / "a.raw", "x.npy", *shape, "").refused(1)
    assert "raw values say nothing" in ferry_cli("convert", tmp_path / "a.raw", "x.npy").refused(2)


def test_raw_pixels(ferry_cli: Ferry, tmp_path: Path) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 64 * 18, np.uint8)
    (tmp_path / "a.yuv").write_bytes(memory.tobytes())
    said = ["--format", "NV12", "--size", "40x12", "--stride", "64", "--colorimetry", "bt709,limited"]
    assert ferry_cli("convert", tmp_path / "a.yuv", tmp_path / "a.blob", *said).status == 0
    tensor = ferry.loads((tmp_path / "a.blob").read_bytes())
    assert (tensor.format, tensor.width, tensor.height, tensor.planes[0].stride) == ("NV12", 40, 12, 64)
    assert tensor.colorimetry == ferry.Colorimetry(encoding="bt709", range="limited")
    assert (tensor.plane(1) == memory.reshape(18, 64)[12:, :40]).all()
    back = ["convert", tmp_path / "a.blob", tmp_path / "b.yuv", "--lossy"]
    assert ferry_cli(*back, "--stride", 48).status == 0
    assert (tmp_path / "b.yuv").stat().st_size == 48 * 18
    rows = np.fromfile(tmp_path / "b.yuv", np.uint8).reshape(18, 48)
    assert (rows[:, :40] == memory.reshape(18, 64)[:, :40]).all()


@pytest.mark.parametrize(
    "args",
    [
        ["x.npy", "--shape", "3"],
        ["x.npy", "--shape", "3;4", "--dtype", "uint8"],
        ["x.npy", "--shape", "-3", "--dtype", "uint8"],
        ["x.npy", "--shape", "3", "--dtype", "complex64"],
        ["x.npy", "--shape", "3", "--dtype", "uint8", "--stride", "4"],
        ["x.npy", "--shape", "3", "--dtype", "uint8", "--format", "NV12", "--size", "4x4"],
        ["x.npy", "--format", "NV12"],
        ["x.npy", "--format", "NV12", "--size", "4"],
        ["x.npy", "--format", "NV99", "--size", "4x4"],
        ["x.npy", "--format", "NV12", "--size", "4x4", "--stride", "2"],
        ["x.npy", "--size", "4x4"],
        ["x.npy", "--dtype", "uint8"],
        ["x.npy", "--many"],
        ["x.npy", "--stride", "64"],
        ["x.npy", "--limit", "64"],
        ["x.npy", "--pixels", "NV99"],
        ["x.npy", "--to-colorimetry", "bt709"],
        ["x.npy", "--pixels", "NV12", "--to-colorimetry", "bt709,bt601"],
        ["x.npy", "--colorimetry", "purple"],
        ["x.npy", "--colorimetry", "range="],
        ["x.npy", "--index", "1"],
        ["x.jpg", "--quality", "0"],
    ],
    ids=" ".join,
)
def test_options_that_make_no_sense(ferry_cli: Ferry, data: Path, tmp_path: Path, args: list[str]) -> None:
    source = data / "blob" / "image_rgb8_64x38.blob"
    ferry_cli("convert", source, tmp_path / args[0], *args[1:]).refused(2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("suffix", "module"), [("safetensors", "safetensors"), ("pb", "onnx"), ("png", "PIL.Image")])
def test_a_missing_extra_is_named(
    ferry_cli: Ferry, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, module: str
) -> None:
    for name in (module, f"{module}.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    source = data / "blob" / "image_rgb8_64x38.blob"
    line = ferry_cli("convert", source, tmp_path / f"a.{suffix}").refused(2)
    assert "pip install 'tensorferry[record]'" in line
    (tmp_path / f"b.{suffix}").write_bytes(b"something")
    assert "tensorferry[record]" in ferry_cli("convert", tmp_path / f"b.{suffix}", tmp_path / "c.blob").refused(2)


def test_a_bomb_and_a_limit(ferry_cli: Ferry, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1 << 16))
    args = ["convert", tmp_path / "a.npz", tmp_path / "a.safetensors", "--limit"]
    assert "it may be a bomb" in ferry_cli(*args, 1000).refused(1)
    assert ferry_cli(*args, 1 << 20).status == 0


# ---- losses ----


@pytest.mark.parametrize(
    ("source", "target", "lost"),
    [
        ("blob/image_NV12_64x38.blob", "a.npy", ["format (NV12)", "planes[1] (chroma)"]),
        ("blob/image_rgb8_64x38.blob", "a.npy", ["format (rgb8)"]),
        ("blob/image_rgb8_planar_33x17.blob", "a.npy", ["format (rgb8_planar)"]),
        ("blob/color_0.blob", "a.npy", ["format (NV12)", "colorimetry", "planes[1] (chroma)"]),
        ("blob/quant_i8_pt_asym.blob", "a.npy", ["quantization"]),
        ("blob/image_rgb8_64x38.blob", "a.vlt", ["format (rgb8)"]),
        ("blob/image_NV24_64x38.blob", "a.vlt", ["format (NV24)", "planes[1] (chroma)"]),
        ("blob/quant_i8_pc_asym_odd.blob", "a.vlt", ["quantization"]),
        ("vlink/full_metadata.vlt", "a.blob", ["labels.name", "labels.model_id", "labels.seq"]),
        ("vlink/full_metadata.vlt", "a.npy", ["quantization", "labels.name", "labels.time_pub"]),
        ("vlink/reserved_bytes_set.vlt", "a.npy", ["reserved_buf3"]),
        ("vlink/dtype_bfloat16.vlt", "a.npy", ["dtype (bfloat16)"]),
        ("vlink/dtype_bfloat16.vlt", "a.blob", ["dtype (bfloat16)"]),
        ("vlink/dtype_bool.vlt", "a.blob", ["dtype (bool)"]),
    ],
)
def test_losses_are_refused_and_named(
    ferry_cli: Ferry, data: Path, tmp_path: Path, source: str, target: str, lost: list[str]
) -> None:
    line = ferry_cli("convert", data / source, tmp_path / target).refused(1)
    assert "Lossy" in line
    assert "--lossy" in line
    assert all(name in line for name in lost), line
    assert not (tmp_path / target).exists()
    ran = ferry_cli("convert", data / source, tmp_path / target, "--lossy")
    assert ran.status == 0
    assert "left behind: " in ran.err
    assert all(name.partition(" (")[0] in ran.err for name in lost), ran.err
    original = ferry.loads((data / source).read_bytes()).numpy()
    there = load(tmp_path / target)
    assert there.shape == original.shape
    assert (there == original.astype(there.dtype)).sum() == (original == original).sum()


def test_bfloat16_keeps_its_values_as_float32(ferry_cli: Ferry, tmp_path: Path) -> None:
    array = np.array([1.5, -0.0, np.inf, np.nan, 3e38], ml_dtypes.bfloat16)
    (tmp_path / "a.vlt").write_bytes(ferry.dumps(array, format="vlink"))
    for target in ("b.npy", "b.blob"):
        ran = ferry_cli("convert", tmp_path / "a.vlt", tmp_path / target, "--lossy")
        assert "dtype (bfloat16 became float32, the values are exact)" in ran.err
        assert same_bits(load(tmp_path / target), array.astype(np.float32))


def test_what_nothing_can_help(ferry_cli: Ferry, tmp_path: Path) -> None:
    (tmp_path / "a.blob").write_bytes(ferry.dumps(np.zeros((1,) * 9, np.uint8)))
    line = ferry_cli("convert", tmp_path / "a.blob", tmp_path / "b.vlt", "--lossy").refused(1)
    assert "cannot carry shape, and --lossy cannot help it" in line


def test_strides_that_stand_for_more_than_there_is(ferry_cli: Ferry, tmp_path: Path, build_strided: bytes) -> None:
    (tmp_path / "a.blob").write_bytes(build_strided)
    line = ferry_cli("convert", tmp_path / "a.blob", tmp_path / "b.npy").refused(1)
    assert "those are not written out" in line


@pytest.fixture
def build_strided() -> bytes:
    """A blob of a few bytes whose strides of 0 make a terabyte of values."""
    wire = bytearray(ferry.dumps(np.zeros((1, 8), np.uint8)))
    wire[72:80] = (1 << 40).to_bytes(8, "little")
    wire[88:96] = bytes(8)
    return bytes(wire)


# ---- npy files ----


@pytest.mark.parametrize(
    "array",
    [
        np.array([1 + 2j]),
        np.array(["text"]),
        np.array([{}], dtype=object),
        np.zeros(2, [("a", "<i4")]),
        np.zeros(2, ml_dtypes.bfloat16),
        np.zeros(2, "M8[s]"),
    ],
    ids=["complex", "text", "object", "structured", "bfloat16", "datetime"],
)
def test_npy_of_types_that_are_none_of_ours(ferry_cli: Ferry, tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    ferry_cli("convert", tmp_path / "a.npy", tmp_path / "b.blob").refused(1)


def test_damaged_npy(ferry_cli: Ferry, tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.arange(10, dtype=np.int32))
    wire = stream.getvalue()
    for harmed in (*(wire[:end] for end in range(6, len(wire), 7)), wire + b"x", wire.replace(b"(10,)", b"(1e9)")):
        (tmp_path / "a.npy").write_bytes(harmed)
        ferry_cli("convert", tmp_path / "a.npy", tmp_path / "b.blob").refused(1)
    huge = wire.replace(b"(10,), }", b"(%d,)}" % 10**15).ljust(len(wire), b" ")
    (tmp_path / "a.npy").write_bytes(huge)
    ferry_cli("convert", tmp_path / "a.npy", tmp_path / "b.blob").refused(1)


# ---- the file that is written ----


def test_overwrites_only_by_force(ferry_cli: Ferry, data: Path, tmp_path: Path) -> None:
    source, target = data / "blob" / "bare_u8_5.blob", tmp_path / "a.npy"
    target.write_bytes(b"mine")
    assert "--force overwrites it" in ferry_cli("convert", source, target).refused(2)
    assert target.read_bytes() == b"mine"
    assert ferry_cli("convert", source, target, "--force").status == 0
    assert np.load(target).shape == (5,)


def test_a_file_onto_itself(ferry_cli: Ferry, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.blob"
    file.write_bytes((data / "blob" / "bare_u8_5.blob").read_bytes())
    assert ferry_cli("convert", file, file, "--to", "vlink", "--force").status == 0
    assert ferry.loads(file.read_bytes()).shape == (5,)


def test_bad_targets(ferry_cli: Ferry, data: Path, tmp_path: Path) -> None:
    source = data / "blob" / "bare_u8_5.blob"
    (tmp_path / "d.npy").mkdir()
    assert "it is a directory" in ferry_cli("convert", source, tmp_path / "d.npy", "--force").refused(2)
    assert "there is no directory" in ferry_cli("convert", source, tmp_path / "absent" / "a.npy").refused(2)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_stays_when_writing_fails(
    ferry_cli: Ferry, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(self: Path, target: Path) -> None:
        raise error

    monkeypatch.setattr(Path, "replace", fail)
    ran = ferry_cli("convert", data / "blob" / "bare_u8_5.blob", tmp_path / "a.npy")
    ran.refused(130 if isinstance(error, KeyboardInterrupt) else 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_the_file_has_the_mode_that_new_files_have(ferry_cli: Ferry, data: Path, tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        ferry_cli("convert", data / "blob" / "bare_u8_5.blob", tmp_path / "a.npy")
    finally:
        os.umask(old)
    assert (tmp_path / "a.npy").stat().st_mode & 0o777 == 0o640
