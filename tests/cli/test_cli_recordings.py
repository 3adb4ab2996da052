"""``info``, ``ls``, ``extract``, ``record``, ``play``, ``repair``: what they say of recordings, and how they end."""

from __future__ import annotations

import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_processes import PIPES, Clock, Ended
from strategies import same_bits

import tensorferry as ferry
from tensorferry import record
from tensorferry.link import connect
from tensorferry.record.mcap import McapWriter
from tensorferry.record.vlink_bags import VcapWriter

pytest.importorskip("mcap")

Ferry = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]

START = 1_700_000_000_123_456_789
STEP = 20_000_000
links = pytest.mark.skipif(sys.platform != "linux", reason="links are Linux's")


def image(i: int) -> ferry.Tensor:
    values = np.random.default_rng(i).integers(0, 256, 16 * 18, np.uint8)
    return ferry.Tensor.image("NV12", 16, 12, values, colorimetry=ferry.Colorimetry(encoding="bt709", range="limited"))


def scores(i: int) -> ferry.Tensor:
    return ferry.Tensor.from_array(np.arange(5, dtype=np.float32) + i)


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """Ten images 20 ms apart, and scores with every other one."""
    path = tmp_path / "drive.mcap"
    with McapWriter(path, compression="none", chunk_size=1000) as out:
        for i in range(10):
            out.write("/camera/front", image(i), log_time=START + i * STEP, publish_time=START + i * STEP - 5)
            if i % 2 == 0:
                out.write("/scores", scores(i), log_time=START + i * STEP + 1)
    return path


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    path = tmp_path / "drive.vcap"
    with VcapWriter(path) as out:
        for i in range(4):
            labelled = ferry.Tensor.from_array(np.full((3, 4), i, np.int16), labels=ferry.Labels(name="x", seq=i))
            out.write("dds://a/b", labelled, log_time=START + i * STEP)
    return path


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "front.tblob"
    with record.append(path) as out:
        for i in range(6):
            out.write(np.full((4, 5), i, np.int32))
    return path


@pytest.fixture
def damaged(stream: Path) -> Path:
    """Six blobs of 264 bytes, of which the third has no dtype and the last was cut."""
    wire = bytearray(stream.read_bytes())
    assert len(wire) == 6 * 264
    wire[2 * 264 + 36] = 0xEE
    path = stream.with_name("bad.tblob")
    path.write_bytes(wire[:-20])
    return path


def values(path: Path) -> list[Any]:
    with record.open(path) as recording:
        return [one.tensor.numpy().copy() for one in recording]


def refused(ran: Any, says: str, status: int = 2) -> None:
    assert says in ran.refused(status)


# ---- info ----


def test_info(ferry_cli: Ferry, drive: Path) -> None:
    ran = ferry_cli("info", drive)
    assert (ran.status, ran.err) == (0, "")
    assert "MCAP, " in ran.out
    assert "compression none, 15 records in 2 topics" in ran.out
    assert "2023-11-14 22:13:20.123456789 UTC to 2023-11-14 22:13:20.303456789 UTC, 0.180000 s" in ran.out
    assert "NV12 image 16×12 uint8" in ran.out
    camera, other = ferry_cli("info", drive, "--json").json["topics"]
    assert camera == {
        "name": "/camera/front",
        "records": 10,
        "payload": "blob",
        "encoding": "tensorferry/TensorBlob",
        "first": START,
        "last": START + 9 * STEP,
        "rate": pytest.approx(50),
        "undecoded": None,
        "dtype": "uint8",
        "shape": [12, 16],
        "pixel_format": "NV12",
        "size": [16, 12],
    }
    assert (other["records"], other["rate"], other["shape"]) == (5, pytest.approx(25), [5])


def test_info_of_each_kind(ferry_cli: Ferry, drive: Path, bag: Path, stream: Path) -> None:
    facts = ferry_cli("info", drive, "--json").json
    assert (facts["kind"], facts["compression"], facts["duration"]) == ("MCAP", [], pytest.approx(0.18))
    facts = ferry_cli("info", bag, "--json").json
    assert (facts["kind"], facts["compression"], facts["start"]) == ("VLink bag (MCAP)", ["zstd"], START)
    facts = ferry_cli("info", stream, "--json").json
    assert (facts["kind"], facts["compression"], facts["start"]) == ("stream of blobs", None, None)
    assert facts["bytes"] == 6 * 264
    assert facts["topics"][0]["records"] == 6
    assert facts["topics"][0]["rate"] is None


