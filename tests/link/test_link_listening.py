"""Links by a path: who may listen, who may connect, and what becomes of the socket file."""

from __future__ import annotations

import functools
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from link_peers import GUARD, Thread, blocked, child, descriptors, eventually

import tensorferry as ferry
from tensorferry.link import Link, Listener, Peer, connect


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ferry.sock"


@pytest.fixture
def listener(path: Path) -> Iterator[Listener]:
    with Listener(path) as listening:
        yield listening


def accepted(listener: Listener) -> tuple[Link, Link]:
    """Both ends of a new link."""
    near = connect(listener.path)
    return near, listener.accept(GUARD)


def test_a_tensor_each_way(listener: Listener) -> None:
    near, far = accepted(listener)
    with near, far, ferry.allocate(7, "uint8", storage="shm") as shared:
        near.send(np.arange(4))
        assert far.recv(GUARD).shape == (4,)
        far.send(shared)
        near.recv(GUARD).close()


def test_the_file_is_for_its_owner_only_and_goes(path: Path) -> None:
    mask = os.umask(0)
    try:
        listener = Listener(path)
    finally:
        os.umask(mask)
    status = path.lstat()
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert str(path) in repr(listener)
    listener.close()
    assert not path.exists()
    assert listener.fileno() == -1
    assert "closed" in repr(listener)
    listener.close()


def test_a_relative_path_goes_whatever_the_directory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with Listener(path.name):
        assert path.exists()
        monkeypatch.chdir("/")
    assert not path.exists()


def test_a_stale_file_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()
    with pytest.raises(ferry.Disconnected, match="nobody listens"):
        connect(path)
    with Listener(path) as listener:
        near, far = accepted(listener)
        near.close()
        far.close()


def test_a_live_one_is_refused(listener: Listener, path: Path) -> None:
    with pytest.raises(ferry.Unsupported, match="somebody listens"):
        Listener(path)
    listener.accept(GUARD).close()  # the one that asked whether it is alive
    near, far = accepted(listener)
    near.close()
    far.close()


def test_what_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(ferry.Unsupported, match="left alone"):
        Listener(path)
    assert path.read_text() == "precious"
    with pytest.raises(ferry.Disconnected):
        connect(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ferry.Unsupported, match="left alone"):
        Listener(path)
    path.rmdir()
    target = path.with_suffix(".target")
    path.symlink_to(target)
    with pytest.raises(ferry.Unsupported, match="left alone"):
        Listener(path)
    assert path.is_symlink()


def test_a_socket_of_another_kind_is_left_alone(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(ferry.Unsupported, match="cannot be used"):
            Listener(path)
        with pytest.raises(ferry.Unsupported, match="cannot be used"):
            connect(path)
    assert path.exists()


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "such", tmp_path / ("long" * 40)):
        with pytest.raises(ferry.Unsupported, match="cannot be used"):
            Listener(path)
    with pytest.raises(ferry.Unsupported, match="cannot be used"):
        connect(tmp_path / ("long" * 40))
    with pytest.raises(ferry.Disconnected):
        connect(tmp_path / "nobody", 0.02)


def test_another_listener_s_file_is_not_removed(path: Path) -> None:
    first = Listener(path)
    path.unlink()
    with Listener(path):
        first.close()
        assert path.exists()


def test_the_peer_is_known_and_the_rule_is_asked(path: Path) -> None:
    asked: list[Peer] = []

    def allow(peer: Peer) -> bool:
        asked.append(peer)
        return len(asked) > 1

    with Listener(path, allow=allow) as listener:
        refused, near = connect(path), connect(path)
        with near, refused, listener.accept(GUARD) as far:
            assert asked == [(os.getpid(), os.getuid(), os.getgid())] * 2
            with pytest.raises(ferry.EndOfStream):
                refused.recv(GUARD)
            near.send(np.arange(3))
            assert far.recv(GUARD).shape == (3,)
            assert far.peer.pid == near.peer.pid == os.getpid()


