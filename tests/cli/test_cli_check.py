"""``tensorferry check`` says of a file what ``loads`` does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensorferry as ferry
from tensorferry import blob

Ferry = Callable[..., Any]
Case = dict[str, Any]


def test_every_vector_is_sound(ferry_cli: Ferry, data: Path) -> None:
    files = sorted([*data.glob("blob/*.blob"), *data.glob("vlink/*.vlt")])
    files = [file for file in files if file.stem != "empty"]  # its element type is unset
    ran = ferry_cli("check", *files)
    assert ran.status == 0
    assert len(ran.out.splitlines()) == len(files)
    assert all(line.startswith("ok   ") for line in ran.out.splitlines())


def test_agrees_with_loads_on_all_that_is_damaged(
    ferry_cli: Ferry,
    hostile: list[tuple[Case, bytes]],
    refusal: Callable[[bytes], ferry.FerryError | None],
    tmp_path: Path,
) -> None:
    files = []
    for i, (_, wire) in enumerate(hostile):
        files.append(tmp_path / f"{i:04}.blob")
        files[-1].write_bytes(wire)
    ran = ferry_cli("check", "--json", *files)
    assert ran.status == 1
    rows = ran.json["files"]
    assert len(rows) == len(hostile) == 1292
    for row, (case, wire) in zip(rows, hostile, strict=True):
        error = refusal(wire)
        if error is None:
            # What is behind the blob is not the blob's; it is the file's.
            assert row["ok"] == (blob.parse_header(wire).size == len(wire)), case
            continue
        assert not row["ok"], case
        assert row["refusal"]["error"] == type(error).__name__, case
        assert row["refusal"]["message"] == (str(error) if wire else "it is empty"), case
        assert row["refusal"]["offset"] == getattr(error, "offset", None), case


@pytest.mark.parametrize("behind", [b"\0", b"junk", bytes(72), bytes(200)])
def test_bytes_behind_the_last_blob_are_bad(ferry_cli: Ferry, data: Path, behind: bytes) -> None:
    wire = (data / "blob" / "bare_u8_5.blob").read_bytes()
    ran = ferry_cli("check", "-", input=wire + wire + behind)
    assert ran.status == 1
    assert ran.out.startswith("BAD  -: blob 2 at 0x160: ")
    assert f"the last {len(behind)} bytes of the file are no blob" in ran.out


def test_bytes_behind_an_envelope_are_bad(ferry_cli: Ferry, data: Path) -> None:
    ran = ferry_cli("check", "-", input=(data / "vlink" / "rank8.vlt").read_bytes() + b"more")
    assert ran.status == 1
    assert "Malformed: magic_end" in ran.out


def test_several_blobs_are_counted(ferry_cli: Ferry, data: Path) -> None:
    wire = (data / "blob" / "bare_u8_5.blob").read_bytes()
    ran = ferry_cli("check", "-", input=wire * 3)
    assert (ran.status, ran.out) == (0, "ok   -: 3 blobs, the first a tensor blob, uint8[5], 528 bytes\n")


def test_a_bad_one_among_several_is_bad(ferry_cli: Ferry, data: Path) -> None:
    wire = (data / "blob" / "bare_u8_5.blob").read_bytes()
    broken = bytearray(wire)
    broken[36] = 99
    ran = ferry_cli("check", "-", "--json", input=wire + broken + wire)
    assert ran.status == 1
    refusal = ran.json["files"][0]["refusal"]
    assert (refusal["index"], refusal["blob_offset"], refusal["field"]) == (1, 176, "dtype")


def test_what_could_not_be_read_is_bad_usage(ferry_cli: Ferry, data: Path, tmp_path: Path) -> None:
    good = data / "blob" / "bare_u8_5.blob"
    ran = ferry_cli("check", good, tmp_path / "absent", __file__)
    assert ran.status == 2
    assert [line[:3] for line in ran.out.splitlines()] == ["ok ", "BAD", "BAD"]
    rows = ferry_cli("check", "--json", good, tmp_path / "absent").json["files"]
    assert [row["ok"] for row in rows] == [True, False]
    assert rows[1]["unreadable"] == "there is no such file"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX terminals")
def test_a_bar_for_many_files_on_the_terminal_only(spawn: Callable[..., subprocess.Popen[bytes]], data: Path) -> None:
    files = sorted(data.glob("blob/*.blob"))
    ours, theirs = os.openpty()
    process = spawn("check", *files, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    assert process.stdout is not None
    lines = process.stdout.read().decode().splitlines()
    assert process.wait(60) == 0
    assert len(lines) == len(files)
    assert all(line.startswith("ok   ") for line in lines)
    shown = b""
    with contextlib.suppress(OSError):  # EIO is how the end of a terminal reads
        while more := os.read(ours, 1 << 16):
            shown += more
    os.close(ours)
    assert b"checking" in shown
    assert b"60 files checked, all sound" in shown


def test_planes_by_reference_open_nothing(ferry_cli: Ferry, data: Path) -> None:
    # handle 0 would be our own stdin, if a file could name descriptors.
    wire = bytearray((data / "blob" / "bare_u8_5.blob").read_bytes())
    view = blob.BlobView.parse(bytes(wire))
    at = view.regions.planes
    wire[at : at + 8] = bytes(8)
    wire[at + 52 : at + 56] = bytes(4)
    ran = ferry_cli("check", "-", input=bytes(wire))
    assert ran.status == 1
    assert ran.out.startswith("BAD")
