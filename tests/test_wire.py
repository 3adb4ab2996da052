"""Both formats behind two verbs, and tensors that cross from one to the other."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import BLOB_DTYPES, arrays, bare_tensors, damaged, images, labels, quantizations, same_bits, same_pixels

import tensorferry as ferry
from tensorferry import DType, Labels, Lossy, Plane, Quantization, Tensor, vlink
from tensorferry.tensor import Description
from tensorferry.wire import format_of

DATA = Path(__file__).parent / "data"


def test_told_apart_by_content() -> None:
    for path in DATA.glob("blob/*.blob"):
        assert format_of(path.read_bytes()) == "blob"
    for path in DATA.glob("vlink/*.vlt"):
        assert format_of(path.read_bytes()) == "vlink"
    # A blob of 0x98B7F19A bytes starts with the envelope's magic: it is a blob if that many bytes are here.
    size = int.from_bytes(vlink.MAGIC_BEGIN_BYTES, "little")
    assert format_of(size.to_bytes(8, "little") + bytes(92)) == "vlink"
    assert format_of(b"") == format_of(b"abc") == "blob"
    assert format_of(vlink.MAGIC_BEGIN_BYTES) == "vlink"


@given(bare_tensors() | images())
def test_dumps_and_loads(t: Tensor) -> None:
    for format in ("blob", "vlink"):
        try:
            wire = ferry.dumps(t, format=format)
        except Lossy:
            continue
        assert same_pixels(ferry.loads(wire), t)
        assert ferry.dumps(ferry.loads(wire), format=format) == wire


@given(arrays(BLOB_DTYPES))
def test_arrays_go_straight(a: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
    assert same_bits(ferry.loads(ferry.dumps(a)).numpy(), a)


def test_loads_borrows_unless_it_copies() -> None:
    for format in ("blob", "vlink"):
        wire = bytearray(ferry.dumps(np.zeros(3, np.uint8), format=format))
        borrowed = ferry.loads(wire).numpy()
        copied = ferry.loads(wire, copy=True).numpy()
        at = wire.index(bytes(3), len(wire) - 12)
        assert not borrowed.flags.writeable
        assert copied.flags.writeable
        assert not np.shares_memory(borrowed, copied)
        before = bytes(wire)
        wire[at : at + 1] = b"\0"
        copied[:] = 9
        assert wire == before


def test_other_formats_are_bad_usage() -> None:
    with pytest.raises(ValueError, match="neither 'blob' nor 'vlink'"):
        ferry.dumps(np.zeros(1), format="pickle")


# ---- crossing ----


@st.composite
def carried_by_both(draw: st.DrawFn) -> Tensor:
    """What a blob and an envelope can both say: no images, no labels, one scale at the most."""
    a = draw(arrays(BLOB_DTYPES))
    q = draw(quantizations(a.shape, per_channel=False))
    assume(q is None or q.zero_points is None or q.zero_points[0] != 0)  # 0 and none map alike: see docs/vlink.md
    assume(q is None or q.scales[0] != 0)
    return Tensor.from_array(a, quantization=q)


@given(carried_by_both())
def test_blob_to_vlink_to_blob_is_the_identity(t: Tensor) -> None:
    as_blob = ferry.dumps(t)
    as_vlink = ferry.dumps(ferry.loads(as_blob), format="vlink")
    assert ferry.dumps(ferry.loads(as_vlink)) == as_blob
    assert ferry.dumps(ferry.loads(ferry.dumps(ferry.loads(as_vlink))), format="vlink") == as_vlink
    assert same_pixels(ferry.loads(as_vlink), t)


def test_unsaid_strides_cross_unsaid() -> None:
    t = Tensor(Description(DType.INT16, (2, 3)), (Plane(memoryview(bytes(range(12))), 12),))
    as_blob = ferry.dumps(t)
    as_vlink = ferry.dumps(ferry.loads(as_blob), format="vlink")
    assert not ferry.loads(as_vlink).strides_given
    assert ferry.dumps(ferry.loads(as_vlink)) == as_blob
    assert ferry.loads(as_vlink).numpy().tolist() == t.numpy().tolist()


def test_strides_that_were_said_cross() -> None:
    padded = Tensor(Description(DType.INT16, (2, 3), (8, 2)), (Plane(memoryview(bytes(range(14))), 14),))
    as_blob = ferry.dumps(padded)
    as_vlink = ferry.dumps(ferry.loads(as_blob), format="vlink")
    assert ferry.loads(as_vlink).strides == (8, 2)
    assert ferry.dumps(ferry.loads(as_vlink)) == as_blob


@pytest.mark.parametrize("path", sorted(DATA.glob("blob/*.blob")), ids=lambda path: path.stem)
def test_every_blob_vector_crosses_or_says_what_it_would_lose(path: Path) -> None:
    wire = path.read_bytes()
    t = ferry.loads(wire)
    lost = {name for name in ("format", "colorimetry") if getattr(t, name) is not None}
    if t.quantization is not None and t.quantization.axis is not None:
        lost.add("quantization")
    if lost:
        with pytest.raises(Lossy) as caught:
            ferry.dumps(t, format="vlink")
        assert set(caught.value.fields) == lost
    else:
        assert ferry.dumps(ferry.loads(ferry.dumps(t, format="vlink"))) == wire


def test_what_vlink_alone_can_say_is_named_on_the_way_to_a_blob() -> None:
    reserved = ferry.loads((DATA / "vlink" / "reserved_bytes_set.vlt").read_bytes())
    with pytest.raises(Lossy) as caught:
        ferry.dumps(reserved)
    assert set(caught.value.fields) == {"reserved", "reserved_buf", "reserved_buf2", "reserved_buf3"}
    assert ferry.loads(ferry.dumps(reserved, lossy=True)).numpy().tolist() == reserved.numpy().tolist()
    full = ferry.loads((DATA / "vlink" / "full_metadata.vlt").read_bytes())
    with pytest.raises(Lossy) as caught:
        ferry.dumps(full)
    assert {"labels.name", "labels.model_id", "labels.layout", "labels.seq", "labels.device"} <= set(
        caught.value.fields
    )


@given(labels)
def test_labels_travel_by_vlink_only(said: Labels) -> None:
    t = Tensor.from_array(np.zeros((2, 2), np.float32), labels=said)
    assert ferry.loads(ferry.dumps(t, format="vlink")).labels == said


def test_what_a_later_revision_appended_does_not_cross_in_silence() -> None:
    wire = bytearray(ferry.dumps(np.zeros(3, np.uint8))) + b"appended"
    wire[:8] = len(wire).to_bytes(8, "little")
    t = ferry.loads(wire)
    assert ferry.dumps(t) == wire
    with pytest.raises(Lossy) as caught:
        ferry.dumps(t, format="vlink")
    assert caught.value.fields == ("appended",)


def test_symmetric_and_a_zero_point_of_zero_map_alike() -> None:
    """VLink has one way to say both; what comes back maps every value to the same."""
    q = Quantization.per_tensor(0.5, 0)
    t = Tensor.from_array(np.arange(3, dtype=np.int8), quantization=q)
    assert ferry.loads(ferry.dumps(t, format="vlink")).quantization == q


@given(st.data())
@settings(max_examples=200)
def test_damaged_messages_of_either_format(data: st.DataObject) -> None:
    t = data.draw(bare_tensors(BLOB_DTYPES))
    format = data.draw(st.sampled_from(["blob", "vlink"]))
    try:
        wire = ferry.dumps(t, format=format)
    except Lossy:
        return
    with contextlib.suppress(ferry.WireError, ferry.Unsupported):
        ferry.loads(data.draw(damaged(wire))).numpy()


def test_importing_brings_no_optional_dependency() -> None:
    """The core must come up on a machine with NumPy and ml_dtypes alone."""
    code = (
        "import sys, numpy, ml_dtypes; before = set(sys.modules); import tensorferry;"
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert set(out.split()) <= {"tensorferry", "numpy", "ml_dtypes"}
