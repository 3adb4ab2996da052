"""Bytes that no sender of ours wrote: each costs one refusal, and nothing else."""

from __future__ import annotations

import builtins
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import BLOB_DTYPES, bare_tensors, damaged, images

import tensorferry as ferry
from tensorferry import FerryError, Malformed, Tensor, Truncated, Unsupported, WireError, messages
from tensorferry.messages import definitions

msgs = pytest.importorskip("edgefirst.schemas").edgefirst_msgs

PLAIN = messages.encode(Tensor.from_array(np.arange(6, dtype=np.float32).reshape(2, 3)))


@given(st.data(), st.sampled_from(messages.KINDS))
def test_damage_is_refused_or_harmless(data: st.DataObject, kind: str) -> None:
    tensor = data.draw(bare_tensors(BLOB_DTYPES) | images())
    if tensor.format is None:
        tensor = tensor.replace(colorimetry=None)
    wire = data.draw(damaged(messages.encode(tensor, kind)))
    try:
        back = messages.decode(wire, kind)
    except (WireError, Unsupported, ferry.Lossy):
        return
    assert sum(plane.size for plane in back.planes) <= len(wire)


@given(st.binary(max_size=300))
@example(b"\0\1\0\0" + struct.pack("<IIiIiI", 0, 0, -1, 0, -2, 2**32 - 1))
@example(b"\0\1\0\0" + struct.pack("<IIiIiI", 0, 0, -1, 0, -2, 2**31) + bytes(4))
def test_noise_is_refused(noise: bytes) -> None:
    for kind in messages.KINDS:
        with pytest.raises((WireError, Unsupported)):
            messages.decode(b"\0\1\0\0" + noise[4:] if len(noise) >= 4 else noise, kind)


def test_every_cut_is_refused() -> None:
    for n in range(len(PLAIN)):
        with pytest.raises(WireError):
            messages.decode(PLAIN[:n])


def test_too_few_bytes_say_how_many() -> None:
    with pytest.raises(Truncated) as refusal:
        messages.decode(b"\0\1")
    assert (refusal.value.need, refusal.value.have) == (4, 2)


@pytest.mark.parametrize("encapsulation", [b"\0\0\0\0", b"\0\3\0\0", b"\0\7\0\0", b"\1\0\0\0"])
def test_other_encapsulations_are_not_misread(encapsulation: bytes) -> None:
    with pytest.raises(Unsupported, match="encapsulation"):
        messages.decode(encapsulation + PLAIN[4:])


def test_bytes_behind_the_message_are_left_alone() -> None:
    assert messages.decode(PLAIN + bytes(3)).numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"dtype": 99}, Unsupported),
        ({"shape": [7]}, Malformed),
        ({"shape": [2**63, 2**63]}, Malformed),
        ({"strides": [-4]}, Malformed),
        ({"shape": [1] * 65}, Unsupported),
        ({"planes": []}, Malformed),
        ({"format": "NV12"}, Malformed),
        ({"format": "x" * 70_000}, Unsupported),
    ],
)
def test_messages_that_the_package_writes_and_no_tensor_is(change: dict[str, Any], error: type[FerryError]) -> None:
    fields = {"dtype": 9, "shape": [6], "planes": [msgs.TensorPlane(data=bytes(24), size=24, used=24, stride=24)]}
    with pytest.raises(error):
        messages.decode(msgs.Tensor(**{**fields, **change}).to_bytes())


def test_more_planes_than_are_read() -> None:
    planes = [msgs.TensorPlane(data=b"a", size=1, used=1)] * 65
    with pytest.raises(Unsupported, match="65 planes"):
        messages.decode(msgs.Tensor(shape=[1], format="odd", planes=planes).to_bytes())


def test_a_stamp_of_too_many_nanoseconds() -> None:
    time = pytest.importorskip("edgefirst.schemas").builtin_interfaces.Time
    inner = msgs.Tensor.from_cdr(PLAIN)
    with pytest.raises(Malformed, match="nanoseconds"):
        messages.decode(msgs.CameraFrame(stamp=time(1, 10**9), tensor=inner).to_bytes(), "CameraFrame")


def test_what_a_message_taught_does_not_make_a_damaged_blob_believable() -> None:
    """The importer remembers prefixes that it believed: those of messages must be whole blobs' too."""
    tensor = Tensor.from_array(np.arange(1000, dtype=np.int16))
    messages.decode(messages.encode(tensor))
    wire = ferry.dumps(tensor)
    assert ferry.loads(wire).numpy().tolist() == list(range(1000))
    for n in (len(wire) - 1, 200, 100):
        with pytest.raises(WireError):
            ferry.loads(wire[:n])


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("edgefirst"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    definitions.codec.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    try:
        with pytest.raises(Unsupported, match=r"install tensorferry\[edgefirst\]"):
            messages.decode(PLAIN)
        with pytest.raises(Unsupported, match=r"install tensorferry\[edgefirst\]"):
            messages.encode(Tensor.from_array(np.zeros(1, np.uint8)))
    finally:
        definitions.codec.cache_clear()