def test_a_peer_in_another_process_is_known(listener: Listener) -> None:
    def run() -> None:
        with connect(listener.path, GUARD) as link:
            link.send(np.arange(3))
            assert link.peer.pid == os.getppid()

    with child(run) as it, listener.accept(GUARD) as link:
        assert link.peer == (it.pid, os.getuid(), os.getgid())
        assert link.recv(GUARD).shape == (3,)


def test_a_rule_that_raises_leaks_nothing(path: Path) -> None:
    def allow(peer: Peer) -> bool:
        raise LookupError(peer.pid)

    with Listener(path, allow=allow) as listener, connect(path) as near:
        with pytest.raises(LookupError):
            listener.accept(GUARD)
        with pytest.raises(ferry.EndOfStream):
            near.recv(GUARD)


def test_options_are_a_link_s(path: Path) -> None:
    with Listener(path, max_bytes=100) as listener:
        near, far = accepted(listener)
        with near, far:
            near.send(np.zeros(200))
            with pytest.raises(ferry.ForgedLength):
                far.recv(GUARD)
    before = descriptors()
    with Listener(path, no_such=1) as listener, pytest.raises(TypeError):
        connect(path, no_such=1)
    with Listener(path, no_such=1) as listener:
        near = connect(path)
        with near, pytest.raises(TypeError):
            listener.accept(GUARD)
    assert descriptors() == before


def test_nobody_connects(listener: Listener) -> None:
    for timeout in (0, 0.01):
        with pytest.raises(ferry.TimedOut, match="nobody connected"):
            listener.accept(timeout)


def test_closing_wakes_who_accepts(path: Path) -> None:
    for _ in range(20):
        listener = Listener(path)
        accepter = Thread(listener.accept)
        blocked(accepter)
        listener.close()
        with pytest.raises(ferry.Disconnected, match="this listener was closed"):
            accepter.done()
        with pytest.raises(ferry.Disconnected, match="this listener was closed"):
            listener.accept(0)


def test_iterating_until_it_is_closed(path: Path) -> None:
    listener = Listener(path)
    served = []

    def serve() -> None:
        for link in listener:
            with link:
                served.append(link.recv(GUARD).shape)

    server = Thread(serve)
    for i in range(3):
        with connect(path) as link:
            link.send(np.zeros(i))
    eventually(lambda: len(served) == 3)
    listener.close()
    server.done()
    assert served == [(0,), (1,), (2,)]


def test_links_outlive_their_listener(path: Path) -> None:
    with Listener(path) as listener:
        near, far = accepted(listener)
    with near, far:
        near.send(np.arange(3))
        assert far.recv(GUARD).shape == (3,)


def test_connecting_waits_for_a_listener(path: Path) -> None:
    for timeout in (None, GUARD):
        connecting = Thread(functools.partial(connect, path, timeout))
        blocked(connecting)
        with Listener(path) as listener, listener.accept(GUARD):
            connecting.done().close()


def test_a_full_backlog_does_not_hang(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as busy:
        busy.bind(str(path))
        busy.listen(0)
        waiting: list[Link] = []

        def connect_many() -> None:
            for _ in range(10):
                waiting.append(connect(path, 0.02))

        with pytest.raises(ferry.Disconnected, match="does not accept"):
            connect_many()
        for link in waiting:
            link.close()
        with pytest.raises(ferry.Unsupported, match="somebody listens"):
            Listener(path)


def test_a_forked_child_s_copy_ends_alone(listener: Listener, path: Path) -> None:
    with child(listener.close):
        pass
    assert path.exists()
    near, far = accepted(listener)
    near.close()
    far.close()


def test_a_peer_that_is_gone_before_it_is_accepted(listener: Listener) -> None:
    connect(listener.path).close()
    with listener.accept(GUARD) as far, pytest.raises(ferry.EndOfStream):
        far.recv(GUARD)
