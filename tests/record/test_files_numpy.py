"""npy, npz and raw files: every type, order and damage; NumPy as the judge."""

from __future__ import annotations

import contextlib
import io
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import arrays, damaged, images, same_bits, same_pixels

from tensorferry import Colorimetry, DType, FerryError, Labels, Lossy, Malformed, PixelFormat, Tensor, Unsupported
from tensorferry.record import files

Array = npt.NDArray[Any]
NUMPYS: list[DType] = [row for row in DType if row is not DType.BFLOAT16]


def joined(written: files.Written) -> bytes:
    return b"".join(written.parts)


# ---- npy ----


@given(arrays(NUMPYS))
def test_npy_is_what_numpy_reads_and_writes(array: Array) -> None:
    wire = joined(files.encode(Tensor.from_array(array), "npy"))
    assert same_bits(np.load(io.BytesIO(wire)), np.ascontiguousarray(array).reshape(array.shape))
    ((name, tensor),) = files.read(wire)
    assert name == ""
    assert same_bits(tensor.numpy(), np.load(io.BytesIO(wire)))


@given(arrays(NUMPYS), st.sampled_from("CF"), st.booleans())
def test_npy_of_every_order(array: Array, order: Any, big: bool) -> None:
    stream = io.BytesIO()
    given = np.array(array, array.dtype.newbyteorder(">" if big else "<"), order=order)
    np.save(stream, given)
    ((_, tensor),) = files.read(stream.getvalue())
    assert tensor.numpy().dtype == array.dtype
    assert (
        np.array_equal(tensor.numpy().view(f"V{array.itemsize}"), array.view(f"V{array.itemsize}"))
        if (array.flags.c_contiguous and tensor.numpy().flags.c_contiguous)
        else tensor.numpy().tobytes() == array.tobytes()
    )


@given(arrays(NUMPYS), st.data())
def test_damaged_npy_is_refused_or_read(array: Array, data: st.DataObject) -> None:
    stream = io.BytesIO()
    np.save(stream, array)
    with contextlib.suppress(FerryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files.read(data.draw(damaged(stream.getvalue())), format="npy")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -6), }",
        f"{{'descr': '|u1', 'fortran_order': False, 'shape': (0, {2**80}), }}",
        f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({2**60},), }}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (%s), }" % ("1, " * 70 + "6"),
        "{'descr': '|V0', 'fortran_order': False, 'shape': (6,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (6,), }",
        "{'descr': [('a', '<i4'), ('b', '<i2')], 'fortran_order': False, 'shape': (1,), }",
        "(" * 5000,
        "[" * 200 + "]" * 200,
        "__import__('os')",
        "{'descr': None, 'fortran_order': 3, 'shape': 'x'}",
    ],
)
def test_hostile_npy_headers(header: str) -> None:
    text = header.encode() + b"\n"
    with pytest.raises((Malformed, Unsupported)):
        files.read(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(6))


def test_pickles_are_never_loaded() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return pytest.fail, ("it was unpickled",)

    stream = io.BytesIO()
    np.save(stream, np.array([Bomb()], object), allow_pickle=True)
    with pytest.raises(Unsupported, match="pickled"):
        files.read(stream.getvalue())
    stream = io.BytesIO()
    np.savez(stream, a=np.array([Bomb()], object))
    with pytest.raises(Unsupported, match="pickled"):
        files.read(stream.getvalue())


# ---- npz ----

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.dictionaries(names, arrays(NUMPYS), max_size=4), st.booleans())
def test_npz_is_what_numpy_reads_and_writes(given: dict[str, Array], compress: bool) -> None:
    wire = joined(files.encode([(name, Tensor.from_array(a)) for name, a in given.items()], "npz", compress=compress))
    theirs = np.load(io.BytesIO(wire))
    assert [name.removesuffix(".npy") for name in theirs.zip.namelist()] == list(given)
    back = files.read(wire)
    assert [name for name, _ in back] == list(given)
    for (name, tensor), array in zip(back, given.values(), strict=True):
        assert same_bits(tensor.numpy(), np.array(array, order="C"))
        assert same_bits(theirs[name], np.array(array, order="C"))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_numpys_npz(save: Any, tmp_path: Path) -> None:
    a, b = np.arange(6, dtype=">f4").reshape(2, 3), np.asfortranarray(np.eye(3, dtype=np.int16))
    save(tmp_path / "a.npz", b, first=a)
    found = dict(files.read(tmp_path / "a.npz"))
    assert set(found) == {"first", "arr_0"}
    assert (found["first"].numpy() == a).all()
    assert (found["arr_0"].numpy() == b).all()
    assert found["first"].labels == Labels(name="first")
    assert found["arr_0"].labels is None
    assert [name for name, _ in files.read(tmp_path / "a.npz", name="first")] == ["first"]
    with pytest.raises(Unsupported, match="no array 'second'"):
        files.read(tmp_path / "a.npz", name="second")


