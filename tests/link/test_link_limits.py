"""Hardly any descriptor is free, or too many are on their way."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from link_peers import GUARD, acquire, all_back, child, descriptors, fileno, lend, put, raw_pair, reference

import tensorferry as ferry
from tensorferry.link import Link, Listener, Pool, connect


def leave_free(count: int) -> None:
    """Set this process's limit so that ``count`` more descriptors can be had."""
    highest = max(int(entry) for entry in os.listdir("/proc/self/fd"))
    while (last := os.dup(0)) < highest:  # fill the gaps: it takes the lowest that is free
        pass
    spare = [os.dup(0) for _ in range(count)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + count + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    for fd in spare:
        os.close(fd)


def more_free() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.mark.parametrize("free", [0, 1, 2])
@pytest.mark.parametrize("lent", [False, True])
def test_the_receiver_has_no_room(free: int, lent: bool) -> None:
    """Whether the descriptor itself, its duplicate, or the mapping's is one too many."""
    a, b = Link.pair()
    # What one tensor takes while it comes in; until Python 3.13 a mapping has a descriptor of its own.
    room = 3 if sys.version_info < (3, 13) else 2

    def run() -> None:
        a.close()
        b.recv(GUARD).close()  # modules that are imported late open files
        leave_free(free)
        before = descriptors_without_listing()
        if free < room:
            with pytest.raises(ferry.Unsupported, match=r"RLIMIT_NOFILE is \d+") as caught:
                b.recv(GUARD)
            assert caught.value.field == "RLIMIT_NOFILE"
            del caught
            more_free()
            assert descriptors() == before
        else:
            b.recv(GUARD).close()
            more_free()
        for _ in range(3):
            with b.recv(GUARD) as tensor:
                assert (tensor.numpy() == 9).all()
        with pytest.raises(ferry.EndOfStream):
            b.recv(GUARD)

    def descriptors_without_listing() -> list[str]:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        more_free()
        found = descriptors()
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        return found

    with child(run), Pool(64, "uint8", 5) as pool:
        b.close()
        with a, ferry.allocate(64, "uint8", storage="shm") as other:
            a.send(np.zeros(3))
            for _ in range(4):
                with acquire(pool) as tensor:
                    tensor.numpy()[:] = 9
                    other.numpy()[:] = 9
                    a.send(tensor if lent else other)
        all_back(pool)  # what was refused came back too


def test_some_of_several_descriptors_arrive() -> None:
    """What did arrive is closed, and the next is received."""
    data, tensor = reference()
    sock, link = raw_pair()

    def run() -> None:
        sock.close()
        link.recv(GUARD).close()
        link._other_mappings.clear()
        before = descriptors()
        leave_free(3)
        for _ in range(2):
            with pytest.raises(ferry.Unsupported, match="RLIMIT_NOFILE"):
                link.recv(GUARD)
        more_free()
        gaps = descriptors()
        assert gaps.count(os.readlink("/proc/self/fd/0")) >= 1
        assert [entry for entry in gaps if "memfd" in entry] == [entry for entry in before if "memfd" in entry]
        link.recv(GUARD).close()

    with child(run), link, sock:
        put(sock, data, [fileno(tensor)])
        put(sock, data, [fileno(tensor)] * 10)
        put(sock, lend(1, len(data)) + data, [fileno(tensor)] * 10)
        put(sock, data, [fileno(tensor)])
        link.close()
    tensor.close()


def test_old_mappings_make_room_for_new_ones() -> None:
    a, b = Link.pair()
    count = 40

    def run() -> None:
        a.close()
        b.recv(GUARD).close()
        leave_free(12)
        for i in range(count):
            with b.recv(GUARD) as tensor:
                assert (tensor.numpy() == i).all()

    with child(run):
        b.close()
        with a:
            a.send(np.zeros(3))
            for i in range(count):
                with ferry.allocate(64, "uint8", storage="shm") as tensor:
                    tensor.numpy()[:] = i
                    a.send(tensor)


def test_a_listener_has_no_room(tmp_path: Path) -> None:
    path = tmp_path / "ferry.sock"

    def run() -> None:
        with Listener(path) as listener:
            first = listener.accept(GUARD)
            leave_free(0)
            for _ in range(2):
                with pytest.raises(ferry.Unsupported, match="RLIMIT_NOFILE"):
                    listener.accept(GUARD)
            more_free()
            with listener.accept(GUARD) as link, first:
                link.send(np.arange(3))

    with child(run), connect(path, GUARD), connect(path, GUARD) as link:
        assert link.recv(GUARD).shape == (3,)


def test_too_many_on_their_way() -> None:
    """ETOOMANYREFS: the kernel counts what nobody has received yet, for users without privileges."""

    def run() -> None:
        a, b = Link.pair()
        tensor = ferry.allocate(8, "uint8", storage="shm")
        pool = Pool(8, "uint8", 1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        sent = 0
        while True:
            try:
                a.send(tensor, GUARD)
            except ferry.Unsupported as error:
                refused = error
                break
            sent += 1
        assert refused.field == "RLIMIT_NOFILE"
        assert "RLIMIT_NOFILE is 64" in str(refused)
        with acquire(pool) as lent, pytest.raises(ferry.Unsupported, match="on their way"):
            a.send(lent)
        assert pool.free == 1
        a.send(np.arange(4))  # what needs none goes
        for _ in range(sent):
            b.recv(GUARD).close()
        assert b.recv(GUARD).shape == (4,)
        a.send(tensor)
        b.recv(GUARD).close()

    with child(run):
        pass
