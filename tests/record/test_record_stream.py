"""Streams of blobs: writing them, reading them in place, and the index beside them."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import BLOB_DTYPES, bare_tensors, images, same_pixels

import tensorferry as ferry
from tensorferry import Closed, InUse, Labels, Lossy, Malformed, Tensor, Truncated, Unsupported, record
from tensorferry.memory import foreign
from tensorferry.record import BlobStream, Record, Recording
from tensorferry.record import appending as appending_module
from tensorferry.tensor import StorageKind

Array = npt.NDArray[Any]

READERS = [{"map": True}, {"map": False}, {"strict": False}]


def numbered(count: int, size: int = 30) -> list[Array]:
    return [np.full(size + i % 7, i, np.float32) for i in range(count)]


def write(path: Path, arrays: Sequence[Array | Tensor]) -> list[int]:
    with record.append(path) as writer:
        starts = [writer.write(array) for array in arrays]
        assert writer.count == len(arrays)
    assert writer.size == path.stat().st_size
    return starts


def opened(path: Path, **options: bool) -> BlobStream:
    recording = record.open(path, **options)
    assert isinstance(recording, BlobStream)
    return recording


def values(records: Sequence[Record] | Recording) -> list[list[float]]:
    return [r.tensor.numpy().tolist() for r in records]


# ---- what goes in comes out ----


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(bare_tensors(BLOB_DTYPES) | images(), max_size=5), st.sampled_from(READERS))
def test_what_was_written_is_read(tmp_path: Path, tensors: list[Tensor], options: dict[str, bool]) -> None:
    path = tmp_path / "camera.front.tblob"
    path.unlink(missing_ok=True)
    starts = write(path, tensors)
    assert path.read_bytes() == b"".join(map(ferry.dumps, tensors))
    with opened(path, **options) as recording:
        records = list(recording)
        assert [(r.topic, r.log_time, r.publish_time) for r in records] == [("camera.front", 0, 0)] * len(tensors)
        assert all(same_pixels(r.tensor, t) for r, t in zip(records, tensors, strict=True))
        assert len(recording) == len(tensors)
        assert [recording.span(i).start for i in range(len(tensors))] == starts
        assert recording.damage == ()


@pytest.mark.parametrize("options", READERS)
def test_random_access_and_slices(tmp_path: Path, options: dict[str, bool]) -> None:
    path = tmp_path / "a.tblob"
    arrays = numbered(23)
    write(path, arrays)
    with opened(path, **options) as recording:
        wanted = [a.tolist() for a in arrays]
        assert recording[7].tensor.numpy().tolist() == wanted[7]
        assert recording[-1].tensor.numpy().tolist() == wanted[-1]
        assert values(recording[3:9]) == wanted[3:9]
        assert values(recording[::-5]) == wanted[::-5]
        assert values(recording[2:20][::3][1:]) == wanted[2:20][::3][1:]
        assert len(recording[5:1]) == 0
        assert recording[4:][-1].tensor.numpy().tolist() == wanted[-1]
        for i in (23, -24, 1 << 70):
            with pytest.raises(IndexError, match="has 23"):
                recording[i]
        assert values(recording) == values(recording) == wanted  # every iteration starts again
        assert values(list(reversed(recording))) == wanted[::-1]


def test_slices_load_nothing_until_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tblob"
    write(path, numbered(5))
    with opened(path) as recording:
        some = recording[1:4]
        loaded: list[int] = []
        original = recording._record

        def load(i: int) -> Record:
            loaded.append(i)
            return original(i)

        monkeypatch.setattr(recording, "_record", load)
        assert loaded == []
        some[1]
        assert loaded == [2]


def test_iteration_does_not_scan_first(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    write(path, numbered(10))
    with opened(path) as recording:
        next(iter(recording))
        assert len(recording._starts) == 1
        recording[4]
        assert len(recording._starts) == 5


def test_mapped_tensors_are_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    (start,) = write(path, [np.zeros(100, np.uint8)])
    with opened(path) as recording:
        array = recording[0].tensor.numpy()
        assert not array.flags.writeable
        with path.open("r+b") as file:
            file.seek(path.stat().st_size - 104)  # 100 bytes, and 4 of padding
            file.write(b"\x07")
        assert array[0] == 7
    assert start == 0


@pytest.mark.parametrize("map", [True, False])
def test_views_outlive_the_recording(tmp_path: Path, map: bool) -> None:
    path = tmp_path / "a.tblob"
    write(path, numbered(3))
    recording = opened(path, map=map)
    array = recording[2].tensor.numpy()
    tensor = recording[1].tensor
    recording.close()
    recording.close()
    gc.collect()
    assert array[0] == 2
    assert tensor.numpy()[0] == 1
    with pytest.raises(Closed, match="was closed"):
        recording[0]
    path.unlink()
    assert array[0] == 2


def test_streams_join_end_to_end(tmp_path: Path) -> None:
    a, b, both = tmp_path / "a", tmp_path / "b", tmp_path / "both.tblob"
    write(a, numbered(3))
    write(b, numbered(2))
    both.write_bytes(a.read_bytes() + b.read_bytes())
    with opened(both) as recording:
        assert [r.tensor.numpy()[0] for r in recording] == [0, 1, 2, 0, 1]


def test_topics_and_selection(tmp_path: Path) -> None:
    path = tmp_path / "lidar.tblob"
    write(path, numbered(4))
    with opened(path) as recording:
        (topic,) = recording.topics
        assert (topic.name, topic.messages, topic.kind, topic.undecoded) == ("lidar", 4, "blob", None)
        assert (topic.first, topic.last) == (None, None)
        assert len(list(recording.select(["lidar"]))) == 4
        assert list(recording.select(["camera"])) == []
        assert list(recording.select(start=1)) == []


@pytest.mark.parametrize("options", READERS)
def test_an_empty_stream(tmp_path: Path, options: dict[str, bool]) -> None:
    path = tmp_path / "a.tblob"
    write(path, [])
    with opened(path, **options) as recording:
        assert len(recording) == 0
        assert list(recording) == []
        with pytest.raises(IndexError):
            recording[0]


# ---- what is not a stream ----


def test_opening_what_is_none(tmp_path: Path) -> None:
    for name, content in (("notes.txt", b"hello, this is a text of some length" * 9), ("a.bin", bytes(100))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(Malformed, match="neither a stream of blobs"):
            record.open(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        record.open(tmp_path / "nothing")
    with pytest.raises(Unsupported, match="no regular file"):
        record.open(tmp_path)
    os.mkfifo(tmp_path / "pipe.tblob")
    with pytest.raises(Unsupported, match="no regular file"):
        record.open(tmp_path / "pipe.tblob")
    with pytest.raises(Unsupported, match="no regular file"):
        record.append(tmp_path / "pipe.tblob")


@pytest.mark.parametrize("kind", [StorageKind.SHM, StorageKind.CUDA, StorageKind.IO_SURFACE])
def test_blobs_by_reference_reach_for_no_memory(tmp_path: Path, kind: StorageKind) -> None:
    header = ferry.blob.BlobHeader.empty()
    plane = ferry.blob.BlobPlane(handle=0, stride=8, size=8, used=8, handle_bytes=bytes(64 * (kind == "cuda")))
    records = bytearray()
    ferry.blob.write_plane(records, plane)
    strings = bytes(24)
    code = {StorageKind.SHM: 1, StorageKind.IO_SURFACE: 3, StorageKind.CUDA: 5}[kind]
    size = 72 + 8 + len(strings) + len(records)
    data = bytearray()
    header._replace(
        size=size,
        planes_bytes=len(records),
        storage_kind=code,
        ndim=1,
        plane_count=1,
        strings_bytes=24,
        pid=os.getpid(),
    ).write_to(data)
    data += (8).to_bytes(8, "little") + strings + records
    path = tmp_path / "a.tblob"
    path.write_bytes(data + ferry.dumps(np.arange(3)))

    def reached(*args: object) -> Any:
        raise AssertionError("a file made an importer run")

    foreign.register(kind, reached) if kind is not StorageKind.SHM else None
    try:
        with opened(path) as recording:
            with pytest.raises(Unsupported, match="by reference"):
                recording[0]
            assert recording[1].tensor.numpy().tolist() == [0, 1, 2]
    finally:
        if kind is not StorageKind.SHM:
            foreign.unregister(kind)


# ---- appending ----


def test_appending_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    write(path, numbered(3))
    with record.append(path) as writer:
        assert writer.dropped is None
        assert writer.size == path.stat().st_size
        writer.write(np.full(3, 7, np.float32))
        writer.flush()
        # Nothing is held back: another reader has it at once.
        assert [r.tensor.numpy()[0] for r in opened(path)] == [0, 1, 2, 7]
    with pytest.raises(Closed, match="append"):
        writer.write(np.zeros(1))


def test_two_writers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    with record.append(path) as writer:
        writer.write(np.zeros(3))
        with pytest.raises(InUse, match="has a writer already"):
            record.append(path)
        writer.write(np.ones(3))
    with record.append(path) as writer:
        writer.write(np.ones(3))
    assert len(opened(path)) == 3


def test_somebody_else_writing_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    with record.append(path) as writer:
        writer.write(np.zeros(3))
        with path.open("ab") as other:
            other.write(b"theirs")
        with pytest.raises(InUse, match="someone else writes"):
            writer.write(np.zeros(3))
    assert path.read_bytes() == ferry.dumps(np.zeros(3)) + b"theirs"


def test_what_a_blob_cannot_say_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    labelled = Tensor.from_array(np.zeros(3), labels=Labels(name="x"))
    with record.append(path) as writer:
        with pytest.raises(Lossy, match="labels"):
            writer.write(labelled)
        assert path.stat().st_size == 0
        writer.write(labelled, lossy=True)
    assert len(opened(path)) == 1


def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tblob"
    writev = os.writev
    monkeypatch.setattr(appending_module, "_MAX_PARTS", 2)

    def one_to_nine(fd: int, parts: Sequence[Any]) -> int:
        return writev(fd, [memoryview(b"".join(parts))[: 1 + sum(map(len, parts)) % 9]])

    monkeypatch.setattr(os, "writev", one_to_nine)
    image = Tensor.image("NV12", 6, 4, np.arange(36, dtype=np.uint8))
    write(path, [image, np.arange(5), np.zeros((0, 3))])
    assert path.read_bytes() == b"".join(map(ferry.dumps, [image, np.arange(5), np.zeros((0, 3))]))


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    path = tmp_path / "a.tblob"
    with record.append(path) as writer:
        writer.write(np.zeros(30))
        before = path.read_bytes()
        writev, calls = os.writev, 0

        def full(fd: int, parts: Sequence[Any]) -> int:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise failure
            return writev(fd, [memoryview(b"".join(parts))[:100]])

        with monkeypatch.context() as patch:
            patch.setattr(os, "writev", full)
            with pytest.raises(type(failure)):
                writer.write(np.ones(1000))
        assert path.read_bytes() == before
        assert writer.write(np.ones(3)) == len(before)
    assert len(opened(path)) == 2


FULL = """
import resource, signal, sys
import numpy as np
from tensorferry import record
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
with record.append(sys.argv[1]) as writer:
    writer.write(np.arange(1000, dtype=np.uint8))
    size = writer.size
    try:
        writer.write(np.zeros(20_000, np.uint8))
    except OSError as error:
        print(error.errno)
    assert writer.size == size
    writer.write(np.ones(2000, np.uint8))
