"""Vectors, damaged ones, and the command line in this process or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tensorferry as ferry
from tensorferry.cli.app import app

DATA = Path(__file__).parents[1] / "data"
SOURCE = Path(__file__).parents[2] / "src"


# Older ones mix stderr into stdout unless told otherwise; newer ones know no such option.
_APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner.__init__).parameters else {}


class Ran:
    """What a command left behind."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    def refused(self, status: int) -> str:
        """The one line on stderr with which a command gave up."""
        assert self.status == status, (self.status, self.out, self.err)
        assert self.err.startswith("tensorferry: ")
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.out + self.err
        return self.err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Ferry = Callable[..., Ran]


@pytest.fixture(scope="session")
def data() -> Path:
    return DATA


@pytest.fixture
def ferry_cli() -> Ferry:
    """The command line, in this process."""

    def run(*args: str | Path, input: bytes | None = None) -> Ran:
        result = CliRunner(**_APART).invoke(app, [str(arg) for arg in args], input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def ferry_process() -> Ferry:
    """The command line as a process of its own."""

    def run(*args: str | Path, **how: Any) -> Ran:
        command = [sys.executable, "-m", "tensorferry.cli", *map(str, args)]
        how.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run(command, env=environment(), capture_output=True, timeout=60, check=False, **how)
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "TERM": "xterm",
        "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]),
    }


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the command line and leaves it running; ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str | Path, **how: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tensorferry.cli", *map(str, args)]
        started.append(subprocess.Popen(command, env=environment(), **how))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _refusal(wire: bytes) -> ferry.FerryError | None:
    try:
        ferry.loads(wire)
    except ferry.FerryError as error:
        return error
    return None


@pytest.fixture(scope="session")
def refusal() -> Callable[[bytes], ferry.FerryError | None]:
    """Why ``loads`` refuses bytes; None when it does not."""
    return _refusal


@pytest.fixture(scope="session")
def hostile() -> list[tuple[dict[str, Any], bytes]]:
    """Each damaged blob with what is said of it."""
    cases = json.loads((DATA / "blob" / "hostile.json").read_text())["cases"]
    return [(case, _harmed(case)) for case in cases]


def _harmed(case: dict[str, Any]) -> bytes:
    data = bytearray((DATA / "blob" / case["base"]).read_bytes())
    for offset, patch in case["patches"]:
        data[offset : offset + len(patch) // 2] = bytes.fromhex(patch)
    if case["truncate"] is not None:
        del data[case["truncate"] :]
    return bytes(data) + bytes.fromhex(case["append"])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``blob_case`` and ``vlink_case`` are each of the vectors."""
    for format in ("blob", "vlink"):
        if f"{format}_case" in metafunc.fixturenames:
            cases = json.loads((DATA / format / "cases.json").read_text())["cases"]
            metafunc.parametrize(f"{format}_case", cases, ids=[case["name"] for case in cases])
