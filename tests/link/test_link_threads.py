"""Several threads on one link."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
from link_peers import GUARD, Array, Thread, acquire, all_back

import tensorferry as ferry
from tensorferry.link import Link, Pool
from tensorferry.tensor import Tensor


def numbered(who: int, number: int, length: int) -> Array:
    """A frame that tells of itself whether it is whole."""
    array = np.full(length, who * 1000 + number, np.int64)
    array[0], array[1] = length, who
    return array


def read(tensor: Tensor) -> tuple[int, int]:
    """Whose frame it is and which, if it is whole."""
    array = tensor.numpy()
    length, who = int(array[0]), int(array[1])
    assert array.shape == (length,)
    number = int(array[2]) - who * 1000
    assert (array[2:] == array[2]).all()
    return who, number


def send_many(link: Link, who: int, count: int) -> None:
    """Small and large, inline and by reference."""
    chance = random.Random(who)
    for number in range(count):
        length = chance.choice([3, 100, 5000, 60000])
        frame = numbered(who, number, length)
        if chance.random() < 0.3:
            with ferry.allocate(length, "int64", storage="shm") as shared:
                shared.numpy()[:] = frame
                link.send(shared)
        else:
            link.send(frame)


def test_senders_never_interleave() -> None:
    a, b = Link.pair()
    with b:
        senders = [Thread(functools.partial(send_many, a, who, 150)) for who in range(3)]
        seen: dict[int, list[int]] = {who: [] for who in range(3)}
        for _ in range(450):
            with b.recv(GUARD) as tensor:
                who, number = read(tensor)
            seen[who].append(number)
        for sender in senders:
            sender.done()
        a.close()
        assert seen == {who: list(range(150)) for who in range(3)}
        with pytest.raises(ferry.EndOfStream):
            b.recv(GUARD)


def test_both_ends_send_and_receive_at_once() -> None:
    a, b = Link.pair()
    with a, b:
        senders = [Thread(functools.partial(send_many, link, who, 100)) for who, link in enumerate((a, b))]

        def receive(link: Link) -> list[tuple[int, int]]:
            return [read(link.recv(GUARD)) for _ in range(100)]

        receivers = [Thread(functools.partial(receive, link)) for link in (b, a)]
        for who, receiver in enumerate(receivers):
            assert receiver.done() == [(who, number) for number in range(100)]
        for sender in senders:
            sender.done()


def test_receivers_share_what_comes() -> None:
    a, b = Link.pair()
    with Pool(64, "int64", 4) as pool:

        def receive() -> list[int]:
            numbers = []
            for tensor in b:
                with tensor:
                    numbers.append(read(tensor)[1])
            return numbers

        receivers = [Thread(receive) for _ in range(3)]
        with a:
            for number in range(600):
                with acquire(pool) as tensor:
                    tensor.numpy()[:] = numbered(0, number, 64)
                    a.send(tensor)
            all_back(pool)
        numbers = [number for receiver in receivers for number in receiver.done()]
        assert sorted(numbers) == list(range(600))
        b.close()


def test_acquirers_a_sender_and_a_receiver_on_one_link() -> None:
    """Buffers come back to a link on which a thread receives, while others wait for them."""
    a, b = Link.pair()
    with Pool(64, "int64", 2) as pool:

        def echo() -> None:
            with b:
                for tensor in b:
                    with tensor:
                        b.send(np.array(tensor.numpy()))

        def send(who: int) -> None:
            for number in range(200):
                with acquire(pool) as tensor:
                    tensor.numpy()[:] = numbered(who, number, 64)
                    a.send(tensor)

        def receive() -> list[tuple[int, int]]:
            return [read(tensor) for tensor in (a.recv(GUARD) for _ in range(400))]

        echoing, receiving = Thread(echo), Thread(receive)
        sending = [Thread(functools.partial(send, who)) for who in range(2)]
        for sender in sending:
            sender.done()
        seen = receiving.done()
        for who in range(2):
            assert [number for sender, number in seen if sender == who] == list(range(200))
        a.close()
        echoing.done()


def test_closing_while_others_are_at_it() -> None:
    for _ in range(20):
        a, b = Link.pair()
        with Pool(64, "int64", 2) as pool:

            def send(link: Link = a, pool: Pool = pool) -> None:
                while True:
                    with acquire(pool) as tensor:
                        link.send(tensor)

            def receive(link: Link = b) -> None:
                for tensor in link:
                    tensor.close()

            sender, receiver = Thread(send), Thread(receive)
            b_closed = random.random() < 0.5
            (b if b_closed else a).close()
            with pytest.raises(ferry.Disconnected):
                sender.done()
            a.close()
            if b_closed:
                with pytest.raises(ferry.Disconnected):
                    receiver.done()
            else:
                receiver.done()
            b.close()
            all_back(pool)