def test_what_is_not_decoded_is_listed_with_the_reason(ferry_cli: Ferry, tmp_path: Path) -> None:
    from mcap.writer import Writer

    with (tmp_path / "a.mcap").open("wb") as file:
        writer: Any = Writer(file)
        writer.start()
        channel = writer.register_channel("/text", "json", 0)
        writer.add_message(channel, 5_000_000_000, b"{}", 5_000_000_000)
        writer.finish()
    ran = ferry_cli("info", tmp_path / "a.mcap")
    assert ran.status == 0
    assert "not decoded: json messages" in ran.out
    assert "5.000000 s to 5.000000 s" in ran.out  # no date
    assert "are no tensors" in ferry_cli("info", tmp_path / "a.mcap", "--json").json["topics"][0]["undecoded"]
    refused(ferry_cli("ls", tmp_path / "a.mcap", "--topic", "/text"), "/text: json messages")
    assert ferry_cli("ls", tmp_path / "a.mcap").out == ""


def test_an_sqlite_bag(ferry_cli: Ferry, tmp_path: Path) -> None:
    wire = ferry.dumps(np.arange(4.0), format="vlink")
    with sqlite3.connect(tmp_path / "a.vdb") as db:
        db.execute("CREATE TABLE VLinkHeader (compress, start_timestamp, complete)")
        db.execute("CREATE TABLE VLinkUrls (id INTEGER PRIMARY KEY, url, ser, encoding)")
        db.execute("CREATE TABLE VLinkDatas (elapsed, url, data)")
        db.execute("INSERT INTO VLinkHeader VALUES ('None', 1700000000123, 0)")
        db.execute("INSERT INTO VLinkUrls VALUES (1, 'dds://a', 'vlink::zerocopy::Tensor', 'zerocopy')")
        db.executemany("INSERT INTO VLinkDatas VALUES (?, 1, ?)", [(i * 1000, wire) for i in range(3)])
    db.close()
    ran = ferry_cli("info", tmp_path / "a.vdb", "--json")
    assert ran.status == 1
    assert ran.json["kind"] == "VLink bag (SQLite)"
    assert ran.json["topics"][0]["records"] == 3
    assert "damage Truncated: " in ran.err  # SQLite counts no bytes
    assert "was not closed by its recorder" in ran.err
    assert ferry_cli("ls", tmp_path / "a.vdb").out.count("float64[4]") == 3


# ---- ls ----


def test_ls(ferry_cli: Ferry, drive: Path) -> None:
    ran = ferry_cli("ls", drive)
    lines = ran.out.splitlines()
    assert (ran.status, ran.err, len(lines)) == (0, "", 15)
    for line, begins in ((lines[0], "0 0.000000"), (lines[2], "2 0.020000")):
        assert " ".join(line.split()) == f"{begins} s /camera/front NV12 image 16×12 uint8, 2 planes 288 bytes"
    rows = ferry_cli("ls", drive, "--json", "--topic", "/scores").json["records"]
    assert [row["log_time"] for row in rows] == [START + i * STEP + 1 for i in range(0, 10, 2)]
    assert rows[1]["index"] == 1
    assert rows[0]["dtype"] == "float32"
    assert (rows[0]["shape"], rows[0]["bytes"]) == ([5], 20)
    assert ferry_cli("ls", drive, "--json", "--limit", 1).json["records"][0]["publish_time"] == START - 5