"""


def test_the_kernel_running_out_of_room_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EFBIG)]
    with opened(path) as recording:
        assert [r.tensor.shape for r in recording] == [(1000,), (2000,)]


def test_sync_writes_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def counted(fd: int) -> None:
        synced.append(fd)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", counted)
    with record.append(tmp_path / "a.tblob", sync=True) as writer:
        before = len(synced)
        assert before == 2  # the file, and the directory that its name is in
        writer.write(np.zeros(3))
        assert len(synced) == before + 1


# ---- sizes ----


def test_more_than_four_gib(tmp_path: Path) -> None:
    """Sparse: two blobs of 3 GiB of zeros around small ones; nobody touches the zeros."""
    path = tmp_path / "a.tblob"
    huge = np.zeros(3 << 30, np.uint8)
    head = bytes(ferry.blob.export_parts(Tensor.from_array(huge))[0])
    small = ferry.dumps(np.arange(5))
    with path.open("wb") as file:
        for _ in range(2):
            file.write(small)
            file.write(head)
            file.seek(len(huge) - 1, os.SEEK_CUR)
            file.write(b"\x05")
        file.write(small)
    assert path.stat().st_size > 6 << 30
    before = anonymous_memory()
    for strict in (True, False):
        with opened(path, strict=strict) as recording:
            assert len(recording) == 5
            assert [r.tensor.nbytes for r in recording] == [40, 3 << 30, 40, 3 << 30, 40]
            assert recording[3].tensor.numpy()[-1] == 5
            assert recording[4].tensor.numpy().tolist() == [0, 1, 2, 3, 4]
            assert recording.span(4).start > 6 << 30
    with opened(path, index=True) as recording:
        assert recording[-1].tensor.numpy().tolist() == [0, 1, 2, 3, 4]
    with record.append(path) as writer:
        assert writer.write(np.arange(5)) > 6 << 30
    assert anonymous_memory() - before < 64 << 20


def anonymous_memory() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("Linux says RssAnon")


def test_memory_stays_flat_over_a_long_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    write(path, [np.full(1 << 20, i % 256, np.uint8) for i in range(300)])
    with opened(path) as recording:
        most = 0
        for number, r in enumerate(recording):
            assert int(r.tensor.numpy()[::4096].sum()) == 256 * (number % 256)
            statistics = Path("/proc/self/smaps_rollup").read_text() if number % 20 == 0 else ""
            for line in statistics.splitlines():
                if line.startswith("Rss:"):
                    most = max(most, int(line.split()[1]) << 10)
            if number == 20:
                first = most
        assert most - first < 150 << 20  # bytes, of 300 MiB that were looked at


# ---- a file that changes under its reader ----


@pytest.mark.parametrize("map", [True, False])
def test_a_stream_that_shrinks_is_an_error_not_a_crash(tmp_path: Path, map: bool) -> None:
    path = tmp_path / "a.tblob"
    write(path, [np.full(1 << 16, i, np.uint8) for i in range(20)])
    for scanned in (False, True):
        with opened(path, map=map) as recording:
            if scanned:
                len(recording)
            else:
                next(iter(recording))
            os.truncate(path, path.stat().st_size // 2)
            with pytest.raises(Truncated) as caught:
                for _ in recording:
                    pass
            assert caught.value.offset is not None
            assert caught.value.offset > 0
        with opened(path, map=map, strict=False) as recording:
            next(iter(recording))
            size = path.stat().st_size
            os.truncate(path, 100_000)
            assert len(list(recording)) == 1
            (lost,) = recording.damage
            assert isinstance(lost.error, Truncated)
            assert lost.offset + lost.length == size
        path.unlink()
        write(path, [np.full(1 << 16, i, np.uint8) for i in range(20)])


def test_what_is_appended_later_is_not_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    write(path, numbered(2))
    with opened(path) as recording:
        write(path, numbered(2))
        assert len(recording) == 2
        assert len(list(recording)) == 2
    assert len(opened(path)) == 4


# ---- the index beside it ----


def index_of(path: Path) -> Path:
    return path.with_name(path.name + ".index")


def test_the_index_is_written_once_and_used(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    write(path, numbered(9))
    opened(path).close()
    assert not index_of(path).exists()
    with opened(path, index=True) as recording:
        assert recording.index_note == "written: there was none"
    assert sorted(os.listdir(tmp_path)) == ["a.tblob", "a.tblob.index"]
    with opened(path, index=True) as recording:
        assert recording.index_note == "read"
        assert len(recording) == len(recording._starts) == 9
        assert [r.tensor.numpy()[0] for r in recording] == list(range(9))
        assert recording[-1].tensor.numpy()[0] == 8
    (tmp_path / "empty.tblob").touch()
    for note in ("written: there was none", "read"):
        assert opened(tmp_path / "empty.tblob", index=True).index_note == note


def test_an_index_that_no_longer_fits_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    write(path, numbered(9))
    opened(path, index=True).close()
    write(path, numbered(1))
    with opened(path, index=True) as recording:
        assert recording.index_note == "written: the stream has changed since"
        assert len(recording) == 10
    good = index_of(path).read_bytes()
    for damage in (b"", good[:50], good[:-8], good + bytes(8), b"X" + good[1:], good[:-1] + b"\x01", bytes(1 << 20)):
        index_of(path).write_bytes(damage)
        with opened(path, index=True) as recording:
            assert str(recording.index_note).startswith("written: it was")
            assert [r.tensor.numpy()[0] for r in recording] == [*range(9), 0]
        assert index_of(path).read_bytes() == good
    for bit in range(0, 8 * len(good), 5):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        index_of(path).write_bytes(flipped)
        with opened(path, index=True) as recording:
            assert str(recording.index_note).startswith("written: it was")


def forge(path: Path, ends: Sequence[int]) -> None:
    """An index that is as it should be in all but where the blobs end."""
    data = index_of(path).read_bytes()
    facts = bytearray(data[16 : 16 + 168])
    facts[16:24] = len(ends).to_bytes(8, "little")
    body = bytes(facts) + b"".join(end.to_bytes(8, "little") for end in ends)
    index_of(path).write_bytes(data[:12] + zlib.crc32(body).to_bytes(4, "little") + body)


def test_an_index_that_lies_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    arrays = [np.full(30, i, np.float32) for i in range(6)]
    starts = write(path, arrays)
    size = path.stat().st_size
    opened(path, index=True).close()
    step = starts[1]
    ends = [*starts[1:], size]
    forge(path, ends)
    assert opened(path, index=True).index_note == "read"  # the forger knows the trade
    for wrong in ([*ends[:-1], size + 8], [*ends[:2], *ends[3:-1]], [size], [*ends[:3], ends[2], *ends[3:]], []):
        forge(path, wrong)
        with opened(path, index=True) as recording:
            assert recording.index_note == "written: it did not fit the stream"
            assert len(list(recording)) == 6
    forge(path, [ends[0], ends[1] + 8, *ends[2:]])  # in the middle, where only looking there can tell
    with opened(path, index=True) as recording:
        assert recording.index_note == "read"
        assert recording[0].tensor.numpy()[0] == 0
        for i in (1, 2):
            with pytest.raises(
                ferry.WireError, match=r"index lies: delete .*a\.tblob\.index|required_mask|size"
            ) as caught:
                recording[i]
            assert caught.value.offset is not None
            assert step <= caught.value.offset <= 3 * step
        assert recording[3].tensor.numpy()[0] == 3
        with pytest.raises(ferry.WireError):
            list(recording)


def test_an_index_that_cannot_be_kept_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    write(path, numbered(2))
    index_of(path).mkdir()
    with opened(path, index=True) as recording:
        assert str(recording.index_note).startswith("not written: ")
        assert len(recording) == 2
    assert sorted(os.listdir(tmp_path)) == ["a.tblob", "a.tblob.index"]
    with pytest.raises(ValueError, match="sound stream"):
        record.open(path, index=True, strict=False)
