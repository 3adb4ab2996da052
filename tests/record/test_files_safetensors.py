"""safetensors files: what strangers read in ours and we in theirs, what stays of a tensor, and damage."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from strategies import arrays, bare_tensors, damaged, images, labels, same_bits, same_pixels

from tensorferry import (
    Colorimetry,
    DType,
    FerryError,
    Labels,
    Lossy,
    Malformed,
    Quantization,
    Tensor,
    Unsupported,
    dumps,
)
from tensorferry.record import files

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(lambda t: t != "__metadata__")


def wire_of(entries: Any) -> bytes:
    written = files.encode(entries, "safetensors")
    assert list(written.lost) == []
    return b"".join(written.parts)


def header_of(wire: bytes) -> Any:
    return json.loads(wire[8 : 8 + int.from_bytes(wire[:8], "little")])


@given(st.dictionaries(names, arrays(list(DType)), max_size=4))
def test_strangers_read_ours(given: dict[str, Any]) -> None:
    wire = wire_of([(name, Tensor.from_array(array)) for name, array in given.items()])
    theirs = dict(safetensors.deserialize(wire))  # type: ignore[no-untyped-call]
    assert set(theirs) == set(given)
    for name, array in given.items():
        assert tuple(theirs[name]["shape"]) == array.shape
        assert bytes(theirs[name]["data"]) == array.tobytes()
    back = dict(files.read(wire))
    assert set(back) == set(given)
    assert all(same_bits(back[name].numpy(), np.array(array, order="C")) for name, array in given.items())


def test_we_read_strangers() -> None:
    arrays: dict[str, Any] = {
        f"layer.{row}": np.arange(6).astype(row.numpy).reshape(2, 3) for row in DType if row != "bfloat16"
    }
    arrays["layer.bfloat16"] = np.arange(6).astype(ml_dtypes.bfloat16)
    wire = safetensors.numpy.save(arrays, {"format": "pt", "trained": "never"})
    back = dict(files.read(wire))
    assert set(back) == set(arrays)
    for name, array in arrays.items():
        assert same_bits(back[name].numpy(), array)
        assert back[name].labels == Labels(name=name)
    # The package writes metadata in an order of its own.
    again = wire_of(list(back.items()))
    assert header_of(again) == header_of(wire)
    assert again[-64:] == wire[-64:]


@given(bare_tensors() | images(), st.none() | labels, st.sampled_from(["", "camera"]))
def test_everything_that_is_said_stays(tensor: Tensor, said: Labels | None, name: str) -> None:
    tensor = tensor.replace(labels=said)
    ((key, back),) = files.read(wire_of([(name, tensor)]))
    assert key == (name or (said.name if said else "") or "tensor_0")
    if tensor.format is None:
        assert same_bits(back.numpy(), np.array(tensor.numpy(), order="C"))
    assert back.quantization == tensor.quantization
    if tensor.format is not None:
        assert same_pixels(back, tensor)
    if said is not None and said.said():
        assert back.labels == said


def test_scales_that_json_has_no_numbers_for() -> None:
    bits = np.array([0x7FC00001, 0xFF800000, 0x7F800000, 0xFFC12345], np.uint32)
    tensor = Tensor.from_array(np.zeros(4, np.int8), quantization=Quantization(bits.view(np.float32), axis=0))
    ((_, back),) = files.read(wire_of(tensor))
    assert back.quantization is not None
    assert (back.quantization.scales.view(np.uint32) == bits).all()


def test_an_image_is_one_array_that_opencv_takes() -> None:
    memory = np.arange(6 * 4 * 3 // 2, dtype=np.uint8)
    tensor = Tensor.image("NV12", 6, 4, memory, colorimetry=Colorimetry(range="full"))
    wire = wire_of([("cam", tensor)])
    assert (safetensors.numpy.load(wire)["cam"] == memory.reshape(6, 6)).all()
    assert json.loads(header_of(wire)["__metadata__"]["tensorferry"]) == {
        "version": 1,
        "tensors": {"cam": {"pixels": {"format": "NV12", "width": 6, "height": 4}, "colorimetry": {"range": "full"}}},
    }


def test_metadata_is_carried_and_named_where_it_cannot_go() -> None:
    wire = safetensors.numpy.save({"a": np.zeros(2)}, {"format": "pt"})
    ((_, tensor),) = files.read(wire)
    with pytest.raises(Lossy) as caught:
        dumps(tensor)
    assert caught.value.fields == ("labels.name", "safetensors.format")
    other = files.read(safetensors.numpy.save({"b": np.zeros(2)}, {"format": "np"}))
    assert [loss.named for loss in files.encode([("a", tensor), *other], "safetensors").lost] == [
        "safetensors.format (np)"
    ]


def test_one_of_several() -> None:
    entries = {
        "a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]},
    }
    header = json.dumps(entries).encode()
    wire = len(header).to_bytes(8, "little") + header + b"xy"
    with pytest.raises(Unsupported, match="'a' has dtype F8_E4M3"):
        files.read(wire)
    ((_, tensor),) = files.read(wire, name="b")
    assert tensor.numpy().tolist() == [ord("y")]
    with pytest.raises(Unsupported, match="no tensor 'c'"):
        files.read(wire, name="c")


def test_names_must_tell_tensors_apart() -> None:
    tensor = Tensor.from_array(np.zeros(1))
    for name in ("a", "__metadata__"):
        with pytest.raises(ValueError, match="one name for each"):
            files.encode([(name, tensor)] * 2, "safetensors")


def test_an_unknown_pixel_format_is_not_written() -> None:
    wire = dumps(Tensor.image("rgb8", 2, 2, np.zeros((2, 2, 3), np.uint8))).replace(b"rgb8", b"rgb9")
    ((_, tensor),) = files.read(wire)
    with pytest.raises(Unsupported, match="rgb9"):
        files.encode(tensor, "safetensors")


NOTES = [
    "nonsense",
    "[]",
    "{}",
    '{"version":1}',
    '{"version":1,"tensors":[]}',
    '{"version":1,"tensors":{"b":{}}}',
    '{"version":1,"tensors":{"a":[]}}',
    "[" * 100_000,
    *(
        f'{{"version":1,"tensors":{{"a":{facts}}}}}'
        for facts in (
            '{"pixels":3}',
            '{"pixels":{}}',
            '{"pixels":{"format":"NV12","width":2,"height":3}}',
            '{"pixels":{"format":"NV12","width":-4,"height":4}}',
            '{"pixels":{"format":"NV12","width":4.0,"height":4}}',
            '{"pixels":{"format":"NV12","width":"4","height":4}}',
            '{"pixels":{"format":["NV12"],"width":4,"height":4}}',
            '{"pixels":{"format":"mono8","width":1e400,"height":4}}',
            '{"quantization":{}}',
            '{"quantization":{"axis":7,"scales":[1],"zero_points":null}}',
            '{"quantization":{"axis":"0","scales":[1],"zero_points":null}}',
            '{"quantization":{"axis":null,"scales":["0x123456789"],"zero_points":null}}',
            '{"quantization":{"axis":null,"scales":["xyz"],"zero_points":null}}',
            '{"quantization":{"axis":null,"scales":[null],"zero_points":null}}',
            '{"quantization":{"axis":null,"scales":[1],"zero_points":[1e99]}}',
            '{"labels":{"seq":-1}}',
            '{"labels":{"seq":"1"}}',
            '{"labels":{"seq":true}}',
            '{"labels":{"name":1}}',
            '{"labels":{"unknown":1}}',
            '{"labels":3}',
            '{"colorimetry":3}',
            '{"colorimetry":{"hue":"x"}}',
        )
    ),
]


@pytest.mark.parametrize("notes", NOTES)
def test_notes_that_cannot_be_believed(notes: str) -> None:
    wire = safetensors.numpy.save({"a": np.zeros((6, 4), np.uint8)}, {"tensorferry": notes})
    with pytest.raises((Malformed, Unsupported)):
        files.read(wire)


def test_notes_of_later_versions_are_refused() -> None:
    for notes in ('{"version":2,"tensors":{}}', '{"version":1,"tensors":{"a":{"pixels":{"format":"P010"}}}}'):
        with pytest.raises(Unsupported):
            files.read(safetensors.numpy.save({"a": np.zeros(1)}, {"tensorferry": notes}))


@given(st.data())
def test_damage(data: st.DataObject) -> None:
    wire = data.draw(damaged(wire_of([("a", Tensor.from_array(np.arange(5), quantization=Quantization(0.5)))])))
    with contextlib.suppress(FerryError):
        files.read(wire, format="safetensors")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for module in ("safetensors", "safetensors.numpy", "onnx", "PIL.Image"):
        monkeypatch.setitem(sys.modules, module, None)
    tensor = Tensor.from_array(np.zeros((2, 2), np.uint8))
    for name, package in (("safetensors", "safetensors"), ("onnx", "onnx"), ("png", "pillow")):
        for act in (lambda: files.encode(tensor, name), lambda: files.read(b"", format=name)):  # noqa: B023
            with pytest.raises(Unsupported, match=rf"needs {package} .*pip install 'tensorferry\[record\]'"):
                act()
