"""MCAP: ours are read by the mcap package, its by us; filters, crashes, damage, hostile files."""

from __future__ import annotations

import builtins
import io
import os
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorferry as ferry
from tensorferry import Labels, Lossy, Malformed, Tensor, Truncated, Unsupported, WireError, messages
from tensorferry.record import Record
from tensorferry.record.mcap import McapWriter, open_mcap

reader = pytest.importorskip("mcap.reader")
writer = pytest.importorskip("mcap.writer")

FORMATS = ("blob", "vlink", "Tensor", "TensorStamped", "CameraFrame")
COMPRESSIONS = ("zstd", "lz4", "none")
COUNT = 40


def tensor(i: int) -> Tensor:
    return Tensor.from_array(np.full((16, 12), i, np.int16), quantization=ferry.Quantization(0.5, 3))


def write(path: Path, *, compression: str = "zstd", chunk_size: int = 2000, count: int = COUNT) -> None:
    with McapWriter(path, compression=compression, chunk_size=chunk_size) as out:
        for i in range(count):
            for format in FORMATS:
                out.write(f"/{format}", tensor(i), log_time=i * 1000, publish_time=i * 1000 - (i > 0), format=format)


def numbers(records: Iterator[Record]) -> list[int]:
    """Which tensors came, each known to be whole."""
    found = []
    for record in records:
        array = record.tensor.numpy()
        assert array.shape == (16, 12)
        assert (array == array[0, 0]).all()
        assert record.log_time == int(array[0, 0]) * 1000
        found.append(int(array[0, 0]))
    return found


