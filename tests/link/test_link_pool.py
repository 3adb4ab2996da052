"""Leases: a buffer is used again when everybody has let go of it, and not before."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from link_peers import GUARD, Thread, acquire, all_back, blocked, descriptors, eventually, inode, mapped

import tensorferry as ferry
from tensorferry.link import Link, Pool
from tensorferry.tensor import StorageKind, Tensor


def filled(pool: Pool, value: int) -> Tensor:
    tensor = acquire(pool)
    tensor.numpy()[...] = value
    return tensor


def none_free(pool: Pool) -> None:
    with pytest.raises(ferry.TimedOut):
        pool.acquire(0)


def test_buffers_are_shared_writable_and_as_many_as_said() -> None:
    with Pool((3, 4), "uint8", 3) as pool:
        assert (pool.count, pool.free) == (3, 3)
        tensors = [filled(pool, i) for i in range(3)]
        assert len({inode(tensor) for tensor in tensors}) == 3
        assert {tensor.storage for tensor in tensors} == {StorageKind.SHM}
        assert [tensor.shape for tensor in tensors] == [(3, 4)] * 3
        assert pool.free == 0
        assert "0 free" in repr(pool)
        none_free(pool)
        last = inode(tensors[1])
        tensors[1].close()
        with acquire(pool) as again:
            assert inode(again) == last
            assert (again.numpy() == 1).all()  # what was in it
        for tensor in tensors:
            tensor.close()
        assert pool.free == 3


def test_what_makes_no_pool() -> None:
    with pytest.raises(ValueError, match="has none to give"):
        Pool(4, "uint8", 0)
    with pytest.raises(ValueError, match="when_empty"):
        Pool(4, "uint8", 1, when_empty="panic")
    with pytest.raises(ferry.Unsupported, match="cannot be allocated"):
        Pool(4, "uint8", 1, storage="mem")
    pool = Pool(4, "uint8", 1)
    pool.close()
    pool.close()
    with pytest.raises(ferry.Closed, match="pool was closed"):
        pool.acquire()


def test_an_image_pool() -> None:
    a, b = Link.pair()
    with a, b, Pool.of_images("NV12", 64, 32, 1, stride=128) as pool:
        with acquire(pool) as image:
            image.plane(0)[:] = 5
            image.plane(1)[:] = 6
            a.send(image)
        with b.recv(GUARD) as got:
            assert got.format is ferry.PixelFormat.NV12
            assert [plane.stride for plane in got.planes] == [128, 128]
            assert (got.plane(0) == 5).all()
            assert (got.plane(1) == 6).all()
        acquire(pool).close()


def test_it_comes_back_when_both_sides_have_closed() -> None:
    a, b = Link.pair()
    with a, b, Pool(8, "uint8", 1) as pool:
        sent = filled(pool, 1)
        a.send(sent)
        got = b.recv(GUARD)
        none_free(pool)
        sent.close()
        none_free(pool)
        got.close()
        assert "0 lent, 0 held" in repr(b)
        sent = acquire(pool)
        a.send(sent)
        b.recv(GUARD).close()
        none_free(pool)
        sent.close()
        acquire(pool).close()


def test_garbage_collection_gives_back() -> None:
    a, b = Link.pair()
    with a, b, Pool(8, "uint8", 1) as pool:
        a.send(acquire(pool))
        got: list[Any] = [b.recv(GUARD)]
        none_free(pool)
        got.append(got)  # a cycle: only a collection finds it
        del got
        gc.collect()
        acquire(pool).close()


def data_of(tensor: Tensor) -> memoryview:
    data = tensor.planes[0].data
    assert data is not None
    return data


VIEWS: list[Callable[[Tensor], Any]] = [
    lambda tensor: tensor.numpy(),
    lambda tensor: tensor.numpy()[::2],
    lambda tensor: np.asarray(tensor)[3:],
    lambda tensor: data_of(tensor)[8:],
    lambda tensor: np.frombuffer(data_of(tensor), np.uint8),
    lambda tensor: ferry.Tensor.from_array(tensor.numpy()),
    lambda tensor: tensor.plane(0),
]


@pytest.mark.parametrize("look", VIEWS)
@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_a_view_outlives_its_tensor_and_is_never_torn(look: Callable[[Tensor], Any], side: str) -> None:
    a, b = Link.pair()
    with a, b, Pool(64, "int64", 1) as pool:
        view = None
        with filled(pool, 7) as sent:
            a.send(sent)
            if side == "sender":
                view = look(sent)
                with pytest.raises(ferry.InUse):
                    sent.close()
        with b.recv(GUARD) as got:
            if side == "receiver":
                view = look(got)
                with pytest.raises(ferry.InUse):
                    got.close()
        gc.collect()
        none_free(pool)
        content = np.asarray(view).tobytes()
        assert set(content) <= {0, 7}
        assert 7 in content
        del view
        with acquire(pool):
            pass


def test_several_receivers() -> None:
    pairs = [Link.pair() for _ in range(3)]
    with Pool(8, "uint8", 1) as pool:
        with filled(pool, 9) as sent:
            for near, _ in pairs:
                near.send(sent)
            pairs[0][0].send(sent)  # twice to one of them
        got = [far.recv(GUARD) for _, far in pairs]
        got.append(pairs[0][1].recv(GUARD))
        for tensor in got:
            none_free(pool)
            assert (tensor.numpy() == 9).all()
            tensor.close()
        acquire(pool).close()
    for near, far in pairs:
        near.close()
        far.close()


def test_a_tensor_that_shares_the_planes_shares_the_lease() -> None:
    quantization = ferry.Quantization([0.5], [3])
    a, b = Link.pair()
    with a, b, Pool(8, "uint8", 1) as pool:
        with acquire(pool) as bare, bare.replace(quantization=quantization) as sent:
            a.send(sent)
        got = b.recv(GUARD)
        assert got.quantization == quantization
        other = got.replace(quantization=None)
        got.close()
        none_free(pool)
        other.close()
        acquire(pool).close()


def test_lent_on_over_further_links() -> None:
    """The forwarder lets go at once; the buffer is free when the last in the chain does."""
    a, b = Link.pair()
    c, d = Link.pair()
    e, f = Link.pair()
    with a, b, c, d, e, f, Pool(8, "uint8", 1) as pool:
        for value in range(3):
            with filled(pool, value) as sent:
                a.send(sent)
            with b.recv(GUARD) as got:
                c.send(got)
            with d.recv(GUARD) as got:
                e.send(got)
            last = f.recv(GUARD)
            none_free(pool)
            assert (last.numpy() == value).all()
            last.close()
            acquire(pool).close()


def test_who_only_relays_gives_back_what_comes_back() -> None:
    a, b = Link.pair()
    c, d = Link.pair()

    def relay() -> None:
        with b, c:
            for tensor in b:
                with tensor:
                    c.send(tensor)

    relaying = Thread(relay)
    with d, Pool(8, "int64", 1) as pool:
        with a:
            for value in range(200):
                with filled(pool, value) as sent:
                    a.send(sent)
                with d.recv(GUARD) as got:
                    assert (got.numpy() == value).all()
            acquire(pool).close()
        relaying.done()


# ---- when none is free ----


def test_dropping_counts() -> None:
    with Pool(8, "uint8", 1, when_empty="drop") as pool:
        first = pool.acquire()
        assert first is not None
        assert [pool.acquire(GUARD) for _ in range(3)] == [None] * 3
        assert pool.dropped == 3
        first.close()
        second = pool.acquire()
        assert second is not None
        second.close()
        assert pool.dropped == 3


def test_the_message_says_where_the_buffers_are() -> None:
    a, b = Link.pair()
    with a, b, Pool(8, "uint8", 3) as pool:
        kept = [acquire(pool) for _ in range(3)]
        a.send(kept[0])
        with pytest.raises(ferry.TimedOut, match=r"none of 3 buffers .* 1 are lent to receivers, 2 are held here only"):
            pool.acquire(0.01)
        for tensor in kept:
            tensor.close()


def test_waiting_until_a_receiver_lets_go() -> None:
    a, b = Link.pair()
    with a, b, Pool(8, "uint8", 1) as pool:
        with acquire(pool) as sent:
            a.send(sent)
        got = b.recv(GUARD)
        waiter = Thread(lambda: acquire(pool))
        blocked(waiter)
        got.close()
        waiter.done().close()


def test_waiting_until_threads_let_go() -> None:
    with Pool(8, "uint8", 2) as pool:
        kept = [acquire(pool), acquire(pool)]
        waiters = [Thread(lambda: acquire(pool)) for _ in range(2)]
        for waiter in waiters:
            blocked(waiter)
        while kept:
            kept.pop().close()
        for waiter in waiters:
            waiter.done().close()


def test_closing_the_pool_wakes_who_waits() -> None:
    pool = Pool(8, "uint8", 1)
    with acquire(pool):
        waiter = Thread(lambda: pool.acquire())
        blocked(waiter)
        pool.close()
        with pytest.raises(ferry.Closed):
            waiter.done()


def test_a_closed_pool_s_buffers_live_while_somebody_looks() -> None:
    a, b = Link.pair()
    before = mapped()
    with a, b:
        with Pool(8, "uint8", 1) as pool, filled(pool, 3) as sent:
            a.send(sent)
        with b.recv(GUARD) as got:
            assert (got.numpy() == 3).all()
    del pool, sent, got
    gc.collect()
    assert mapped() == before


# ---- what does not arrive ----


def test_what_cannot_be_sent_comes_back() -> None:
    a, b = Link.pair()
    with a, Pool(1 << 20, "uint8", 1) as pool:
        with acquire(pool) as tensor:
            labelled = tensor.replace(labels=ferry.Labels(name="left"))
            with pytest.raises(ferry.Lossy):
                a.send(labelled)
            labelled.close()
        assert pool.free == 1
        with acquire(pool) as tensor, pytest.raises(ferry.TimedOut, match="nothing was sent"):
            fill(a, tensor)
        assert pool.free == 0
        b.close()
        with acquire(pool) as tensor, pytest.raises(ferry.Disconnected):
            a.send(tensor)
        assert pool.free == 1


def fill(link: Link, tensor: Tensor) -> None:
    while True:
        link.send(tensor, 0)


@pytest.mark.parametrize("taken_in", [False, True])
def test_what_was_never_received_comes_back(taken_in: bool) -> None:
    a, b = Link.pair()
    with a, Pool(8, "uint8", 2) as pool:
        for _ in range(2):
            with acquire(pool) as tensor:
                a.send(tensor)
        b.recv(GUARD).close()
        if taken_in:
            b.collect()
        none = pool.acquire(GUARD)
        assert none is not None
        b.close()
        acquire(pool).close()
        none.close()


def test_a_link_that_is_gone_gives_back_all_that_it_held() -> None:
    a, b = Link.pair()
    with a, Pool(8, "uint8", 3) as pool:
        for _ in range(3):
            with acquire(pool) as tensor:
                a.send(tensor)
        b.recv(GUARD)
        b.close()
        all_back(pool)
        with pytest.raises(ferry.EndOfStream):
            a.recv(GUARD)


@pytest.mark.parametrize("closed", [False, True])
def test_who_is_not_listened_to_any_more_may_still_be_looking(closed: bool) -> None:
    """A receiver that sends a frame too long for us keeps what it has, untorn, until it lets go or is gone."""
    a, b = Link.pair(max_bytes=1000)
    with Pool(64, "uint8", 1) as pool:
        with filled(pool, 8) as sent:
            a.send(sent)
        view = b.recv(GUARD).numpy()
        b.send(np.zeros(2000))
        with pytest.raises(ferry.ForgedLength):
            a.recv(GUARD)
        if closed:
            a.close()
        none_free(pool)
        b.close()
        none_free(pool)
        assert (view == 8).all()
        del view
        all_back(pool)
        a.close()
        assert (a.fileno(), b.fileno()) == (-1, -1)


# ---- closing while tensors are lent ----


def test_the_sender_closes_first() -> None:
    before = descriptors()
    a, b = Link.pair()
    with Pool(8, "uint8", 1) as pool:
        with filled(pool, 4) as sent:
            a.send(sent)
        a.close()
        assert a.fileno() >= 0
        got = b.recv(GUARD)
        with pytest.raises(ferry.EndOfStream):
            b.recv(GUARD)
        none_free(pool)
        assert (got.numpy() == 4).all()
        got.close()
        acquire(pool).close()
        assert a.fileno() == -1
        b.close()
    assert descriptors() == before


def test_the_receiver_closes_first() -> None:
    a, b = Link.pair()
    with a, Pool(8, "uint8", 2) as pool:
        for value in range(2):
            with filled(pool, value) as sent:
                a.send(sent)
        view = b.recv(GUARD).numpy()
        b.close()
        assert b.fileno() >= 0
        with pytest.raises(ferry.Disconnected):  # nothing more is taken
            b.recv(0)
        other = acquire(pool)  # what it never received
        with pytest.raises(ferry.Disconnected):
            a.send(other)
        none_free(pool)
        assert (view == 0).all()
        del view
        assert b.fileno() == -1
        acquire(pool).close()
        other.close()


def test_both_close_while_each_holds_the_other_s() -> None:
    a, b = Link.pair()
    with Pool(8, "uint8", 1) as ours, Pool(8, "uint8", 1) as theirs:
        with filled(ours, 1) as sent:
            a.send(sent)
        with filled(theirs, 2) as sent:
            b.send(sent)
        at_b, at_a = b.recv(GUARD), a.recv(GUARD)
        a.close()
        b.close()
        none_free(ours)
        none_free(theirs)
        assert (at_b.numpy() == 1).all()
        assert (at_a.numpy() == 2).all()
        at_b.close()
        acquire(ours).close()
        none_free(theirs)
        at_a.close()
        acquire(theirs).close()
        assert a.fileno() == b.fileno() == -1


def test_a_lingering_link_ends_though_its_pool_is_gone() -> None:
    before = descriptors()
    a, b = Link.pair()
    with Pool(8, "uint8", 1) as pool, acquire(pool) as sent:
        a.send(sent)
    del pool, sent
    a.close()
    with b:
        b.recv(GUARD).close()
    c, d = Link.pair()  # any link's making or closing settles it
    c.close()
    d.close()
    assert a.fileno() == -1
    assert descriptors() == before


# ---- inside ----


def test_returns_are_said_when_there_is_room() -> None:
    """The receiver cannot say that it let go, for its own sending is stuck; when that is read, it does."""
    a, b = Link.pair()
    with a, b, Pool(8, "uint8", 1) as pool:
        with acquire(pool) as sent:
            a.send(sent)
        got = b.recv(GUARD)
        stuffed = 0
        try:
            while True:
                b.send(np.zeros(64, np.uint8), 0)
                stuffed += 1
        except ferry.TimedOut:
            pass
        got.close()
        receiver = Thread(lambda: b.recv(GUARD))  # nothing is sent from there any more
        blocked(receiver)
        for _ in range(stuffed):
            a.recv(GUARD)
        acquire(pool).close()
        a.send(np.arange(2))
        receiver.done()


def test_a_finalizer_never_waits_for_a_sender() -> None:
    a, b = Link.pair()
    with a, b, Pool(8, "uint8", 1) as pool:
        with acquire(pool) as sent:
            a.send(sent)
        got = b.recv(GUARD)
        with b._channel._send_lock:  # as in a collection while this very thread sends
            got.close()
            none_free(pool)
        b.send(np.zeros(1))
        acquire(pool).close()
        a.recv(GUARD)


def test_acquire_takes_in_tensors_for_a_later_recv_but_not_without_end() -> None:
    a, b = Link.pair()
    with a, b, Pool(8, "uint8", 1) as pool:
        with acquire(pool) as sent:
            a.send(sent)
        got = b.recv(GUARD)
        for i in range(200):
            b.send(np.full(1, i))
        none_free(pool)
        assert 0 < len(a._waiting) < 200
        none_free(pool)
        for i in range(200):
            assert a.recv(GUARD).numpy()[0] == i
        got.close()
        acquire(pool).close()


def test_a_pool_turns_round_and_round() -> None:
    a, b = Link.pair()
    with b, Pool(128, "int64", 4) as pool:

        def receive() -> int:
            count = 0
            for tensor in b:
                with tensor:
                    array = tensor.numpy()
                    assert array[0] == count
                    assert (array == array[0]).all()
                    del array
                count += 1
            return count

        receiver = Thread(receive)
        with a:
            for i in range(2000):
                with filled(pool, i) as sent:
                    a.send(sent)
        assert receiver.done() == 2000


def test_dropped_while_a_slow_receiver_holds_all() -> None:
    a, b = Link.pair()
    go = threading.Event()
    with b, Pool(8, "uint8", 2, when_empty="drop") as pool:

        def receive() -> int:
            go.wait(GUARD)
            return sum(1 for _ in b)

        receiver = Thread(receive)
        sent = 0
        with a:
            for _ in range(10):
                tensor = pool.acquire()
                if tensor is not None:
                    with tensor:
                        a.send(tensor)
                    sent += 1
            assert (sent, pool.dropped) == (2, 8)
            go.set()
        assert receiver.done() == sent
        eventually(lambda: a.collect() is False and a.fileno() == -1)
