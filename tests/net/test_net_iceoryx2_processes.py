"""iceoryx2 between processes: nothing torn, nobody slowed, and what is left of those that are killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from iceoryx2_peers import Stranger, hoarding, home, left_in_shm, node_in, place_of, publishing, receiving
from net_peers import GUARD, child, eventually, fill, number_of

import tensorferry as ferry
from tensorferry.net import iceoryx2

pytest.importorskip("iceoryx2", reason="the extra iceoryx2 is not installed")

TOPIC = "camera/front"
WORDS = 4096


@pytest.fixture
def root() -> Iterator[str]:
    with home() as directory:
        yield directory


def taken(source: iceoryx2.Subscriber) -> ferry.Tensor:
    tensor = source.recv(GUARD)
    assert tensor is not None
    return tensor


def test_no_byte_is_copied_between_processes(root: str) -> None:
    with (
        iceoryx2.Subscriber(TOPIC, node=node_in(root)) as here,
        child(publishing, root, TOPIC, WORDS, {}) as there,
    ):
        assert there.says() == "ready"
        place = there.ask((5, 1))
        frame = taken(here).numpy()
        assert place_of(frame) == place  # the same bytes of the same file in shared memory
        assert frame.ctypes.data % 64 == 0
        assert number_of(frame) == 5


def test_ten_thousand_frames_in_order_and_none_torn(root: str) -> None:
    with (
        iceoryx2.Subscriber(TOPIC, node=node_in(root)) as here,
        child(publishing, root, TOPIC, 64, {"overflow": "block"}) as there,
    ):
        assert there.says() == "ready"
        there.pipe.send((0, 10_000))
        for number in range(10_000):
            with taken(here) as tensor:
                assert number_of(tensor.numpy()) == number
        assert there.says() is not None
        assert (here.counts.received, here.counts.dropped, here.counts.refused) == (10_000, 0, 0)


def test_a_slow_subscriber_loses_the_oldest_and_slows_nobody(root: str) -> None:
    with (
        iceoryx2.Publisher(TOPIC, node=node_in(root)) as there,
        child(receiving, root, TOPIC, 0.0, {}) as fast,
        child(receiving, root, TOPIC, 0.02, {}) as slow,
    ):
        assert [one.says() for one in (fast, slow)] == ["ready", "ready"]
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                loan = there.loan(WORDS, np.uint32)
                fill(loan.numpy(), sent)
                there.publish(loan)
                sent += 1
                while fast.ask("counts")[2] < sent:
                    pass

        send(100)
        numbers, torn, received, dropped, refused = fast.ask("counts")
        assert (numbers, torn, received, dropped, refused) == (list(range(100)), 0, 100, 0, 0)
        eventually(lambda: slow.ask("counts")[0][-1:] == [99])
        numbers, torn, received, dropped, refused = slow.ask("counts")
        assert (torn, refused) == (0, 0)
        assert numbers == sorted(set(numbers))
        assert received + dropped == 100 - numbers[0]


def test_a_publisher_killed_with_samples_in_flight(root: str) -> None:
    node = node_in(root)
    with iceoryx2.Subscriber(TOPIC, node=node) as here:
        with child(publishing, root, TOPIC, WORDS, {}) as there:
            assert there.says() == "ready"
            there.ask((0, 5))
            first = taken(here)
            there.pipe.send((5, 1_000_000))
            eventually(lambda: iceoryx2.topics(node=node)[0].publishers == 1)
            there.signal(signal.SIGKILL)
        assert iceoryx2.clean_up(node=node) == 1
        assert iceoryx2.topics(node=node) == [(TOPIC, 0, 1)]
        waiting = []
        while (tensor := here.recv(0)) is not None:
            number = number_of(tensor.numpy())
            assert number is not None  # none is torn
            waiting.append(number)
            del tensor
        assert waiting
        assert waiting == sorted(waiting)
        assert number_of(first.numpy()) == 0  # still there to look at
        with child(publishing, root, TOPIC, WORDS, {}) as successor:
            assert successor.says() == "ready"
            successor.ask((70, 2))
            assert [number_of(taken(here).numpy()) for _ in range(2)] == [70, 71]
            assert here.counts.refused == 0
        del first
    iceoryx2.clean_up(node=node)
    assert left_in_shm(root) == []


def test_a_subscriber_killed_with_samples_in_its_hands(root: str) -> None:
    with iceoryx2.Publisher(TOPIC, node=node_in(root), overflow="block", depth=4) as there:
        with child(hoarding, root, TOPIC, {}) as hoarder:
            assert hoarder.says() == "ready"
            for number in range(4):
                there.publish(np.array([number]), timeout=GUARD)
            assert hoarder.ask(3) == 3
            with pytest.raises(ferry.TimedOut):
                there.publish(np.array([4]), timeout=0.05)
            published = threading.Event()

            def publish() -> None:
                there.publish(np.array([4]), timeout=GUARD)
                published.set()

            thread = threading.Thread(target=publish)
            thread.start()
            assert not published.wait(0.05)
            hoarder.signal(signal.SIGKILL)
        thread.join(GUARD)
        assert published.is_set()


def test_a_subscriber_comes_back(root: str) -> None:
    with iceoryx2.Publisher(TOPIC, node=node_in(root), max_subscribers=1) as there:
        for number in range(3):
            with child(receiving, root, TOPIC, 0.0, {}) as here:  # killed each time, and takes the only place
                assert here.says() == "ready"
                there.publish(np.full(4, number, np.uint32))
                eventually(lambda: here.ask("counts")[2] == 1)


def test_a_hostile_publisher_among_good_ones(root: str) -> None:
    node = node_in(root)
    stranger = Stranger(node, TOPIC)
    with (
        iceoryx2.Subscriber(TOPIC, node=node) as here,
        child(publishing, root, TOPIC, WORDS, {}) as there,
    ):
        assert there.says() == "ready"
        for number in range(20):
            stranger.send(b"\xff" * 300, length=2 << 30)
            there.ask((number, 1))
            assert number_of(taken(here).numpy()) == number
        eventually(lambda: here.recv(0) is None)
        assert (here.counts.received, here.counts.refused) == (20, 20)
    stranger.close()


def test_a_frame_of_a_4k_image_by_default(root: str) -> None:
    node: Any = node_in(root)
    with iceoryx2.Publisher(TOPIC, node=node) as there, iceoryx2.Subscriber(TOPIC, node=node) as here:
        loan = there.loan_image("NV12", 3840, 2160)
        loan.plane(1)[...] = 3
        there.publish(loan)
        assert int(taken(here).plane(1).min()) == 3
