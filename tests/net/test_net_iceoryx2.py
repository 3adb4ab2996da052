"""iceoryx2 within one process: loans in place, what travels, who keeps samples, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iceoryx2_peers import Stranger, home, left_in_shm, node_in, place_of
from net_peers import GUARD, eventually

import tensorferry as ferry
from tensorferry import blob, vlink
from tensorferry.net import iceoryx2
from tensorferry.net.attachment import Attachment, write_attachment
from tensorferry.net.iceoryx2 import engine, reading

pytest.importorskip("iceoryx2", reason="the extra iceoryx2 is not installed")

DATA = Path(__file__).parents[1] / "data" / "blob"
VLINK_DATA = Path(__file__).parents[1] / "data" / "vlink"
TOPIC = "camera/front"
SHAPE = (48, 64, 3)


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    with home() as directory:
        yield directory


@pytest.fixture
def node(root: str) -> Iterator[Any]:
    made = node_in(root)
    yield made
    del made
    gc.collect()
    assert left_in_shm(root) == []


def publisher(node: Any, **options: Any) -> iceoryx2.Publisher:
    return iceoryx2.Publisher(TOPIC, node=node, **options)


def subscriber(node: Any, **options: Any) -> iceoryx2.Subscriber:
    return iceoryx2.Subscriber(TOPIC, node=node, **options)


def taken(source: iceoryx2.Subscriber) -> ferry.Tensor:
    tensor = source.recv(GUARD)
    assert tensor is not None
    return tensor


# ---- in place ----


def test_a_loan_is_the_memory_that_is_received(node: Any) -> None:
    with publisher(node) as there, subscriber(node) as here:
        loan = there.loan(SHAPE, np.uint8)
        frame = loan.numpy()
        frame[...] = np.arange(frame.size, dtype=np.uint8).reshape(SHAPE)
        wanted, place = frame.copy(), place_of(frame)
        assert frame.ctypes.data % 64 == 0
        there.publish(loan)
        got = taken(here).numpy()
        assert place_of(got) == place
        assert got.ctypes.data % 64 == 0
        assert not got.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            got.flags.writeable = True
        np.testing.assert_array_equal(got, wanted)


def test_a_loan_is_published_once(node: Any) -> None:
    with publisher(node) as there, subscriber(node) as here:
        loan = there.loan(4, np.float32)
        relabelled = loan.replace(labels=ferry.Labels(seq=3))
        there.publish(relabelled)
        for one in (loan, relabelled):
            with pytest.raises(ferry.Closed):
                there.publish(one)
            with pytest.raises(ferry.Closed):
                one.numpy()
        assert taken(here).labels == ferry.Labels(seq=3)
        assert here.recv(0) is None


@pytest.mark.parametrize("format", iceoryx2.FORMATS)
def test_what_is_said_after_lending_travels_in_place(node: Any, format: str) -> None:
    quantization = ferry.Quantization(0.5, 3)
    labels = ferry.Labels(name="front", seq=9)
    with publisher(node, format=format) as there, subscriber(node) as here:
        loan = there.loan((2, 3), np.int8, labels=ferry.Labels(seq=1))
        loan.numpy()[...] = 5
        place = place_of(loan.numpy())
        there.publish(loan.replace(quantization=quantization, labels=labels), log_time=77)
        received = here.receive(GUARD)
        assert received is not None
        assert (received.topic, received.log_time) == (TOPIC, 77)
        assert received.tensor.labels is not None
        assert (received.tensor.labels.name, received.tensor.labels.seq) == ("front", 9)
        assert received.tensor.quantization == quantization
        assert place_of(received.tensor.numpy()) == place


def test_what_does_not_fit_around_a_loan_is_copied(node: Any) -> None:
    labels = ferry.Labels(name="n" * 3000)
    with publisher(node) as there, subscriber(node) as here:
        loan = there.loan((2, 3), np.int8)
        loan.numpy()[...] = 5
        there.publish(loan.replace(labels=labels))
        with pytest.raises(ferry.Closed):
            loan.numpy()
        got = taken(here)
        assert got.labels == labels
        assert (got.numpy() == 5).all()
        assert got.numpy().ctypes.data % 64 == 0


def test_an_image_is_lent_with_all_its_planes(node: Any) -> None:
    colorimetry = ferry.Colorimetry(space="bt709")
    with publisher(node) as there, subscriber(node) as here:
        for number in range(3):  # the second comes from the layout that was kept
            loan = there.loan_image("NV12", 64, 48, stride=80, colorimetry=colorimetry)
            places = [place_of(loan.plane(i)) for i in range(2)]
            for i in range(2):
                loan.plane(i)[...] = 10 * number + i
            assert loan.plane(0).ctypes.data % 64 == 0
            there.publish(loan)
            with taken(here) as got:
                assert (got.format, got.colorimetry, got.planes[0].stride) == ("NV12", colorimetry, 80)
                assert [place_of(got.plane(i)) for i in range(2)] == places
                assert [int(got.plane(i).max()) for i in range(2)] == [10 * number, 10 * number + 1]


def test_a_loan_that_is_not_published_goes_back(node: Any) -> None:
    with publisher(node, loans=2) as there:
        first, second = there.loan(4, np.uint8), there.loan(4, np.uint8)
        with pytest.raises(ferry.InUse, match="2 loans"):
            there.loan(4, np.uint8)
        with pytest.raises(ferry.InUse, match="2 loans"):
            there.publish(np.zeros(3))  # a copy needs a sample too
        first.close()
        third = there.loan(4, np.uint8)
        view = second.numpy()
        del second
        with pytest.raises(ferry.InUse):
            there.loan(4, np.uint8)
        del view, third
        kept = [there.loan(4, np.uint8) for _ in range(2)]
        assert len(kept) == 2


def test_views_of_a_loan_outlive_the_publisher(node: Any) -> None:
    with publisher(node) as there:
        sent, kept = there.loan(1000, np.uint8), there.loan(1000, np.uint8)
        views = [sent.numpy(), kept.numpy()]
        there.publish(sent)
    gc.collect()
    for view in views:
        view[...] = 7
        assert view.sum() == 7000
    with pytest.raises(ferry.Closed):
        there.loan(4, np.uint8)
    with pytest.raises(ferry.Closed):
        there.publish(kept)


# ---- by copy ----


@pytest.mark.parametrize("path", sorted(DATA.glob("*.blob")), ids=lambda path: path.stem)
def test_every_blob_comes_through_as_it_was(node: Any, path: Path) -> None:
    data = path.read_bytes()
    tensor = blob.import_(data)
    with publisher(node) as there, subscriber(node) as here:
        for _ in range(2):
            there.publish(tensor)
            got = taken(here)
            assert ferry.dumps(got) == data
            assert got.planes[0].data is not None
            assert np.frombuffer(got.planes[0].data, np.uint8).ctypes.data % 64 == 0 or not got.planes[0].size


@pytest.mark.parametrize(
    "path", sorted(set(VLINK_DATA.glob("*.vlt")) - {VLINK_DATA / "empty.vlt"}), ids=lambda path: path.stem
)
def test_every_envelope_comes_through_as_it_was(node: Any, path: Path) -> None:
    tensor = vlink.import_(path.read_bytes())
    with publisher(node, format="vlink") as there, subscriber(node, format="vlink") as here:
        for _ in range(2):
            there.publish(tensor)
            assert ferry.dumps(taken(here), format="vlink") == ferry.dumps(tensor, format="vlink")


def test_any_array_is_published_and_stays_the_callers(node: Any) -> None:
    array = np.arange(24.0).reshape(4, 6)[::-1, ::2]
    with publisher(node) as there, subscriber(node) as here:
        there.publish(array)
        array[...] = 0
        np.testing.assert_array_equal(taken(here), np.arange(24.0).reshape(4, 6)[::-1, ::2])
        there.publish(there.loan(0, np.uint8))
        assert taken(here).shape == (0,)


def test_a_received_tensor_is_published_on(node: Any) -> None:
    with publisher(node) as there, subscriber(node) as here:
        there.publish(ferry.Tensor.from_array(np.arange(5)).replace(labels=ferry.Labels(seq=2)))
        first = taken(here)
        there.publish(first)
        again = taken(here)
        assert again.labels == first.labels
        np.testing.assert_array_equal(again, first)


def test_more_than_max_bytes_is_refused(node: Any) -> None:
    with publisher(node, max_bytes=1000) as there, subscriber(node) as here:
        there.publish(there.loan(1000, np.uint8))
        there.publish(np.zeros(1000, np.uint8))
        for too_much in (lambda: there.loan(1 << 40, np.uint8), lambda: there.publish(np.zeros(10_000))):
            with pytest.raises(ferry.Unsupported, match="max_bytes=1000"):
                too_much()
        assert [taken(here).shape for _ in range(2)] == [(1000,), (1000,)]


def test_losses_are_the_callers_to_allow(node: Any) -> None:
    tensor = ferry.Tensor.from_array(np.zeros(4, bool))
    with publisher(node) as there, pytest.raises(ferry.Lossy):
        there.publish(tensor)
    with publisher(node) as there, pytest.raises(ferry.Lossy):
        there.loan(4, bool)


# ---- who keeps samples ----


def test_a_sample_is_kept_until_its_last_view_goes(node: Any) -> None:
    with publisher(node, hold=2) as there, subscriber(node) as here:
        for number in range(4):
            there.publish(np.full(4, number))
        first, second = taken(here), taken(here)
        with pytest.raises(ferry.InUse, match="2 tensors"):
            here.recv(0)
        view = first.numpy()
        with pytest.raises(ferry.InUse):
            first.close()
        del view
        first.close()
        third = taken(here)
        with second:
            view = second.numpy()[1:]
        with pytest.raises(ferry.InUse):
            here.recv(0)
        assert view.tolist() == [1, 1, 1]
        del view
        fourth = taken(here)
        assert [int(one.numpy()[0]) for one in (third, fourth)] == [2, 3]


def test_iteration_keeps_one_at_a_time(node: Any) -> None:
    with publisher(node, hold=1) as there, subscriber(node) as here:
        for number in range(5):
            there.publish(np.full(4, number))
        seen = []
        for tensor in here:
            seen.append(int(tensor.numpy()[0]))
            del tensor
            if len(seen) == 5:
                break
        assert seen == [0, 1, 2, 3, 4]


def test_tensors_outlive_their_subscriber_and_publisher(node: Any) -> None:
    with publisher(node) as there, subscriber(node) as here:
        there.publish(np.arange(1000))
        tensor = taken(here)
        there.publish(np.arange(1000))  # waits unread, and goes
    gc.collect()
    np.testing.assert_array_equal(tensor, np.arange(1000))
    with pytest.raises(ferry.Closed):
        here.recv(0)


def test_ten_thousand_frames_leave_nothing_behind(node: Any) -> None:
    with publisher(node) as there, subscriber(node) as here:
        for number in range(10_000):
            loan = there.loan(16, np.uint64)
            loan.numpy()[...] = number
            there.publish(loan)
            with taken(here) as got:
                assert int(got.numpy()[-1]) == number
        before = len(os.listdir("/proc/self/fd"))
        there.publish(np.zeros(3))
        assert len(os.listdir("/proc/self/fd")) == before
        assert (here.counts.received, here.counts.dropped, here.counts.refused) == (10_000, 0, 0)


# ---- waiting ----


def test_recv_waits_as_long_as_it_is_told(node: Any) -> None:
    with publisher(node) as there, subscriber(node) as here:
        assert here.recv(0) is None
        start = time.monotonic()
        assert here.recv(0.05) is None
        assert time.monotonic() - start >= 0.05
        timer = threading.Timer(0.05, there.publish, [np.arange(3)])
        timer.start()
        assert taken(here).shape == (3,)
        timer.join()


def test_close_wakes_all_who_wait(node: Any) -> None:
    here = subscriber(node)
    ended: list[str] = []

    def receive() -> None:
        try:
            here.recv()
        except ferry.Closed:
            ended.append("closed")

    def iterate() -> None:
        ended.extend("tensor" for _ in here)
        ended.append("over")

    threads = [threading.Thread(target=target) for target in (receive, iterate, receive)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    here.close()
    here.close()
    for thread in threads:
        thread.join(GUARD)
        assert not thread.is_alive()
    assert sorted(ended) == ["closed", "closed", "over"]


def test_threads_share_a_subscriber(node: Any) -> None:
    seen: list[int] = []
    with publisher(node, overflow="block") as there, subscriber(node) as here:

        def receive() -> None:
            for tensor in here:
                seen.append(int(tensor.numpy()[0]))
                del tensor

        threads = [threading.Thread(target=receive) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(500):
            there.publish(np.full(8, number), timeout=GUARD)
        eventually(lambda: len(seen) == 500)
        here.close()
        for thread in threads:
            thread.join(GUARD)
    assert sorted(seen) == list(range(500))


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors to poll are Linux's")
def test_the_descriptor_tells_what_is_left(node: Any) -> None:
    with publisher(node) as there, subscriber(node) as here:

        def readable() -> bool:
            return bool(select.select([here], [], [], 0)[0])

        assert not readable()
        for number in range(3):
            there.publish(np.full(2, number))
        for _ in range(3):
            assert readable()
            taken(here).close()
        assert here.recv(0) is None
        assert not readable()
        there.publish(np.zeros(1))
        assert readable()
    with pytest.raises(ferry.Closed):
        here.fileno()


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors to poll are Linux's")
def test_an_event_loop_receives(node: Any) -> None:
    async def run() -> list[int]:
        seen: list[int] = []
        with publisher(node) as there, subscriber(node) as here:

            async def receive() -> None:
                seen.append(int((await here.arecv()).numpy()[0]))
                async for tensor in here:
                    seen.append(int(tensor.numpy()[0]))
                    del tensor

            task = asyncio.create_task(receive())
            for number in range(4):
                there.publish(np.full(2, number))
                while len(seen) <= number:
                    await asyncio.sleep(0.001)
            here.close()
            await asyncio.wait_for(task, GUARD)
        return seen

    assert asyncio.run(run()) == [0, 1, 2, 3]


def test_without_a_descriptor_recv_still_waits(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "other")
    with publisher(node) as there, subscriber(node) as here:
        with pytest.raises(ferry.Unsupported, match="thread"):
            here.fileno()
        timer = threading.Timer(0.05, there.publish, [np.arange(3)])
        timer.start()
        assert taken(here).shape == (3,)
        timer.join()


# ---- too slow ----


def test_the_oldest_are_dropped_and_counted(node: Any) -> None:
    with publisher(node, depth=4) as there, subscriber(node) as here:
        there.publish(np.array([0]))
        assert taken(here).numpy()[0] == 0
        for number in range(1, 11):
            there.publish(np.array([number]))
        assert [int(taken(here).numpy()[0]) for _ in range(4)] == [7, 8, 9, 10]
        assert (here.counts.received, here.counts.dropped) == (5, 6)


def test_blocking_loses_nothing_and_waits_no_longer_than_told(node: Any) -> None:
    with publisher(node, depth=4, overflow="block") as there, subscriber(node) as here:
        for number in range(4):
            there.publish(np.array([number]), timeout=GUARD)
        with pytest.raises(ferry.TimedOut):
            there.publish(np.array([9]), timeout=0.02)
        with pytest.raises(ferry.TimedOut):
            there.loan(1, np.uint8, timeout=0)
        timer = threading.Timer(0.05, lambda: here.recv(GUARD))
        timer.start()
        there.publish(np.array([4]))
        timer.join()
        assert [int(taken(here).numpy()[0]) for _ in range(4)] == [1, 2, 3, 4]
        assert here.counts.dropped == 0


# ---- topics and settings ----


def test_topics_are_listed_and_shared(node: Any) -> None:
    assert iceoryx2.topics(node=node) == []
    with publisher(node) as there, subscriber(node, depth=100, hold=100), iceoryx2.Subscriber("/b", node=node):
        assert iceoryx2.topics(node=node) == [("b", 0, 1), (TOPIC, 1, 1)]
        assert there.matched
        assert there.wait_for_subscriber(0)
        assert iceoryx2.clean_up(node=node) == 0
    assert iceoryx2.topics(node=node) == []


def test_waiting_for_a_subscriber(node: Any) -> None:
    with publisher(node) as there:
        assert not there.wait_for_subscriber(0.01)
        with subscriber(node) as here:
            assert there.wait_for_subscriber(GUARD)
            there.publish(np.zeros(1))
            taken(here)


def test_a_service_of_somebody_elses_is_left_alone(node: Any) -> None:
    iox = engine.load()
    import ctypes

    theirs = node.service_builder(iox.ServiceName.new(TOPIC)).publish_subscribe(iox.Slice[ctypes.c_uint8]).create()
    for kind in (publisher, subscriber):
        with pytest.raises(ferry.Unsupported, match=f"'{TOPIC}' cannot be opened"):
            kind(node)
    assert iceoryx2.topics(node=node) == []
    del theirs


def test_places_run_out(node: Any) -> None:
    with publisher(node, max_publishers=1, max_subscribers=1), subscriber(node):
        with pytest.raises(ferry.Unsupported, match="max_publishers"):
            publisher(node)
        with pytest.raises(ferry.Unsupported, match="max_subscribers"):
            subscriber(node)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"format": "cdr"}, "format"),
        ({"overflow": "newest"}, "overflow"),
        ({"loans": 0}, "loans"),
        ({"depth": 0}, "depth"),
        ({"max_bytes": -1}, "max_bytes"),
    ],
)
def test_what_no_publisher_can_be(node: Any, options: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        publisher(node, **options)


@pytest.mark.parametrize("topic", ["", "/", "x" * 300, "a\u00fcb"])
def test_what_no_topic_can_be(node: Any, topic: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        iceoryx2.Publisher(topic, node=node)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_is_told(node: Any) -> None:
    with publisher(node) as there, subscriber(node) as here:
        pid = os.fork()
        if pid == 0:
            told = 0
            try:
                attempts: list[Callable[[], object]] = [
                    lambda: there.publish(np.zeros(1)),
                    lambda: here.recv(0),
                    lambda: there.loan(1, "int8"),
                ]
                for attempt in attempts:
                    try:
                        attempt()
                    except ferry.Disconnected:
                        told += 1
            finally:
                os._exit(told)  # whatever happens, no destructor of the parent's things may run here
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        there.publish(np.zeros(1))
        taken(here)


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "iceoryx2", None)
    engine.load.cache_clear()
    try:
        for use in (lambda: iceoryx2.Publisher("a"), lambda: iceoryx2.Subscriber("a"), iceoryx2.topics):
            with pytest.raises(ferry.Unsupported, match=r"pip install 'tensorferry\[iceoryx2\]'") as refused:
                use()
            assert "\n" not in str(refused.value)
    finally:
        engine.load.cache_clear()


# ---- who cannot be believed ----


@pytest.fixture
def stranger(node: Any) -> Iterator[Stranger]:
    one = Stranger(node, TOPIC)
    yield one
    one.close()


def attack(target: iceoryx2.Subscriber, send: Callable[[], None]) -> ferry.FerryError:
    """What refuses that which ``send`` sends; the subscription goes on."""
    refused = target.counts.refused
    send()
    assert target.recv(0) is None
    assert target.counts.refused == refused + 1
    why = target.counts.last_refusal
    assert why is not None
    return why


def test_every_damaged_blob_costs_one_refusal(node: Any, stranger: Stranger) -> None:
    cases = json.loads((DATA / "hostile.json").read_text())["cases"]
    assert len(cases) == 1292
    believed = 0
    with subscriber(node) as target:
        for case in cases:
            wire = damaged(case)
            head = len(wire) // 2  # a lie mostly, and sometimes the truth
            wanted = outcome(wire)
            if isinstance(wanted, ferry.FerryError):
                refusal = attack(target, lambda: stranger.send(wire, head=head))  # noqa: B023
                assert (type(refusal), refusal.field) == (type(wanted), wanted.field), case["note"]
            else:
                stranger.send(wire, head=head)
                assert ferry.dumps(taken(target)) == wanted, case["note"]
                believed += 1
        assert target.counts.received == believed
        assert target.counts.received + target.counts.refused == len(cases)
        assert target.counts.dropped == 0


def outcome(wire: bytes) -> bytes | ferry.FerryError:
    """What importing ``wire`` from memory of its own gives, or raises."""
    try:
        return ferry.dumps(blob.import_(wire))
    except ferry.FerryError as error:
        return error


def damaged(case: dict[str, Any]) -> bytes:
    data = bytearray((DATA / case["base"]).read_bytes())
    for offset, patch in case["patches"]:
        data[offset : offset + len(patch) // 2] = bytes.fromhex(patch)
    if case["truncate"] is not None:
        del data[case["truncate"] :]
    return bytes(data + bytes.fromhex(case["append"]))


GOOD = ferry.dumps(np.arange(6, dtype=np.uint8))


@pytest.mark.parametrize(
    ("header", "kind", "field"),
    [
        ({"length": 2 << 30}, ferry.ForgedLength, "payload_bytes"),
        ({"length": (1 << 64) - 1}, ferry.ForgedLength, "payload_bytes"),
        ({"start": 1}, ferry.ForgedLength, "payload_bytes"),
        ({"start": (1 << 32) - 1}, ferry.ForgedLength, "payload_bytes"),
        ({"length": 0}, ferry.Truncated, None),
        ({"length": len(GOOD) - 1}, ferry.Truncated, None),
        ({"attached": 1}, ferry.Malformed, "attachment_bytes"),
        ({"format": 0}, ferry.Unsupported, "format"),
        ({"format": 3}, ferry.Unsupported, "format"),
        ({"format": 2}, ferry.WireError, None),
    ],
)
def test_a_header_that_lies_costs_one_refusal(
    node: Any, stranger: Stranger, header: dict[str, int], kind: type[Exception], field: str | None
) -> None:
    with subscriber(node) as target:
        for head in (0, 184, 1024, (1 << 32) - 1):
            refusal = attack(target, lambda: stranger.send(GOOD, **{"head": head, **header}))  # noqa: B023
            assert isinstance(refusal, kind)
            assert field is None or refusal.field == field
            stranger.send(GOOD, head=head)
            assert ferry.dumps(taken(target)) == GOOD


def test_a_size_of_two_gigabytes_in_a_small_sample(node: Any, stranger: Stranger) -> None:
    forged = (2 << 30).to_bytes(8, "little") + GOOD[8:]
    with subscriber(node) as target:
        assert isinstance(attack(target, lambda: stranger.send(forged)), ferry.Truncated)
        assert isinstance(attack(target, lambda: stranger.send(forged, length=2 << 30)), ferry.ForgedLength)


def test_garbage_and_damaged_attachments(node: Any, stranger: Stranger) -> None:
    attachment = write_attachment(Attachment(labels=ferry.Labels(name="front")))
    rng = np.random.default_rng(5)
    with subscriber(node) as target:
        for size in (0, 1, 71, 72, 300, 5000):
            attack(target, lambda: stranger.send(rng.bytes(size)))  # noqa: B023
            attack(target, lambda: stranger.send(rng.bytes(size), format=2))  # noqa: B023
        for cut in range(5, len(attachment)):
            data = attachment[:cut] + GOOD
            attack(target, lambda: stranger.send(data, start=cut, length=len(GOOD), attached=cut))  # noqa: B023
        stranger.send(attachment + GOOD, start=len(attachment), length=len(GOOD), attached=len(attachment))
        assert taken(target).labels == ferry.Labels(name="front")


def test_damaged_envelopes(node: Any, stranger: Stranger) -> None:
    envelope = (VLINK_DATA / "full_metadata.vlt").read_bytes()
    with subscriber(node) as target:
        for cut in (0, 3, 100, 255, 256, 259, len(envelope) - 1):
            attack(target, lambda: stranger.send(envelope[:cut], format=2))  # noqa: B023
        for at in (0, 7, len(envelope) - 1):
            forged = bytearray(envelope)
            forged[at] ^= 0x55
            attack(target, lambda: stranger.send(bytes(forged), format=2))  # noqa: B023
        stranger.send(envelope, format=2)
        assert ferry.dumps(taken(target), format="vlink") == envelope


def test_only_the_wanted_format_is_taken(node: Any) -> None:
    with publisher(node) as there, subscriber(node, format="vlink") as here:
        there.publish(np.zeros(1))
        assert here.recv(0) is None
        assert here.counts.last_refusal is not None
        assert here.counts.last_refusal.field == "format"


def test_refusals_keep_no_sample(node: Any, stranger: Stranger) -> None:
    text = bytearray((DATA / "image_NV12_64x48.blob").read_bytes())
    text[text.index(b"NV12")] = 0xFF  # an error that is raised from another
    kept = []
    gc.disable()
    try:
        with subscriber(node) as target:
            for data in [GOOD[:-1], bytes(text)] * 20:
                kept.append(attack(target, lambda: stranger.send(data)))  # noqa: B023
            tensors = []
            for _ in range(8):  # as many as can be held
                stranger.send(GOOD)
                tensors.append(taken(target))
            del tensors
    finally:
        gc.enable()
    assert len(kept) == 40


@pytest.mark.parametrize("format", iceoryx2.FORMATS)
def test_what_changes_while_it_is_read_leads_nowhere(
    node: Any, stranger: Stranger, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher rewrites the whole sample after it was copied and before it is parsed."""
    array = np.arange(6, dtype=np.uint8)
    data = ferry.dumps(array, format=format)
    module = getattr(reading, format)
    importing = module.import_

    def meanwhile(copy: memoryview) -> ferry.Tensor:
        stranger.overwrite(b"\xff" * len(data))
        return importing(copy)  # type: ignore[no-any-return]

    code = {"blob": 1, "vlink": 2}[format]
    with subscriber(node) as target:
        with monkeypatch.context() as patched:
            patched.setattr(module, "import_", meanwhile)
            stranger.send(data, format=code)
            got = taken(target)
        assert (got.shape, got.dtype) == ((6,), "uint8")
        assert got.numpy().tolist() == [255] * 6  # values are the publisher's
        stranger.send(data, format=code, head=len(data) - 8)
        assert taken(target).numpy().tolist() == array.tolist()
