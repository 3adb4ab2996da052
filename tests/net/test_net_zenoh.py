"""Tensors over Zenoh, both ends in this process."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from net_peers import CONFIG, GUARD, Pair, at, endpoint, eventually, to

import tensorferry as ferry
from tensorferry import blob, vlink
from tensorferry.net import zenoh
from tensorferry.net.attachment import MAGIC, Attachment, References, write_attachment
from tensorferry.net.zenoh import engine, sessions

DATA = Path(__file__).parents[1] / "data" / "blob"
LABELS = ferry.Labels(name="heat", layout="HW", frame_id="cam", seq=7, time_meas=5, channel=1, freq=30, batch_size=2)
ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)


def received(subscriber: zenoh.Subscriber) -> zenoh.Received:
    got = subscriber.receive(GUARD)
    assert got is not None, subscriber
    return got


def connected(pair: Pair, topic: str = "a/b", **options: Any) -> tuple[zenoh.Publisher, zenoh.Subscriber]:
    subscriber = zenoh.Subscriber(topic, **pair.subscriber)
    publisher = zenoh.Publisher(topic, **pair.publisher, **options)
    assert publisher.wait_for_subscriber(GUARD)
    return publisher, subscriber


def test_a_publisher_knows_whether_anybody_listens(pair: Pair) -> None:
    with zenoh.Publisher("who/listens", **pair.publisher) as publisher:
        assert not publisher.matched
        assert not publisher.wait_for_subscriber(0.05)
        with zenoh.Subscriber("who/listens", **pair.subscriber):
            assert publisher.wait_for_subscriber(GUARD)
            assert publisher.matched


# ---- what arrives ----


@pytest.mark.parametrize("format", ["blob", "vlink"])
@pytest.mark.parametrize("labels", [None, LABELS])
def test_a_tensor_arrives_whole(pair: Pair, format: str, labels: ferry.Labels | None) -> None:
    quantization = ferry.Quantization([0.5], [3])
    sent = ferry.Tensor.from_array(ARRAY, quantization=quantization, labels=labels)
    publisher, subscriber = connected(pair, format=format)
    with publisher, subscriber:
        publisher.publish(sent, log_time=1_700_000_000_000_000_001)
        got = received(subscriber)
        assert (got.topic, got.log_time) == ("a/b", 1_700_000_000_000_000_001)
        assert np.array_equal(got.tensor.numpy(), ARRAY)
        assert got.tensor.quantization == quantization
        assert got.tensor.labels == labels
        assert not got.tensor.numpy().flags.writeable
        assert subscriber.counts == zenoh.Counts(received=1)


@pytest.mark.parametrize("case", sorted(DATA.glob("*.blob")), ids=lambda path: path.stem)
def test_the_published_librarys_blobs_arrive_as_they_are(pair: Pair, case: Path) -> None:
    sent = ferry.loads(case.read_bytes())
    publisher, subscriber = connected(pair)
    with publisher, subscriber:
        publisher.publish(sent)
        assert ferry.dumps(received(subscriber).tensor) == case.read_bytes()


def test_arrays_of_any_order_arrive_by_their_values(pair: Pair) -> None:
    publisher, subscriber = connected(pair)
    with publisher, subscriber:
        for array in (ARRAY.T, ARRAY[::-1, ::2], np.broadcast_to(np.int8(3), (2, 2)), np.empty((0, 3)), np.float64(2)):
            publisher.publish(array)
            assert np.array_equal(received(subscriber).tensor.numpy(), array)


def test_what_was_published_may_be_changed_at_once(pair: Pair) -> None:
    publisher, subscriber = connected(pair)
    with publisher, subscriber:
        array = np.zeros(5)
        for i in range(5):
            array[:] = i
            publisher.publish(array)
        array[:] = 9
        assert [received(subscriber).tensor.numpy()[0] for _ in range(5)] == list(range(5))


@pytest.mark.parametrize("format", ["blob", "vlink"])
def test_a_loan_is_filled_and_published_again_and_again(pair: Pair, format: str) -> None:
    publisher, subscriber = connected(pair, format=format)
    with publisher, subscriber:
        loan = publisher.loan((2, 3), "int16", labels=LABELS, quantization=ferry.Quantization([2.0]))
        for i in range(3):
            loan.numpy()[...] = i
            publisher.publish(loan)
            got = received(subscriber).tensor
            assert np.array_equal(got.numpy(), np.full((2, 3), i))
            assert (got.labels, got.quantization) == (LABELS, loan.quantization)
        loan.close()
        with pytest.raises(ferry.Closed):
            publisher.publish(loan)


def test_an_image_is_loaned_with_all_its_planes(pair: Pair) -> None:
    publisher, subscriber = connected(pair)
    with publisher, subscriber:
        image = publisher.loan_image("NV12", 6, 4, stride=8, colorimetry=ferry.Colorimetry(encoding="bt709"))
        image.plane(0)[...] = 1
        image.plane(1)[...] = 2
        publisher.publish(image)
        got = received(subscriber).tensor
        assert ferry.dumps(got) == ferry.dumps(image)
        assert (got.plane(0) == 1).all()
        assert (got.plane(1) == 2).all()


def test_a_loan_is_copied_by_nobody_but_zenoh(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with zenoh.Publisher("a/b", **pair.publisher) as publisher:
        loan = publisher.loan(4, "uint8")
        handed: list[Any] = []
        make = engine.load().ZBytes

        def made(payload: Any) -> Any:
            handed.append(payload)
            return make(payload)

        monkeypatch.setattr(engine.load(), "ZBytes", made)
        publisher.publish(loan)
        (message,) = handed
        assert np.shares_memory(np.frombuffer(message, np.uint8), loan.numpy())
        publisher.publish(loan)
        assert handed[1] is message


def test_losses_are_refused_unless_allowed(pair: Pair) -> None:
    carried = ferry.loads(_with_reserved(ferry.dumps(ARRAY, format="vlink")))
    with zenoh.Publisher("a/b", **pair.publisher) as publisher:
        with pytest.raises(ferry.Lossy, match="reserved_buf"):
            publisher.publish(carried)
        with pytest.raises(ferry.Lossy, match="dtype"):
            publisher.publish(np.zeros(3, np.bool_))
    with zenoh.Publisher("a/b", lossy=True, **pair.publisher) as publisher:
        publisher.publish(carried)


def _with_reserved(envelope: bytes) -> bytes:
    changed = bytearray(envelope)
    changed[8 + 241] = 1
    return bytes(changed)


# ---- names ----


@pytest.mark.parametrize("topic", ["", "/", "a//b", "a/", "//a", "a#b", "a?b"])
def test_a_topic_that_is_no_key_expression_says_so(topic: str) -> None:
    for make in (zenoh.Publisher, zenoh.Subscriber, zenoh.get):
        with pytest.raises(ValueError, match="no Zenoh key expression"):
            make(topic, config=CONFIG)


@pytest.mark.parametrize("topic", ["a/*", "**", "a/x$*"])
def test_only_a_subscription_has_wildcards(topic: str) -> None:
    for make in (zenoh.Publisher, zenoh.get):
        with pytest.raises(ValueError, match="wildcards"):
            make(topic, config=CONFIG)


def test_a_wildcard_subscription_says_what_came_from_where(pair: Pair) -> None:
    with zenoh.Subscriber("/robot/*/image", **pair.subscriber) as subscriber:
        for name in ("left", "right"):
            with zenoh.Publisher(f"/robot/{name}/image", **pair.publisher) as publisher:
                assert publisher.wait_for_subscriber(GUARD)
                publisher.publish(ARRAY)
                assert received(subscriber).topic == f"robot/{name}/image"


# ---- settings ----


def test_a_shared_session_is_closed_with_its_last_user() -> None:
    settings = at(endpoint())
    one = zenoh.Publisher("a", **settings)
    two = zenoh.Subscriber("b", **settings)
    other = zenoh.Subscriber("b", **at(endpoint()))
    session = one._use.session
    assert two._use.session is session
    assert other._use.session is not session
    one.close()
    one.close()
    assert not session.is_closed()
    two.close()
    assert session.is_closed()
    other.close()
    assert other._use.session.is_closed()


def test_what_nobody_closed_is_closed_when_it_is_collected() -> None:
    subscriber = zenoh.Subscriber("b", **at(endpoint()))
    session, inbox = subscriber._use.session, subscriber.fileno()
    del subscriber
    gc.collect()
    eventually(session.is_closed)
    eventually(lambda: not _is_open(inbox))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_session_of_the_callers_stays_the_callers() -> None:
    with engine.load().open(sessions._configured(CONFIG | {"listen": {"endpoints": [endpoint()]}})) as session:
        with zenoh.Publisher("a", session=session) as publisher, zenoh.Subscriber("a", session=session) as subscriber:
            assert publisher.wait_for_subscriber(GUARD)
            publisher.publish(ARRAY)
            assert np.array_equal(received(subscriber).tensor.numpy(), ARRAY)
            with pytest.raises(ValueError, match="open already"):
                zenoh.Publisher("a", session=session, config=CONFIG)
        assert not session.is_closed()
        publisher = zenoh.Publisher("a", session=session)
    with pytest.raises(ferry.Disconnected, match="was closed"):
        publisher.publish(ARRAY)
    with pytest.raises(ferry.Disconnected, match="was closed"):
        zenoh.Subscriber("a", session=session)
    publisher.close()


def test_the_environments_configuration_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = endpoint()
    file = tmp_path / "zenoh.json5"
    file.write_text(json.dumps(CONFIG | {"listen": {"endpoints": [where]}, "metadata": {"from": "a file"}}))
    monkeypatch.setenv("ZENOH_CONFIG", str(file))
    with zenoh.Publisher("a") as publisher, zenoh.Subscriber("a", **to(where)) as subscriber:
        assert publisher.wait_for_subscriber(GUARD)
        publisher.publish(ARRAY)
        received(subscriber)


@pytest.mark.parametrize("kind", ["mapping", "text", "path", "str path", "object"])
def test_a_configuration_may_be_given_in_any_form(tmp_path: Path, kind: str) -> None:
    settings = CONFIG | {"listen": {"endpoints": [endpoint()]}}
    file = tmp_path / "zenoh.json5"
    file.write_text(json.dumps(settings))
    config = {
        "mapping": settings,
        "text": json.dumps(settings),
        "path": file,
        "str path": str(file),
        "object": engine.load().Config.from_file(str(file)),
    }[kind]
    with zenoh.Publisher("a", config=config) as publisher, zenoh.Publisher("b", config=config) as other:
        assert other._use.session is publisher._use.session


def test_settings_that_zenoh_refuses_say_so(tmp_path: Path) -> None:
    before = dict(sessions._shared)
    for config in ({"nope": 1}, "{", tmp_path / "missing.json5"):
        with pytest.raises(ValueError, match="Zenoh refuses the configuration"):
            zenoh.Publisher("a", config=config)
    with pytest.raises(ValueError, match="Zenoh refuses the configuration"):
        zenoh.Publisher("a", config=CONFIG, listen="nonsense")
    with pytest.raises(ValueError, match="not changed here"):
        zenoh.Publisher("a", config=engine.load().Config(), listen=endpoint())
    where = endpoint()
    with (
        zenoh.Subscriber("a", config=CONFIG, listen=where),
        pytest.raises(ferry.Disconnected, match="no Zenoh session could be opened"),
    ):
        zenoh.Publisher("a", config=CONFIG | {"id": "ab"}, listen=where)
    assert sessions._shared == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "npy"}, "format 'npy' is none of 'blob', 'vlink', 'cdr'"),
        ({"priority": "urgent"}, "priority 'urgent' is none of .*real_time"),
        ({"congestion_control": "wait"}, "congestion_control 'wait' is none of block.*drop"),
        ({"reliability": "maybe"}, "reliability 'maybe' is none of best_effort, reliable"),
        ({"keep": 0}, "keep 0"),
        ({"reference": True, "format": "vlink"}, "format='blob'"),
    ],
)
def test_options_that_are_none_say_what_there_is(options: dict[str, Any], message: str) -> None:
    before = dict(sessions._shared)
    with pytest.raises(ValueError, match=message):
        zenoh.Publisher("a", config=CONFIG, listen=endpoint(), **options)
    assert sessions._shared == before


def test_quality_of_service_reaches_zenoh(pair: Pair) -> None:
    names = engine.load()
    quality = {"reliability": "best-effort", "congestion_control": "block", "priority": names.Priority.REAL_TIME}
    with zenoh.Publisher("a/b", express=True, **quality, **pair.publisher) as publisher:
        inner = publisher._publisher
        assert inner.reliability == names.Reliability.BEST_EFFORT
        assert inner.congestion_control == names.CongestionControl.BLOCK
        assert inner.priority == names.Priority.REAL_TIME


def test_a_user_and_a_password_are_passed_on(tmp_path: Path) -> None:
    where = endpoint()
    dictionary = tmp_path / "users"
    dictionary.write_text("alice:secret\n")

    def settings(password: str, **more: Any) -> dict[str, Any]:
        auth = {"user": "alice", "password": password, **more}
        return CONFIG | {"transport": {"auth": {"usrpwd": auth}}}

    guarded = settings("secret", dictionary_file=str(dictionary))
    with zenoh.Publisher("a", config=guarded, listen=where) as publisher:
        publisher.publish(ARRAY)
        with pytest.raises(ferry.TimedOut):
            zenoh.get("a", config=settings("guess"), connect=where, listen=(), timeout=0.3)
        got = zenoh.get("a", config=settings("secret"), connect=where, listen=(), timeout=GUARD)
        assert np.array_equal(got.numpy(), ARRAY)


def test_tls_is_passed_on(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    made += " -addext basicConstraints=critical,CA:FALSE"  # what a CA has is no server's
    try:
        command = ["openssl", *made.split(), "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True, timeout=GUARD)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no certificate can be made here: {error}")
    where = endpoint().replace("tcp/127.0.0.1", "tls/localhost")
    server = {"listen_private_key": str(key), "listen_certificate": str(certificate)}
    client = {"root_ca_certificate": str(certificate)}
    with zenoh.Publisher("a", config=CONFIG | {"transport": {"link": {"tls": server}}}, listen=where) as publisher:
        publisher.publish(ARRAY)
        trusting = CONFIG | {"transport": {"link": {"tls": client}}}
        got = zenoh.get("a", config=trusting, connect=where, listen=(), timeout=GUARD)
        assert np.array_equal(got.numpy(), ARRAY)


# ---- receiving ----


def test_recv_waits_no_longer_than_it_is_told(pair: Pair) -> None:
    with zenoh.Subscriber("a/b", **pair.subscriber) as subscriber:
        assert subscriber.recv(0) is None
        assert subscriber.recv(0.01) is None
        assert not select.select([subscriber], [], [], 0)[0]


def test_a_slow_subscriber_loses_the_oldest_and_counts_them(pair: Pair) -> None:
    with (
        zenoh.Subscriber("a/b", depth=3, **pair.subscriber) as slow,
        zenoh.Subscriber("a/b", depth=10, **pair.subscriber) as fast,
        zenoh.Publisher("a/b", **pair.publisher) as publisher,
    ):
        assert publisher.wait_for_subscriber(GUARD)
        for i in range(10):
            publisher.publish(np.array([i]))
        assert [received(fast).tensor.numpy()[0] for _ in range(10)] == list(range(10))
        eventually(lambda: slow.counts.dropped == 7)
        assert [received(slow).tensor.numpy()[0] for _ in range(3)] == [7, 8, 9]
        assert slow.recv(0) is None
        assert slow.counts == zenoh.Counts(received=3, dropped=7)
        assert fast.counts == zenoh.Counts(received=10)


def test_the_descriptor_is_readable_while_something_waits(pair: Pair) -> None:
    publisher, subscriber = connected(pair)
    with publisher, subscriber:
        publisher.publish(ARRAY)
        publisher.publish(ARRAY)
        for _ in range(2):
            assert select.select([subscriber], [], [], GUARD)[0]
            received(subscriber)
        assert not select.select([subscriber], [], [], 0)[0]


def test_iterating_ends_when_the_subscriber_is_closed(pair: Pair) -> None:
    publisher, subscriber = connected(pair)
    with publisher:
        got: list[float] = []

        def receive() -> None:
            for tensor in subscriber:
                got.append(float(tensor.numpy()))

        threads = [threading.Thread(target=receive) for _ in range(3)]
        for thread in threads:
            thread.start()
        for i in range(5):
            publisher.publish(np.float64(i))
        eventually(lambda: len(got) == 5)
        subscriber.close()
        for thread in threads:
            thread.join(GUARD)
            assert not thread.is_alive()
        assert sorted(got) == [0, 1, 2, 3, 4]


def test_a_closed_one_says_so(pair: Pair) -> None:
    publisher, subscriber = connected(pair)
    publisher.close()
    subscriber.close()
    subscriber.close()
    with pytest.raises(ferry.Closed):
        subscriber.recv(0)
    with pytest.raises(ferry.Closed):
        subscriber.fileno()
    with pytest.raises(ferry.Closed):
        publisher.publish(ARRAY)
    with pytest.raises(ferry.Closed):
        publisher.wait_for_subscriber()
    assert "closed" in repr(publisher)
    assert list(subscriber) == []


def test_asyncio_receives_without_blocking_the_loop(pair: Pair) -> None:
    publisher, subscriber = connected(pair)

    async def run() -> list[float]:
        got = []
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        async def send() -> None:
            for i in range(5):
                await asyncio.sleep(0.005)
                publisher.publish(np.float64(i))

        ticking, sending = asyncio.create_task(tick()), asyncio.create_task(send())
        got.append(float((await asyncio.wait_for(subscriber.arecv(), GUARD)).numpy()))
        async for tensor in subscriber:
            got.append(float(tensor.numpy()))
            if len(got) == 5:
                break
        await sending
        asyncio.get_running_loop().call_later(0.01, subscriber.close)
        assert [tensor async for tensor in subscriber] == []
        ticking.cancel()
        assert ticks > 5
        return got

    with publisher, subscriber:
        assert asyncio.run(run()) == [0, 1, 2, 3, 4]


# ---- the latest, and what there is ----


def test_the_latest_can_be_asked_for_by_who_comes_late(pair: Pair) -> None:
    with zenoh.Publisher("a/b", **pair.publisher) as publisher:
        for i in range(3):
            publisher.publish(ferry.Tensor.from_array(np.array([i]), labels=LABELS))
        for settings in (pair.subscriber, pair.publisher):
            got = zenoh.get("/a/b", **settings, timeout=GUARD)
            assert got.numpy().tolist() == [2]
            assert got.labels == LABELS


def test_of_two_publishers_latest_the_newest_is_given(pair: Pair) -> None:
    with zenoh.Publisher("a/b", **pair.publisher) as one, zenoh.Publisher("a/b", **pair.subscriber) as two:
        one.publish(np.array([1]), log_time=200)
        two.publish(np.array([2]), log_time=100)
        eventually(lambda: zenoh.get("a/b", **pair.subscriber).numpy().tolist() == [1])


def test_get_says_what_is_missing(pair: Pair) -> None:
    with zenoh.Publisher("a/b", latest=False, **pair.publisher) as publisher, zenoh.Publisher("a/c", **pair.publisher):
        publisher.publish(ARRAY)
        for topic in ("a/b", "a/c"):
            with pytest.raises(ferry.TimedOut, match=f"nobody had a tensor under '{topic}' within 0.1 s"):
                zenoh.get(topic, **pair.subscriber, timeout=0.1)


def test_get_says_why_all_that_was_offered_is_refused(pair: Pair) -> None:
    with zenoh.Publisher("a/b", format="vlink", **pair.publisher) as publisher:
        publisher.publish(ARRAY)
        with pytest.raises(ferry.Unsupported, match="only 'blob' is taken here"):
            zenoh.get("a/b", format="blob", **pair.subscriber, timeout=GUARD)


def test_publishers_that_are_alive_are_listed(pair: Pair) -> None:
    def listed() -> list[tuple[str, str]]:
        return [(topic.name, topic.format) for topic in zenoh.topics(**pair.subscriber) if topic.name != "warm/up"]

    with zenoh.Publisher("/robot/@tool/tür 1", **pair.publisher) as publisher:
        with zenoh.Publisher("b", format="vlink", **pair.publisher):
            eventually(lambda: listed() == [("b", "vlink"), ("robot/@tool/tür 1", "blob")])
        eventually(lambda: listed() == [("robot/@tool/tür 1", "blob")])
        assert {topic.session for topic in zenoh.topics(**pair.subscriber)} == {str(publisher._use.session.zid())}
    assert zenoh.topics(config=CONFIG, listen=endpoint(), timeout=0.1) == []


# ---- strangers ----


Put = Callable[..., None]


@pytest.fixture
def stranger(pair: Pair) -> Put:
    """Zenoh's own put, from the publisher's side, of whatever bytes."""
    with zenoh.Publisher("warm/up", **pair.publisher) as publisher:
        return publisher._use.session.put


def attack(subscriber: zenoh.Subscriber, put: Put, topic: str, payload: bytes, **beside: Any) -> ferry.FerryError:
    """Why the subscriber refused ``payload``; it must go on with the next."""
    before = subscriber.counts.refused
    put(topic, payload, **beside)
    put(topic, ferry.dumps(ARRAY), encoding="application/x-tensor-blob;inline")
    assert np.array_equal(received(subscriber).tensor.numpy(), ARRAY)
    counts = subscriber.counts
    assert counts.refused == before + 1
    assert counts.last_refusal is not None
    return counts.last_refusal


@pytest.fixture
def target(pair: Pair) -> zenoh.Subscriber:
    with zenoh.Publisher("a/b", **pair.publisher) as probe:
        subscriber = zenoh.Subscriber("a/b", depth=64, **pair.subscriber)
        assert probe.wait_for_subscriber(GUARD)
    return subscriber


def test_every_damaged_blob_costs_one_refusal(stranger: Put, target: zenoh.Subscriber) -> None:
    encoding = "application/x-tensor-blob;inline"
    cases = json.loads((DATA / "hostile.json").read_text())["cases"]
    assert len(cases) == 1292
    with target:
        for case in cases:
            wire, wanted = damaged(case), case["expect"]
            if wanted == "any" and not is_believed(wire):
                attack(target, stranger, "a/b", wire, encoding=encoding)
            elif wanted is None or wanted == "any":
                stranger("a/b", wire, encoding=encoding)
                assert ferry.dumps(received(target).tensor) == ferry.dumps(blob.import_(wire))
            else:
                refusal = attack(target, stranger, "a/b", wire, encoding=encoding)
                assert (type(refusal).__name__, refusal.field) == (wanted["error"], wanted["field"]), case["note"]
        assert target.counts.received + target.counts.refused > len(cases)
        assert target.counts.dropped == 0


def damaged(case: dict[str, Any]) -> bytes:
    data = bytearray((DATA / case["base"]).read_bytes())
    for offset, patch in case["patches"]:
        data[offset : offset + len(patch) // 2] = bytes.fromhex(patch)
    if case["truncate"] is not None:
        del data[case["truncate"] :]
    return bytes(data + bytes.fromhex(case["append"]))


def is_believed(wire: bytes) -> bool:
    try:
        blob.import_(wire)
    except ferry.FerryError:
        return False
    return True


@pytest.mark.parametrize(
    "encoding",
    ["text/plain", "application/cdr", "application/cdr;sensor_msgs/msg/Image", "application/x-tensor-blob2", "💥;x"],
)
def test_another_encoding_costs_one_refusal(stranger: Put, target: zenoh.Subscriber, encoding: str) -> None:
    with target:
        refusal = attack(target, stranger, "a/b", ferry.dumps(ARRAY), encoding=encoding)
        assert type(refusal) is ferry.Unsupported
        assert refusal.field == "encoding"


def test_the_wrong_bytes_under_an_encoding_cost_one_refusal(stranger: Put, target: zenoh.Subscriber) -> None:
    with target:
        envelope = ferry.dumps(ARRAY, format="vlink")
        assert isinstance(
            attack(target, stranger, "a/b", envelope, encoding="application/x-tensor-blob"), ferry.WireError
        )
        assert isinstance(
            attack(target, stranger, "a/b", ferry.dumps(ARRAY), encoding="application/x-vlink-tensor"), ferry.WireError
        )


def test_two_gigabytes_claimed_cost_one_refusal(stranger: Put, target: zenoh.Subscriber) -> None:
    with target:
        claim = bytearray(ferry.dumps(ARRAY))
        claim[:8] = (2 << 30).to_bytes(8, "little")
        refusal = attack(target, stranger, "a/b", bytes(claim), encoding="application/x-tensor-blob;inline")
        assert isinstance(refusal, ferry.Truncated)
        assert refusal.need == 2 << 30
        envelope = bytearray(ferry.dumps(ARRAY, format="vlink"))
        envelope[8 + 48 : 8 + 56] = (2 << 30).to_bytes(8, "little")
        refusal = attack(target, stranger, "a/b", bytes(envelope), encoding="application/x-vlink-tensor;2")
        assert isinstance(refusal, ferry.WireError)


def test_more_than_is_taken_costs_one_refusal(pair: Pair, stranger: Put) -> None:
    with zenoh.Subscriber("a/b", max_bytes=1000, **pair.subscriber) as subscriber:
        with zenoh.Publisher("a/b", **pair.publisher) as probe:
            assert probe.wait_for_subscriber(GUARD)
        refusal = attack(subscriber, stranger, "a/b", bytes(1001))
        assert (refusal.field, refusal.value) == ("max_bytes", 1001)


def test_an_attachment_that_lies_costs_one_refusal(stranger: Put, target: zenoh.Subscriber) -> None:
    with target:
        for attachment in (MAGIC + b"\1\0\xff\xff", MAGIC + bytes(1 << 19)):
            refusal = attack(
                target, stranger, "a/b", ferry.dumps(ARRAY), encoding="application/x-tensor-blob", attachment=attachment
            )
            assert refusal.field == "attachment"
            assert isinstance(refusal, ferry.WireError)


def test_a_reference_that_nobody_allowed_costs_one_refusal(stranger: Put, target: zenoh.Subscriber) -> None:
    with target, ferry.allocate(4, "uint8", storage="shm") as shared:
        payload, _ = blob.export(shared, blob.TransportMode.REFERENCE)
        refusal = attack(target, stranger, "a/b", payload, encoding="application/x-tensor-blob;reference")
        assert refusal.field == "handle"
        attachment = write_attachment(Attachment(references=References(bytes(16), ())))
        refusal = attack(target, stranger, "a/b", payload, attachment=attachment)
        assert "reference=True" in str(refusal)


def test_payloads_without_an_encoding_are_told_by_their_content(stranger: Put, target: zenoh.Subscriber) -> None:
    with target:
        for payload in (ferry.dumps(ARRAY), ferry.dumps(ARRAY, format="vlink")):
            stranger("a/b", payload)
            stranger("a/b", payload, encoding="application/octet-stream", attachment=b"somebody else's")
            for _ in range(2):
                got = received(target)
                assert np.array_equal(got.tensor.numpy(), ARRAY)
                assert got.log_time == 0


def test_a_deletion_is_passed_over(pair: Pair, target: zenoh.Subscriber) -> None:
    with target, zenoh.Publisher("a/b", **pair.publisher) as publisher:
        publisher._use.session.delete("a/b")
        publisher.publish(ARRAY)
        assert np.array_equal(received(target).tensor.numpy(), ARRAY)
        assert target.counts == zenoh.Counts(received=1)


def test_a_flood_of_refusals_does_not_hold_recv_up(stranger: Put, target: zenoh.Subscriber) -> None:
    with target:
        for _ in range(8):
            stranger("a/b", b"nothing", encoding="application/x-tensor-blob")
        eventually(lambda: len(target._inbox._items) == 8)
        assert target.recv(0) is None
        assert target.counts.refused == 1
        assert target.recv(0.05) is None
        assert target.counts.refused == 8


def test_strange_tokens_are_no_topics() -> None:
    from tensorferry.net.zenoh.asking import _topic

    good = "@tensorferry/topics/ab12/1/blob/a%2Fb"
    assert _topic(good) == zenoh.Topic("a/b", "blob", "ab12")
    for token in ("@tensorferry/topics/ab12", "x", f"{good}/more", good.replace("blob", "exe"), good + "%ff"):
        assert _topic(token) is None


# ---- messages of EdgeFirst devices ----


@pytest.mark.parametrize("kind", ["Tensor", "TensorStamped", "CameraFrame"])
def test_a_devices_messages_are_taken_by_their_schema(pair: Pair, stranger: Put, kind: str) -> None:
    pytest.importorskip("edgefirst.schemas", reason="the extra edgefirst is not installed")
    from tensorferry import messages

    sent = ferry.Tensor.image("NV12", 4, 4, np.arange(24, dtype=np.uint8))
    with zenoh.Subscriber("camera/frame", **pair.subscriber) as subscriber:
        with zenoh.Publisher("camera/frame", **pair.publisher) as probe:
            assert probe.wait_for_subscriber(GUARD)
        stranger("camera/frame", messages.encode(sent, kind), encoding=f"application/cdr;edgefirst_msgs/msg/{kind}")
        assert ferry.dumps(received(subscriber).tensor) == ferry.dumps(sent)


def test_cdr_is_published_with_its_schema(pair: Pair) -> None:
    pytest.importorskip("edgefirst.schemas", reason="the extra edgefirst is not installed")
    publisher, subscriber = connected(pair, format="cdr")
    with publisher, subscriber:
        assert str(publisher._publisher.encoding) == "application/cdr;edgefirst_msgs/msg/Tensor"
        publisher.publish(ferry.Tensor.from_array(ARRAY, labels=LABELS))
        got = received(subscriber).tensor
        assert np.array_equal(got.numpy(), ARRAY)
        assert got.labels == LABELS
        with pytest.raises(ValueError, match="cannot be loaned"):
            publisher.loan(3, "uint8")


# ---- without the engine, and at the end ----


def in_a_process(text: str) -> str:
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=GUARD)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_the_extra_one_line_says_what_to_install() -> None:
    said = in_a_process(
        "import sys; sys.modules['zenoh'] = None\n"
        "import tensorferry as ferry\n"
        "from tensorferry.net import zenoh\n"
        "uses = [lambda: zenoh.Publisher('a'), lambda: zenoh.Subscriber('a'), lambda: zenoh.get('a'), zenoh.topics]\n"
        "for use in uses:\n"
        "    try: use()\n"
        "    except ferry.Unsupported as error: print(error)\n"
    )
    lines = said.splitlines()
    assert len(lines) == 4
    assert all(line.endswith("pip install 'tensorferry[zenoh]'") for line in lines)


def test_importing_loads_no_engine() -> None:
    assert in_a_process("import sys, tensorferry.net.zenoh; print('zenoh' in sys.modules)") == "False\n"


def test_a_process_ends_that_closed_nothing() -> None:
    where = endpoint()
    in_a_process(
        "from tensorferry.net import zenoh\n"
        f"settings = dict(config={CONFIG!r}, listen={where!r})\n"
        "p = zenoh.Publisher('a', **settings); s = zenoh.Subscriber('a', **settings)\n"
        "p.publish(b'bytes'); assert s.recv(5) is not None\n"
    )


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_after_a_fork_the_session_is_the_parents(pair: Pair) -> None:
    publisher, subscriber = connected(pair)
    with publisher, subscriber:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                uses: list[Callable[[], object]] = [lambda: publisher.publish(ARRAY), lambda: subscriber.recv(0)]
                for use in uses:
                    with pytest.raises(ferry.Disconnected, match="after the fork"):
                        use()
                publisher.close()
                subscriber.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        publisher.publish(ARRAY)
        received(subscriber)


def test_a_vlink_payload_is_the_envelope_itself(pair: Pair) -> None:
    publisher, subscriber = connected(pair, format="vlink")
    with publisher, subscriber:
        raw: list[Any] = []
        handler = engine.load().handlers.Callback(raw.append, indirect=False)
        watching = subscriber._use.session.declare_subscriber("a/b", handler)
        publisher.wait_for_subscriber(GUARD)
        publisher.publish(ARRAY)
        received(subscriber)
        eventually(lambda: bool(raw))
        watching.undeclare()  # type: ignore[no-untyped-call]
        assert raw[0].payload.to_bytes() == vlink.export(ferry.Tensor.from_array(ARRAY))
        assert str(raw[0].encoding) == "application/x-vlink-tensor;2"
