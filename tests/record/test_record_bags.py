"""VLink bags: built here from the spec with mcap and sqlite3 alone, read back whole; ours are read by plain mcap."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np
import pytest

import tensorferry as ferry
from tensorferry import Labels, Lossy, Malformed, Tensor, Truncated, Unsupported, WireError
from tensorferry.record import Record, Recording
from tensorferry.record.vlink_bags import VcapWriter, open_bag

reader = pytest.importorskip("mcap.reader")
writer = pytest.importorskip("mcap.writer")

START = 1_700_000_000_123  # ms
COUNT = 30
TENSOR = "vlink::zerocopy::Tensor"
URLS = {  # url: (type, ser, encoding)
    "dds://camera/front": ("Event", TENSOR, "zerocopy"),
    "shm://lidar": ("Event", "vlink::zerocopy::PointCloud", "zerocopy"),
    "dds://state": ("Field", "pb.State", "protobuf"),
    "dds://score": ("Field", TENSOR, "zerocopy"),
    "dds://call": ("Method", "A|B", "raw"),
}
TENSORS = [url for url, (_, ser, _) in URLS.items() if ser == TENSOR]


def payload(url: str, i: int) -> bytes:
    if url not in TENSORS:
        return b"\x9a\xf1\xb7\x98 no tensor" * 3
    labels = Labels(name="t", seq=i, frame_id="cam")
    return ferry.dumps(Tensor.from_array(np.full((5, 7), i, np.float32), labels=labels), format="vlink")


def elapsed(i: int) -> int:
    return 1000 + i * 33_333  # µs


def check(recording: Recording, count: int = COUNT, first: int = 0) -> None:
    """Every tensor is there, in order, with its URL, its time and its labels; the rest is listed."""
    records = list(recording)
    assert len(records) == count * len(TENSORS)
    for place, record in enumerate(records):
        i, url = first + place // len(TENSORS), TENSORS[place % len(TENSORS)]
        assert record.topic == url
        assert record.log_time == record.publish_time == START * 10**6 + elapsed(i) * 1000
        assert record.tensor.numpy().tolist() == np.full((5, 7), i).tolist()
        assert record.tensor.labels == Labels(name="t", seq=i, frame_id="cam", batch_size=5)
    topics = {topic.name: topic for topic in recording.topics}
    assert set(topics) == set(URLS)
    for url, (_, ser, _) in URLS.items():
        topic = topics[url]
        assert (topic.kind, topic.encoding) == ("vlink" if url in TENSORS else None, ser)
        assert (topic.undecoded is None) is (url in TENSORS)
        assert topic.messages == count
        assert topic.first == START * 10**6 + elapsed(first) * 1000
        assert topic.last == START * 10**6 + elapsed(first + count - 1) * 1000


def selects(recording: Recording) -> None:
    start = START * 10**6 + elapsed(4) * 1000
    found = list(recording.select(["dds://score"], start=start, end=start + 3 * 33_333_000))
    assert [int(record.tensor.numpy()[0, 0]) for record in found] == [4, 5, 6]
    assert [record.log_time for record in recording.select(start=start, end=start + 1)] == [start] * len(TENSORS)
    assert not list(recording.select(["dds://state"]))


# ---- .vcap, as VLink writes it ----


def make_vcap(
    path: Path,
    *,
    compression: str = "NONE",
    compress: str = "None",
    first: int = 0,
    count: int = COUNT,
    end: bool = True,
) -> None:
    with path.open("wb") as file:
        out = writer.Writer(file, chunk_size=4000, compression=writer.CompressionType[compression])
        out.start(profile="vlink", library="vlink")
        header = {
            "tag": "Empty",
            "version": "2.1.0",
            "compress": compress,
            "process": "test",
            "date": "",
            "timezone": "0",
        }
        out.add_metadata("VLinkHeader", {**header, "start_timestamp": str(START)})
        channels = {
            url: out.register_channel(url, "" if kind == "Method" else encoding, 0, {"action": "Pub"})
            for url, (kind, _, encoding) in URLS.items()
        }
        for i in range(first, first + count):
            time = START * 10**6 + elapsed(i) * 1000
            for url, channel in channels.items():
                out.add_message(channel, time, payload(url, i), time, i)
        out.flush()
        if not end:
            return
        for url, channel in channels.items():
            kind, ser, encoding = URLS[url]
            numbers = {"index": str(channel - 1), "count": str(count), "size": "1", "loss": "0.000000", "freq": "30.0"}
            words = {"type": kind, "action": "Pub", "encoding": encoding, "ser": ser}
            out.add_metadata(f"VLinkChannel_{channel}", {**numbers, **words})
        out.finish()


class TestVcap:
    @pytest.mark.parametrize(("compression", "compress"), [("NONE", "None"), ("ZSTD", "zstd")])
    def test_is_read_whole(self, tmp_path: Path, compression: str, compress: str) -> None:
        make_vcap(tmp_path / "a.vcap", compression=compression, compress=compress)
        with open_bag(tmp_path / "a.vcap") as recording:
            check(recording)
            selects(recording)
            assert not recording.damage

    def test_opens_by_the_common_door(self, tmp_path: Path) -> None:
        make_vcap(tmp_path / "a.vcap")
        with ferry_open(tmp_path / "a.vcap") as recording:
            check(recording)

    def test_packed_payloads_are_refused(self, tmp_path: Path) -> None:
        make_vcap(tmp_path / "a.vcap", compress="lzav")
        with pytest.raises(Unsupported, match="lzav"):
            open_bag(tmp_path / "a.vcap")

    def test_without_its_end_tensors_are_told_by_their_bytes(self, tmp_path: Path) -> None:
        make_vcap(tmp_path / "a.vcap", end=False)
        with open_bag(tmp_path / "a.vcap") as recording:
            assert len(list(recording)) == COUNT * len(TENSORS)
            assert isinstance(recording.damage[0].error, Truncated)
            topics = {topic.name: topic for topic in recording.topics}
            assert {name for name, topic in topics.items() if topic.kind == "vlink"} == set(TENSORS)
            assert {topic.messages for topic in topics.values()} == {COUNT}

    def test_a_cut_at_any_byte(self, tmp_path: Path) -> None:
        make_vcap(tmp_path / "a.vcap", count=8)
        whole = (tmp_path / "a.vcap").read_bytes()
        seen = 0
        for n in sorted(random.Random(1).sample(range(8, len(whole)), 120)):
            (tmp_path / "cut.vcap").write_bytes(whole[:n])
            with open_bag(tmp_path / "cut.vcap") as recording:
                records = list(recording)
                assert all((record.tensor.numpy() == i // 2).all() for i, record in enumerate(records))
                assert len(records) >= seen
                seen = len(records)
        assert seen == 8 * len(TENSORS)


class TestWritingVcap:
    def test_plain_mcap_reads_what_vlink_asks_for(self, tmp_path: Path) -> None:
        path = tmp_path / "a.vcap"
        labels = [Labels(seq=i + 1, batch_size=6) for i in range(10)]
        tensors = [Tensor.from_array(np.full(6, i, np.int16), labels=label) for i, label in enumerate(labels)]
        with VcapWriter(path, process="bench", tag="night") as out:
            for i, tensor in enumerate(tensors):
                for url in ("dds://a", "shm://b"):
                    out.write(url, tensor, log_time=START * 10**6 + 5 + i * 10**8)
        with path.open("rb") as file:
            plain = reader.make_reader(file, validate_crcs=True)
            assert plain.get_header().profile == "vlink"
            summary = plain.get_summary()
            channels = summary.channels.values()
            assert [(one.topic, one.message_encoding, one.schema_id, one.metadata) for one in channels] == [
                ("dds://a", "zerocopy", 0, {"action": "Pub"}),
                ("shm://b", "zerocopy", 0, {"action": "Pub"}),
            ]
            words = {record.name: record.metadata for record in plain.iter_metadata()}
            found = list(plain.iter_messages())
        header = words.pop("VLinkHeader")
        assert header.pop("date").startswith("2023/11/1")
        assert int(header.pop("timezone")) % 15 == 0
        assert header == {
            "tag": "night", "version": "2.1.0", "compress": "zstd", "process": "bench", "start_timestamp": str(START),
        }  # fmt: skip
        size = len(ferry.dumps(tensors[0], format="vlink"))
        for i in range(2):
            assert words.pop(f"VLinkChannel_{i + 1}") == {
                "index": str(i), "type": "Event", "action": "Pub", "encoding": "zerocopy", "ser": TENSOR,
                "count": "10", "size": str(10 * size), "loss": "0.000000", "freq": f"{10 / 0.9:.6f}",
            }  # fmt: skip
        assert not words
        assert [message.data for _, _, message in found[::2]] == [ferry.dumps(t, format="vlink") for t in tensors]
        assert [message.sequence for _, _, message in found[::2]] == list(range(1, 11))
        with open_bag(path) as recording:
            assert [record.tensor.labels for record in recording.select(["dds://a"])] == labels

    def test_an_empty_bag_is_one(self, tmp_path: Path) -> None:
        VcapWriter(tmp_path / "a.vcap").close()
        with open_bag(tmp_path / "a.vcap") as recording:
            assert not list(recording)
            assert not recording.topics
            assert not recording.damage

    def test_what_is_refused_leaves_the_bag_whole(self, tmp_path: Path) -> None:
        with VcapWriter(tmp_path / "a.vcap", compression="none", start_timestamp=START) as out:
            image = ferry.allocate_image("NV12", 4, 4)
            with pytest.raises(Lossy):
                out.write("dds://a", image, log_time=START * 10**6)
            with pytest.raises(ValueError, match="before the bag's start"):
                out.write("dds://a", ferry.allocate((2,), "uint8"), log_time=START * 10**6 - 1)
            out.write("dds://a", ferry.allocate((2,), "uint8"), log_time=START * 10**6)
        with open_bag(tmp_path / "a.vcap") as recording:
            assert [topic.messages for topic in recording.topics] == [1]
        with pytest.raises(ValueError, match="'lz4'"):
            VcapWriter(tmp_path / "b.vcap", compression="lz4")


# ---- .vdb, as VLink writes it ----

TABLES = """
CREATE TABLE VLinkHeader(major INTEGER, minor INTEGER, patch INTEGER, count INTEGER, duration INTEGER, accuracy TEXT,
  compress TEXT, process TEXT, date TEXT, tag TEXT, complete INTEGER, timezone INTEGER, start_timestamp INTEGER);