def test_stored_arrays_are_borrowed_and_written_without_a_copy() -> None:
    array = np.arange(100_000)
    written = files.encode([("a", Tensor.from_array(array))], "npz")
    assert any(isinstance(part, memoryview) and np.shares_memory(np.asarray(part), array) for part in written.parts)
    data = bytearray(joined(written))
    ((_, tensor),) = files.read(data)
    assert np.shares_memory(tensor.numpy(), np.frombuffer(data, np.uint8))


def test_the_same_arrays_make_the_same_file() -> None:
    entries = [("a", Tensor.from_array(np.arange(5)))]
    assert joined(files.encode(entries, "npz")) == joined(files.encode(entries, "npz"))


def test_npz_bombs() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("a.npy", bytes(300 << 20))
    with pytest.raises(Unsupported, match="bomb"):
        files.read(stream.getvalue())
    # One that lies about its size is read no further than that.
    lying = stream.getvalue().replace(struct.pack("<I", 300 << 20), struct.pack("<I", 1000))
    with pytest.raises(Malformed):
        files.read(lying)
    small = io.BytesIO()
    np.savez_compressed(small, a=np.zeros(1 << 20, np.uint8))
    with pytest.raises(Unsupported, match="limit="):
        files.read(small.getvalue(), limit=1 << 20)
    assert files.read(small.getvalue(), limit=(1 << 20) + 200)[0].tensor.shape == (1 << 20,)


