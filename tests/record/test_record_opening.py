"""``record.open`` tells by content what a file is; a damaged start leaves it what its name says."""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorferry as ferry
from tensorferry import WireError, record
from tensorferry.record import BlobStream, Recording, TopicInfo


class Opened(Recording):
    """Stands for what a reader would have opened."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __iter__(self) -> Iterator[record.Record]:
        return iter(())

    @property
    def topics(self) -> list[TopicInfo]:
        return []

    def close(self) -> None:
        pass


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> None:
    mcap = pytest.importorskip("tensorferry.record.mcap")
    bags = pytest.importorskip("tensorferry.record.vlink_bags")
    monkeypatch.setattr(mcap, "open_mcap", lambda path, *, strict: Opened(f"mcap {strict}"))
    monkeypatch.setattr(bags, "open_bag", lambda path, *, strict: Opened(f"bag {strict}"))


def sqlite(path: Path) -> bytes:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (a)")
    database.close()
    return path.read_bytes()


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize(
    ("name", "content", "how"),
    [
        ("a.mcap", b"\x89MCAP0\r\n" + bytes(50), "mcap"),
        ("a", b"\x89MCAP0\r\n" + bytes(50), "mcap"),
        ("a.tblob", b"\x89MCAP0\r\n" + bytes(50), "mcap"),
        ("damaged.mcap", b"\x00" * 99, "mcap"),
        ("a.vcap", b"\x89MCAP0\r\n" + bytes(50), "bag"),
        ("damaged.vcap", b"\xff" * 99, "bag"),
        ("a.vdb", b"", "bag"),
        ("a.vcapx", b"", "bag"),
        ("a.json", b'\n { "VLinkFiles": ["a.vdb"] }', "bag"),
    ],
)
def test_others_go_to_their_readers(tmp_path: Path, name: str, content: bytes, how: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for strict in (True, False):
        recording = record.open(path, strict=strict)
        assert isinstance(recording, Opened)
        assert recording.how == f"{how} {strict}"


@pytest.mark.usefixtures("readers")
def test_a_database_goes_to_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(sqlite(tmp_path / "made"))
    recording = record.open(path)
    assert isinstance(recording, Opened)
    assert recording.how == "bag True"


@pytest.mark.parametrize("name", ["a.tblob", "a.bin", "a", "A.TBLOB"])
def test_blobs_are_a_stream_whatever_the_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(ferry.dumps(np.arange(4)))
    recording = record.open(path)
    assert isinstance(recording, BlobStream)
    assert [r.tensor.numpy().tolist() for r in recording] == [[0, 1, 2, 3]]


def test_a_damaged_start_needs_the_name(tmp_path: Path) -> None:
    content = b"\xff" * 80 + ferry.dumps(np.arange(4))
    (tmp_path / "a.tblob").write_bytes(content)
    (tmp_path / "a.bin").write_bytes(content)
    assert len(list(record.open(tmp_path / "a.tblob", strict=False))) == 1
    with pytest.raises(WireError, match=r"name ends in \.tblob"):
        record.open(tmp_path / "a.bin", strict=False)


def test_streams_need_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name.partition(".")[0] in ("mcap", "zstandard", "lz4", "safetensors", "onnx", "PIL"):
            raise ImportError(name)
        return original(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with record.append(tmp_path / "a.tblob") as writer:
        writer.write(np.arange(3))
    assert len(list(record.open(tmp_path / "a.tblob"))) == 1
