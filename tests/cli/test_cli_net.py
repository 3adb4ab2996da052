"""``pub``, ``sub``, ``topics``, ``get``, ``bridge``, and engines in ``record`` and ``play``; all of it on this host."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_processes import PIPES, Clock, Ended
from net_peers import GUARD, at, endpoint, eventually, to

import tensorferry as ferry
from tensorferry import record
from tensorferry.cli.engines import Paced, Place, Reach, Subscription
from tensorferry.errors import EndOfStream, TimedOut
from tensorferry.link import connect
from tensorferry.net import iceoryx2, zenoh
from tensorferry.net.iceoryx2 import engine as iceoryx2_engine
from tensorferry.net.zenoh import engine as zenoh_engine
from tensorferry.record.mcap import McapWriter

Ferry = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]

SINCE_1970 = 1_700_000_000_000_000_000
HERE = "--no-scouting"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="links and iceoryx2's directories are Linux's")


def is_installed(engine: Any) -> bool:
    try:
        engine.load()
    except ferry.Unsupported:
        return False
    return True


over_zenoh = pytest.mark.skipif(not is_installed(zenoh_engine), reason="eclipse-zenoh is not installed")
over_iceoryx2 = pytest.mark.skipif(not is_installed(iceoryx2_engine), reason="iceoryx2 is not installed")


@pytest.fixture
def world() -> Iterator[str]:
    """A directory to run commands in: iceoryx2 then keeps to it."""
    from iceoryx2_peers import home

    with home() as root:
        settings = Path(root) / "config" / "iceoryx2.toml"
        settings.parent.mkdir()
        settings.write_text(f'[global]\nroot-path = "{root}"\nprefix = "{Path(root).name}_"\n')
        yield root


def labelled(number: int) -> ferry.Tensor:
    return ferry.Tensor.from_array(np.full((4, 5), number, np.int32), labels=ferry.Labels(name="cam", seq=number))


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """Five blobs in a file."""
    file = tmp_path / "frames.blob"
    file.write_bytes(b"".join(ferry.dumps(labelled(i).replace(labels=None)) for i in range(5)))
    return file


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """Ten tensors with labels, 20 ms apart."""
    file = tmp_path / "drive.mcap"
    with McapWriter(file, format="vlink") as writer:
        for i in range(10):
            writer.write("/camera", labelled(i), log_time=SINCE_1970 + i * 20_000_000)
    return file


def numbers(recording: Path) -> list[int]:
    with record.open(recording) as rec:
        return [int(one.tensor.numpy()[0, 0]) for one in rec]


def listening(at: str) -> bool:
    """Whether somebody listens at a Zenoh endpoint."""
    host, _, port = at.removeprefix("tcp/").partition(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) == 0


def interrupted(process: subprocess.Popen[bytes]) -> Ended:
    process.send_signal(signal.SIGINT)
    ended = Ended(process)
    assert ended.status == 130, ended.err
    assert ended.err.endswith("tensorferry: interrupted\n")
    return ended


def is_run_of(got: list[int], length: int) -> bool:
    """Whether these are numbers one after the other, which start again behind the last."""
    return got == [(got[0] + i) % length for i in range(len(got))]


# ---- Zenoh ----


@over_zenoh
def test_what_is_published_is_saved(spawn: Spawn, frames: Path, tmp_path: Path) -> None:
    meeting = endpoint()
    args = ["cam/front", frames, "--repeat", "0", "--rate", "200", "--no-wait", HERE, "--listen", meeting]
    publisher = spawn("pub", *args, **PIPES)
    args = ["zenoh:/cam/*", "--count", "12", "--save", tmp_path / "out", "--json", HERE, "--connect", meeting]
    subscriber = Ended(spawn("sub", *args, **PIPES))
    assert (subscriber.status, subscriber.err) == (0, "")
    facts = subscriber.json
    assert (facts["frames"], facts["saved"], facts["refused"], facts["bad"]) == (12, 12, 0, 0)
    assert facts["kinds"] == {"int32[4×5]": 12}
    assert 0 < facts["latency_median"] <= facts["latency_longest"]
    got = [ferry.loads(file.read_bytes()) for file in sorted((tmp_path / "out").iterdir())]
    assert is_run_of([int(tensor.numpy()[0, 0]) for tensor in got], 5)
    assert interrupted(publisher).out.startswith("published ")


@over_zenoh
def test_the_latest(ferry_cli: Ferry, tmp_path: Path) -> None:
    meeting = endpoint()
    reach = [HERE, "--connect", meeting]
    with zenoh.Publisher("cam/front", format="vlink", **at(meeting)) as publisher:
        publisher.publish(labelled(7))
        facts = ferry_cli("get", "/cam/front", "--json", *reach).json
        assert (facts["dtype"], facts["shape"], facts["labels"]["seq"]) == ("int32", [4, 5], 7)
        out = tmp_path / "a.npy"
        assert "an npy file cannot carry labels" in ferry_cli("get", "cam/front", out, *reach).refused(1)
        ran = ferry_cli("get", "cam/front", out, "--lossy", *reach)
        assert ran.out == f"zenoh:cam/front: int32[4×5], 'cam', 80 bytes → {out}\n"
        assert "left behind: labels.name" in ran.err
        assert int(np.load(out)[0, 0]) == 7
        assert "--force" in ferry_cli("get", "cam/front", out, "--lossy", *reach).refused(2)
        ran = ferry_cli("get", "cam/front", "--format", "blob", *reach)
        assert "encoding" in ran.refused(1)
        ran = ferry_cli("topics", "--engine", "zenoh", *reach)
        assert ran.out.startswith("zenoh:cam/front  vlink, from ")
        rows = ferry_cli("topics", "--engine", "zenoh", "--json", *reach).json["topics"]
        assert [(row["topic"], row["format"]) for row in rows] == [("cam/front", "vlink")]


@over_zenoh
def test_what_is_refused_is_told(spawn: Spawn) -> None:
    meeting = endpoint()
    subscriber = spawn("sub", "cam", "--count", "3", "--json", HERE, "--listen", meeting, **PIPES)
    eventually(lambda: listening(meeting))
    with zenoh.Publisher("cam", **to(meeting)) as publisher:
        deadline = time.monotonic() + GUARD
        while subscriber.poll() is None and time.monotonic() < deadline:
            publisher._use.session.put("cam", b"rubbish", encoding="application/x-tensor-blob")
            publisher.publish(labelled(0))
            time.sleep(0.02)
    ended = Ended(subscriber)
    assert ended.status == 1
    assert ended.json["frames"] == 3
    assert ended.json["refused"] >= 1
    assert ended.json["last_refusal"]["error"] == "Truncated"
    assert " refused, the last: Truncated: " in ended.err
    assert ended.err.count("\n") == 1


@over_zenoh
def test_what_is_dropped_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    meeting = endpoint()
    reach = Reach(None, [meeting], None, False)
    with Subscription(Place("zenoh", "cam"), reach, None, 1) as subscription:
        with zenoh.Publisher("cam", **to(meeting)) as publisher:

            def dropped() -> bool:
                publisher.publish(labelled(1))
                return subscription.counts.dropped >= 3

            eventually(dropped)
        assert subscription.recv(GUARD).shape == (4, 5)
        subscription.complain()
        assert subscription.facts()["dropped"] == subscription.counts.dropped
    assert "messages dropped: they came faster than they were taken" in capsys.readouterr().err


@over_zenoh
def test_a_topic_is_recorded(spawn: Spawn, tmp_path: Path) -> None:
    meeting = endpoint()
    args = ["zenoh:cam/**", tmp_path / "a.mcap", "--format", "vlink", "--count", "4", "--json"]
    recorder = spawn("record", *args, HERE, "--zenoh-listen", meeting, **PIPES)
    eventually(lambda: listening(meeting))
    with zenoh.Publisher("cam/front", **to(meeting)) as publisher:
        number = 0
        while recorder.poll() is None and number < 3000:
            publisher.publish(labelled(number), log_time=SINCE_1970 + number)
            number += 1
            time.sleep(0.02)
    ended = Ended(recorder)
    assert (ended.status, ended.json["frames"], ended.json["refused"]) == (0, 4, 0)
    with record.open(tmp_path / "a.mcap") as rec:
        for one in rec:
            said = one.tensor.labels
            assert said is not None
            assert (one.topic, one.publish_time) == ("cam/front", SINCE_1970 + said.seq)
            assert one.log_time > SINCE_1970 + 10**15  # when it came


@over_zenoh
def test_ctrl_c_while_nothing_comes(spawn: Spawn, tmp_path: Path) -> None:
    meeting = endpoint()
    args = ["cam", "--record", tmp_path / "a.mcap", HERE, "--listen", meeting]
    subscriber = spawn("sub", *args, **PIPES)
    eventually(lambda: listening(meeting))
    interrupted(subscriber)


@over_zenoh
def test_a_line_on_a_terminal(spawn: Spawn) -> None:
    meeting = endpoint()
    ours, theirs = pty.openpty()
    args = ["cam", HERE, "--listen", meeting]
    subscriber = spawn("sub", *args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    eventually(lambda: listening(meeting))
    shown = b""
    with zenoh.Publisher("cam", **to(meeting)) as publisher, os.fdopen(ours, "rb", buffering=0) as terminal:
        while b"latency" not in shown:
            publisher.publish(labelled(0))
            time.sleep(0.02)
            shown += terminal.read(1 << 16)
        subscriber.send_signal(signal.SIGINT)
        assert subscriber.wait(GUARD) == 130
    assert b"frames/s" in shown


@over_zenoh
def test_nobody_is_there(ferry_cli: Ferry, frames: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no tensor came from zenoh:cam within" in ferry_cli("sub", "cam", HERE, "--timeout", "0.05").refused(2)
    assert "nobody had a tensor under 'cam'" in ferry_cli("get", "cam", HERE, "--timeout", "0.05").refused(2)
    ran = ferry_cli("topics", "--engine", "zenoh", HERE, "--timeout", "0")
    assert (ran.status, ran.out, ran.err) == (0, "no topics\n", "")
    monkeypatch.setattr(zenoh.Publisher, "matched", False)
    for args in (["pub", "cam", frames], ["play", frames, "zenoh:cam"], ["bridge", frames, "zenoh:cam"]):
        ran = ferry_cli(*args, HERE, "--timeout", "0.05")
        assert "nobody subscribed to zenoh:cam within 0.05 s" in ran.refused(2)
    ran = ferry_cli("pub", "cam", frames, HERE, "--no-wait", "--json")
    assert (ran.status, ran.json["frames"]) == (0, 5)


# ---- iceoryx2 ----


@over_iceoryx2
def test_files_over_iceoryx2(spawn: Spawn, frames: Path, world: str, tmp_path: Path) -> None:
    args = ["iox2:cam", "--record", tmp_path / "a.mcap", "--count", "5", "--json"]
    subscriber = spawn("sub", *args, cwd=world, **PIPES)
    publisher = Ended(spawn("pub", "cam", frames, "--engine", "iox2", "--timeout", "60", cwd=world, **PIPES))
    assert (publisher.status, publisher.err) == (0, "")
    assert publisher.out.startswith("published 5 frames, 400 bytes")
    ended = Ended(subscriber)
    assert (ended.status, ended.json["frames"], ended.json["dropped"]) == (0, 5, 0)
    assert numbers(tmp_path / "a.mcap") == [0, 1, 2, 3, 4]


@over_iceoryx2
def test_a_slow_subscriber_is_waited_for(spawn: Spawn, frames: Path, world: str) -> None:
    args = ["iox2:cam", "--count", "500", "--depth", "3", "--json"]
    subscriber = spawn("sub", *args, cwd=world, **PIPES)
    args = ["iox2:cam", str(frames), "--repeat", "100", "--block", "--timeout", "60"]
    publisher = Ended(spawn("pub", *args, cwd=world, **PIPES))
    assert publisher.status == 0
    facts = Ended(subscriber).json
    assert (facts["frames"], facts["dropped"]) == (500, 0)


@over_iceoryx2
def test_a_recording_is_played_to_a_topic(spawn: Spawn, drive: Path, world: str) -> None:
    from iceoryx2_peers import node_in

    with iceoryx2.Subscriber("cam", node=node_in(world), depth=16) as subscriber:
        player = spawn("play", drive, "iox2:cam", "--rate", "max", "--json", cwd=world, **PIPES)
        for i in range(10):
            received = subscriber.receive(GUARD)
            assert received is not None
            assert received.tensor.labels is not None
            assert received.tensor.labels.seq == i
            assert received.log_time > SINCE_1970 + 10**15  # it was published now
        ended = Ended(player)
        assert (ended.status, ended.json["frames"], ended.json["rounds"]) == (0, 10, 1)


@over_iceoryx2
def test_topics_of_this_host(spawn: Spawn, world: str) -> None:
    from iceoryx2_peers import node_in

    with iceoryx2.Publisher("cam/front", node=node_in(world)):
        ended = Ended(spawn("topics", "--engine", "iox2", cwd=world, **PIPES))
    assert (ended.status, ended.out, ended.err) == (0, "iox2:cam/front  1 publisher, 0 subscribers\n", "")


# ---- bridges ----


@over_iceoryx2
@over_zenoh
def test_a_recording_across_both_engines(spawn: Spawn, drive: Path, world: str) -> None:
    meeting = endpoint()
    with zenoh.Subscriber("far", **at(meeting)) as subscriber:
        middle = spawn("bridge", "iox2:cam", "zenoh:far", HERE, "--zenoh-connect", meeting, cwd=world, **PIPES)
        source = Ended(spawn("bridge", drive, "iox2:cam", "--timeout", "60", "--rate", "20", cwd=world, **PIPES))
        assert (source.status, source.err) == (0, "")
        assert source.out.startswith("carried 10 frames, 800 bytes")
        got: list[int] = []
        while not got or got[-1] < 9:
            received = subscriber.receive(GUARD)
            assert received is not None
            assert received.tensor.labels is not None
            got.append(received.tensor.labels.seq)
            assert received.log_time == SINCE_1970 + got[-1] * 20_000_000
            assert int(received.tensor.numpy()[0, 0]) == got[-1]
        assert got == list(range(got[0], 10))
        assert interrupted(middle).out.startswith("carried ")


def test_from_a_link_to_a_recording(spawn: Spawn, tmp_path: Path) -> None:
    door, out = tmp_path / "door", tmp_path / "out.tblob"
    bridge = spawn("bridge", f"unix:{door}", out, "--json", **PIPES)
    with connect(door, GUARD) as link:
        for i in range(4):
            link.send(labelled(i).replace(labels=None))
    ended = Ended(bridge)
    assert (ended.status, ended.json["frames"], ended.json["to"]) == (0, 4, f"file:{out}")
    assert numbers(out) == [0, 1, 2, 3]


def test_from_a_recording_to_a_link(spawn: Spawn, ferry_cli: Ferry, drive: Path, tmp_path: Path) -> None:
    door = tmp_path / "door"
    receiver = spawn("recv", door, "--json", **PIPES)
    assert "a blob cannot carry labels.name" in ferry_cli("bridge", drive, door, "--timeout", "60").err
    assert Ended(receiver).json["frames"] == 0
    receiver = spawn("recv", door, "--count", "3", "--json", **PIPES)
    ran = ferry_cli("bridge", drive, door, "--lossy", "--rate", "max", "--timeout", "60", "--count", "3")
    assert ran.status == 0
    assert "left behind: labels.name" in ran.err
    assert Ended(receiver).json["frames"] == 3


def test_a_receiver_that_leaves(spawn: Spawn, ferry_cli: Ferry, drive: Path, tmp_path: Path) -> None:
    receiver = spawn("recv", tmp_path / "door", "--count", "1", **PIPES)
    ran = ferry_cli("bridge", drive, tmp_path / "door", "--lossy", "--timeout", "60", "--rate", "10")
    assert ran.status == 1
    assert "the receiver left after " in ran.err
    assert Ended(receiver).status == 0


def test_from_a_recording_to_another(ferry_cli: Ferry, drive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.vcap"
    ran = ferry_cli("bridge", drive, out, "--json")
    assert (ran.status, ran.json["frames"], ran.err) == (0, 10, "")
    with record.open(out) as rec:
        got = [(one.topic, one.log_time, one.tensor.labels and one.tensor.labels.seq) for one in rec]
    assert got == [("dds://camera", SINCE_1970 + i * 20_000_000, i) for i in range(10)]
    assert "--force" in ferry_cli("bridge", drive, out).refused(2)
    assert ferry_cli("bridge", drive, out, "--force", "--count", "2").status == 0
    assert numbers(out) == [0, 1]
    ran = ferry_cli("bridge", drive, tmp_path / "out.mcap")
    assert (ran.status, "a blob cannot carry labels" in ran.err) == (1, True)


# ---- when frames are due ----


def test_frames_come_when_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("tensorferry.cli.engines.time", clock)
    paced = Paced([(100.0, labelled(0)), (101.0, labelled(1)), (None, labelled(2)), (50.0, labelled(3))])
    assert int(paced.recv(0.25).numpy()[0, 0]) == 0
    for _ in range(3):
        with pytest.raises(TimedOut):
            paced.recv(0.25)
    assert int(paced.recv(0.25).numpy()[0, 0]) == 1
    assert clock.now == pytest.approx(101.0)
    assert paced.latest == 0
    assert [int(paced.recv(0).numpy()[0, 0]) for _ in range(2)] == [2, 3]
    assert paced.latest == pytest.approx(51.0)
    with pytest.raises(EndOfStream):
        paced.recv(0)


# ---- bad usage ----

WRONG = [
    ["pub", "cam"],
    ["pub", "foo:cam", "FRAMES"],
    ["pub", "zenoh:", "FRAMES"],
    ["pub", "cam", "FRAMES", "--engine", "mqtt"],
    ["pub", "zenoh:cam", "FRAMES", "--engine", "iox2"],
    ["pub", "cam", "FRAMES", "--format", "png"],
    ["pub", "iox2:cam", "FRAMES", "--format", "cdr"],
    ["pub", "cam", "FRAMES", "--max-bytes", "9"],
    ["pub", "cam", "FRAMES", "--rate", "recorded"],
    ["pub", "cam", "FRAMES", "--rate", "0"],
    ["pub", "cam", "FRAMES", "--rate", "nan"],
    ["pub", "cam", "DRIVE", "--rate", "fast"],
    ["pub", "cam", "FRAMES", "DRIVE"],
    ["pub", "cam", "/absent"],
    ["pub", "cam", "/absent.mcap"],
    ["pub", "cam//front", "FRAMES"],
    ["pub", "cam/*", "FRAMES"],
    ["pub", "iox2:cam", "FRAMES", "--connect", "tcp/127.0.0.1:1"],
    ["pub", "cam", "FRAMES", "--listen", "nowhere"],
    ["sub", "cam", "--format", "png"],
    ["sub", "cam", "--to", "npy"],
    ["sub", "cam", "--save", "x", "--record", "y.mcap"],
    ["sub", "cam", "--record", "y.txt"],
    ["sub", "cam", "--record", "DRIVE"],
    ["sub", "cam", "--count", "0"],
    ["sub", "cam", "--depth", "0"],
    ["sub", "cam", "--config", "/absent"],
    ["sub", "cam", "--config", "{]"],
    ["sub", "cam", "--config", "{}", HERE],
    ["sub", "iox2:cam", HERE],
    ["topics", "--engine", "unix"],
    ["topics", "--engine", "iox2", HERE],
    ["get", "iox2:cam"],
    ["get", "cam", "x.what"],
    ["get", "cam/*"],
    ["get", "cam", "--to", "npy"],
    ["record", "mqtt:cam", "x.mcap"],
    ["record", "x", "x.mcap", HERE],
    ["play", "DRIVE", "mqtt:cam"],
    ["play", "DRIVE", "x", "--block"],
    ["play", "DRIVE", "zenoh:cam", "--max-bytes", "9"],
    ["bridge", "DRIVE"],
    ["bridge", "DRIVE", "DRIVE"],
    ["bridge", "zenoh:cam", "zenoh:cam"],
    ["bridge", "zenoh:cam/*", "zenoh:/cam/front"],
    ["bridge", "mqtt:a", "zenoh:a"],
    ["bridge", "zenoh:a", "x.tblob", "--rate", "3"],
    ["bridge", "zenoh:a", "x.tblob", "--block"],
    ["bridge", "zenoh:a", "x.txt.mcap", "--format", "png"],
    ["bridge", "zenoh:a", "iox2:b", "--force"],
    ["bridge", "/absent.mcap", "zenoh:b"],
    ["bridge", "DRIVE", "/absent", "--timeout", "0"],
]


@over_zenoh
@over_iceoryx2
@pytest.mark.parametrize("args", WRONG, ids=" ".join)
def test_wrong_arguments(
    ferry_cli: Ferry, frames: Path, drive: Path, args: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    named = {"FRAMES": str(frames), "DRIVE": str(drive)}
    takes_zenoh = "zenoh" in " ".join(args) or args[0] in ("pub", "sub", "get")
    quiet = [] if "--config" in args or "--engine" in args or "iox2" in " ".join(args) or not takes_zenoh else [HERE]
    ran = ferry_cli(*(named.get(arg, arg) for arg in args), *quiet)
    ran.refused(2)
    assert ran.out == ""
    assert sorted(os.listdir(tmp_path)) == ["drive.mcap", "frames.blob"]


def test_what_is_no_tensor(ferry_cli: Ferry, tmp_path: Path) -> None:
    assert "it looks like text" in ferry_cli("pub", "cam", __file__, HERE).refused(1)
    np.savez(tmp_path / "a.npz")
    assert "there is no tensor to publish" in ferry_cli("pub", "cam", tmp_path / "a.npz", HERE).refused(1)


@pytest.mark.parametrize("command", ["pub", "sub", "topics", "get", "bridge", "record", "play"])
def test_help(ferry_cli: Ferry, command: str) -> None:
    ran = ferry_cli(command, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert "Usage" in ran.out


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without the engines' packages."""
    for engine in (zenoh_engine, iceoryx2_engine):
        engine.load.cache_clear()
    with monkeypatch.context() as without:
        for name in ("zenoh", "iceoryx2"):
            without.setitem(sys.modules, name, None)
        yield
    for engine in (zenoh_engine, iceoryx2_engine):
        engine.load.cache_clear()


@pytest.mark.parametrize("engine", ["zenoh", "iox2"])
def test_a_missing_extra_is_named(ferry_cli: Ferry, bare: None, engine: str, frames: Path, tmp_path: Path) -> None:
    extra = {"zenoh": "tensorferry[zenoh]", "iox2": "tensorferry[iceoryx2]"}[engine]
    topic = f"{engine}:cam"
    commands: list[list[str | Path]] = [
        ["pub", topic, frames],
        ["sub", topic],
        ["topics", "--engine", engine],
        ["record", topic, tmp_path / "a.mcap"],
        ["play", frames, topic],
        ["bridge", topic, tmp_path / "a.tblob"],
        ["bridge", frames, topic],
    ]
    if engine == "zenoh":
        commands.append(["get", topic])
    for command in commands:
        assert f"pip install '{extra}'" in ferry_cli(*command).refused(2)
    assert sorted(os.listdir(tmp_path)) == ["frames.blob"]


def test_no_engine_at_all(ferry_cli: Ferry, bare: None) -> None:
    said = ferry_cli("topics").refused(2)
    assert "tensorferry[zenoh]" in said
    assert "tensorferry[iceoryx2]" in said