def test_npz_refusals(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("notes.txt", b"x")
    with pytest.raises(Unsupported, match="no npy file"):
        files.read(stream.getvalue())
    stream = io.BytesIO()
    body = io.BytesIO()
    np.save(body, np.zeros(3))
    with zipfile.ZipFile(stream, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("a.npy", body.getvalue())
        archive.writestr("a.npy", body.getvalue())
    with pytest.raises(Malformed, match="two arrays"):
        files.read(stream.getvalue())
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", body.getvalue())
    with pytest.raises(Unsupported, match="method 14"):
        files.read(stream.getvalue())
    t = Tensor.from_array(np.zeros(1))
    for names in (("a", "a"), ("a\0b",)):
        with pytest.raises(ValueError, match="one name for each"):
            files.write([(name, t) for name in names], tmp_path / "a.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("compress", [False, True])
def test_a_flipped_bit_in_npz_is_noticed(compress: bool) -> None:
    wire = joined(files.encode([("a", Tensor.from_array(np.arange(100)))], "npz", compress=compress))
    harmless = 0
    for at in range(len(wire)):
        harmed = bytearray(wire)
        harmed[at] ^= 1
        try:
            ((_, tensor),) = files.read(harmed, format="npz")
        except FerryError:
            continue
        # What is not under a checksum: names, times, versions. Never the values.
        harmless += 1
        assert (tensor.numpy() == np.arange(100)).all()
    assert harmless < 200


@given(st.data())
def test_damaged_npz_is_refused_or_read(data: st.DataObject) -> None:
    compress = data.draw(st.booleans())
    wire = joined(files.encode([("a", Tensor.from_array(np.arange(30)))], "npz", compress=compress))
    with contextlib.suppress(FerryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files.read(data.draw(damaged(wire)), format="npz")


# ---- raw ----


@given(arrays(list(DType)))
def test_raw_values(array: Array) -> None:
    wire = joined(files.encode(Tensor.from_array(array), "raw"))
    assert wire == array.tobytes()
    ((_, tensor),) = files.read(wire, format="raw", shape=array.shape, dtype=str(DType.of(array.dtype)))
    assert same_bits(tensor.numpy(), np.array(array, order="C"))


@given(images(), st.sampled_from([0, 2, 62]))
def test_raw_pixels(image: Tensor, gap: int) -> None:
    image = image.replace(colorimetry=None, quantization=None)
    assert isinstance(image.format, PixelFormat)
    size, dtype = (image.width, image.height), str(image.dtype)
    stride = image.format.min_pitch(image.width, image.dtype.size) + gap * image.dtype.size
    wire = joined(files.encode(image, "raw", stride=stride))
    options: dict[str, Any] = {"pixels": str(image.format), "size": size, "dtype": dtype}
    ((_, back),) = files.read(wire, format="raw", stride=stride, **options)
    assert same_pixels(back, image)
    ((_, back),) = files.read(joined(files.encode(image, "raw")), format="raw", **options)
    assert same_pixels(back, image)


def test_raw_needs_exactly_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.yuv").write_bytes(bytes(6 * 3))
    options: dict[str, Any] = {"pixels": "NV12", "size": (2, 2)}
    with pytest.raises(Malformed, match="exactly 3 of them"):
        files.read(tmp_path / "a.yuv", **options)
    assert [name for name, _ in files.read(tmp_path / "a.yuv", many=True, **options)] == ["0", "1", "2"]
    for harmed in (b"", bytes(5), bytes(7)):
        with pytest.raises(Malformed):
            files.read(harmed, format="raw", many=True, **options)
    colours = Colorimetry(range="full")
    assert files.read(bytes(6), format="raw", colorimetry=colours, **options)[0].tensor.colorimetry == colours
    wrongs: tuple[dict[str, Any], ...] = (
        {},
        {"shape": (2,)},
        {"dtype": "float32"},
        {"pixels": "NV12"},
        {"size": (2, 2)},
        {"shape": (2,), "dtype": "uint8", "stride": 2},
        {"shape": (-2, -3), "dtype": "uint8"},
        {"shape": (6,), "dtype": "uint8", **options},
        {"pixels": "NV12", "size": (-2, 2)},
        {"pixels": "NV99", "size": (2, 2)},
        {**options, "stride": 1},
        {"shape": (6,), "dtype": "uint8", "quality": 3},
    )
    for wrong in wrongs:
        with pytest.raises(ValueError):  # noqa: PT011  the options are at fault in different ways
            files.read(bytes(6), format="raw", **wrong)


# ---- what every format does ----


def test_losses_are_named_and_nothing_stays(tmp_path: Path) -> None:
    tensor = Tensor.from_array(np.zeros(3, np.float32), labels=Labels(name="x", seq=4))
    for suffix in ("npy", "npz", "raw"):
        target = tmp_path / f"a.{suffix}"
        with pytest.raises(Lossy) as caught:
            files.write(tensor, target)
        named = ("labels.seq",) if suffix == "npz" else ("labels.name", "labels.seq")
        assert caught.value.fields == named
        assert list(tmp_path.iterdir()) == []
        assert [loss.field for loss in files.write(tensor, target, lossy=True)] == list(named)
        target.unlink()


def test_bfloat16_keeps_its_values(tmp_path: Path) -> None:
    tensor = Tensor.from_array(np.array([1.5, np.inf], DType.BFLOAT16.numpy))
    for suffix in ("npy", "npz", "blob"):
        (loss,) = files.write(tensor, tmp_path / f"a.{suffix}", lossy=True)
        assert loss.said == "dtype (bfloat16 became float32, the values are exact)"
        ((_, back),) = files.read(tmp_path / f"a.{suffix}")
        assert back.numpy().tolist() == [1.5, np.inf]


def test_one_tensor_a_file(tmp_path: Path) -> None:
    two = [("a", Tensor.from_array(np.zeros(1))), ("b", Tensor.from_array(np.zeros(2)))]
    for suffix in ("npy", "vlt", "png", "pb"):
        with pytest.raises(ValueError, match="holds one tensor"):
            files.write(two, tmp_path / f"a.{suffix}")
    for suffix in ("blob", "npz", "safetensors", "raw"):
        files.write(two, tmp_path / f"a.{suffix}")
    assert [t.shape for _, t in files.read(tmp_path / "a.blob")] == [(1,), (2,)]


def test_formats_are_told_apart(tmp_path: Path) -> None:
    tensor = Tensor.image("rgb8", 5, 4, np.zeros((4, 5, 3), np.uint8))
    for name, format in files.FORMATS.items():
        wire = joined(files.encode(tensor, name))
        if name not in ("onnx", "raw"):
            assert files.format_of(wire) == name
            assert files.format_of(wire, "a.unknown") == name
        assert files.format_of(b"", f"a{format.suffixes[0]}") == name
    assert files.format_of(b"", "a.unknown") is None
    with pytest.raises(ValueError, match="names no format"):
        files.write(tensor, tmp_path / "a.unknown")
    with pytest.raises(ValueError, match="is none of"):
        files.write(tensor, tmp_path / "a.blob", format="unknown")
    with pytest.raises(ValueError, match="no option 'quality'"):
        files.write(tensor, tmp_path / "a.blob", quality=3)


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.vlt").write_bytes(b"mine")
    with pytest.raises(Lossy, match="cannot help"):
        files.write(Tensor.from_array(np.zeros((1,) * 9)), tmp_path / "a.vlt", lossy=True)
    assert (tmp_path / "a.vlt").read_bytes() == b"mine"
    with pytest.raises(FileNotFoundError):
        files.write(Tensor.from_array(np.zeros(1)), tmp_path / "absent" / "a.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["a.vlt"]
