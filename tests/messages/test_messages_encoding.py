"""Blob ↔ message is the identity, for every vector and by property; what a message cannot say is refused."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import BLOB_DTYPES, bare_tensors, images, quantizations

import tensorferry as ferry
from tensorferry import Colorimetry, Labels, Lossy, Quantization, Tensor, Unsupported, messages
from tensorferry.blob import TransportMode

msgs = pytest.importorskip("edgefirst.schemas").edgefirst_msgs

DATA = Path(__file__).parents[1] / "data" / "blob"
kinds = st.sampled_from(messages.KINDS)


def carried(tensor: Tensor) -> Tensor:
    """The tensor as a message can say it: colour is for images only."""
    return tensor if tensor.format is not None else tensor.replace(colorimetry=None)


@pytest.mark.parametrize("kind", messages.KINDS)
@pytest.mark.parametrize("path", sorted(DATA.glob("*.blob")), ids=lambda path: path.stem)
def test_every_vector_goes_there_and_back(path: Path, kind: str) -> None:
    wire = path.read_bytes()
    message = messages.encode(ferry.loads(wire), kind)
    assert ferry.dumps(messages.decode(message, kind)) == wire
    assert messages.encode(messages.decode(message, kind), kind) == message


@given(bare_tensors(BLOB_DTYPES) | images(), kinds)
def test_any_tensor_goes_there_and_back(tensor: Tensor, kind: str) -> None:
    tensor = carried(tensor)
    back = messages.decode(messages.encode(tensor, kind), kind)
    assert ferry.dumps(back) == ferry.dumps(tensor)
    assert back.strides_given == tensor.strides_given
    assert back.labels is None


@given(st.data())
def test_every_quantization_goes_there_and_back(data: st.DataObject) -> None:
    tensor = Tensor.from_array(np.zeros((2, 3, 4), np.int8), quantization=data.draw(quantizations((2, 3, 4))))
    assert ferry.dumps(messages.decode(messages.encode(tensor))) == ferry.dumps(tensor)


def test_empty_strides_stay_empty() -> None:
    message = msgs.Tensor(dtype=9, shape=[2, 3], planes=[msgs.TensorPlane(data=bytes(24), size=24, used=24, stride=24)])
    tensor = messages.decode(message.to_bytes())
    assert not tensor.strides_given
    assert tensor.strides == (12, 4)
    assert messages.encode(tensor) == message.to_bytes()
    assert ferry.blob.BlobView.parse(ferry.dumps(tensor)).strides == ()


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40), kinds)
def test_headers_and_labels_are_the_same(frame_id: str, kind: str) -> None:
    if kind == "Tensor":
        return
    labels = Labels(frame_id=frame_id, seq=2**32 - 1, time_meas=1_700_000_000_123_456_789)
    tensor = Tensor.from_array(np.arange(4, dtype=np.int16), labels=labels)
    message = messages.encode(tensor, kind)
    theirs = getattr(msgs, kind).from_cdr(message)
    assert (theirs.frame_id, theirs.seq) == (frame_id, 2**32 - 1)
    assert (theirs.stamp.sec, theirs.stamp.nanosec) == (1_700_000_000, 123_456_789)
    assert messages.decode(message, kind).labels == labels


def test_an_empty_frame_id_is_not_the_new_ones() -> None:
    tensor = Tensor.from_array(np.zeros(2, np.uint8), labels=Labels(frame_id="", seq=1))
    back = messages.decode(messages.encode(tensor, "CameraFrame"), "CameraFrame")
    assert back.labels == Labels(frame_id="", seq=1)


class TestLosses:
    def test_labels_of_an_unstamped_message(self) -> None:
        tensor = Tensor.from_array(np.zeros(2, np.uint8), labels=Labels(name="a", frame_id="cam", seq=4))
        with pytest.raises(Lossy) as refusal:
            messages.encode(tensor)
        assert refusal.value.fields == ("labels.name", "labels.frame_id", "labels.seq")
        assert messages.decode(messages.encode(tensor, lossy=True)).labels is None

    def test_labels_that_a_header_has_no_field_for(self) -> None:
        tensor = Tensor.from_array(np.zeros(2, np.uint8), labels=Labels(name="a", frame_id="cam", device=2))
        with pytest.raises(Lossy) as refusal:
            messages.encode(tensor, "TensorStamped")
        assert refusal.value.fields == ("labels.name", "labels.device")
        back = messages.decode(messages.encode(tensor, "TensorStamped", lossy=True), "TensorStamped")
        assert back.labels == Labels(frame_id="cam")

    def test_times_past_2038(self) -> None:
        tensor = Tensor.from_array(np.zeros(2, np.uint8), labels=Labels(seq=1, time_meas=2**31 * 10**9))
        with pytest.raises(Lossy, match=r"labels\.time_meas"):
            messages.encode(tensor, "CameraFrame")
        back = messages.decode(messages.encode(tensor, "CameraFrame", lossy=True), "CameraFrame")
        assert back.labels == Labels(seq=1)

    @pytest.mark.parametrize("dtype", ["bool", "bfloat16"])
    def test_element_types_without_a_code(self, dtype: str) -> None:
        tensor = ferry.allocate((2,), dtype)
        with pytest.raises(Lossy, match="dtype"):
            messages.encode(tensor, lossy=True)

    def test_colour_without_a_format(self) -> None:
        tensor = Tensor.from_array(np.zeros(2, np.uint8)).replace(colorimetry=Colorimetry(space="srgb"))
        with pytest.raises(Lossy, match="colorimetry"):
            messages.encode(tensor, lossy=True)

    def test_what_a_later_blob_appended(self) -> None:
        wire = bytearray(ferry.dumps(np.zeros(8, np.uint8))) + b"later..."
        wire[:8] = len(wire).to_bytes(8, "little")
        tensor = ferry.loads(wire)
        with pytest.raises(Lossy, match="appended"):
            messages.encode(tensor)
        assert messages.decode(messages.encode(tensor, lossy=True)).carried is None

    def test_stamps_before_1970_and_long_sequences(self) -> None:
        time = pytest.importorskip("edgefirst.schemas").builtin_interfaces.Time
        inner = msgs.Tensor(dtype=0, shape=[1], planes=[msgs.TensorPlane(data=b"a", size=1, used=1)])
        wire = msgs.TensorStamped(stamp=time(sec=-1), frame_id="f", seq=2**32 + 5, tensor=inner).to_bytes()
        with pytest.raises(Lossy) as refusal:
            messages.decode(wire, "TensorStamped")
        assert refusal.value.fields == ("stamp", "seq")
        assert messages.decode(wire, "TensorStamped", lossy=True).labels == Labels(frame_id="f", seq=5)


class TestByReference:
    """Descriptors by pid: the process is this one, which may always reach into itself."""

    def test_a_message_names_raw_descriptors(self) -> None:
        tensor = ferry.allocate((3, 4), "float32", storage="shm")
        tensor.numpy()[...] = np.arange(12, dtype=np.float32).reshape(3, 4)
        theirs = msgs.Tensor.from_cdr(messages.encode(tensor, mode=TransportMode.REFERENCE))
        handle = tensor.planes[0].handle
        assert handle is not None
        assert theirs.pid == os.getpid()
        assert [plane.handle for plane in theirs.planes] == [handle.fileno()]

    def test_it_is_fetched_only_when_allowed(self) -> None:
        tensor = ferry.allocate((3, 4), "float32", storage="shm")
        tensor.numpy()[...] = 7
        wire = messages.encode(tensor, mode=TransportMode.REFERENCE)
        with pytest.raises(Unsupported, match="by_pid=True"):
            messages.decode(wire)
        back = messages.decode(wire, by_pid=True)
        tensor.close()
        assert back.storage == "shm"
        assert back.numpy().sum() == 84
        assert not back.numpy().flags.writeable

    def test_planes_of_one_allocation_are_fetched_once_and_nothing_leaks(self) -> None:
        image = ferry.allocate_image("NV12", 64, 48, storage="shm")
        wire = messages.encode(image, "CameraFrame", mode=TransportMode.REFERENCE)
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            with messages.decode(wire, "CameraFrame", by_pid=True) as back:
                assert back.planes[1].offset == 64 * 48
        with pytest.raises(Unsupported):
            messages.decode(wire, "CameraFrame")
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == descriptors

    def test_nothing_is_fetched_for_a_message_that_is_refused(self) -> None:
        plane = msgs.TensorPlane(handle=2**40, stride=4, size=4, used=4)
        wire = msgs.Tensor(storage_kind=1, pid=1, dtype=0, shape=[100], planes=[plane]).to_bytes()
        with pytest.raises(ferry.Malformed):
            messages.decode(wire, by_pid=True)

    def test_a_fence_is_refused_unless_it_was_waited_for(self) -> None:
        tensor = ferry.allocate((4,), "uint8", storage="shm")
        handle = tensor.planes[0].handle
        assert handle is not None
        plane = msgs.TensorPlane(handle=handle.fileno(), stride=4, size=4, used=4)
        wire = msgs.Tensor(storage_kind=1, pid=os.getpid(), fence_fd=3, dtype=0, shape=[4], planes=[plane]).to_bytes()
        with pytest.raises(Unsupported, match="fence"):
            messages.decode(wire, by_pid=True)
        assert messages.decode(wire, by_pid=True, fence="ignore").shape == (4,)

    def test_foreign_handles_reach_their_importer_and_are_not_fetched(self) -> None:
        arrived: list[ferry.memory.ForeignPlane] = []

        def importer(plane: ferry.memory.ForeignPlane) -> object:
            arrived.append(plane)
            return np.full(16, 3, np.uint8)

        plane = msgs.TensorPlane(handle=77, stride=16, size=16, used=16)
        wire = msgs.Tensor(storage_kind=3, pid=9, dtype=0, shape=[16], planes=[plane]).to_bytes()
        with pytest.raises(Unsupported, match="iosurface"):
            messages.decode(wire)
        ferry.memory.register("iosurface", importer)
        try:
            assert messages.decode(wire).numpy().sum() == 48
        finally:
            ferry.memory.unregister("iosurface")
        assert (arrived[0].handle, arrived[0].fd, arrived[0].pid) == (77, None, 9)


def test_kinds_by_any_of_their_names() -> None:
    assert messages.type_name("CameraFrame") == "edgefirst_msgs/msg/CameraFrame"
    wire = messages.encode(Tensor.from_array(np.zeros(1, np.uint8)), "edgefirst_msgs/msg/TensorStamped")
    assert messages.decode(wire, "edgefirst_msgs::msg::dds_::TensorStamped_").shape == (1,)
    with pytest.raises(ValueError, match="'Image'"):
        messages.encode(Tensor.from_array(np.zeros(1, np.uint8)), "Image")


def test_inline_planes_borrow_from_bytes() -> None:
    wire = messages.encode(Tensor.from_array(np.arange(64, dtype=np.uint8), quantization=Quantization(0.5)))
    array = messages.decode(wire).numpy()
    whole = np.frombuffer(wire, np.uint8)
    assert np.shares_memory(array, whole)
    assert not array.flags.writeable
    assert messages.decode(memoryview(bytearray(wire))).numpy().tolist() == array.tolist()
