"""``tensorferry doctor``: what it finds is so, and what is missing comes with advice."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from email.message import Message
from importlib import metadata
from typing import Any

import numpy as np
import pytest

from tensorferry import memory
from tensorferry.cli import doctor

Ferry = Callable[..., Any]

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="most of what is looked for is Linux's")


def checks(ran: Any) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in ran.json["checks"]}


def test_json(ferry_cli: Ferry) -> None:
    ran = ferry_cli("doctor", "--json")
    assert (ran.status, ran.err) == (0, "")
    assert ran.json["ok"] is True
    found = checks(ran)
    assert found["NumPy"]["found"] == np.__version__
    assert all(check["status"] == "ok" for check in found.values() if check["group"] == "core")
    for check in found.values():
        assert set(check) == {"group", "name", "status", "found", "why", "do"}
        assert check["status"] in ("ok", "limited", "missing")
        assert check["found"]
        assert check["why"]
        assert bool(check["do"]) == (check["status"] != "ok"), check


@LINUX
def test_on_linux_frames_can_go_by_reference(ferry_cli: Ferry) -> None:
    found = checks(ferry_cli("doctor", "--json"))
    for name in ("sealed memfd", "mapping", "descriptors by socket"):
        assert found[name]["status"] == "ok", found[name]


def test_for_people(ferry_process: Ferry) -> None:
    ran = ferry_process("doctor")
    assert (ran.status, ran.err) == (0, "")
    for said in ("core", "ml_dtypes", "sealed memfd", "pidfd_getfd", "/dev/shm", "things are there"):
        assert said in ran.out
    assert "\x1b" not in ran.out


def test_elsewhere_it_runs(ferry_cli: Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    ran = ferry_cli("doctor", "--json")
    assert ran.status == 0
    for name in ("sealed memfd", "mapping", "descriptors by socket", "pidfd_getfd"):
        assert checks(ran)[name]["status"] == "missing"
        assert "Linux" in checks(ran)[name]["found"]


def test_a_broken_core_is_told_apart(ferry_cli: Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "loads", lambda data: np.zeros(1))
    ran = ferry_cli("doctor", "--json")
    assert ran.status == 1
    assert "the core is broken" in ran.err
    assert ran.json["ok"] is False
    assert checks(ran)["both formats"]["found"] == "other values came back by blob, vlink"
    assert "broken" in ferry_cli("doctor").out


def test_an_old_numpy_is_broken(ferry_cli: Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__version__", "1.25.2")
    ran = ferry_cli("doctor", "--json")
    assert ran.status == 1
    assert checks(ran)["NumPy"]["do"] == "pip install 'numpy>=1.26'"


@LINUX
def test_few_descriptors(ferry_process: Ferry) -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ran = ferry_process("doctor", "--json", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard)))
    assert ran.status == 0
    limit = checks(ran)["descriptor limit"]
    assert limit["status"] == "limited"
    assert limit["found"].startswith("200, ")
    assert "ulimit -n" in limit["do"]


@LINUX
def test_dma_heaps(ferry_cli: Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "heaps", list)
    assert checks(ferry_cli("doctor", "--json"))["dma heaps"]["status"] == "missing"
    monkeypatch.setattr(memory, "heaps", lambda: ["no-such-heap"])
    heaps = checks(ferry_cli("doctor", "--json"))["dma heaps"]
    assert heaps["status"] == "missing"
    assert "no-such-heap" in heaps["found"]


@LINUX
def test_whatever_fails_is_an_answer(ferry_cli: Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **more: Any) -> Any:
        raise PermissionError(1, "Operation not permitted")

    for name in ("allocate", "fetch"):
        monkeypatch.setattr(memory, name, refuse)
    for name in ("memfd_create", "statvfs"):
        monkeypatch.setattr(os, name, refuse)
    ran = ferry_cli("doctor", "--json")
    assert ran.status == 0
    for name in ("sealed memfd", "pidfd_getfd", "/dev/shm"):
        assert checks(ran)[name]["status"] == "missing"
        assert "not permitted" in checks(ran)[name]["found"]


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extras as some version of this project has them."""
    asks = [
        "numpy>=1.26",
        "rich>=13; extra == 'cli'",
        "no-such-package>=2; (python_version > '3') and extra == 'record'",
        "numpy; extra == 'record'",
        "tensorferry[cli]; extra == 'all'",
        "pytest; extra == 'test'",
    ]
    fields = Message()
    for name in ("all", "record", "cli", "test"):
        fields["Provides-Extra"] = name
    monkeypatch.setattr(metadata, "metadata", lambda name: fields)
    monkeypatch.setattr(metadata, "requires", lambda name: asks)


@pytest.mark.usefixtures("declared")
def test_extras(ferry_cli: Ferry) -> None:
    found = {name: check for name, check in checks(ferry_cli("doctor", "--json")).items() if check["group"] == "extras"}
    assert list(found) == ["cli", "record"]
    assert found["cli"]["status"] == "ok"
    assert found["cli"]["found"] == f"rich {metadata.version('rich')}"
    assert found["record"]["found"] == f"numpy {np.__version__}, no no-such-package"
    assert found["record"]["do"] == "pip install 'tensorferry[record]'"


def test_from_its_sources(ferry_cli: Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", absent)
    ran = ferry_cli("doctor", "--json")
    assert ran.status == 0
    assert "runs from its sources" in checks(ran)["all"]["found"]


@LINUX
def test_nothing_stays_open(ferry_cli: Ferry) -> None:
    ferry_cli("doctor")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        ferry_cli("doctor")
    assert len(os.listdir("/proc/self/fd")) == before