@pytest.fixture(params=COMPRESSIONS)
def compression(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_was_written_is_read(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "a.mcap"
    write(path, compression=compression)
    with open_mcap(path) as recording:
        records = list(recording)
        assert len(records) == COUNT * len(FORMATS)
        for i in range(COUNT):
            for j, format in enumerate(FORMATS):
                record = records[i * len(FORMATS) + j]
                assert record[:3] == (f"/{format}", i * 1000, i * 1000 - (i > 0))
                assert record.tensor.numpy().tolist() == tensor(i).numpy().tolist()
                assert record.tensor.quantization == tensor(i).quantization
        assert not recording.damage
        assert list(recording)[-1].log_time == records[-1].log_time  # a second time


def test_topics_are_listed(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "a.mcap"
    write(path, compression=compression)
    with open_mcap(path) as recording:
        topics = {topic.name: topic for topic in recording.topics}
    assert {name: topic.kind for name, topic in topics.items()} == {
        "/blob": "blob",
        "/vlink": "vlink",
        "/Tensor": "edgefirst_msgs/Tensor",
        "/TensorStamped": "edgefirst_msgs/TensorStamped",
        "/CameraFrame": "edgefirst_msgs/CameraFrame",
    }
    for topic in topics.values():
        assert (topic.messages, topic.first, topic.last, topic.undecoded) == (COUNT, 0, (COUNT - 1) * 1000, None)
    assert topics["/CameraFrame"].encoding == "edgefirst_msgs/msg/CameraFrame"


def test_a_strangers_tool_can_tell(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "a.mcap"
    write(path, compression=compression)
    with path.open("rb") as file:
        plain = reader.make_reader(file, validate_crcs=True)
        header, summary = plain.get_header(), plain.get_summary()
        assert header.library.startswith("tensorferry ")
        said = {
            channel.topic: (channel.message_encoding, summary.schemas[channel.schema_id])
            for channel in summary.channels.values()
        }
        assert {topic: (encoding, schema.name, schema.encoding) for topic, (encoding, schema) in said.items()} == {
            "/blob": ("tensor-blob", "tensorferry/TensorBlob", "text/plain"),
            "/vlink": ("zerocopy", "vlink::zerocopy::Tensor", "text/plain"),
            "/Tensor": ("cdr", "edgefirst_msgs/msg/Tensor", "ros2msg"),
            "/TensorStamped": ("cdr", "edgefirst_msgs/msg/TensorStamped", "ros2msg"),
            "/CameraFrame": ("cdr", "edgefirst_msgs/msg/CameraFrame", "ros2msg"),
        }
        assert said["/Tensor"][1].data.decode() == messages.definition("Tensor")
        found = list(plain.iter_messages())
    assert len(found) == COUNT * len(FORMATS)
    for _, channel, message in found:
        assert message.sequence == message.log_time // 1000 + 1
        if channel.topic in ("/blob", "/vlink"):
            assert ferry.loads(message.data).numpy()[0, 0] == message.log_time // 1000


def test_filters(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "a.mcap"
    write(path, compression=compression)
    with open_mcap(path) as recording:
        assert numbers(recording.select(["/blob"])) == list(range(COUNT))
        assert numbers(recording.select(["/vlink"], start=3000, end=6000)) == [3, 4, 5]
        assert numbers(recording.select(["/vlink", "/blob"], start=38_001)) == [39, 39]
        assert numbers(recording.select(["/none"])) == []
        assert numbers(recording.select(end=0)) == []


def test_uncompressed_chunks_are_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    write(path, compression="none")
    recording = open_mcap(path)
    arrays = [record.tensor.numpy() for record in recording.select(["/blob"])]
    recording.close()
    assert not arrays[0].flags.writeable
    low = min(array.__array_interface__["data"][0] for array in arrays)
    high = max(array.__array_interface__["data"][0] for array in arrays)
    assert high - low < path.stat().st_size  # all of them lie in one mapping of the file
    assert [int(array[0, 0]) for array in arrays] == list(range(COUNT))


def test_labels_survive_in_stamped_messages(tmp_path: Path) -> None:
    labelled = tensor(1).replace(labels=Labels(frame_id="cam", seq=4, time_meas=77))
    with McapWriter(tmp_path / "a.mcap", format="CameraFrame") as out:
        out.write("/camera", labelled, log_time=5)
        with pytest.raises(Lossy):
            out.write("/blob", labelled, log_time=5, format="blob")
        out.write("/blob", labelled, log_time=5, format="blob", lossy=True)
    with open_mcap(tmp_path / "a.mcap") as recording:
        assert [record.tensor.labels for record in recording] == [labelled.labels, None]


class TestWriting:
    def test_it_takes_its_place_when_it_is_closed(self, tmp_path: Path) -> None:
        path = tmp_path / "a.mcap"
        path.write_bytes(b"before")
        out = McapWriter(path)
        out.write("/a", tensor(0), log_time=0)
        assert path.read_bytes() == b"before"
        with pytest.raises(FileExistsError, match=r"a\.mcap\.part"):
            McapWriter(path)
        out.close()
        out.close()
        assert os.listdir(tmp_path) == ["a.mcap"]
        with open_mcap(path) as recording:
            assert numbers(iter(recording)) == [0]
        with pytest.raises(ferry.Closed):
            out.write("/a", tensor(0), log_time=0)

    def test_an_error_in_the_with_leaves_a_whole_file(self, tmp_path: Path) -> None:
        def interrupted() -> None:
            with McapWriter(tmp_path / "a.mcap") as out:
                out.write("/a", tensor(0), log_time=0)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        with open_mcap(tmp_path / "a.mcap") as recording:
            assert numbers(iter(recording)) == [0]
            assert not recording.damage

    def test_what_was_flushed_survives(self, tmp_path: Path) -> None:
        out = McapWriter(tmp_path / "a.mcap", chunk_size=1 << 30)
        for i in range(3):
            out.write("/a", tensor(i), log_time=i * 1000)
        out.flush()
        out.write("/a", tensor(3), log_time=3000)
        with open_mcap(tmp_path / "a.mcap.part") as recording:
            assert numbers(iter(recording)) == [0, 1, 2]
            assert isinstance(recording.damage[0].error, Truncated)
        out.close()

    def test_arguments(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="compression 'gzip'"):
            McapWriter(tmp_path / "a.mcap", compression="gzip")
        with pytest.raises(ValueError, match="format 'png'"):
            McapWriter(tmp_path / "a.mcap", format="png")
        with McapWriter(tmp_path / "a.mcap") as out:
            out.write("/a", tensor(0), log_time=0)
            with pytest.raises(ValueError, match="holds 'blob'"):
                out.write("/a", tensor(0), log_time=0, format="vlink")
            for log_time, publish_time in ((-1, None), (0, 1 << 64), (0, -1)):
                with pytest.raises(ValueError, match="64 unsigned bits"):
                    out.write("/a", tensor(0), log_time=log_time, publish_time=publish_time)
        with open_mcap(tmp_path / "a.mcap") as recording:
            assert numbers(iter(recording)) == [0]


def plain(chunked: bool = True, **options: Any) -> tuple[Any, io.BytesIO]:
    """The mcap package's own writer."""
    buffer = io.BytesIO()
    out = writer.Writer(buffer, use_chunking=chunked, compression=writer.CompressionType.NONE, **options)
    out.start()
    return out, buffer


class TestOtherPeoplesFiles:
    """Written by the mcap package: with names that tell and without, with and without chunks and indexes."""

    OPTIONS: tuple[dict[str, Any], ...] = (
        {},
        {"chunked": False},
        {"index_types": writer.IndexType.NONE},
        {"use_statistics": False},
        {"repeat_channels": False, "repeat_schemas": False},
        {
            "index_types": writer.IndexType.NONE,
            "use_statistics": False,
            "repeat_channels": False,
            "repeat_schemas": False,
            "use_summary_offsets": False,
        },
    )

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_tensors_are_found_and_the_rest_is_listed(self, tmp_path: Path, options: dict[str, Any]) -> None:
        out, buffer = plain(**options)
        image = out.register_schema("sensor_msgs/msg/Image", "ros2msg", b"uint32 height\n")
        theirs = out.register_schema("edgefirst_msgs/msg/Tensor", "ros2msg", b"whatever\n")
        channels = {
            "/image": (out.register_channel("/image", "cdr", image), b"\0\1\0\0pixels"),
            "/cdr": (out.register_channel("/cdr", "cdr", 0), b"\0\1\0\0"),
            "/json": (out.register_channel("/json", "json", 0), b"{}"),
            "/tensor": (out.register_channel("/tensor", "cdr", theirs), messages.encode(tensor(4))),
            "/silent blob": (out.register_channel("/silent blob", "", 0), ferry.dumps(tensor(4))),
            "/odd vlink": (out.register_channel("/odd vlink", "x-mine", 0), ferry.dumps(tensor(4), format="vlink")),
            "/noise": (out.register_channel("/noise", "x-mine", 0), b"\x9a\xf1\xb7\x98" + bytes(400)),
            "/empty": (out.register_channel("/empty", "", 0), None),
        }
        for topic, (channel, data) in channels.items():
            for log_time in (4000, 4000) if data is not None else ():
                out.add_message(channel, log_time, data, publish_time=len(topic))
        out.finish()
        path = tmp_path / "theirs.mcap"
        path.write_bytes(buffer.getvalue())
        with open_mcap(path) as recording:
            topics = {topic.name: topic for topic in recording.topics}
            assert {name: topic.kind for name, topic in topics.items() if topic.undecoded is None} == {
                "/tensor": "edgefirst_msgs/Tensor",
                "/silent blob": "blob",
                "/odd vlink": "vlink",
            }
            refused = {name: topic.undecoded for name, topic in topics.items() if topic.undecoded}
            assert set(refused) == {"/image", "/cdr", "/json", "/noise"} | ({"/empty"} & set(topics))
            assert "sensor_msgs/msg/Image" in str(refused["/image"])
            assert topics["/image"].encoding == "sensor_msgs/msg/Image"
            for name, info in topics.items():
                expected = (0, None, None) if name == "/empty" else (2, 4000, 4000)
                assert (info.messages, info.first, info.last) == expected
            records = list(recording)
            assert sorted(record.topic for record in records) == sorted(["/tensor", "/silent blob", "/odd vlink"] * 2)
            assert numbers(iter(records)) == [4] * 6
            assert numbers(recording.select(["/tensor"], start=4000, end=4001)) == [4, 4]
            assert not recording.damage

    def test_without_the_edgefirst_package_its_topics_are_listed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tensorferry.record import payloads

        write(tmp_path / "a.mcap")

        def missing() -> None:
            raise Unsupported("install tensorferry[edgefirst]")

        payloads._cdr.cache_clear()
        monkeypatch.setattr(payloads, "codec", missing)
        with open_mcap(tmp_path / "a.mcap") as recording:
            topics = {topic.name: topic for topic in recording.topics}
            assert topics["/CameraFrame"].kind == "edgefirst_msgs/CameraFrame"
            assert topics["/CameraFrame"].undecoded == "install tensorferry[edgefirst]"
            assert {record.topic for record in recording} == {"/blob", "/vlink"}
        payloads._cdr.cache_clear()

    def test_one_topic_of_several_channels(self, tmp_path: Path) -> None:
        out, buffer = plain()
        for i in range(2):
            channel = out.register_channel("/a", "tensor-blob", 0)
            out.add_message(channel, i * 1000, ferry.dumps(tensor(i)), 0)
        out.add_message(out.register_channel("/a", "json", 0), 9000, b"{}", 0)
        out.finish()
        (tmp_path / "a.mcap").write_bytes(buffer.getvalue())
        with open_mcap(tmp_path / "a.mcap") as recording:
            assert [(topic.messages, topic.kind, topic.last) for topic in recording.topics] == [
                (2, "blob", 1000),
                (1, None, 9000),
            ]
            assert numbers(iter(recording)) == [0, 1]


class TestCrashes:
    def test_a_cut_at_any_byte(self, tmp_path: Path, compression: str) -> None:
        write(tmp_path / "whole.mcap", compression=compression, count=6, chunk_size=1500)
        whole = (tmp_path / "whole.mcap").read_bytes()
        path = tmp_path / "cut.mcap"
        seen = 0
        places = sorted({*range(8), *random.Random(1).sample(range(8, len(whole)), 200), len(whole) - 1})
        for n in places:
            path.write_bytes(whole[:n])
            if n < 8:
                with pytest.raises(Truncated):
                    open_mcap(path)
                continue
            with open_mcap(path) as recording:
                found = list(recording)
                assert [record.log_time // 1000 for record in found] == sorted(i for i in range(6) for _ in FORMATS)[
                    : len(found)
                ]
                numbers(iter(found))
                assert len(found) >= seen
                seen = len(found)
                counted = sum(topic.messages for topic in recording.topics)
                assert counted == len(found)
                if found and len(found) < 6 * len(FORMATS):
                    assert recording.damage
                    assert recording.damage[-1].offset + recording.damage[-1].length == n
        assert seen == 6 * len(FORMATS)

    def test_a_tail_of_zeros(self, tmp_path: Path) -> None:
        write(tmp_path / "a.mcap", count=6)
        whole = (tmp_path / "a.mcap").read_bytes()
        (tmp_path / "a.mcap").write_bytes(whole[: whole.rindex(b"\x0f" + struct.pack("<Q", 4))] + bytes(100_000))
        with open_mcap(tmp_path / "a.mcap") as recording:
            assert len(list(recording)) == 30
            assert "opcode 0" in str(recording.damage[0].error)
            assert recording.damage[0].length == 100_000

    def test_an_empty_file_and_other_files(self, tmp_path: Path) -> None:
        (tmp_path / "a.mcap").write_bytes(b"")
        with pytest.raises(Truncated):
            open_mcap(tmp_path / "a.mcap")
        (tmp_path / "a.mcap").write_bytes(b"SQLite format 3\0")
        with pytest.raises(Malformed, match="no MCAP"):
            open_mcap(tmp_path / "a.mcap")
        with pytest.raises(FileNotFoundError):
            open_mcap(tmp_path / "b.mcap")
        with pytest.raises((Unsupported, IsADirectoryError)):
            open_mcap(tmp_path)


class TestDamage:
    def test_a_flipped_bit_in_a_chunk_says_where(self, tmp_path: Path, compression: str) -> None:
        path = tmp_path / "a.mcap"
        write(path, compression=compression)
        with path.open("rb") as file:
            chunks = reader.make_reader(file).get_summary().chunk_indexes
        victim = chunks[len(chunks) // 2]
        damaged = bytearray(path.read_bytes())
        damaged[victim.chunk_start_offset + victim.chunk_length - 20] ^= 4
        path.write_bytes(damaged)
        with open_mcap(path) as recording, pytest.raises(WireError) as refusal:
            list(recording)
        assert refusal.value.offset is not None
        assert victim.chunk_start_offset <= refusal.value.offset < victim.chunk_start_offset + victim.chunk_length
        with open_mcap(path, strict=False) as recording:
            rest = list(recording)
            assert 0 < len(rest) < COUNT * len(FORMATS)
            numbers(iter(rest))
            assert [damage.offset for damage in recording.damage] == [victim.chunk_start_offset]
            assert recording.damage[0].length == victim.chunk_length
            assert rest[-1].log_time == (COUNT - 1) * 1000

    def test_a_broken_length_is_passed_over_to_the_next_chunk(self, tmp_path: Path) -> None:
        path = tmp_path / "a.mcap"
        write(path)
        with path.open("rb") as file:
            chunks = reader.make_reader(file).get_summary().chunk_indexes
        damaged = bytearray(path.read_bytes())
        struct.pack_into("<Q", damaged, chunks[3].chunk_start_offset + 1, 2**60)
        path.write_bytes(damaged)
        with open_mcap(path) as recording, pytest.raises(Truncated):
            list(recording)
        with open_mcap(path, strict=False) as recording:
            assert list(recording)[-1].log_time == (COUNT - 1) * 1000
            assert recording.damage[0].offset == chunks[3].chunk_start_offset
            assert recording.damage[0].offset + recording.damage[0].length == chunks[4].chunk_start_offset

    def test_a_payload_that_is_no_tensor_says_where(self, tmp_path: Path) -> None:
        out, buffer = plain()
        channel = out.register_channel("/a", "tensor-blob", 0)
        good, bad = ferry.dumps(tensor(1)), bytearray(ferry.dumps(tensor(1)))
        bad[36] = 99  # an element type that nobody knows: believed, but not read
        worse = bytearray(good)
        worse[44:48] = b"\xff\xff\xff\xff"
        for data in (good, bad, worse, good):
            out.add_message(channel, 1000, bytes(data), 0)
        out.finish()
        path = tmp_path / "a.mcap"
        path.write_bytes(buffer.getvalue())
        with open_mcap(path) as recording, pytest.raises(Unsupported):
            list(recording)
        with open_mcap(path, strict=False) as recording:
            assert numbers(iter(recording)) == [1, 1]
            first, second = recording.damage
            assert path.read_bytes()[first.offset :].startswith(bytes(bad))
            assert path.read_bytes()[second.offset :].startswith(bytes(worse))
            assert isinstance(second.error, WireError)
            assert second.error.offset == second.offset + 64

    def test_a_damaged_summary_is_not_believed(self, tmp_path: Path) -> None:
        path = tmp_path / "a.mcap"
        write(path)
        with path.open("rb") as file:
            end = max(chunk.chunk_start_offset for chunk in reader.make_reader(file).get_summary().chunk_indexes)
        whole = path.read_bytes()
        for at in random.Random(2).sample(range(whole.index(b"\x0f" + struct.pack("<Q", 4), end) + 13, len(whole)), 60):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at % 8
            path.write_bytes(damaged)
            with open_mcap(path) as recording:
                assert len(list(recording)) == COUNT * len(FORMATS)
                assert sum(topic.messages for topic in recording.topics) == COUNT * len(FORMATS)

    def test_random_damage_is_refused_or_harmless(self, tmp_path: Path, compression: str) -> None:
        write(tmp_path / "whole.mcap", compression=compression, count=6, chunk_size=1500)
        whole = (tmp_path / "whole.mcap").read_bytes()
        path = tmp_path / "a.mcap"
        rng = random.Random(3)
        for _ in range(200):
            damaged = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                width = rng.choice([1, 4, 8])
                at = rng.randrange(len(damaged) - width)
                value = rng.choice([0, 1, 255, 2**31, 2**32 - 1, 2**63, 2**64 - 1, rng.getrandbits(64)])
                damaged[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
            path.write_bytes(damaged)
            for strict in (True, False):
                try:
                    with open_mcap(path, strict=strict) as recording:
                        assert len(list(recording)) <= 30
                        assert len(recording.topics) <= 30
                except (WireError, Unsupported):
                    pass


class TestHostileFiles:
    def chunk(self, compression: bytes, data: bytes, size: int, crc: int = 0) -> bytes:
        content = struct.pack("<QQQII", 0, 0, size, crc, len(compression)) + compression
        content += struct.pack("<Q", len(data)) + data
        return b"\x06" + struct.pack("<Q", len(content)) + content

    def opened(self, tmp_path: Path, body: bytes) -> list[Record]:
        end = b"\x0f" + struct.pack("<QI", 4, 0) + b"\x02" + struct.pack("<QQQI", 20, 0, 0, 0)
        (tmp_path / "a.mcap").write_bytes(b"\x89MCAP0\r\n" + body + end + b"\x89MCAP0\r\n")
        with open_mcap(tmp_path / "a.mcap") as recording:
            return list(recording)

    def test_chunks_that_claim_too_much(self, tmp_path: Path) -> None:
        zstandard = pytest.importorskip("zstandard")
        lz4 = pytest.importorskip("lz4.frame")
        for body in (
            self.chunk(b"zstd", zstandard.compress(bytes(10)), 2**50),
            self.chunk(b"lz4", lz4.compress(bytes(10)), 2**50),
            self.chunk(b"", bytes(10), 2**50),
            self.chunk(b"zstd", zstandard.compress(bytes(100_000)), 10),
            self.chunk(b"lz4", lz4.compress(bytes(100_000)), 10),
            self.chunk(b"zstd", b"nonsense", 10),
            self.chunk(b"lz4", b"nonsense", 10),
            self.chunk(b"", bytes(10), 10, crc=zlib.crc32(bytes(10)) ^ 1),
        ):
            with pytest.raises(WireError):
                self.opened(tmp_path, body)

    def test_a_frame_that_claims_more_than_its_chunk(self, tmp_path: Path) -> None:
        """The frame's own header would have memory taken by the zstandard package."""
        frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 46) + b"\1\0\0"
        with pytest.raises(Malformed, match="claims"):
            self.opened(tmp_path, self.chunk(b"zstd", frame, 100))

    def test_an_unknown_compression(self, tmp_path: Path) -> None:
        with pytest.raises(Unsupported, match="'br'"):
            self.opened(tmp_path, self.chunk(b"br", b"", 0))
        with pytest.raises(WireError):
            self.opened(tmp_path, self.chunk(b"x" * 1000, b"", 0))

    def test_messages_of_no_channel_and_records_cut_short(self, tmp_path: Path) -> None:
        message = struct.pack("<HIQQ", 7, 0, 0, 0)
        with pytest.raises(Malformed, match="channel 7"):
            self.opened(tmp_path, b"\x05" + struct.pack("<Q", 22) + message)
        with pytest.raises(Malformed):
            self.opened(tmp_path, b"\x05" + struct.pack("<Q", 4) + message[:4])
        channel = struct.pack("<HHI", 1, 0, 2**32 - 1) + b"/a"
        with pytest.raises(Malformed):
            self.opened(tmp_path, b"\x04" + struct.pack("<Q", len(channel)) + channel)
        assert self.opened(tmp_path, b"\x80" + struct.pack("<Q", 3) + b"abc") == []  # unknown records are skipped


def test_a_large_file_is_listed_without_unpacking_it(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    with McapWriter(path, compression="none", chunk_size=1 << 16) as out:
        for i in range(2000):
            out.write(f"/{i % 5}", tensor(i % 100), log_time=i)
    damaged = bytearray(path.read_bytes())
    with path.open("rb") as file:
        for chunk in reader.make_reader(file).get_summary().chunk_indexes:
            damaged[chunk.chunk_start_offset + 100] ^= 1
    path.write_bytes(damaged)
    with open_mcap(path) as recording:
        assert [topic.messages for topic in recording.topics] == [400] * 5
        assert not recording.damage


def test_a_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    write(tmp_path / "a.mcap", count=1)
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "mcap" or name.startswith("mcap."):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    for module in ("tensorferry.record.mcap_file", "tensorferry.record.mcap_reading"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Unsupported, match=r"install tensorferry\[record\]"):
        open_mcap(tmp_path / "a.mcap")
    with pytest.raises(Unsupported, match=r"install tensorferry\[record\]"):
        McapWriter(tmp_path / "b.mcap")
