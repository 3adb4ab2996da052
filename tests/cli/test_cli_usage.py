"""What goes wrong outside the data, and how the command line ends then: one line, the right status."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorferry
from tensorferry.cli import main

Ferry = Callable[..., Any]
COMMANDS = ("inspect", "check", "convert")


def args_for(command: str, file: Path | str, tmp_path: Path) -> list[str]:
    return [command, str(file), *([str(tmp_path / "out.npy")] if command == "convert" else [])]


def gave_up(ran: Any, command: str, status: int) -> str:
    """The line with which a command gave up on a file; ``check`` says it on stdout."""
    if command != "check":
        return str(ran.refused(status))
    assert ran.status == status
    assert ran.out.startswith("BAD  ")
    assert ran.out.count("\n") == 1
    assert ran.err == ""
    return str(ran.out)


def test_version(ferry_cli: Ferry) -> None:
    ran = ferry_cli("--version")
    assert (ran.status, ran.out) == (0, f"tensorferry {tensorferry.__version__}\n")


@pytest.mark.parametrize("args", [[], ["--help"], ["inspect", "--help"], ["check", "-h"], ["convert", "-h"]])
def test_help(ferry_cli: Ferry, args: list[str]) -> None:
    ran = ferry_cli(*args)
    assert ran.status == (0 if args else 2)
    assert "Usage" in ran.out
    assert ran.err == ""


@pytest.mark.parametrize(
    "args",
    [
        ["inspec", "x"],
        ["inspect"],
        ["check"],
        ["convert", "x"],
        ["inspect", "--frob", "x"],
        ["inspect", "x", "--index", "many"],
        ["inspect", "x", "y"],
        ["inspect", "x", "--json", "--hex"],
        ["convert", "x", "y.npy", "--to", "tiff"],
        ["convert", "x", "y.unknown"],
        ["convert", "x", "y"],
    ],
)
def test_wrong_arguments(ferry_cli: Ferry, args: list[str]) -> None:
    ferry_cli(*args).refused(2)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_file(ferry_cli: Ferry, command: str, tmp_path: Path) -> None:
    ran = ferry_cli(*args_for(command, tmp_path / "absent.blob", tmp_path))
    assert "there is no such file" in gave_up(ran, command, 2)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_directory(ferry_cli: Ferry, command: str, tmp_path: Path) -> None:
    assert "it is a directory" in gave_up(ferry_cli(*args_for(command, tmp_path, tmp_path)), command, 2)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX devices")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_device(ferry_cli: Ferry, command: str, tmp_path: Path) -> None:
    assert "it is a device" in gave_up(ferry_cli(*args_for(command, "/dev/zero", tmp_path)), command, 2)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_permission(ferry_cli: Ferry, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may read everything: the refusal is the system's own error, raised by hand.
    def refuse(path: str, *args: object) -> object:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr("tensorferry.cli.inputs.open", refuse, raising=False)
    ran = ferry_cli(*args_for(command, tmp_path / "secret.blob", tmp_path))
    assert "permission denied" in gave_up(ran, command, 2)


@pytest.mark.skipif(not hasattr(os, "setuid") or os.getuid() != 0, reason="only root can become nobody")
def test_no_permission_for_nobody(tmp_path: Path) -> None:
    secret = tmp_path / "secret.blob"
    secret.write_bytes(b"x" * 100)
    secret.chmod(0o600)
    # All that is imported late is imported by a first run, as root: nobody may not read this checkout.
    program = (
        "import os, sys\n"
        "from typer.testing import CliRunner\n"
        "from tensorferry.cli.app import app\n"
        "CliRunner().invoke(app, ['inspect', '/absent'])\n"
        "os.setuid(65534)\n"
        "app(['inspect', sys.argv[1]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(secret)],
        env={**os.environ, "PYTHONPATH": str(Path(tensorferry.__file__).parents[1])},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.stderr.decode() == f"tensorferry: {secret}: permission denied\n"
    assert done.returncode == 2


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"abc", "only 3 are here"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00" + bytes(200), "a JPEG image"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR" + bytes(200), "a PNG image"),
        (b"\x89MCAP0\r\n\x01\x09\x00\x00\x00\x00\x00\x00\x00" + bytes(100), "an MCAP recording, as a VLink .vcap is"),
        (b"SQLite format 3\0\x10\x00\x01\x01" + bytes(100), "an SQLite database, as a VLink .vdb is"),
        (b"Dear reader,\n" * 20, "text"),
        ("Größe: 3×4\n".encode() * 100, "text"),
        (b'{"shape": [1, 2, 3], "dtype": "float32"}', "JSON"),
        (b"\x10\0\0\0\0\0\0\0" + b'{"a":{}}        ', "a safetensors file"),
        (np.random.default_rng(0).bytes(300), "nothing known here"),
    ],
)
def test_what_is_no_tensor(ferry_cli: Ferry, command: str, content: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "thing"
    file.write_bytes(content)
    if command == "convert":  # which takes some of these, where they are whole
        kind = re.fullmatch("an? (JPEG|PNG|safetensors)( image| file)", says)
        says = says if kind is None else f"the {kind[1]}{' file' * (kind[1] == 'safetensors')} cannot be read"
    assert says in gave_up(ferry_cli(*args_for(command, file, tmp_path)), command, 1)
    assert says in gave_up(ferry_cli(*args_for(command, "-", tmp_path), input=content), command, 1)
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("command", ["inspect", "check"])
def test_npy_and_zip_are_named(ferry_cli: Ferry, command: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", "a")
    assert "tensorferry convert takes it" in gave_up(ferry_cli(command, tmp_path / "a.npy"), command, 1)
    assert "a zip archive" in gave_up(ferry_cli(command, tmp_path / "a.zip"), command, 1)


def test_a_damaged_blob_is_never_taken_for_something_else(hostile: list[tuple[dict[str, Any], bytes]]) -> None:
    from tensorferry.cli.sniff import looks_like

    for case, content in hostile:
        assert looks_like(memoryview(content)) is None, case


@pytest.mark.parametrize(("size", "magic"), [(0x088B1F, "gzip"), (0x04034B50, "zip"), (0xFFD8FF, "JPEG")])
def test_nor_is_a_truncated_one_whose_size_is_a_magic(size: int, magic: str) -> None:
    from tensorferry.cli.sniff import looks_like

    assert looks_like(memoryview(size.to_bytes(8, "little") + bytes(100))) is None


def test_names_and_strings_do_not_steer_the_terminal(ferry_cli: Ferry, tmp_path: Path, data: Path) -> None:
    evil = tmp_path / "a\x1b[31m\nb.blob"
    wire = (data / "blob" / "image_rgb8_64x48.blob").read_bytes()
    evil.write_bytes(wire.replace(b"rgb8", b"\x1b[2J"))
    for args in (["inspect"], ["inspect", "--hex"], ["check"], ["inspect", "--json"]):
        ran = ferry_cli(*args, evil)
        assert ran.status == 0
        assert "\x1b" not in ran.out + ran.err
    assert "\\x1b" in ferry_cli("inspect", evil).out
    missing = ferry_cli("inspect", f"{evil}2").refused(2)
    assert "\x1b" not in missing


# ---- in processes of their own ----


def test_stdin_is_empty(ferry_process: Ferry) -> None:
    assert "it is empty" in ferry_process("inspect", "-").refused(1)


def test_a_file_that_is_no_tensor(ferry_process: Ferry) -> None:
    assert "looks like text" in ferry_process("inspect", __file__).refused(1)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
@pytest.mark.parametrize("args", [["--hex", "--all"], ["--json"], []])
def test_a_closed_pipe_is_silent(spawn: Callable[..., subprocess.Popen[bytes]], data: Path, args: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    process = spawn("inspect", data / "blob" / "image_NV24_64x48.blob", *args, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert process.wait(60) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c(spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = spawn("inspect", "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    # It reads stdin once a pipe full of it is gone.
    process.stdin.write(bytes(1 << 20))
    process.stdin.flush()
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stderr.read() == b"tensorferry: interrupted\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's /dev/full")
def test_a_full_disk(spawn: Callable[..., subprocess.Popen[bytes]], data: Path) -> None:
    with open("/dev/full", "wb") as full:
        process = spawn("inspect", data / "blob" / "bare_u8_5.blob", stdout=full, stderr=subprocess.PIPE)
        assert process.wait(60) == 2
    assert process.stderr is not None
    assert process.stderr.read().decode().splitlines()[0] == "tensorferry: No space left on device"


def test_an_ascii_terminal(ferry_process: Ferry, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    ran = ferry_process("inspect", data / "blob" / "image_NV12_64x48.blob")
    assert ran.status == 0
    assert ran.out.isascii()


def test_the_extra_is_named_when_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("tensorferry.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "install tensorferry[cli]" in capsys.readouterr().err
