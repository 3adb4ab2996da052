"""``tensorferry send`` and ``tensorferry recv``: what one sends the other has, and how each ends."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cli_processes import PIPES, Clock, Ended
from strategies import same_bits

import tensorferry as ferry
from tensorferry.link import Link, Listener, connect

Ferry = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="links are Linux's")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "link"


@pytest.fixture
def pair(spawn: Spawn, path: Path) -> Callable[..., tuple[Ended, Ended]]:
    """Runs both ends, each as a process, to their ends: what the sender said, and what the receiver did."""

    def run(send: list[Any], recv: list[Any]) -> tuple[Ended, Ended]:
        receiver = spawn("recv", path, *recv, **PIPES)
        sender = spawn("send", path, *send, **PIPES)
        return Ended(sender), Ended(receiver)

    return run


def frames(folder: Path) -> list[ferry.Tensor]:
    names = sorted(os.listdir(folder))
    assert names == [f"{i + 1:06}.blob" for i in range(len(names))]
    return [ferry.loads((folder / name).read_bytes()) for name in names]


def same(a: ferry.Tensor, b: ferry.Tensor) -> bool:
    said = [(t.dtype, t.shape, t.strides, t.format, t.colorimetry, t.quantization) for t in (a, b)]
    planes = zip(a.planes, b.planes, strict=True)
    return said[0] == said[1] and all(bytes(x.data or b"") == bytes(y.data or b"") for x, y in planes)


def tensors(count: int) -> list[ferry.Tensor]:
    """Of one kind, each with its own values and quantization."""
    random = np.random.default_rng(count)
    return [
        ferry.Tensor.from_array(
            random.integers(-128, 128, (3, 40, 50), np.int8), quantization=ferry.Quantization.per_tensor(0.5 + i)
        )
        for i in range(count)
    ]


def write(file: Path, *sent: ferry.Tensor) -> Path:
    file.write_bytes(b"".join(ferry.dumps(t) for t in sent))
    return file


def hello(path: Path) -> Link:
    """A link of our own to a `recv` that is coming up."""
    return connect(path, 60)


# ---- what goes through ----


def test_frames_of_one_kind_go_by_reference(pair: Callable[..., tuple[Ended, Ended]], tmp_path: Path) -> None:
    sent = tensors(7)
    files = [write(tmp_path / "a.blob", *sent[:4]), write(tmp_path / "b.blob", *sent[4:])]
    sender, receiver = pair([*files, "--json"], ["--save", tmp_path / "out", "--json"])
    assert (sender.status, receiver.status) == (0, 0)
    assert (sender.err, receiver.err) == ("", "")
    for facts in (sender.json, receiver.json):
        assert facts["frames"] == facts["by_reference"] == 7
        assert facts["bytes"] == 7 * 6000
        assert facts["gap_median"] <= facts["gap_longest"] <= facts["seconds"]
    assert receiver.json["saved"] == 7
    assert receiver.json["kinds"] == {"int8[3×40×50], quantized": 7}
    assert all(same(a, b) for a, b in zip(frames(tmp_path / "out"), sent, strict=True))


def test_frames_of_several_kinds_go_inline(
    pair: Callable[..., tuple[Ended, Ended]], tmp_path: Path, data: Path
) -> None:
    files = sorted((data / "blob").glob("*.blob"))
    sender, receiver = pair([*files, "--json"], ["--save", tmp_path / "out", "--json"])
    assert (sender.status, receiver.status) == (0, 0)
    assert receiver.json["frames"] == len(files)
    assert sender.json["by_reference"] == receiver.json["by_reference"] == 0
    got = [file.read_bytes() for file in sorted((tmp_path / "out").iterdir())]
    assert got == [file.read_bytes() for file in files]


@pytest.mark.parametrize("name", ["image_rgba8_planar_33x17", "color_2", "quant_i8_pc_asym_odd"])
def test_every_vector_alone_goes_by_reference(
    pair: Callable[..., tuple[Ended, Ended]], tmp_path: Path, data: Path, name: str
) -> None:
    file = data / "blob" / f"{name}.blob"
    _, receiver = pair([file, "--repeat", "9"], ["--save", tmp_path / "out", "--json"])
    assert receiver.json["by_reference"] == receiver.json["frames"] == 9
    wire = file.read_bytes()
    assert all(same(t, ferry.loads(wire)) for t in frames(tmp_path / "out"))


def test_what_a_later_revision_appended_goes_through(
    pair: Callable[..., tuple[Ended, Ended]], tmp_path: Path, data: Path
) -> None:
    wire = bytearray((data / "blob" / "bare_u8_5.blob").read_bytes() + b"appended")
    wire[:8] = len(wire).to_bytes(8, "little")
    (tmp_path / "a.blob").write_bytes(wire)
    _, receiver = pair([tmp_path / "a.blob"], ["--save", tmp_path / "out", "--json"])
    assert receiver.json["by_reference"] == 0
    assert (tmp_path / "out" / "000001.blob").read_bytes() == wire


def test_npy_and_vlink(pair: Callable[..., tuple[Ended, Ended]], tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    files, sent = [], []
    for i, shape in enumerate([(), (0,), (3, 0, 2), (5, 7)]):
        array = np.asarray(random.standard_normal(shape))
        np.save(tmp_path / f"a{i}.npy", array)
        np.save(tmp_path / f"b{i}.npy", np.array(array, order="F"))
        (tmp_path / f"c{i}.vlt").write_bytes(ferry.dumps(array, format="vlink"))
        files += [tmp_path / f"a{i}.npy", tmp_path / f"b{i}.npy", tmp_path / f"c{i}.vlt"]
        sent += [array] * 3
    sender, receiver = pair(files, ["--save", tmp_path / "out"])
    assert (sender.status, receiver.status) == (0, 0)
    assert all(same_bits(t.numpy(), array) for t, array in zip(frames(tmp_path / "out"), sent, strict=True))


@pytest.mark.parametrize("shape", [(), (3, 0, 2)])
def test_odd_shapes_by_reference(
    pair: Callable[..., tuple[Ended, Ended]], tmp_path: Path, shape: tuple[int, ...]
) -> None:
    np.save(tmp_path / "a.npy", np.ones(shape))
    _, receiver = pair([tmp_path / "a.npy", "--repeat", "6"], ["--save", tmp_path / "out", "--json"])
    assert receiver.json["by_reference"] == 6
    assert all(same_bits(t.numpy(), np.ones(shape)) for t in frames(tmp_path / "out"))


def test_lossy(pair: Callable[..., tuple[Ended, Ended]], tmp_path: Path) -> None:
    array = np.arange(6).astype(ml_dtypes.bfloat16)
    labelled = ferry.Tensor.from_array(array, labels=ferry.Labels(name="a"))
    (tmp_path / "a.vlt").write_bytes(ferry.dumps(labelled, format="vlink"))
    sender, receiver = pair([tmp_path / "a.vlt", "--lossy"], ["--save", tmp_path / "out"])
    assert (sender.status, receiver.status) == (0, 0)
    assert "left behind: " in sender.err
    assert "dtype (bfloat16 became float32, the values are exact)" in sender.err
    assert "labels.name" in sender.err
    assert same_bits(frames(tmp_path / "out")[0].numpy(), array.astype(np.float32))


def test_either_side_may_listen(spawn: Spawn, path: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "a.blob", *tensors(3))
    sender = spawn("send", path, file, "--listen", **PIPES)
    receiver = spawn("recv", path, "--connect", "--json", **PIPES)
    assert Ended(receiver).json["frames"] == 3
    assert Ended(sender).status == 0
    assert not path.exists()


def test_a_rate(spawn: Spawn, ferry_cli: Ferry, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("tensorferry.cli.send.time", clock)
    receiver = spawn("recv", path, "--json", **PIPES)
    ran = ferry_cli("send", path, write(tmp_path / "a.blob", *tensors(7)), "--rate", "0.5", "--timeout", "60")
    assert ran.status == 0
    assert clock.now == pytest.approx(100 + 6 / 0.5)  # six gaps
    assert Ended(receiver).json["frames"] == 7


def test_for_people(pair: Callable[..., tuple[Ended, Ended]], tmp_path: Path) -> None:
    sender, receiver = pair([write(tmp_path / "a.blob", *tensors(3))], ["--save", tmp_path / "out"])
    assert sender.out.startswith("sent 3 frames, 18.0 kB, by reference, in ")
    assert receiver.out.startswith("received 3 frames, 18.0 kB, by reference, in ")
    assert "  3 × int8[3×40×50], quantized\n" in receiver.out
    assert receiver.out.endswith(f"saved 3 files in {tmp_path / 'out'}\n")


def test_one_frame_and_none(spawn: Spawn, path: Path, tmp_path: Path) -> None:
    receiver = spawn("recv", path, **PIPES)
    hello(path).close()
    assert (ended := Ended(receiver)).status == 0
    assert ended.out == "received 0 frames, 0 bytes\n"
    receiver = spawn("recv", path, "--json", **PIPES)
    with hello(path) as link:
        link.send(np.zeros(3, np.uint8))
    facts = Ended(receiver).json
    assert (facts["frames"], facts["gap_median"], facts["frames_per_second"]) == (1, None, None)


def test_numbers_go_on(spawn: Spawn, path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        receiver = spawn("recv", path, "--save", out, **PIPES)
        with hello(path) as link:
            link.send(np.zeros(3, np.uint8))
            link.send(np.ones(3, np.uint8))
        assert Ended(receiver).status == 0
    assert [int(t.numpy()[0]) for t in frames(out)] == [0, 1, 0, 1]


# ---- how it ends ----


def test_a_receiver_that_has_enough(pair: Callable[..., tuple[Ended, Ended]], tmp_path: Path) -> None:
    file = write(tmp_path / "a.blob", *tensors(2))
    sender, receiver = pair([file, "--repeat", "500"], ["--count", "10", "--json"])
    assert (receiver.status, receiver.json["frames"]) == (0, 10)
    assert sender.status == 1
    assert "tensorferry: the receiver left after " in sender.err
    assert " of 1,000 frames" in sender.err


def test_bad_frames_are_counted_and_the_rest_is_saved(spawn: Spawn, path: Path, tmp_path: Path) -> None:
    good = [ferry.dumps(t) for t in tensors(3)]
    bad = bytearray(good[0])
    bad[36:40] = b"\xee" * 4  # no dtype
    worse = bytearray(good[0])
    worse[68] = 1  # reserved
    receiver = spawn("recv", path, "--save", tmp_path / "out", "--json", **PIPES)
    with hello(path) as link, socket.socket(fileno=os.dup(link.fileno())) as raw:
        raw.setblocking(True)
        raw.sendall(good[0] + bad + bad + good[1] + worse + good[2])
    ended = Ended(receiver)
    assert ended.status == 1
    assert ended.json["bad"] == 3
    assert [refusal["error"] for refusal in ended.json["refusals"]] == ["Unsupported", "Unsupported", "Malformed"]
    assert ended.err.startswith("tensorferry: 3 bad frames passed over, the first: Unsupported: ")
    assert ended.err.count("\n") == 1
    assert all(same(a, b) for a, b in zip(frames(tmp_path / "out"), tensors(3), strict=True))


@pytest.mark.parametrize(
    ("rubbish", "says"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "a frame claims"),
        (bytes(100), "neither a blob nor a control frame"),
        ((1 << 63).to_bytes(8, "little") + bytes(100), "a frame claims"),
        (ferry.dumps(np.zeros(100))[:300], "the stream ended after 300 bytes of a frame"),
    ],
)
def test_rubbish_ends_the_stream(spawn: Spawn, path: Path, tmp_path: Path, rubbish: bytes, says: str) -> None:
    receiver = spawn("recv", path, "--save", tmp_path / "out", **PIPES)
    link = hello(path)
    link.send(np.arange(3, dtype=np.uint8))
    os.write(link.fileno(), rubbish)
    if says.startswith("the stream ended"):
        link.close()
    ended = Ended(receiver)
    assert ended.status == 1
    assert "1 bad frame passed over, the first" in ended.err
    assert says in ended.err
    assert len(frames(tmp_path / "out")) == 1


def test_ctrl_c_of_the_receiver(spawn: Spawn, path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    receiver = spawn("recv", path, "--save", out, **PIPES)
    sender = spawn("send", path, write(tmp_path / "a.blob", *tensors(2)), "--repeat", "0", **PIPES)
    while not out.exists() or len(os.listdir(out)) < 5:
        assert receiver.poll() is None
        time.sleep(0.01)
    receiver.send_signal(signal.SIGINT)
    ended = Ended(receiver)
    assert ended.status == 130
    assert ended.out.startswith("received ")
    assert ended.err == "tensorferry: interrupted\n"
    assert all(t.shape == (3, 40, 50) for t in frames(out))
    assert Ended(sender).status == 1
    assert not path.exists()


def test_ctrl_c_while_nobody_comes(spawn: Spawn, path: Path) -> None:
    receiver = spawn("recv", path, **PIPES)
    while not path.exists():
        assert receiver.poll() is None
        time.sleep(0.01)
    receiver.send_signal(signal.SIGINT)
    ended = Ended(receiver)
    assert (ended.status, ended.err) == (130, "tensorferry: interrupted\n")
    assert not path.exists()


def test_ctrl_c_of_the_sender(spawn: Spawn, path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    receiver = spawn("recv", path, "--save", out, **PIPES)
    sender = spawn("send", path, write(tmp_path / "a.blob", *tensors(2)), "--repeat", "0", **PIPES)
    while not out.exists() or len(os.listdir(out)) < 5:
        assert sender.poll() is None
        time.sleep(0.01)
    sender.send_signal(signal.SIGINT)
    ended = Ended(sender)
    assert ended.status == 130
    assert ended.out.startswith("sent ")
    received = Ended(receiver)
    assert (received.status, received.err) == (0, "")
    assert f"saved {len(frames(out))} files" in received.out


def test_a_sender_that_is_killed(spawn: Spawn, path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    receiver = spawn("recv", path, "--save", out, **PIPES)
    sender = spawn("send", path, write(tmp_path / "a.blob", *tensors(2)), "--repeat", "0", **PIPES)
    while not out.exists() or len(os.listdir(out)) < 5:
        assert sender.poll() is None
        time.sleep(0.01)
    sender.kill()
    ended = Ended(receiver)  # between two frames, or inside one
    assert ended.status in (0, 1)
    assert all(t.shape == (3, 40, 50) for t in frames(out))


def test_a_line_on_a_terminal(spawn: Spawn, path: Path) -> None:
    ours, theirs = pty.openpty()
    receiver = spawn("recv", path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    with hello(path) as link, os.fdopen(ours, "rb", buffering=0) as terminal:
        while b"gap" not in shown:
            link.send(np.zeros(1000, np.uint8))
            time.sleep(0.02)
            shown += terminal.read(1 << 16)
        link.close()
        assert receiver.stdout is not None
        assert b"received" in receiver.stdout.read()
        assert receiver.wait(60) == 0
    assert b"waiting" in shown
    assert b"receiving" in shown
    assert b"frames/s" in shown


# ---- bad usage ----


def refused(ran: Any, says: str, status: int = 2) -> None:
    assert says in ran.refused(status)
    assert ran.out == ""


def test_nobody_is_there(ferry_cli: Ferry, path: Path, data: Path) -> None:
    blob = data / "blob" / "bare_u8_5.blob"
    refused(ferry_cli("send", path, blob, "--timeout", "0.05"), "nobody listens on")
    refused(ferry_cli("recv", path, "--connect", "--timeout", "0"), "nobody listens on")
    refused(ferry_cli("recv", path, "--timeout", "0.05"), "nobody connected to")
    refused(ferry_cli("send", path, blob, "--listen", "--timeout", "0"), "nobody connected to")
    assert not path.exists()


def test_paths_that_are_no_sockets(ferry_cli: Ferry, tmp_path: Path, data: Path) -> None:
    blob = data / "blob" / "bare_u8_5.blob"
    for listens, says in (("--listen", "is no socket"), ("--connect", "not a socket")):
        for command in (["send", blob, blob, listens], ["recv", blob, listens]):
            refused(ferry_cli(*command), says)
        refused(ferry_cli("recv", tmp_path, listens), says)
    assert blob.stat().st_size == 176
    refused(ferry_cli("recv", tmp_path / ("x" * 120)), "too long")
    refused(ferry_cli("send", tmp_path / ("x" * 120), blob), "too long")
    refused(ferry_cli("recv", tmp_path / "none" / "socket"), "No such file or directory")


def test_a_socket_that_is_taken(ferry_cli: Ferry, path: Path) -> None:
    with Listener(path):
        refused(ferry_cli("recv", path), "somebody listens on")


def test_a_socket_that_a_killed_receiver_left(spawn: Spawn, path: Path) -> None:
    killed = spawn("recv", path, **PIPES)
    while not path.exists():
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    receiver = spawn("recv", path, **PIPES)
    hello(path).close()
    assert Ended(receiver).status == 0


def test_folders_that_cannot_be_written_to(ferry_cli: Ferry, path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(ferry_cli("recv", path, "--save", tmp_path / "file"), "it is a file")
    refused(ferry_cli("recv", path, "--save", tmp_path / "a" / "b"), "no such file or directory")
    refused(ferry_cli("recv", path, "--save", "/proc/self"), "it cannot be written to")
    assert not path.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become nobody")
def test_no_permission_for_nobody(path: Path, tmp_path: Path, data: Path) -> None:
    # All that is imported late is imported by a first run, as root: nobody may not read this checkout.
    program = (
        "import os, sys\n"
        "from typer.testing import CliRunner\n"
        "from tensorferry.cli.app import app\n"
        "CliRunner().invoke(app, ['recv', '/proc/x', '--timeout', '0'])\n"
        "os.setuid(65534)\n"
        "app(sys.argv[1:])\n"
    )

    def as_nobody(*args: object) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, args)],
            env={**os.environ, "PYTHONPATH": str(Path(ferry.__file__).parents[1])},
            capture_output=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stderr.decode()

    tmp_path.chmod(0o711)
    with Listener(path):
        status, said = as_nobody("recv", path, "--connect")
    assert (status, said) == (2, f"tensorferry: {path} cannot be used: Permission denied\n")
    status, said = as_nobody("recv", path, "--save", tmp_path)
    assert (status, said) == (2, f"tensorferry: {tmp_path}: it cannot be written to: permission denied\n")


def test_files_that_cannot_be_sent(ferry_cli: Ferry, path: Path, tmp_path: Path, data: Path) -> None:
    refused(ferry_cli("send", path, tmp_path / "absent"), "there is no such file")
    refused(ferry_cli("send", path, tmp_path), "it is a directory")
    refused(ferry_cli("send", path, __file__), "it looks like text", 1)
    bf16 = data / "vlink" / "dtype_bfloat16.vlt"
    refused(ferry_cli("send", path, bf16), "a blob cannot carry dtype (bfloat16): --lossy", 1)
    good = (data / "blob" / "bare_u8_5.blob").read_bytes()
    (tmp_path / "a.blob").write_bytes(good + good[:100])
    refused(ferry_cli("send", path, tmp_path / "a.blob"), "blob 1 at 0xb0: Truncated", 1)


@pytest.mark.parametrize(
    "args",
    [
        ["send"],
        ["send", "/tmp/x"],
        ["recv"],
        ["recv", "/tmp/x", "--count", "0"],
        ["recv", "/tmp/x", "--count", "-1"],
        ["recv", "/tmp/x", "--timeout", "-1"],
        ["send", "/tmp/x", "y", "--repeat", "-1"],
        ["send", "/tmp/x", "y", "--rate", "0"],
        ["send", "/tmp/x", "y", "--rate", "-3"],
        ["send", "/tmp/x", "y", "--rate", "nan"],
    ],
)
def test_wrong_arguments(ferry_cli: Ferry, args: list[str]) -> None:
    ferry_cli(*args).refused(2)


@pytest.mark.parametrize("command", ["demo", "doctor", "send", "recv"])
def test_help(ferry_cli: Ferry, command: str) -> None:
    ran = ferry_cli(command, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert "Usage" in ran.out


def test_elsewhere(ferry_cli: Ferry, path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    refused(ferry_cli("recv", path), "needs Linux")
    refused(ferry_cli("send", path, data / "blob" / "bare_u8_5.blob"), "needs Linux")