@pytest.mark.parametrize(
    ("args", "numbers"),
    [
        (["--from", "0.16"], [8, 9]),
        (["--until", "0.04"], [0, 1]),
        (["--from", "0.02", "--until", "0.06"], [1, 2]),
        (["--from", "@1700000000.283456789"], [8, 9]),
        (["--from", "@1700000000.283456790"], [9]),
        (["--from", "2023-11-14T22:13:20.29"], [9]),
        (["--from", "2023-11-14T23:13:20.29+01:00"], [9]),
        (["--from", "2023-11-14T22:13:20.290Z"], [9]),
        (["--limit", "3"], [0, 1, 2]),
        (["--from", "9"], []),
    ],
)
def test_which_records(ferry_cli: Ferry, drive: Path, args: list[str], numbers: list[int]) -> None:
    ran = ferry_cli("ls", drive, "--topic", "/camera/front", *args, "--json")
    assert [(row["log_time"] - START) // STEP for row in ran.json["records"]] == numbers


def test_a_stream_has_no_times(ferry_cli: Ferry, stream: Path, tmp_path: Path) -> None:
    assert " ".join(ferry_cli("ls", stream).out.splitlines()[5].split()) == "5 – front int32[4×5] 80 bytes"
    refused(ferry_cli("ls", stream, "--from", "1"), "it has no times for --from")
    refused(ferry_cli("extract", stream, "--out", tmp_path / "o", "--names", "time"), "it has no times to name")
    stream.write_bytes(b"")
    assert ferry_cli("ls", stream).out == ""


# ---- extract ----


def test_extract(ferry_cli: Ferry, drive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = ferry_cli("extract", drive, "--topic", "/scores", "--out", out)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == f"{drive} → {out}: 5 npy files, 740 bytes\n"
    assert sorted(os.listdir(out)) == [f"scores-{i:06}.npy" for i in range(5)]
    assert all(same_bits(np.load(out / f"scores-{i:06}.npy"), scores(2 * i).numpy()) for i in range(5))


def test_extract_pictures(ferry_cli: Ferry, drive: Path, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    out = tmp_path / "out"
    args = ["extract", drive, "--topic", "/camera/front", "--out", out, "--to", "png", "--every", "4"]
    refused(ferry_cli(*args), "/camera/front 0: Lossy: a PNG cannot carry values (NV12): --lossy", 1)
    assert os.listdir(out) == []
    ran = ferry_cli(*args, "--lossy", "--names", "time")
    assert ran.status == 0
    assert "left behind: values (NV12 became rgb8 by bt709 limited)" in ran.err
    assert sorted(os.listdir(out)) == [f"camera_front-1700000000.{123456789 + i * STEP}.png" for i in (0, 4, 8)]
    from tensorferry.record import colour

    expected = colour.convert(image(4), "rgb8", lossy=True).numpy()
    assert (np.asarray(pillow.open(out / f"camera_front-1700000000.{123456789 + 4 * STEP}.png")) == expected).all()
    assert "is there already: --force" in ferry_cli(*args, "--lossy", "--names", "time").refused(2)
    assert ferry_cli(*args, "--lossy", "--names", "time", "--force").status == 0


def test_extract_blobs_and_bytes_are_the_recorded_ones(ferry_cli: Ferry, stream: Path, tmp_path: Path) -> None:
    assert ferry_cli("extract", stream, "--out", tmp_path / "o", "--to", "blob").status == 0
    files = sorted((tmp_path / "o").iterdir())
    assert b"".join(file.read_bytes() for file in files) == stream.read_bytes()


def test_what_has_no_such_file_is_passed_over(ferry_cli: Ferry, drive: Path, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    ran = ferry_cli("extract", drive, "--out", tmp_path / "o", "--to", "jpg", "--quality", 50, "--lossy", "--json")
    assert ran.status == 1
    assert (ran.json["files"], ran.json["refused"]) == (10, 5)
    assert ran.json["refusals"][0]["error"] == "Unsupported"
    assert "5 records passed over, the first: Unsupported: an array float32 [5] is no JPEG" in ran.err


def test_topics_that_look_alike_get_names_of_their_own(ferry_cli: Ferry, tmp_path: Path) -> None:
    with McapWriter(tmp_path / "a.mcap") as out:
        for i, topic in enumerate(("/a/b", "/a_b", "a b", "/../", "a" * 300)):
            out.write(topic, scores(i), log_time=7)
    for naming in ("number", "time"):
        folder = tmp_path / naming
        assert ferry_cli("extract", tmp_path / "a.mcap", "--out", folder, "--names", naming).status == 0
        assert sorted(np.load(file)[0] for file in folder.iterdir()) == [0, 1, 2, 3, 4]


def test_two_records_of_one_moment(ferry_cli: Ferry, tmp_path: Path) -> None:
    with McapWriter(tmp_path / "a.mcap") as out:
        for i in range(3):
            out.write("t", scores(i), log_time=7)
    assert ferry_cli("extract", tmp_path / "a.mcap", "--out", tmp_path / "o", "--names", "time").status == 0
    assert sorted(os.listdir(tmp_path / "o")) == [f"t-0.000000007{more}.npy" for more in ("", "_2", "_3")]


# ---- damage ----


def test_a_damaged_stream(ferry_cli: Ferry, damaged: Path, tmp_path: Path) -> None:
    for args in (["info"], ["ls"], ["extract", "--out", tmp_path / "o"]):
        ran = ferry_cli(args[0], damaged, *args[1:])
        assert ran.status == 1
        assert "bad.tblob: damage at 0x210, 264 bytes: Unsupported: dtype 238" in ran.err
        assert "bad.tblob: damage at 0x528, 244 bytes: Truncated: the blob claims 264" in ran.err
        assert ran.err.count("\n") == 2
    assert [np.load(tmp_path / "o" / f"bad-{i:06}.npy")[0, 0] for i in range(4)] == [0, 1, 3, 4]
    ran = ferry_cli("ls", damaged, "--json")
    assert len(ran.json["records"]) == 4
    assert [(one["offset"], one["bytes"]) for one in ran.json["damage"]] == [(0x210, 264), (0x528, 244)]
    assert ran.json["damage"][1]["refusal"]["error"] == "Truncated"


def test_a_bag_that_a_crash_left(ferry_cli: Ferry, drive: Path) -> None:
    cut = drive.with_name("cut.mcap")
    cut.write_bytes(drive.read_bytes()[: drive.stat().st_size // 2])
    ran = ferry_cli("ls", cut, "--json")
    assert ran.status == 1
    assert 3 < len(ran.json["records"]) < 15
    assert ran.json["damage"]
    assert "cut.mcap: damage at 0x" in ran.err
    assert ferry_cli("info", cut).status == 1


def test_a_flipped_bit_in_a_chunk(ferry_cli: Ferry, drive: Path) -> None:
    wire = bytearray(drive.read_bytes())
    wire[wire.index(scores(4).numpy().tobytes())] ^= 1
    drive.write_bytes(wire)
    assert ferry_cli("info", drive).status in (0, 1)  # it looks at little
    ran = ferry_cli("ls", drive)
    assert ran.status == 1
    assert 0 < ran.out.count("\n") < 15
    assert "damage at 0x" in ran.err


def test_many_damaged_stretches_are_not_all_told(ferry_cli: Ferry, tmp_path: Path) -> None:
    blob, gap = ferry.dumps(np.zeros(3)), b"\xff" * 100
    (tmp_path / "a.tblob").write_bytes((blob + gap) * 15)
    ran = ferry_cli("info", tmp_path / "a.tblob")
    assert ran.status == 1
    assert ran.err.count("\n") == 11
    assert "5 more damaged stretches" in ran.err


# ---- repair ----


def test_repair(ferry_cli: Ferry, damaged: Path) -> None:
    before = damaged.read_bytes()
    ran = ferry_cli("repair", damaged)
    out = damaged.with_name("bad.repaired.tblob")
    assert ran.status == 0
    assert ran.out.startswith(
        f"{damaged} → {out}: 4 blobs kept, 1.1 kB\ndropped 508 bytes in 2 places:\n  at 0x210, 264"
    )
    assert "keep the damaged file" in ran.err  # one of them is only unknown here
    assert damaged.read_bytes() == before
    assert [array[0, 0] for array in values(out)] == [0, 1, 3, 4]
    assert "--force overwrites it" in ferry_cli("repair", damaged).refused(2)
    facts = ferry_cli("repair", damaged, "--force", "--json").json
    assert (facts["kept"], facts["kept_bytes"], facts["dropped_bytes"]) == (4, 1056, 508)
    assert facts["dropped"][0]["offset"] == 0x210
    assert facts["out"] == str(out)


def test_repair_in_place(ferry_cli: Ferry, damaged: Path) -> None:
    before = damaged.read_bytes()
    backup = damaged.with_name("bad.tblob.damaged")
    with record.append(damaged.with_name("front.tblob")):
        refused(ferry_cli("repair", damaged, "--in-place", "--out", "x"), "leave --out and --force away")
    ran = ferry_cli("repair", damaged, "--in-place")
    assert ran.status == 0
    assert f"the damaged file is {backup}" in ran.out
    assert backup.read_bytes() == before
    assert len(values(damaged)) == 4
    assert sorted(os.listdir(damaged.parent)) == ["bad.tblob", "bad.tblob.damaged", "front.tblob"]
    damaged.write_bytes(before)
    refused(ferry_cli("repair", damaged, "--in-place"), "bad.tblob.damaged: it is there already")
    assert (damaged.read_bytes(), backup.read_bytes()) == (before, before)


def test_repair_in_place_waits_for_no_writer(ferry_cli: Ferry, stream: Path) -> None:
    with record.append(stream) as writer:
        with stream.open("r+b") as file:
            file.seek(264 + 68)
            file.write(b"\1")
        refused(ferry_cli("repair", stream, "--in-place"), "somebody is writing to it")
        writer.write(np.zeros(2))
    assert sorted(os.listdir(stream.parent)) == ["front.tblob"]


def test_nothing_to_repair(ferry_cli: Ferry, stream: Path, drive: Path) -> None:
    for args in ([], ["--in-place"]):
        ran = ferry_cli("repair", stream, *args)
        assert (ran.status, ran.out) == (0, f"{stream}: 6 blobs, nothing to repair\n")
    assert sorted(os.listdir(stream.parent)) == ["drive.mcap", "front.tblob"]
    assert ferry_cli("repair", stream, "--json").json["out"] is None
    copy = stream.with_name("copy.tblob")
    assert ferry_cli("repair", stream, "--out", copy).status == 0  # whoever names a file gets it
    assert copy.read_bytes() == stream.read_bytes()
    refused(ferry_cli("repair", stream, "--out", stream, "--force"), "it is the damaged file itself")
    os.link(stream, stream.with_name("link.tblob"))
    refused(ferry_cli("repair", stream, "--out", stream.with_name("link.tblob")), "it is the damaged file itself")
    refused(ferry_cli("repair", drive), "only streams of blobs are repaired")
    stream.write_bytes(b"\xff" * 500)
    refused(ferry_cli("repair", stream), "no blob in it can be read: nothing was written", 1)


# ---- record and play ----


@links
@pytest.mark.parametrize("name", ["out.tblob", "out.mcap", "out.vcap"])
def test_record_what_play_plays(spawn: Spawn, ferry_cli: Ferry, drive: Path, tmp_path: Path, name: str) -> None:
    out, path = tmp_path / name, tmp_path / "link"
    before = time.time_ns()
    recorder = spawn("record", f"unix:{path}", out, "--json", **PIPES)
    ran = ferry_cli("play", drive, path, "--topic", "/scores", "--json", "--timeout", "60")
    ended = Ended(recorder)
    after = time.time_ns()
    assert (ran.status, ended.status, ended.err) == (0, 0, "")
    assert (ended.json["frames"], ended.json["by_reference"], ended.json["bad"]) == (5, 5, 0)
    assert ended.json["size"] == out.stat().st_size
    assert (ran.json["frames"], ran.json["rounds"]) == (5, 1)
    assert all(same_bits(array, scores(2 * i).numpy()) for i, array in enumerate(values(out)))
    with record.open(out) as recording:
        times = [(one.log_time, one.publish_time) for one in recording]
        assert recording.topics[0].name == ("dds://out" if name == "out.vcap" else "out")
    if name != "out.tblob":
        assert times == sorted(times)
        assert all(before <= log == publish <= after for log, publish in times)


@links
def test_images_and_topics(spawn: Spawn, ferry_cli: Ferry, drive: Path, tmp_path: Path) -> None:
    out, path = tmp_path / "out.mcap", tmp_path / "link"
    recorder = spawn("record", path, out, "--topic", "/all", "--compression", "lz4", **PIPES)
    ran = ferry_cli("play", drive, path, "--rate", "max", "--timeout", "60")
    ended = Ended(recorder)
    assert (ran.status, ended.status) == (0, 0)
    assert ran.out.startswith("played 15 frames, ")
    assert ended.out.startswith("recorded 15 frames, ")
    assert "  10 × NV12 image 16×12 uint8, 2 planes\n" in ended.out
    with record.open(drive) as sent, record.open(out) as came:
        for a, b in zip(sent, came, strict=True):
            assert b.topic == "/all"
            assert ferry.dumps(a.tensor) == ferry.dumps(b.tensor)


@links
def test_a_round_trip_of_labels_needs_lossy(spawn: Spawn, ferry_cli: Ferry, bag: Path, tmp_path: Path) -> None:
    path = tmp_path / "link"
    refused(ferry_cli("play", bag, path), "Lossy: a blob cannot carry labels.name", 1)
    recorder = spawn("record", path, tmp_path / "o.tblob", **PIPES)
    ran = ferry_cli("play", bag, path, "--lossy", "--hz", "500", "--timeout", "60")
    assert ran.status == 0
    assert "left behind: labels.name" in ran.err
    assert Ended(recorder).status == 0
    assert [array[0, 0] for array in values(tmp_path / "o.tblob")] == [0, 1, 2, 3]


@links
def test_what_a_bag_cannot_say(spawn: Spawn, ferry_cli: Ferry, drive: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "link", tmp_path / "o.vcap"
    recorder = spawn("record", path, out, **PIPES)
    ferry_cli("play", drive, path, "--topic", "/camera/front", "--timeout", "60")
    ended = Ended(recorder)
    assert ended.status == 1
    assert "o.vcap: Lossy: a VLink tensor cannot carry format (NV12)" in ended.err
    recorder = spawn("record", path, out, "--force", "--lossy", **PIPES)
    ferry_cli("play", drive, path, "--topic", "/camera/front", "--timeout", "60")
    ended = Ended(recorder)
    assert ended.status == 0
    assert "left behind: format (NV12)" in ended.err
    assert all((array == image(i).plane(0)).all() for i, array in enumerate(values(out)))


@links
def test_loop(spawn: Spawn, ferry_cli: Ferry, stream: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "link", tmp_path / "out.tblob"
    player = spawn("play", stream, path, "--loop", "--hz", "1000", "--listen", "--json", **PIPES)
    ran = ferry_cli("record", path, out, "--connect", "--timeout", "60", "--count", "20")
    assert ran.status == 0
    assert [array[0, 0] for array in values(out)] == [i % 6 for i in range(20)]
    ended = Ended(player)
    assert ended.status == 1
    assert "the receiver left after " in ended.err
    ran = ferry_cli("record", path, out)
    refused(ran, "--append goes on at its end")


@links
@pytest.mark.parametrize("name", ["out.tblob", "out.mcap", "out.vcap"])
def test_ctrl_c_leaves_a_whole_recording(spawn: Spawn, tmp_path: Path, name: str) -> None:
    out, path = tmp_path / name, tmp_path / "link"
    plain = [] if name == "out.tblob" else ["--compression", "none"]
    recorder = spawn("record", path, out, *plain, **PIPES)
    last = np.frombuffer(b"the last of them", np.uint8)
    with connect(path, 60) as link:
        for i in range(20):
            link.send(np.full((30, 40), i, np.int16))
        link.send(last)
        part = out if name == "out.tblob" else out.with_name(name + ".part")
        while not part.exists() or last.tobytes() not in part.read_bytes():  # once a second it is flushed
            assert recorder.poll() is None
            time.sleep(0.01)
        recorder.send_signal(signal.SIGINT)
        ended = Ended(recorder)
    assert ended.status == 130
    assert ended.out.startswith("recorded 21 frames")
    assert ended.err == "tensorferry: interrupted\n"
    found = values(out)  # strictly
    assert len(found) == 21
    assert all((array == i).all() for i, array in enumerate(found[:20]))
    with record.open(out) as recording:
        assert not recording.damage
    assert sorted(os.listdir(tmp_path)) == [name]


@links
def test_bad_frames_are_passed_over(spawn: Spawn, tmp_path: Path) -> None:
    path, out = tmp_path / "link", tmp_path / "out.tblob"
    recorder = spawn("record", path, out, "--json", **PIPES)
    good = ferry.dumps(np.arange(3))
    bad = bytearray(good)
    bad[36:40] = b"\xee" * 4
    with connect(path, 60) as link:
        os.write(link.fileno(), good + bad + good)
    ended = Ended(recorder)
    assert (ended.status, ended.json["bad"], ended.json["frames"]) == (1, 1, 2)
    assert out.read_bytes() == good + good


@links
def test_append(spawn: Spawn, ferry_cli: Ferry, stream: Path, tmp_path: Path) -> None:
    path = tmp_path / "link"
    stream.write_bytes(stream.read_bytes()[:-20])  # as a crash leaves it
    recorder = spawn("record", path, stream, "--append", **PIPES)
    with connect(path, 60) as link:
        link.send(np.full((4, 5), 9, np.int32))
    ended = Ended(recorder)
    assert ended.status == 0
    assert "244 bytes at 0x528, which a crash left, were taken off" in ended.err
    assert [array[0, 0] for array in values(stream)] == [0, 1, 2, 3, 4, 9]
    stream.write_bytes(b"\xff" * 500)
    refused(ferry_cli("record", path, stream, "--append"), "are not what a crash leaves", 1)
    with record.append(tmp_path / "other.tblob"):
        refused(ferry_cli("record", path, tmp_path / "other.tblob", "--append"), "has a writer already")


@links
def test_play_what_is_damaged(spawn: Spawn, ferry_cli: Ferry, damaged: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "link", tmp_path / "out.tblob"
    recorder = spawn("record", path, out, **PIPES)
    ran = ferry_cli("play", damaged, path, "--timeout", "60")
    assert ran.status == 1
    assert ran.err.count("damage at 0x") == 2
    assert Ended(recorder).status == 0
    assert [array[0, 0] for array in values(out)] == [0, 1, 3, 4]


@links
@pytest.mark.parametrize(("factor", "seconds"), [("1", 0.18), ("0.5", 0.36), ("max", 0.0)])
def test_the_recorded_pace(
    spawn: Spawn,
    ferry_cli: Ferry,
    drive: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    factor: str,
    seconds: float,
) -> None:
    clock = Clock()
    monkeypatch.setattr("tensorferry.cli.send.time", clock)
    monkeypatch.setattr("tensorferry.cli.play.time", clock)
    receiver = spawn("recv", tmp_path / "link", "--json", **PIPES)
    ran = ferry_cli("play", drive, tmp_path / "link", "--rate", factor, "--timeout", "60")
    assert ran.status == 0
    assert clock.now == pytest.approx(100 + seconds)
    assert Ended(receiver).json["frames"] == 15


def test_nobody_leaves_a_file(ferry_cli: Ferry, stream: Path, tmp_path: Path) -> None:
    refused(ferry_cli("record", tmp_path / "s", tmp_path / "a.mcap", "--timeout", "0.05"), "nobody connected")
    refused(ferry_cli("play", stream, tmp_path / "s", "--timeout", "0.05"), "nobody listens on")
    assert sorted(os.listdir(tmp_path)) == ["front.tblob"]


@links
def test_a_bar_on_a_terminal(spawn: Spawn, drive: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    args = ["extract", drive, "--out", tmp_path / "o", "--to", "blob"]
    process = spawn(*args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    assert process.wait(60) == 0
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        try:
            while some := terminal.read(1 << 16):
                shown += some
        except OSError:  # the other side is closed
            pass
    assert b"extracting" in shown


# ---- bad usage ----

WRONG = [
    ["info"],
    ["info", "a", "b"],
    ["ls"],
    ["ls", "REC", "--limit", "0"],
    ["ls", "REC", "--topic", "/absent"],
    ["ls", "REC", "--from", "yesterday"],
    ["ls", "REC", "--from", "-1"],
    ["ls", "REC", "--until", "@x"],
    ["extract", "REC"],
    ["extract", "REC", "--out", "o", "--to", "tiff"],
    ["extract", "REC", "--out", "o", "--every", "0"],
    ["extract", "REC", "--out", "o", "--names", "topic"],
    ["extract", "REC", "--out", "o", "--quality", "50"],
    ["extract", "REC", "--out", "o", "--pixels", "NV99"],
    ["extract", "REC", "--out", "o", "--to-colorimetry", "bt709"],
    ["extract", "REC", "--out", "o", "--pixels", "NV12", "--to-colorimetry", "purple"],
    ["extract", "REC", "--out", "REC"],
    ["extract", "REC", "--out", "absent/o"],
    ["record", "s"],
    ["record", "s", "o.avi"],
    ["record", "s", "absent/o.mcap"],
    ["record", "s", "REC"],
    ["record", "carrier-pigeon:x", "o.mcap"],
    ["record", "s", "o.tblob", "--topic", "t"],
    ["record", "s", "o.tblob", "--force"],
    ["record", "s", "o.tblob", "--compression", "zstd"],
    ["record", "s", "o.mcap", "--compression", "lzav"],
    ["record", "s", "o.vcap", "--compression", "lz4"],
    ["record", "s", "o.vcap", "--format", "blob"],
    ["record", "s", "o.mcap", "--format", "npy"],
    ["record", "s", "o.mcap", "--append"],
    ["record", "s", "o.mcap", "--count", "0"],
    ["play", "REC"],
    ["play", "REC", "s", "--rate", "fast"],
    ["play", "REC", "s", "--rate", "0"],
    ["play", "REC", "s", "--rate", "inf"],
    ["play", "REC", "s", "--hz", "0"],
    ["play", "REC", "s", "--topic", "/absent"],
    ["repair"],
    ["repair", "REC", "--in-place", "--out", "x"],
]


@pytest.mark.parametrize("args", WRONG, ids=" ".join)
def test_wrong_arguments(ferry_cli: Ferry, drive: Path, args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(drive.parent)
    ferry_cli(*[drive.name if arg == "REC" else arg for arg in args]).refused(2)
    assert {"o.mcap", "o.vcap", "o.tblob", "s"}.isdisjoint(os.listdir(drive.parent))


@pytest.mark.parametrize("command", ["info", "ls", "extract", "play", "repair"])
def test_files_that_are_no_recordings(ferry_cli: Ferry, tmp_path: Path, command: str) -> None:
    rests: dict[str, list[Any]] = {"extract": ["--out", tmp_path / "o"], "play": [tmp_path / "s"]}
    rest = rests.get(command, [])
    refused(ferry_cli(command, tmp_path / "absent.tblob", *rest), "there is no such file")
    refused(ferry_cli(command, tmp_path, *rest), "it is a directory")
    refused(ferry_cli(command, __file__, *rest), "is neither a stream of blobs", 1)
    if os.path.exists("/dev/zero"):
        refused(ferry_cli(command, "/dev/zero", *rest), "is no regular file")
    (tmp_path / "a.mcap").write_bytes(b"\xff" * 100)
    refused(ferry_cli(command, tmp_path / "a.mcap", *rest), "a.mcap: ", 1)


@pytest.mark.parametrize("command", ["info", "ls", "extract", "record", "play", "repair"])
def test_help(ferry_cli: Ferry, command: str) -> None:
    ran = ferry_cli(command, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert "Usage" in ran.out


def test_missing_extras_are_named(
    ferry_cli: Ferry, drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mcap_file", "mcap_reading"):
        monkeypatch.setitem(sys.modules, f"tensorferry.record.{name}", None)
    refused(ferry_cli("info", drive), "install tensorferry[record]")
    monkeypatch.setitem(sys.modules, "mcap.writer", None)
    refused(ferry_cli("record", tmp_path / "s", tmp_path / "o.mcap"), "install tensorferry[record]")


def test_a_part_that_a_crash_left(ferry_cli: Ferry, tmp_path: Path) -> None:
    (tmp_path / "o.mcap.part").touch()
    refused(ferry_cli("record", tmp_path / "s", tmp_path / "o.mcap"), "from another recorder or a crash")
