"""A buffer that the receiver has mapped is lent again by a number, and by that number nothing else is meant."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import socket
import struct
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from link_peers import (
    CONTROL,
    GUARD,
    LEND,
    RETURN,
    Thread,
    acquire,
    all_back,
    child,
    descriptors,
    echo,
    eventually,
    fileno,
    give_back,
    mapped,
    memfd,
    put,
    raw_pair,
    reference,
)

import tensorferry as ferry
from tensorferry.link import Link, Pool
from tensorferry.link.slots import MAX_SLOTS
from tensorferry.tensor import Tensor

KNOWN = RETURN | 1 << 8
AGAIN = 3
BLOB = ferry.dumps(np.arange(64, dtype=np.uint8))


def propose(token: int, length: int, slot: int) -> bytes:
    return CONTROL.pack(CONTROL.size, LEND | length << 8 | slot << 56, token)


def again(token: int, slot: int) -> bytes:
    return CONTROL.pack(CONTROL.size, AGAIN | slot << 8, token)


def confirm(token: int) -> bytes:
    return CONTROL.pack(CONTROL.size, KNOWN, token)


class Frame:
    """What a link sent: its control frame taken apart, and what came with it."""

    def __init__(self, sock: socket.socket) -> None:
        data, fds, _, _ = socket.recv_fds(sock, CONTROL.size, 253)
        size, what, self.token = CONTROL.unpack(data)
        assert size == CONTROL.size
        self.kind = what & 0xFF
        self.slot = what >> 8 if self.kind == AGAIN else what >> 56
        length = what >> 8 & (1 << 48) - 1 if self.kind == LEND else 0
        self.blob = sock.recv(length, socket.MSG_WAITALL) if length else b""
        self.descriptors = len(fds)
        for fd in fds:
            socket.close(fd)


@pytest.fixture
def wire() -> Iterator[tuple[socket.socket, Link]]:
    sock, link = raw_pair()
    with link, sock:
        yield sock, link


@pytest.fixture
def pair() -> Iterator[tuple[Link, Link]]:
    a, b = Link.pair()
    with a, b:
        yield a, b


def passed(a: Link, b: Link, tensor: Tensor) -> Tensor:
    a.send(tensor)
    return b.recv(GUARD)


def known_at(link: Link) -> int:
    return len(link._known)


def ended(wire: tuple[socket.socket, Link], why: str) -> None:
    for _ in range(2):
        with pytest.raises(ferry.Malformed, match=why):
            wire[1].recv(GUARD)


# ---- what goes over the wire ----


def test_one_control_frame_from_the_second_round_on(wire: tuple[socket.socket, Link]) -> None:
    sock, link = wire
    with Pool(64, "uint8", 1) as pool:
        for i in range(5):
            with acquire(pool) as tensor:
                link.send(tensor)
            frame = Frame(sock)
            if i == 0:
                assert (frame.kind, frame.slot, frame.descriptors) == (LEND, 1, 1)
                assert frame.blob
            else:
                assert (frame.kind, frame.slot, frame.descriptors, frame.blob) == (AGAIN, 1, 0, b"")
            put(sock, confirm(frame.token) if i == 0 else give_back(frame.token))
        all_back(pool)


def test_nothing_is_opened_looked_at_or_closed_from_the_second_round_on(
    pair: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    with Pool(64, "uint8", 3) as pool:
        for _ in range(2):
            held = [acquire(pool) for _ in range(3)]
            for tensor in held:
                with tensor:
                    passed(a, b, tensor).close()
            all_back(pool)

        def never(*_: Any, **__: Any) -> Any:
            raise AssertionError("it was known already")

        before = descriptors()
        with monkeypatch.context() as patch:
            patch.setattr("tensorferry.link.mappings.os.fstat", never)
            patch.setattr("tensorferry.link.mappings.open_region", never)
            patch.setattr("tensorferry.blob.import_", never)
            patch.setattr("tensorferry.blob.export", never)
            for i in range(100):
                with acquire(pool) as tensor:
                    tensor.numpy()[:] = i
                    a.send(tensor)
                with b.recv(GUARD) as got:
                    assert (got.numpy() == i).all()
        assert descriptors() == before
        all_back(pool)


def test_only_what_was_confirmed_is_lent_by_number(wire: tuple[socket.socket, Link]) -> None:
    sock, link = wire
    with Pool(64, "uint8", 1) as pool, acquire(pool) as tensor:
        link.send(tensor)
        link.send(tensor)
        first, second = Frame(sock), Frame(sock)
        assert (first.kind, first.slot) == (LEND, 1)
        assert (second.kind, second.slot) == (LEND, 0)  # the proposal is still on its way
        put(sock, give_back(first.token) + give_back(second.token))
        link.collect()
        link.send(tensor)
        third = Frame(sock)
        assert (third.kind, third.slot) == (LEND, 1)  # it was not taken: the number is free, and proposed again
        put(sock, confirm(third.token))
        link.collect()
        link.send(tensor)
        assert Frame(sock).kind == AGAIN


def test_a_frame_that_was_not_sent_leaves_its_number_free(wire: tuple[socket.socket, Link]) -> None:
    sock, link = wire
    with Pool(64, "uint8", 1) as pool, acquire(pool) as tensor:
        sent = 0
        with contextlib.suppress(ferry.TimedOut):
            while True:
                link.send(np.zeros(1 << 12, np.uint8), 0)
                sent += 1
        for _ in range(2 * MAX_SLOTS):
            with pytest.raises(ferry.TimedOut):
                link.send(tensor, 0)
        for _ in range(sent):
            size = struct.unpack("<Q", sock.recv(8, socket.MSG_WAITALL))[0]
            sock.recv(size - 8, socket.MSG_WAITALL)
        link.send(tensor)
        assert Frame(sock).slot == 1


# ---- the tensor is the same, however it came ----


@pytest.mark.parametrize("format", ["rgb8", "NV12", "rgb8_planar"])
def test_images(pair: tuple[Link, Link], format: str) -> None:
    a, b = pair

    def said(tensor: Tensor) -> Any:
        planes = [(p.offset, p.size, p.stride, p.used, p.modifier, bytes(p.data or b"")) for p in tensor.planes]
        what = (tensor.shape, tensor.strides, tensor.strides_given, tensor.dtype, tensor.format, tensor.colorimetry)
        return what, tensor.storage, planes

    with Pool.of_images(format, 32, 16, 1, stride=128) as pool:
        seen = []
        for _ in range(3):
            with acquire(pool) as tensor:
                for i in range(len(tensor.planes)):
                    tensor.plane(i)[:] = i + 1
                a.send(tensor)
            with b.recv(GUARD) as got:
                seen.append(said(got))
        assert seen[0] == seen[1] == seen[2]
        assert known_at(b) == 1
        all_back(pool)


def test_two_descriptions_of_one_buffer_are_two(pair: tuple[Link, Link]) -> None:
    a, b = pair
    with Pool(64, "uint8", 1) as pool:
        for _ in range(4):
            with acquire(pool) as tensor:
                for scale in (0.5, 0.25, None):
                    quantization = None if scale is None else ferry.Quantization([scale])
                    with tensor.replace(quantization=quantization) as other, passed(a, b, other) as got:
                        assert got.quantization == quantization
                with passed(a, b, tensor) as got:
                    assert got.quantization is None
        all_back(pool)


def test_labels_are_refused_or_left_behind_as_ever(pair: tuple[Link, Link]) -> None:
    a, b = pair
    with Pool(64, "uint8", 1) as pool:
        for _ in range(3):
            with acquire(pool) as tensor:
                passed(a, b, tensor).close()
                with tensor.replace(labels=ferry.Labels(name="x")) as labelled:
                    with pytest.raises(ferry.Lossy):
                        a.send(labelled)
                    a.send(labelled, lossy=True)
                with b.recv(GUARD) as got:
                    assert got.labels is None
        all_back(pool)


@pytest.mark.parametrize("writable", [False, True])
def test_it_is_as_writable_as_the_link_says(writable: bool) -> None:
    a, b = Link.pair(writable=writable, policy="refuse")
    with a, b, Pool(64, "uint8", 1) as pool:
        for _ in range(3):
            with acquire(pool) as tensor, passed(a, b, tensor) as got:
                assert got.numpy().flags.writeable is writable
        all_back(pool)


def test_a_view_holds_the_buffer(pair: tuple[Link, Link]) -> None:
    a, b = pair
    with Pool(64, "uint8", 1) as pool:
        for _ in range(3):
            with acquire(pool) as tensor:
                a.send(tensor)
            with b.recv(GUARD) as got:
                view = got.numpy()
            del got
            with pytest.raises(ferry.TimedOut):
                pool.acquire(0.01)
            del view
        all_back(pool)


def test_in_an_event_loop() -> None:
    async def run() -> None:
        a, b = Link.pair()
        with a, b, Pool(64, "uint8", 1) as pool:
            for i in range(20):
                tensor = await pool.aacquire()
                assert tensor is not None
                with tensor:
                    tensor.numpy()[:] = i
                    await a.asend(tensor)
                with await b.arecv() as got:
                    assert (got.numpy() == i).all()
            assert known_at(b) == 1
            all_back(pool)

    asyncio.run(run())


def test_sending_on_what_was_received(pair: tuple[Link, Link]) -> None:
    a, b = pair
    c, d = Link.pair()
    with c, d, Pool(64, "uint8", 2) as pool:
        for i in range(20):
            with acquire(pool) as tensor:
                tensor.numpy()[:] = i
                a.send(tensor)
            with b.recv(GUARD) as got:
                c.send(got)
            with d.recv(GUARD) as got:
                assert (got.numpy() == i).all()
            c.collect()
        assert known_at(b) == known_at(d) == 2
        all_back(pool)


# ---- how many, and for how long ----


def test_buffers_beyond_the_slots_go_the_full_way(pair: tuple[Link, Link]) -> None:
    a, b = pair
    with Pool(64, "uint8", MAX_SLOTS + 6) as pool:
        for i in range(4):
            out = [acquire(pool) for _ in range(pool.count)]
            for n, tensor in enumerate(out):
                with tensor:
                    tensor.numpy()[:] = i + n
                    with passed(a, b, tensor) as got:
                        assert (got.numpy() == i + n).all()
            del tensor, got
            out.clear()
        assert known_at(b) == MAX_SLOTS
        all_back(pool)


def test_numbers_of_pools_that_are_gone_are_used_again(pair: tuple[Link, Link]) -> None:
    a, b = pair
    before = mapped()
    for i in range(3 * MAX_SLOTS):
        with Pool(64, "uint8", 2) as pool:
            for n in range(6):
                with acquire(pool) as tensor:
                    tensor.numpy()[:] = (i + n) % 256
                    with passed(a, b, tensor) as got:
                        assert (got.numpy() == (i + n) % 256).all()
            all_back(pool)
    assert known_at(b) <= MAX_SLOTS
    del tensor, got, pool
    gc.collect()
    b.close()
    assert mapped() == before  # on this side nothing kept them


def test_nothing_keeps_a_buffer_here_when_its_pool_is_gone(pair: tuple[Link, Link]) -> None:
    a, b = pair
    with Pool(64, "uint8", 1) as pool:
        for _ in range(3):
            with acquire(pool) as tensor:
                region = weakref.ref(tensor.planes[0].handle)
                passed(a, b, tensor).close()
        all_back(pool)
    del tensor, pool
    gc.collect()
    assert region() is None


def test_closing_forgets(pair: tuple[Link, Link]) -> None:
    a, b = pair
    before = mapped()
    with Pool(64, "uint8", 1) as pool:
        for _ in range(2):
            with acquire(pool) as tensor:
                passed(a, b, tensor).close()
        all_back(pool)
        b.close()
        assert known_at(b) == 0
        assert mapped() == before + 1
        a.close()
        assert a._slots._slots == {}


def test_what_is_thrown_away_is_not_confirmed(wire: tuple[socket.socket, Link]) -> None:
    sock, link = wire
    data, tensor = reference()
    with tensor:
        put(sock, propose(7, len(data), 1), [fileno(tensor)])
        put(sock, data)
        link.collect()
        link.close()
        assert sock.recv(CONTROL.size, socket.MSG_WAITALL) == give_back(7)


# ---- other processes ----


def test_a_forked_child_goes_on_receiving(pair: tuple[Link, Link]) -> None:
    a, b = pair
    with Pool(64, "int64", 2) as pool:
        for i in range(6):
            with acquire(pool) as tensor:
                tensor.numpy()[:] = i
                passed(a, b, tensor).close()
        with acquire(pool) as tensor:
            held = passed(a, b, tensor)

        def run() -> None:
            a.close()
            for i, got in enumerate(b):
                with got:
                    assert (got.numpy() == i).all()

        with child(run):
            held.close()
            b.close()
            for i in range(20):
                with acquire(pool) as tensor:
                    tensor.numpy()[:] = i
                    a.send(tensor)
            all_back(pool)
            a.close()


def test_a_forked_child_sends_the_full_way(wire: tuple[socket.socket, Link]) -> None:
    sock, link = wire
    with Pool(64, "uint8", 1) as pool, acquire(pool) as tensor:
        link.send(tensor)
        put(sock, confirm(Frame(sock).token))
        link.collect()

        def run() -> None:
            link.send(tensor)

        with child(run):
            frame = Frame(sock)
            assert (frame.kind, frame.slot) == (LEND, 0)


def test_a_spawned_child_goes_on_receiving_and_sends_anew(spawning: None) -> None:
    a, b = Link.pair()
    spawn = multiprocessing.get_context("spawn")
    with a, Pool(64, "int64", 2) as pool:
        for _ in range(4):
            with acquire(pool) as tensor:
                with passed(a, b, tensor) as got:
                    b.send(got)
                a.recv(GUARD).close()
                b.collect()
        it = spawn.Process(target=echo, args=(b,))
        it.start()
        b.close()
        for i in range(10):
            with acquire(pool) as tensor:
                tensor.numpy()[:] = i
                a.send(tensor)
            with a.recv(GUARD) as got:
                assert (got.numpy() == i).all()
        all_back(pool)
        a.close()
        it.join(GUARD)
        assert it.exitcode == 0
        it.close()


def test_nothing_is_torn_with_several_receivers_and_pools() -> None:
    """Each frame is all of one number, from the first look to the last, and none is lost or comes twice."""
    rounds, size = 1000, 1 << 14
    ends = [Link.pair() for _ in range(3)]

    def receiver(mine: Link) -> None:
        for a, b in ends:
            a.close()
            if b is not mine:
                b.close()
        due = 0
        for got in mine:
            with got:
                values = got.numpy()
                assert values[0] == due
                assert (values == due).all()
                assert (values == due).all()
                del values  # or the last is held while there is nothing more to come
            due += 1
        assert due == rounds

    def sender(links: list[Link]) -> None:
        with Pool(size, "int32", 4) as one, Pool(size, "int32", 3) as two:
            for i in range(rounds):
                with acquire((one, two)[i % 3 == 0]) as tensor:
                    tensor.numpy()[:] = i
                    for link in links:
                        link.send(tensor, GUARD)
            all_back(one)
            all_back(two)

    with child(lambda: receiver(ends[0][1])), child(lambda: receiver(ends[1][1])), child(lambda: receiver(ends[2][1])):
        for _, b in ends:
            b.close()
        sender([a for a, _ in ends])
        for a, _ in ends:
            a.close()


def test_threads_that_send_and_receive_over_one_link(pair: tuple[Link, Link]) -> None:
    a, b = pair
    rounds = 400

    def send(start: int) -> None:
        with Pool(256, "int32", 3) as pool:
            for i in range(rounds):
                with acquire(pool) as tensor:
                    tensor.numpy()[:] = start + i
                    a.send(tensor, GUARD)
            all_back(pool)

    def receive() -> list[int]:
        seen = []
        for _ in range(rounds):
            with b.recv(GUARD) as got:
                values = got.numpy()
                seen.append(int(values[0]))
                assert (values == values[0]).all()
        return seen

    receivers = [Thread(receive) for _ in range(2)]
    senders = [Thread(partial(send, start)) for start in (0, 10_000)]
    seen = sorted(receivers[0].done() + receivers[1].done())
    for thread in senders:
        thread.done()
    assert seen == [*range(rounds), *range(10_000, 10_000 + rounds)]


# ---- peers that break the rules ----


@pytest.mark.parametrize("slot", [0, 1, MAX_SLOTS, MAX_SLOTS + 1, 255, 1 << 32, (1 << 56) - 1])
def test_a_number_that_stands_for_nothing(wire: tuple[socket.socket, Link], slot: int) -> None:
    put(wire[0], again(1, slot))
    ended(wire, "not known here")


def test_a_number_beyond_the_last(wire: tuple[socket.socket, Link]) -> None:
    put(wire[0], propose(1, len(BLOB), MAX_SLOTS + 1) + BLOB)
    ended(wire, f"slot {MAX_SLOTS + 1} was proposed")


def test_descriptors_with_a_number(wire: tuple[socket.socket, Link]) -> None:
    sock, link = wire
    data, tensor = reference()
    with tensor:
        put(sock, propose(1, len(data), 1), [fileno(tensor)])
        put(sock, data)
        link.recv(GUARD).close()
        before = descriptors()
        put(sock, again(2, 1), [fileno(tensor)] * 2)
        ended(wire, "brought descriptors")
        assert descriptors() == before


def test_a_number_where_a_blob_was_announced(wire: tuple[socket.socket, Link]) -> None:
    sock, link = wire
    data, tensor = reference()
    with tensor:
        put(sock, propose(1, len(data), 1), [fileno(tensor)])
        put(sock, data)
        link.recv(GUARD).close()
        put(sock, propose(2, len(data), 2) + again(3, 1))
        ended(wire, "a blob was announced")


@pytest.mark.parametrize("proposed", [False, True])
def test_a_confirmation_of_what_was_not_proposed(wire: tuple[socket.socket, Link], proposed: bool) -> None:
    sock, link = wire
    with Pool(64, "uint8", 1) as pool, acquire(pool) as tensor:
        link.send(tensor)
        put(sock, confirm(Frame(sock).token))
        link.collect()
        link.send(tensor)
        token = Frame(sock).token
        put(sock, confirm(999 if proposed else token))
        ended(wire, "not lent" if proposed else "proposed no slot")


def returned(sock: socket.socket) -> tuple[int, int]:
    _, what, token = CONTROL.unpack(sock.recv(CONTROL.size, socket.MSG_WAITALL))
    return what, token


def test_only_what_is_mapped_is_remembered(wire: tuple[socket.socket, Link]) -> None:
    """Not what was read out, or came inline, or was refused; and of a number that is given anew, the old is over."""
    sock, link = wire
    data, tensor = reference()
    loose = memfd(bytes(512), sealed=False)
    with tensor:
        put(sock, propose(1, len(data), 5), [fileno(tensor)])
        put(sock, data)
        link.recv(GUARD).close()
        assert returned(sock) == (KNOWN, 1)
        put(sock, again(2, 5))
        with link.recv(GUARD) as got:
            assert (got.numpy() == tensor.numpy()).all()
        assert returned(sock) == (RETURN, 2)

        put(sock, propose(3, len(data), 5), [loose])
        put(sock, data)
        link.recv(GUARD).close()
        assert returned(sock) == (RETURN, 3)
        assert known_at(link) == 0
        put(sock, propose(4, len(BLOB), 5) + BLOB)
        link.recv(GUARD).close()
        assert returned(sock) == (RETURN, 4)
        put(sock, propose(5, len(data), 5) + data)
        with pytest.raises(ferry.Malformed, match="0 came"):
            link.recv(GUARD)
        assert returned(sock) == (RETURN, 5)
        assert known_at(link) == 0
        put(sock, again(6, 5))
        ended(wire, "not known here")
    socket.close(loose)


def test_a_number_means_what_it_meant_when_it_came(wire: tuple[socket.socket, Link]) -> None:
    """Though by the time that somebody asks for the tensor it was given to another buffer."""
    sock, link = wire
    data, one = reference(512)
    more, two = reference(256)
    with one, two:
        put(sock, propose(1, len(data), 1), [fileno(one)])
        put(sock, data)
        link.recv(GUARD).close()
        put(sock, again(2, 1))
        put(sock, propose(3, len(more), 1), [fileno(two)])
        put(sock, more)
        put(sock, again(4, 1))
        link.collect()  # the last is too early: what was proposed has not been looked at
        for shape in (512, 256):
            with link.recv(GUARD) as got:
                assert got.shape == (shape,)
        ended(wire, "not known here")


def test_a_crowd_of_numbers_is_taken_in_only_as_it_is_asked_for(wire: tuple[socket.socket, Link]) -> None:
    sock, link = wire
    data, tensor = reference()
    with tensor:
        put(sock, propose(1, len(data), 1), [fileno(tensor)])
        put(sock, data)
        link.recv(GUARD).close()
        for i in range(200):
            put(sock, again(2 + i, 1))
        while link.collect():
            pass
        assert len(link._waiting) <= 2 * 64
        for _ in range(200):
            link.recv(GUARD).close()
        eventually(lambda: not link._held)
