"""Streams that a crash, a bad disk or somebody's editor has been at: reported with offset, and all the rest kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import damaged

import tensorferry as ferry
from tensorferry import FerryError, ForgedLength, Tensor, Truncated, WireError, record
from tensorferry.blob.importing import Appended
from tensorferry.record import BlobStream, Damage

Array = npt.NDArray[Any]

BLOBS = [ferry.dumps(np.arange(5 + i, dtype=np.int16) * 257 + i) for i in range(5)]
STREAM = b"".join(BLOBS)
STARTS = [sum(map(len, BLOBS[:i])) for i in range(len(BLOBS) + 1)]


def opened(path: Path, content: bytes | None = None, **options: bool) -> BlobStream:
    if content is not None:
        path.write_bytes(content)
    recording = record.open(path, **options)
    assert isinstance(recording, BlobStream)
    return recording


def numbers(recording: BlobStream) -> list[int]:
    """Which of the blobs are there, by what stands in them first."""
    return [int(r.tensor.numpy()[0]) for r in recording]


def check_salvaged(path: Path, content: bytes, kept: Sequence[int], damage: Sequence[tuple[int, int]]) -> list[Damage]:
    """Passing over damage, and repairing, give just these blobs and name just these stretches."""
    out = path.with_name("out.tblob")
    for map in (True, False):
        with opened(path, content, strict=False, map=map) as recording:
            assert numbers(recording) == list(kept)
            assert len(recording) == len(kept)
            assert [(d.offset, d.length) for d in recording.damage] == list(damage)
            for d in recording.damage:
                assert str(path) in str(d.error)
                assert f"at byte {d.offset}" in str(d.error)
    told: list[tuple[int, int]] = []
    report = record.repair(path, out, progress=lambda done, of: told.append((done, of)))
    assert path.read_bytes() == content
    assert out.read_bytes() == b"".join(BLOBS[i] for i in kept)
    assert (report.kept, report.kept_bytes) == (len(kept), out.stat().st_size)
    assert report.dropped_bytes == sum(length for _, length in damage)
    assert [(d.offset, d.length) for d in report.dropped] == list(damage)
    assert told == sorted(told)
    assert not content or told[-1] == (len(content), len(content))
    with opened(out) as recording:
        assert numbers(recording) == list(kept)
    return list(report.dropped)


def check_strict(path: Path, content: bytes, before: Sequence[int], offset: int) -> WireError:
    """Strict iteration gives the blobs before the damage, then says where it is."""
    for map in (True, False):
        with opened(path, content, map=map) as recording:
            records = iter(recording)
            assert [int(next(records).tensor.numpy()[0]) for _ in before] == list(before)
            with pytest.raises(WireError) as caught:
                next(records)
            assert caught.value.offset is not None
            assert offset <= caught.value.offset < offset + 200
            assert f"at byte {offset}" in str(caught.value)
    return caught.value


def flipped(content: bytes, bit: int) -> bytes:
    data = bytearray(content)
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


# ---- kinds of damage ----


def test_a_sound_stream_is_not_damaged(tmp_path: Path) -> None:
    check_salvaged(tmp_path / "a.tblob", STREAM, range(5), [])
    check_salvaged(tmp_path / "a.tblob", b"", [], [])


def test_a_truncated_tail(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    for cut in range(STARTS[2], STARTS[3]):
        tail = [] if cut == STARTS[2] else [(STARTS[2], cut - STARTS[2])]
        check_salvaged(path, STREAM[:cut], [0, 1], tail)
        if tail:
            assert isinstance(check_strict(path, STREAM[:cut], [0, 1], STARTS[2]), Truncated)


@pytest.mark.parametrize("zeros", [1, 7, 8, 71, 72, 100, 5000])
def test_a_zero_tail(tmp_path: Path, zeros: int) -> None:
    path = tmp_path / "a.tblob"
    check_salvaged(path, STREAM + bytes(zeros), range(5), [(len(STREAM), zeros)])
    check_strict(path, STREAM + bytes(zeros), range(5), len(STREAM))


@pytest.mark.parametrize("garbage", [b"\xff", b"garbage" * 3, bytes(8), bytes(800), b"\x51" * 801, STREAM[10:80]])
def test_garbage_between(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "a.tblob"
    content = STREAM[: STARTS[2]] + garbage + STREAM[STARTS[2] :]
    check_salvaged(path, content, range(5), [(STARTS[2], len(garbage))])
    check_strict(path, content, [0, 1], STARTS[2])
    check_salvaged(path, garbage + STREAM, range(5), [(0, len(garbage))])


def test_any_bit_of_a_header(tmp_path: Path) -> None:
    """Every one of the 576 bits: at most the blob itself is lost, and never silently."""
    path = tmp_path / "a.tblob"
    out = tmp_path / "out.tblob"
    quiet = []
    for bit in range(72 * 8):
        content = flipped(STREAM, STARTS[2] * 8 + bit)
        path.write_bytes(content)
        report = record.repair(path, out)
        kept = numbers(opened(out))
        if report.kept == 5:
            quiet.append(bit // 8)
            assert out.read_bytes() == content
            continue
        assert kept == [0, 1, 3, 4], f"bit {bit} of the header"
        assert [(d.offset, d.length) for d in report.dropped] == [(STARTS[2], len(BLOBS[2]))]
        with opened(path) as recording, pytest.raises(FerryError, match=f"at byte {STARTS[2]}"):
            list(recording)
    # What can change without contradicting anything: storage_kind, pid and fence_fd mean nothing inline, and int16
    # becomes another type of at most its size.
    assert set(quiet) <= {*range(24, 40)}


@pytest.mark.parametrize("position", range(5))
def test_a_size_that_is_wrong_by_any_bit(tmp_path: Path, position: int) -> None:
    path = tmp_path / "a.tblob"
    rest = [i for i in range(5) if i != position]
    for bit in range(64):
        content = flipped(STREAM, STARTS[position] * 8 + bit)
        check_salvaged(path, content, rest, [(STARTS[position], len(BLOBS[position]))])


def test_a_size_that_swallows_the_next_blob(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    content = STREAM[: STARTS[1]] + (STARTS[3] - STARTS[1]).to_bytes(8, "little") + STREAM[STARTS[1] + 8 :]
    check_salvaged(path, content, [0, 2, 3, 4], [(STARTS[1], len(BLOBS[1]))])
    assert isinstance(check_strict(path, content, [0], STARTS[1]), ForgedLength)


def test_one_damaged_blob_in_the_middle(tmp_path: Path) -> None:
    """Its header is sound, what it describes is not: the others can be had even without passing over anything."""
    path = tmp_path / "a.tblob"
    record_at = STARTS[2] + 72 + 16 + 24  # behind shape, strides and strings
    content = STREAM[:record_at] + b"\x05" + STREAM[record_at + 1 :]  # handle
    check_salvaged(path, content, [0, 1, 3, 4], [(STARTS[2], len(BLOBS[2]))])
    check_strict(path, content, [0, 1], STARTS[2])
    with opened(path, content) as recording:
        assert len(recording) == 5
        assert recording[3].tensor.numpy()[0] == 3


@pytest.mark.parametrize("kept", [72, 100, 160, 175])
def test_streams_joined_behind_a_blob_that_was_cut_short(tmp_path: Path, kept: int) -> None:
    """Its payload would seem to go on in the next blob, which nobody may take for the truth."""
    path = tmp_path / "a.tblob"
    large = ferry.dumps(np.zeros(400, np.uint8))
    content = STREAM[: STARTS[2]] + large[:kept] + STREAM[STARTS[2] :]
    check_salvaged(path, content, range(5), [(STARTS[2], kept)])
    assert isinstance(check_strict(path, content, [0, 1], STARTS[2]), Truncated)
    with pytest.raises(WireError, match="repair"):
        record.append(path)


def test_bytes_lost_from_a_payload(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    for lost in range(1, 10):
        content = STREAM[: STARTS[3] - lost] + STREAM[STARTS[3] :]
        check_salvaged(path, content, [0, 1, 3, 4], [(STARTS[2], len(BLOBS[2]) - lost)])
        check_strict(path, content, [0, 1], STARTS[2])


def test_appending_cuts_nothing_off_behind_a_blob_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    content = BLOBS[0] + ferry.dumps(np.ones(500, np.uint8))[:300] + ferry.dumps(np.zeros(900, np.uint8))
    path.write_bytes(content)
    with pytest.raises(WireError, match="repair"):
        record.append(path)
    assert path.read_bytes() == content


def test_the_first_blob_damaged(tmp_path: Path) -> None:
    content = b"\xff" * 90 + STREAM[90:]
    check_salvaged(tmp_path / "a.tblob", content, [1, 2, 3, 4], [(0, STARTS[1])])


def test_all_damaged(tmp_path: Path) -> None:
    check_salvaged(tmp_path / "a.tblob", b"\xa5" * 5000, [], [(0, 5000)])


def test_damage_longer_than_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorferry.record import scanning

    monkeypatch.setattr(scanning, "_WINDOW", 128)
    for garbage in (b"\x11" * 1000, b"\x11" * 1001, np.arange(300, dtype=np.uint64).tobytes()):
        content = STREAM[: STARTS[2]] + garbage + STREAM[STARTS[2] :]
        check_salvaged(tmp_path / "a.tblob", content, range(5), [(STARTS[2], len(garbage))])


def test_blobs_inside_a_payload_are_not_taken_for_records(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    nested = ferry.dumps(np.frombuffer(STREAM, np.uint8))
    record_at = len(BLOBS[0]) + 72 + 16 + 24
    content = bytearray(BLOBS[0] + nested + BLOBS[1])
    content[record_at] = 5
    check_salvaged(path, bytes(content), [0, 1], [(len(BLOBS[0]), len(nested))])


def test_what_a_later_revision_appended_is_kept(tmp_path: Path) -> None:
    path, out = tmp_path / "a.tblob", tmp_path / "out.tblob"
    later = []
    for i, extra in enumerate((b"", b"new region", b"x" * 333)):
        t = Tensor.from_array(np.full(9, i, np.int32))
        t._carried = Appended(b"", b"", extra)
        later.append(ferry.dumps(t))
    content = b"".join([*later[:2], b"garbage", *later[1:]])
    path.write_bytes(content)
    report = record.repair(path, out)
    assert out.read_bytes() == b"".join([*later[:2], *later[1:]])
    assert [(d.offset, d.length) for d in report.dropped] == [(len(later[0] + later[1]), 7)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(st.data())
def test_any_damage_is_survived_and_accounted_for(tmp_path: Path, data: st.DataObject) -> None:
    path, out = tmp_path / "a.tblob", tmp_path / "out.tblob"
    content = b"".join(data.draw(damaged(blob) | st.just(blob)) for blob in BLOBS)
    path.write_bytes(content)
    report = record.repair(path, out)
    assert report.kept_bytes + report.dropped_bytes == len(content)
    at = 0
    for d in report.dropped:
        assert d.offset >= at
        assert d.length > 0
        at = d.offset + d.length
    with opened(out) as recording, opened(path, strict=False) as survivors:
        assert len(recording) == len(list(recording)) == len(list(survivors)) == report.kept
        assert tuple(d[:2] for d in survivors.damage) == tuple(d[:2] for d in report.dropped)


def test_hostile_chains_of_headers_cost_little(tmp_path: Path) -> None:
    """Each claims all the rest of the file, and a blob where its regions end: no recursion, no copies of the rest."""
    path = tmp_path / "a.tblob"
    blob = bytearray(ferry.dumps(np.zeros(0, np.uint8)))
    count = 3000
    content = bytearray()
    for i in range(count):
        blob[:8] = ((count - i) * len(blob)).to_bytes(8, "little")
        content += blob
    path.write_bytes(content)
    assert record.repair(path, tmp_path / "out.tblob").kept >= 1


# ---- repair ----


def test_repair_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = tmp_path / "a.tblob", tmp_path / "out.tblob"
    path.write_bytes(STREAM)
    out.write_bytes(b"precious")

    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record.repair(path, out, progress=stop)
    assert out.read_bytes() == b"precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tblob", "out.tblob"]
    with pytest.raises(ValueError, match="into another file"):
        record.repair(path, tmp_path / "." / "a.tblob")
    assert path.read_bytes() == STREAM


# ---- appending behind a crash ----


def test_a_writer_killed_at_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    for cut in range(len(STREAM) + 1):
        path.write_bytes(STREAM[:cut])
        whole = max(i for i in range(6) if STARTS[i] <= cut)
        with record.append(path) as writer:
            if cut == STARTS[whole]:
                assert writer.dropped is None
            else:
                assert writer.dropped is not None
                assert writer.dropped[:2] == (STARTS[whole], cut - STARTS[whole])
            writer.write(np.arange(3))
        assert path.read_bytes() == STREAM[: STARTS[whole]] + ferry.dumps(np.arange(3))


@pytest.mark.parametrize("zeros", [1, 8, 71, 72, 100_000])
def test_zeros_behind_the_last_blob_are_dropped(tmp_path: Path, zeros: int) -> None:
    path = tmp_path / "a.tblob"
    path.write_bytes(STREAM + bytes(zeros))
    with record.append(path) as writer:
        assert writer.dropped == (len(STREAM), zeros, f"{zeros} bytes of zeros")
    assert path.read_bytes() == STREAM


@pytest.mark.parametrize(
    "content",
    [
        b"seven b",
        b"a file of somebody who mistyped the name",
        b"\x89PNG\r\n\x1a\n" + bytes(200),
        STREAM[: STARTS[2]] + b"garbage" * 20 + STREAM[STARTS[2] :],
        STREAM + b"garbage" * 20,
        STREAM + bytes(1000) + STREAM,
        # A size that has become too large: all the rest looks like one blob that was cut short.
        flipped(STREAM, STARTS[1] * 8 + 30),
        flipped(STREAM, STARTS[4] * 8 + 30),
        ferry.dumps(np.zeros(3), format="vlink"),
    ],
)
def test_nothing_but_what_a_crash_leaves_is_ever_cut_off(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.tblob"
    path.write_bytes(content)
    with pytest.raises(WireError, match="repair") as caught:
        record.append(path)
    assert caught.value.offset is not None
    assert path.read_bytes() == content


def test_appending_behind_a_damaged_blob_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "a.tblob"
    at = STARTS[2] + 72 + 16 + 24
    content = STREAM[:at] + b"\x05" + STREAM[at + 1 :]
    path.write_bytes(content)
    with record.append(path) as writer:
        assert writer.dropped is None
        writer.write(np.arange(3))
    assert path.read_bytes() == content + ferry.dumps(np.arange(3))


def test_a_writer_killed_a_hundred_times(tmp_path: Path) -> None:
    """In a process of its own, since it forks: `killed.py` says what it checks."""
    script = Path(__file__).with_name("killed.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", script, tmp_path, "100"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    acknowledged, cut_short = map(int, done.stdout.split())
    assert acknowledged > 100
    assert cut_short >= 0