CREATE TABLE VLinkSchemas(ser TEXT, encoding TEXT, data BLOB);
CREATE TABLE VLinkUrls(id INTEGER, url TEXT, type TEXT, ser TEXT, encoding TEXT, count INTEGER, loss REAL, size INTEGER,
  freq REAL);
CREATE TABLE VLinkDatas(elapsed INTEGER, url INTEGER, action TEXT, data BLOB);
CREATE INDEX idx_elapsed_url ON VLinkDatas(elapsed, url);
"""


def make_vdb(
    path: Path, *, compress: str = "None", complete: int = 1, first: int = 0, count: int = COUNT, journal: str = "OFF"
) -> None:
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA journal_mode = {journal}")
    db.executescript(TABLES)
    db.execute(
        "INSERT INTO VLinkHeader VALUES (2, 1, 0, 0, 0, 'MicroSecond', ?, 'test', '', 'Empty', ?, 0, ?)",
        (compress, complete, START),
    )
    for number, (url, (kind, ser, encoding)) in enumerate(URLS.items()):
        db.execute("INSERT INTO VLinkUrls VALUES (?, ?, ?, ?, ?, 0, 0.0, 0, 0.0)", (number, url, kind, ser, encoding))
    for i in range(first, first + count):
        for number, url in enumerate(URLS):
            db.execute("INSERT INTO VLinkDatas VALUES (?, ?, 'Pub', ?)", (elapsed(i), number, payload(url, i)))
    db.commit()
    db.close()


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        path.name: (path.stat().st_mtime_ns, path.stat().st_mode, path.read_bytes())
        for path in sorted(folder.iterdir())
    }


class TestVdb:
    @pytest.mark.parametrize("journal", ["OFF", "DELETE", "WAL"])
    def test_is_read_whole_and_left_alone(self, tmp_path: Path, journal: str) -> None:
        make_vdb(tmp_path / "a.vdb", journal=journal)
        before = state(tmp_path)
        with open_bag(tmp_path / "a.vdb") as recording:
            check(recording)
            selects(recording)
            assert not recording.damage
            assert state(tmp_path) == before
        assert state(tmp_path) == before

    def test_names_that_a_uri_would_misread(self, tmp_path: Path) -> None:
        path = tmp_path / "a?mode=rwc#%41 ü.vdb"
        make_vdb(path)
        with open_bag(path) as recording:
            check(recording)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_that_may_not_be_written(self, tmp_path: Path) -> None:
        make_vdb(tmp_path / "a.vdb", journal="WAL")
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        try:
            with open_bag(tmp_path / "a.vdb") as recording:
                check(recording)
        finally:
            tmp_path.chmod(stat.S_IRWXU)

    def test_someone_elses_lock_is_no_matter_and_none_is_taken(self, tmp_path: Path) -> None:
        path = tmp_path / "a.vdb"
        make_vdb(path)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with open_bag(path) as recording:
            rows = iter(recording)
            next(rows)
            other.execute("COMMIT")
            other.execute("BEGIN EXCLUSIVE")  # while rows are being read
            other.execute("ROLLBACK")
            assert len(list(rows)) == COUNT * len(TENSORS) - 1
        other.close()

    def test_packed_payloads_are_refused(self, tmp_path: Path) -> None:
        make_vdb(tmp_path / "a.vdb", compress="lzav")
        with pytest.raises(Unsupported, match="lzav"):
            open_bag(tmp_path / "a.vdb")

    def test_an_incomplete_bag_says_so(self, tmp_path: Path) -> None:
        make_vdb(tmp_path / "a.vdb", complete=0)
        with open_bag(tmp_path / "a.vdb") as recording:
            check(recording)
            assert "complete = 0" in str(recording.damage[0].error)

    @pytest.mark.parametrize("journal", ["WAL", "DELETE"])
    def test_what_a_crash_left_beside_it_is_read_from_a_copy(self, tmp_path: Path, journal: str) -> None:
        """The recorder is killed with its log written, and with a transaction begun."""
        (tmp_path / "live").mkdir()
        path = tmp_path / "live" / "a.vdb"
        make_vdb(path, count=10, complete=0, journal=journal)
        rows = [(elapsed(i), n, payload(url, i)) for i in range(10, 20) for n, url in enumerate(URLS)]
        (tmp_path / "rows.json").write_text(json.dumps([(e, n, data.hex()) for e, n, data in rows]))
        script = textwrap.dedent(f"""
            import json, os, sqlite3
            db = sqlite3.connect({str(path)!r}, isolation_level=None)
            db.execute("PRAGMA wal_autocheckpoint = 0")
            db.execute("PRAGMA cache_size = 2")
            insert = "INSERT INTO VLinkDatas VALUES (?, ?, 'Pub', ?)"
            for e, n, data in json.load(open({str(tmp_path / "rows.json")!r})):
                db.execute(insert, (e, n, bytes.fromhex(data)))
            db.execute("BEGIN")
            for n in range(200):
                db.execute(insert, (10**9, 0, bytes(3000)))
            os._exit(9)
        """)
        subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
        left = [name for name in os.listdir(path.parent) if name != "a.vdb"]
        assert any((path.parent / name).stat().st_size for name in left)
        before = state(path.parent)
        temporary = set(os.listdir(tmp_path))
        with open_bag(path) as recording:
            check(recording, count=20)
        assert state(path.parent) == before
        assert set(os.listdir(tmp_path)) == temporary

    def test_a_cut_is_read_as_far_as_it_goes(self, tmp_path: Path) -> None:
        make_vdb(tmp_path / "a.vdb", complete=0)
        whole = (tmp_path / "a.vdb").read_bytes()
        (page,) = unpack_from(">H", whole, 16)
        tables = 6 * page  # the tables' first pages, without which there is no bag
        most = 0
        for n in sorted(random.Random(1).sample(range(len(whole)), 100)):
            (tmp_path / "cut.vdb").write_bytes(whole[:n])
            try:
                recording = open_bag(tmp_path / "cut.vdb")
            except WireError:
                assert n < tables
                continue
            with recording:
                records = list(recording)
                assert "was cut" in " ".join(str(damage.error) for damage in recording.damage)
                assert sum(topic.messages for topic in recording.topics) <= COUNT * len(URLS)
            for record in records:
                i = int(record.tensor.numpy()[0, 0])
                assert (record.tensor.numpy() == i).all()
                assert record.log_time == START * 10**6 + elapsed(i) * 1000
            most = max(most, len(records))
        assert most > COUNT

    def test_random_damage_is_refused_or_harmless(self, tmp_path: Path) -> None:
        make_vdb(tmp_path / "a.vdb")
        whole = (tmp_path / "a.vdb").read_bytes()
        rng = random.Random(4)
        for i in range(200):
            damaged = bytearray(whole)
            for _ in range(rng.randint(1, 8)):
                at = rng.randrange(len(damaged) if i % 2 else 4096)
                damaged[at] = rng.choice([0, 255, damaged[at] ^ 1 << rng.randrange(8)])
            (tmp_path / "b.vdb").write_bytes(damaged)
            for strict in (True, False):
                try:
                    with open_bag(tmp_path / "b.vdb", strict=strict) as recording:
                        list(recording)
                        _ = recording.topics
                except (WireError, Unsupported):
                    pass

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            ("UPDATE VLinkDatas SET data = x'00112233' WHERE rowid = 4", "row 4"),
            ("UPDATE VLinkDatas SET data = 'text' WHERE rowid = 4", "row 4"),
            ("UPDATE VLinkDatas SET data = NULL WHERE rowid = 4", "row 4"),
            ("UPDATE VLinkDatas SET elapsed = 'soon' WHERE rowid = 4", "row 4"),
            ("UPDATE VLinkDatas SET elapsed = 9223372036854775807 WHERE rowid = 4", "row 4"),
            ("UPDATE VLinkDatas SET elapsed = -9223372036854775807 WHERE rowid = 4", "row 4"),
            ("UPDATE VLinkDatas SET url = 77 WHERE rowid = 4", "row 4"),
            ("UPDATE VLinkDatas SET url = 'x' WHERE rowid = 4", "row 4"),
        ],
    )
    def test_rows_that_are_no_messages(self, tmp_path: Path, change: str, match: str) -> None:
        make_vdb(tmp_path / "a.vdb", count=3)
        db = sqlite3.connect(tmp_path / "a.vdb")
        db.execute(change)
        db.commit()
        db.close()
        with open_bag(tmp_path / "a.vdb") as recording, pytest.raises(WireError, match=match):
            list(recording)
        with open_bag(tmp_path / "a.vdb", strict=False) as recording:
            assert len(list(recording)) == 3 * len(TENSORS) - 1
            assert len(recording.damage) == 1
            assert recording.topics

    @pytest.mark.parametrize(
        "change",
        [
            "DROP TABLE VLinkDatas",
            "ALTER TABLE VLinkDatas RENAME TO X; CREATE VIEW VLinkDatas AS SELECT * FROM X",
            "DROP TABLE VLinkDatas; CREATE TABLE VLinkDatas(elapsed, url, action, data AS (zeroblob(1000000000)))",
            "DROP TABLE VLinkUrls; CREATE TABLE VLinkUrls(url)",
            "UPDATE VLinkHeader SET accuracy = 'Second'",
        ],
    )
    def test_tables_that_are_not_the_bags(self, tmp_path: Path, change: str) -> None:
        make_vdb(tmp_path / "a.vdb", count=3)
        db = sqlite3.connect(tmp_path / "a.vdb")
        db.executescript(change)
        db.close()
        with pytest.raises((Malformed, Unsupported)):
            open_bag(tmp_path / "a.vdb")

    def test_without_serialization_types_bytes_tell(self, tmp_path: Path) -> None:
        make_vdb(tmp_path / "a.vdb")
        db = sqlite3.connect(tmp_path / "a.vdb")
        db.execute("UPDATE VLinkUrls SET ser = '' WHERE encoding = 'zerocopy'")
        db.commit()
        db.close()
        with open_bag(tmp_path / "a.vdb") as recording:
            topics = {topic.name: topic.kind for topic in recording.topics}
            assert {name for name, kind in topics.items() if kind} == set(TENSORS)
            assert len(list(recording)) == COUNT * len(TENSORS)


# ---- manifests ----


def manifest(path: Path, files: Any) -> Path:
    path.write_text(json.dumps({"VLinkHeader": {"complete": True}, "VLinkUrls": [], "VLinkFiles": files}))
    return path


MAKERS: dict[str, Callable[..., None]] = {".vcap": make_vcap, ".vdb": make_vdb}


@pytest.mark.parametrize("suffix", [".vcap", ".vdb"])
class TestManifests:
    def test_split_bags_are_read_as_one(self, tmp_path: Path, suffix: str) -> None:
        names = [f"a.{i}{suffix}" for i in range(3)]
        for i, name in enumerate(names):
            MAKERS[suffix](tmp_path / name, first=i * 10, count=10)
        with open_bag(manifest(tmp_path / f"a{suffix}x", names)) as recording:
            check(recording, count=30)
            selects(recording)
            assert not recording.damage

    @pytest.mark.parametrize(
        "name",
        [
            "../out{}",
            "/etc/out{}",
            "sub/in{}",
            "sub\\in{}",
            "..",
            ".",
            "",
            "c:out{}",
            "a\0{}",
            7,
            None,
            ["a{}"],
            "a.mp4",
        ],
    )
    def test_names_that_lead_elsewhere_are_refused(self, tmp_path: Path, suffix: str, name: Any) -> None:
        (tmp_path / "in" / "sub").mkdir(parents=True)
        for place in ("out", "in/sub/in", "in/a"):
            MAKERS[suffix](tmp_path / f"{place}{suffix}", count=1)
        given = name.format(suffix) if isinstance(name, str) else name
        path = manifest(tmp_path / "in" / f"m{suffix}x", [f"a{suffix}", given])
        for strict in (True, False):
            with pytest.raises(Malformed):
                open_bag(path, strict=strict)

    def test_links_out_of_the_folder_are_refused(self, tmp_path: Path, suffix: str) -> None:
        (tmp_path / "in").mkdir()
        MAKERS[suffix](tmp_path / f"out{suffix}", count=1)
        (tmp_path / "in" / f"a{suffix}").symlink_to(tmp_path / f"out{suffix}")
        with pytest.raises(Malformed, match="link"):
            open_bag(manifest(tmp_path / "in" / f"m{suffix}x", [f"a{suffix}"]))

    def test_a_folder_that_is_a_link_itself_is_fine(self, tmp_path: Path, suffix: str) -> None:
        (tmp_path / "in").mkdir()
        MAKERS[suffix](tmp_path / "in" / f"a{suffix}")
        manifest(tmp_path / "in" / f"m{suffix}x", [f"a{suffix}"])
        (tmp_path / "link").symlink_to(tmp_path / "in")
        with open_bag(tmp_path / "link" / f"m{suffix}x") as recording:
            check(recording)

    def test_a_missing_file_is_said(self, tmp_path: Path, suffix: str) -> None:
        MAKERS[suffix](tmp_path / f"a{suffix}")
        path = manifest(tmp_path / f"m{suffix}x", [f"a{suffix}", f"b{suffix}"])
        with pytest.raises(Truncated, match="file 2 of 2"):
            open_bag(path)
        with open_bag(path, strict=False) as recording:
            check(recording)
            assert len(recording.damage) == 1

    def test_a_last_file_that_a_crash_left(self, tmp_path: Path, suffix: str) -> None:
        MAKERS[suffix](tmp_path / f"a{suffix}", count=10)
        if suffix == ".vcap":
            make_vcap(tmp_path / "b.vcap", first=10, count=10, end=False)
        else:
            make_vdb(tmp_path / "b.vdb", first=10, count=10, complete=0)
        with open_bag(manifest(tmp_path / f"m{suffix}x", [f"a{suffix}", f"b{suffix}"])) as recording:
            assert len(list(recording)) == 20 * len(TENSORS)
            assert len(recording.damage) == 1

    def test_what_is_no_manifest(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"m{suffix}x"
        for text in ("", "{", "[]", "{}", '{"VLinkFiles": {}}', '{"VLinkFiles": []}', "[" * 100_000, "\xff"):
            path.write_text(text, encoding="latin-1")
            with pytest.raises(Malformed):
                open_bag(path)
        MAKERS[suffix](tmp_path / f"a{suffix}", count=1)
        with pytest.raises(Malformed, match="twice"):
            open_bag(manifest(path, [f"a{suffix}", f"a{suffix}"]))

    def test_it_opens_by_the_common_door(self, tmp_path: Path, suffix: str) -> None:
        MAKERS[suffix](tmp_path / f"a{suffix}")
        with ferry_open(manifest(tmp_path / f"m{suffix}x", [f"a{suffix}"])) as recording:
            check(recording)


def ferry_open(path: Path) -> Recording:
    from tensorferry import record

    return record.open(path)


def test_what_is_no_bag(tmp_path: Path) -> None:
    for name in ("a.vcap", "a.vdb", "a.txt"):
        (tmp_path / name).write_bytes(b"something else altogether")
        with pytest.raises(Malformed):
            open_bag(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        open_bag(tmp_path / "b.vdb")
    os.mkfifo(tmp_path / "pipe.vdb")
    with pytest.raises(Unsupported):
        open_bag(tmp_path / "pipe.vdb")


@pytest.mark.parametrize("suffix", [".vcap", ".vdb"])
def test_two_thousand_messages_are_listed_without_their_payloads(tmp_path: Path, suffix: str) -> None:
    """Listing must not look at payloads: here every one of them is damaged, and nobody notices."""
    path = tmp_path / f"a{suffix}"
    MAKERS[suffix](path, count=400)
    if suffix == ".vdb":
        db = sqlite3.connect(path)
        db.execute("UPDATE VLinkDatas SET data = x'00'")
        db.commit()
        db.close()
    else:
        damaged = bytearray(path.read_bytes())
        with path.open("rb") as file:
            for chunk in reader.make_reader(file).get_summary().chunk_indexes:
                damaged[chunk.chunk_start_offset + 60] ^= 1
        path.write_bytes(damaged)
    with open_bag(path) as recording:
        assert [topic.messages for topic in recording.topics] == [400] * 5
        assert not recording.damage


def test_records_outlive_the_bag(tmp_path: Path) -> None:
    make_vdb(tmp_path / "a.vdb")
    make_vcap(tmp_path / "a.vcap")
    for name in ("a.vdb", "a.vcap"):
        recording = open_bag(tmp_path / name)
        records: Iterator[Record] = iter(recording)
        first = next(records)
        recording.close()
        recording.close()
        shutil.copy(tmp_path / name, tmp_path / "copy")
        assert (first.tensor.numpy() == 0).all()
        with pytest.raises(ferry.Closed):
            list(open_closed(recording))


def open_closed(recording: Recording) -> Iterator[Record]:
    return iter(recording)
