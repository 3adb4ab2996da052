"""Links between processes: forked, spawned, killed."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from link_peers import GUARD, Child, acquire, all_back, child, descriptors, echo, eventually, produce, state_of

import tensorferry as ferry
from tensorferry.link import Link, Listener, Pool, connect
from tensorferry.tensor import Tensor


def test_a_forked_child_receives_and_gives_back() -> None:
    a, b = Link.pair()

    def run() -> None:
        a.close()
        with b:
            for count, tensor in enumerate(b):
                with tensor:
                    assert (tensor.numpy() == count).all()
        assert count == 99

    with child(run):
        b.close()
        with a, Pool(32, "int64", 2) as pool:
            for i in range(100):
                with acquire(pool) as tensor:
                    tensor.numpy()[:] = i
                    a.send(tensor)
            all_back(pool)


def test_a_forked_child_produces() -> None:
    a, b = Link.pair()

    def run() -> None:
        a.close()
        produce(b, 100)

    with child(run), a:
        b.close()
        for i in range(100):
            with a.recv(GUARD) as tensor:
                assert (tensor.numpy() == i).all()
        with pytest.raises(ferry.EndOfStream):
            a.recv(GUARD)


@pytest.mark.usefixtures("spawning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_takes_a_link(method: Literal["fork", "spawn"]) -> None:
    a, b = Link.pair()
    # A forked child has both ends, and must close the other one, or never sees the end of the stream.
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=echo, args=(b, a) if method == "fork" else (b,))
    process.start()
    try:
        b.close()
        with a, Pool(32, "int64", 2) as pool:
            for i in range(20):
                with acquire(pool) as tensor:
                    tensor.numpy()[:] = i
                    a.send(tensor)
                with a.recv(GUARD) as back:
                    assert (back.numpy() == i).all()
            a.send(np.arange(5))
            with a.recv(GUARD) as back:
                assert back.shape == (5,)
            all_back(pool)
        process.join(GUARD)
        assert process.exitcode == 0
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        process.close()


def test_by_path_between_processes(tmp_path: Path) -> None:
    path = tmp_path / "ferry.sock"

    def run() -> None:
        produce(connect(path, GUARD), 50)

    with child(run) as it, Listener(path) as listener, listener.accept(GUARD) as link:
        assert link.peer.pid == it.pid
        for i in range(50):
            with link.recv(GUARD) as tensor:
                assert (tensor.numpy() == i).all()


def test_the_receiver_outlives_the_producer() -> None:
    a, b = Link.pair()

    def run() -> None:
        a.close()
        pool = Pool((512, 512), "int32", 1)
        tensor = acquire(pool)
        tensor.numpy()[:] = 42
        b.send(tensor)
        with ferry.allocate(16, "uint8", storage="shm") as other:
            other.numpy()[:] = 7
            b.send(other)

    with child(run) as it:
        b.close()
        it.join()
        pooled, other = a.recv(GUARD), a.recv(GUARD)
        with pytest.raises(ferry.EndOfStream):
            a.recv(GUARD)
        assert (pooled.numpy() == 42).all()
        view = pooled.numpy()[100:]
        a.close()
        del pooled
        gc.collect()
        assert (view == 42).all()
        assert (other.numpy() == 7).all()
        del view, other
        gc.collect()
        assert a.fileno() == -1


def test_a_killed_receiver_gives_back_all_that_it_held() -> None:
    a, b = Link.pair()

    def run() -> None:
        a.close()
        tensors = [b.recv(GUARD) for _ in range(2)]
        b.send(np.arange(len(tensors)))
        signal.pause()

    with child(run) as it, Pool(8, "uint8", 3) as pool, a:
        b.close()
        for _ in range(3):  # two are held, one is on its way
            with acquire(pool) as tensor:
                a.send(tensor)
        assert a.recv(GUARD).shape == (2,)
        with pytest.raises(ferry.TimedOut):
            pool.acquire(0)
        it.kill()
        all_back(pool)
        with pytest.raises(ferry.EndOfStream):
            a.recv(GUARD)
        with pytest.raises(ferry.Disconnected):
            a.send(np.zeros(1))


def test_a_producer_killed_in_the_middle_of_a_frame() -> None:
    a, b = Link.pair()

    def run() -> None:
        a.close()
        b.send(np.arange(3))
        b.send(np.zeros(64 << 20, np.uint8))

    with child(run) as it, a:
        b.close()
        assert a.recv(GUARD).shape == (3,)
        eventually(lambda: state_of(it.pid) == "S")  # the socket is full
        it.kill()
        it.join()
        with pytest.raises(ferry.Truncated):
            a.recv(GUARD)


def test_killed_at_any_moment() -> None:
    """The survivor goes on with the next peer, and misses nothing."""
    before = descriptors()
    with Pool(1024, "int64", 4) as pool:
        for kill_after in range(12):
            near, far = Link.pair()
            inbound = kill_after % 2 == 0

            def run(near: Link = near, far: Link = far, inbound: bool = inbound) -> None:
                near.close()
                if inbound:
                    produce(far, 1_000_000)
                else:
                    for tensor in far:
                        tensor.close()

            it = Child(run)
            far.close()
            with near:
                try:
                    for i in range(1_000_000):
                        if i == kill_after * 10:
                            it.kill()
                        exchange(near, pool, i, inbound)
                except (ferry.EndOfStream, ferry.Disconnected, ferry.Truncated):
                    pass
                else:
                    raise AssertionError("it never ended")
            assert it.join() == -signal.SIGKILL
            all_back(pool)
    del pool
    assert descriptors() == before


def exchange(link: Link, pool: Pool, i: int, inbound: bool) -> None:
    """One frame, received or sent."""
    if inbound:
        with link.recv(GUARD) as tensor:
            assert (tensor.numpy() == i).all()
    else:
        with acquire(pool) as tensor:
            link.send(tensor, GUARD)


# ---- what a fork copies ----


def test_a_pool_serves_only_its_process() -> None:
    with Pool(8, "uint8", 2) as pool, acquire(pool):

        def run() -> None:
            with pytest.raises(ferry.Closed, match="only the process that made it"):
                pool.acquire(0)
            pool.close()

        with child(run):
            pass
        acquire(pool)


def test_a_child_s_copies_give_nothing_back() -> None:
    """Tensors, views and the link itself end in the child; in the parent all goes on."""
    a, b = Link.pair()
    with a, b, Pool(8, "uint8", 1) as pool:
        with acquire(pool) as sent:
            sent.numpy()[:] = 5
            a.send(sent)
        got: list[Tensor] = [b.recv(GUARD)]

        def run() -> None:
            got[0].close()
            got.clear()
            gc.collect()
            b.close()
            a.close()
            assert (a.fileno(), b.fileno()) == (-1, -1)
            pool.close()

        with child(run):
            pass
        with pytest.raises(ferry.TimedOut):
            pool.acquire(0)
        assert (got[0].numpy() == 5).all()
        got[0].close()
        acquire(pool).close()
        a.send(np.arange(3))
        assert b.recv(GUARD).shape == (3,)


def test_what_the_parent_took_in_is_the_parent_s() -> None:
    a, b = Link.pair()
    with a, b, Pool(8, "uint8", 1) as pool:
        with acquire(pool) as sent:
            sent.numpy()[:] = 6
            a.send(sent)
        b.collect()
        with child(b.close):
            pass
        with pytest.raises(ferry.TimedOut):
            pool.acquire(0)
        with b.recv(GUARD) as got:
            assert (got.numpy() == 6).all()
        acquire(pool).close()


def test_a_child_may_close_what_a_thread_of_its_parent_waits_on() -> None:
    """A lock that such a thread holds is held for ever in the child."""
    a, b = Link.pair()
    with a, b:
        b._channel.recv_lock.acquire()
        b._channel._send_lock.acquire()
        try:

            def run() -> None:
                b.close()
                assert b.fileno() == -1

            with child(run):
                pass
        finally:
            b._channel._send_lock.release()
            b._channel.recv_lock.release()
        a.send(np.arange(3))
        assert b.recv(GUARD).shape == (3,)
