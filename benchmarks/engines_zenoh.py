"""What does a frame cost through Zenoh, by hand and through tensorferry? Run by engines.py."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
from engine_kit import (
    PATIENCE,
    QUESTIONS,
    SHAPE,
    Array,
    Engine,
    Key,
    Reader,
    Runs,
    answer,
)
from measure import Target, Timing, ratio, settle_memory

import tensorferry as ferry
from tensorferry.net import zenoh

if TYPE_CHECKING:
    import zenoh as raw_zenoh


RAW, LOAN, RAW_ARRAY, ARRAY, PICKLE = (
    "raw put of ready bytes",
    "ferry, a loan",
    "raw put of array.tobytes()",
    "ferry, any array",
    "put of a pickle",
)
TRANSPORTS = {"shared memory": True, "TCP": False}


def zenoh_config(shared_memory: bool) -> dict[str, Any]:
    """This host only: nobody is scouted for."""
    return {
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": {"shared_memory": {"enabled": shared_memory}},
    }


@contextlib.contextmanager
def zenoh_runs() -> Iterator[Runs]:
    with contextlib.ExitStack() as stack:
        runs: Runs = {}
        for transport, shared_memory in TRANSPORTS.items():
            runs.update(stack.enter_context(_over_zenoh(transport, shared_memory)))
        yield runs


@contextlib.contextmanager
def _over_zenoh(transport: str, shared_memory: bool) -> Iterator[Runs]:
    import zenoh as engine

    where = _free_endpoint()
    config = engine.Config.from_json5(json.dumps(zenoh_config(shared_memory) | {"listen": {"endpoints": [where]}}))
    with engine.open(config) as session, contextlib.ExitStack() as stack:
        reader = Reader(read_zenoh, where, shared_memory)
        stack.callback(reader.end)
        block = engine.CongestionControl.BLOCK
        raw = {name: session.declare_publisher(_topic(name), congestion_control=block) for name in _RAW}
        ours = {
            name: stack.enter_context(
                zenoh.Publisher(_topic(name), session=session, congestion_control="block", latest=False)
            )
            for name in _OURS
        }
        reader.says()
        for publisher in ours.values():
            publisher.wait_for_subscriber(PATIENCE)
        yield _zenoh_contenders(transport, reader, raw, ours)


_RAW, _OURS = (RAW, RAW_ARRAY, PICKLE), (LOAN, ARRAY)


def _zenoh_contenders(
    transport: str, reader: Reader, raw: Mapping[str, raw_zenoh.Publisher], ours: Mapping[str, zenoh.Publisher]
) -> Runs:
    # "The same bytes": a blob that is ready, header and all.
    message = bytearray(ferry.dumps(np.zeros(SHAPE, np.uint8)))
    in_message = np.frombuffer(message, np.uint8)[-int(np.prod(SHAPE)) :].reshape(SHAPE)
    array = np.zeros(SHAPE, np.uint8)
    loan = ours[LOAN].loan(SHAPE, np.uint8)
    sends: dict[str, tuple[Callable[[], None], Array]] = {
        RAW: (lambda: raw[RAW].put(message), in_message),
        LOAN: (lambda: ours[LOAN].publish(loan), loan.numpy()),
        RAW_ARRAY: (lambda: raw[RAW_ARRAY].put(array.tobytes()), array),
        ARRAY: (lambda: ours[ARRAY].publish(array), array),
        PICKLE: (lambda: raw[PICKLE].put(pickle.dumps(array, 5)), array),
    }
    return {
        Key(transport, name, question): reader.run(name, question, send, frame)
        for question in QUESTIONS
        for name, (send, frame) in sends.items()
    }


def read_zenoh(pipe: Connection, where: str, shared_memory: bool) -> None:
    """The reading process: Zenoh's own callback for those by hand, ``recv`` for ours."""
    import zenoh as engine

    settle_memory()
    config = zenoh_config(shared_memory) | {"connect": {"endpoints": [where]}, "listen": {"endpoints": []}}
    questions: list[str] = []
    done = threading.Event()
    size = int(np.prod(SHAPE))

    def values_of(name: str, data: bytes) -> Array:
        if name == PICKLE:
            unpickled: Array = pickle.loads(data)
            return unpickled
        return np.frombuffer(data, np.uint8)[-size:]

    def called(name: str) -> Callable[[raw_zenoh.Sample], None]:
        def callback(sample: raw_zenoh.Sample) -> None:
            answer(pipe, questions[-1], values_of(name, sample.payload.to_bytes()))
            done.set()

        return callback

    with engine.open(engine.Config.from_json5(json.dumps(config))) as session, contextlib.ExitStack() as stack:
        for name in _RAW:
            session.declare_subscriber(_topic(name), called(name))
        ours = {name: stack.enter_context(zenoh.Subscriber(_topic(name), session=session)) for name in _OURS}
        pipe.send("ready")
        while True:
            name, question = pipe.recv()
            questions[:] = [question]
            done.clear()
            pipe.send("waiting")
            if name in ours:
                tensor = ours[name].recv(PATIENCE)
                if tensor is None:
                    raise TimeoutError(f"{name}: {ours[name]}")
                answer(pipe, question, tensor.numpy())
                del tensor
            elif not done.wait(PATIENCE):
                raise TimeoutError(f"{name}: no frame came")


def _topic(contender: str) -> str:
    return "engines/" + contender.translate(str.maketrans(" ,.()", "_____"))


def _free_endpoint() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{sock.getsockname()[1]}"


def zenoh_targets(timings: Mapping[Key, Timing]) -> list[Target]:
    return [
        Target(
            f"Zenoh, {transport}, {question}: {ours} / {raw}",
            1.15,
            ratio(timings[Key(transport, ours, question)], timings[Key(transport, raw, question)]),
            "×",
        )
        for transport in TRANSPORTS
        for question in QUESTIONS
        for ours, raw in ((LOAN, RAW), (ARRAY, RAW_ARRAY))
    ]


ZENOH_LEGEND = """\
All are handed to one and the same session, over TCP of this host; "shared memory" is what Zenoh does there by itself
for messages of 3 KB and more. "Ready bytes" are a blob, the same as a loan's. The callback of those by hand copies the
payload to bytes, as recv does: the binding lends no view of it. Every array that is not a loan is copied once more,
since the binding takes bytes and bytearray only; pickle copies it on either side."""

ZENOH = Engine("zenoh", "eclipse-zenoh", zenoh_runs, zenoh_targets, ZENOH_LEGEND)
