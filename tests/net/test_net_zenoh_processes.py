"""Tensors over Zenoh between processes: nothing torn, nobody slowed, and those who were killed come back."""

from __future__ import annotations

import itertools
import signal
import time

import net_peers as peers
import pytest
from net_peers import GUARD, at, child, endpoint, eventually, to

import tensorferry as ferry
from tensorferry.net import zenoh

pytest.importorskip("zenoh", reason="the extra zenoh is not installed")

ALL = {"depth": 20_000}
FIRST = 1 << 20
"""A number that no frame before has."""


def test_ten_thousand_frames_and_none_torn() -> None:
    """Publisher and two subscribers in processes of their own; the slow one drops and holds nobody up."""
    where, count = endpoint(), 10_000
    with (
        child(peers.receiving, to(where), "frames", 0.0, ALL) as fast,
        child(peers.receiving, to(where), "frames", 0.01, {"depth": 4}) as slow,
        child(peers.publishing, at(where), "frames", 1024, {"congestion_control": "block"}) as publisher,
    ):
        for one in (fast, slow, publisher):
            assert one.says() == "ready"
        _until_received(publisher, fast)
        _until_received(publisher, slow)
        seen = {one: one.ask("counts") for one in (fast, slow)}
        publisher.pipe.send((FIRST, count, 0))
        assert publisher.says() == count
        eventually(lambda: (fast.ask("counts")[0] or [0])[-1] == FIRST + count - 1)
        numbers, torn, received, dropped, refused = fast.ask("counts")
        assert (torn, dropped, refused) == (0, 0, 0)
        assert numbers[-count:] == list(range(FIRST, FIRST + count))
        assert received - seen[fast][2] == count
        eventually(lambda: slow.ask("counts")[0][-1] == FIRST + count - 1)
        numbers, torn, received, dropped, refused = slow.ask("counts")
        assert (torn, refused) == (0, 0)
        assert dropped > 0
        assert received + dropped - seen[slow][2] - seen[slow][3] == count
        assert numbers == sorted(set(numbers))


def _until_received(publisher: peers.Child, subscriber: peers.Child) -> int:
    """Publish frames until the subscriber has one: it has joined. The number of the last frame."""
    last = 0

    def joined() -> bool:
        nonlocal last
        last = next(_numbers)
        publisher.ask((last, 1, 0.01))
        return bool(subscriber.ask("counts")[0])

    eventually(joined)
    return last


_numbers = itertools.count(1)


def test_a_subscriber_that_was_killed_and_restarted_rejoins() -> None:
    where = endpoint()
    with (
        child(peers.publishing, at(where), "frames", 64, {}) as publisher,
        child(peers.receiving, to(where), "frames", 0.0, ALL) as other,
    ):
        assert publisher.says() == other.says() == "ready"
        for _ in range(3):
            with child(peers.receiving, to(where), "frames", 0.0, ALL) as one:
                assert one.says() == "ready"
                _until_received(publisher, one)
                one.signal(signal.SIGKILL)
        last = _until_received(publisher, other)
        eventually(lambda: other.ask("counts")[0][-1] == last)
        assert other.ask("counts")[1] == 0


def test_a_publisher_that_was_killed_and_restarted_is_heard_again() -> None:
    where = endpoint()
    with zenoh.Subscriber("frames", **at(where)) as subscriber:
        for _ in range(2):
            with child(peers.publishing, to(where), "frames", 64, {}) as publisher:
                assert publisher.says() == "ready"

                def heard(publisher: peers.Child = publisher) -> bool:
                    publisher.ask((1, 1, 0))
                    return subscriber.recv(0.05) is not None

                eventually(heard)
                publisher.pipe.send((1, 10_000, 0))  # in the middle of which it is killed
        assert subscriber.counts.refused == 0


def test_memory_that_zenoh_took_back_is_refused_not_misread() -> None:
    """A process that was stopped for long finds the sender's next frames where its own were, and must notice."""
    where, words = endpoint(), 750_000  # 3 MB: Zenoh passes such messages through shared memory of 16 MiB
    with (
        child(peers.holding, to(where), "frames", {"depth": 1000}) as subscriber,
        child(peers.publishing, at(where), "frames", words, {}) as publisher,
    ):
        assert publisher.says() == subscriber.says() == "ready"
        eventually(lambda: publisher.ask((0, 1, 0.05)) and subscriber.ask("next")[0] == 0)
        while subscriber.ask("next")[0] != "nothing":
            continue
        publisher.ask((1, 8, 0.02))  # wait unread
        subscriber.signal(signal.SIGSTOP)
        time.sleep(1)
        publisher.ask((100, 8, 0.02))
        subscriber.signal(signal.SIGCONT)
        numbers = []
        while (said := subscriber.ask("next"))[0] != "nothing":
            numbers.append(said[0])
        assert None not in numbers, "a torn frame was handed out"
        assert numbers == sorted(numbers), "a frame was handed out for another"
        if said[1]:
            assert said[2] == "payload"


# ---- by reference ----


def test_a_tensor_in_shared_memory_goes_by_reference_where_both_allow_it() -> None:
    where = endpoint()
    with (
        child(peers.publishing_shared, at(where), "shared", 5000) as publisher,
        zenoh.Subscriber("shared", reference=True, depth=100, **to(where)) as allowing,
        zenoh.Subscriber("shared", depth=100, **to(where)) as other,
    ):
        assert publisher.says() == "ready"
        _skip_unless_fetching_works(publisher)
        eventually(lambda: publisher.ask(1) and allowing.recv(0.05) is not None)
        before = allowing.counts.received
        publisher.ask(3)
        for number in range(3):
            tensor = allowing.recv(GUARD)
            assert tensor is not None
            assert tensor.storage == "shm"
            assert peers.number_of(tensor.numpy()) == number
        assert allowing.counts.received == before + 3
        assert other.recv(0.2) is None
        refusal = other.counts.last_refusal
        assert isinstance(refusal, ferry.Unsupported)
        assert "reference=True" in str(refusal)


def test_a_reference_that_came_too_late_is_refused() -> None:
    """The publisher keeps the last eight; the numbers of older descriptors stand for other memory, or none."""
    where = endpoint()
    with (
        child(peers.publishing_shared, at(where), "shared", 50) as publisher,
        zenoh.Subscriber("shared", reference=True, depth=100, **to(where)) as subscriber,
    ):
        assert publisher.says() == "ready"
        _skip_unless_fetching_works(publisher)
        eventually(lambda: publisher.ask(1) and subscriber.recv(0.05) is not None)
        while subscriber.recv(0.2) is not None:
            continue
        received = subscriber.counts.received
        publisher.ask(20)
        numbers = []
        while (tensor := subscriber.recv(0.2)) is not None:
            numbers.append(peers.number_of(tensor.numpy()))
        assert numbers == list(range(12, 20))
        assert subscriber.counts.received - received == 8
        assert subscriber.counts.refused == 12
        assert isinstance(subscriber.counts.last_refusal, ferry.NoSuchDescriptor)


def _skip_unless_fetching_works(publisher: peers.Child) -> None:
    try:
        ferry.memory.fetch(publisher.pid, 0, allow=True).close()
    except (ferry.FetchRefused, ferry.Unsupported) as error:
        pytest.skip(f"descriptors cannot be fetched by pid here: {error}")
