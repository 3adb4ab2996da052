"""A peer that breaks the rules, on purpose or not: it is refused, nothing leaks, and others are served."""

from __future__ import annotations

import functools
import os
import random
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from link_peers import (
    CONTROL,
    GUARD,
    Thread,
    acquire,
    all_back,
    child,
    descriptors,
    fileno,
    give_back,
    lend,
    memfd,
    put,
    raw_pair,
)

import tensorferry as ferry
from tensorferry.link import Link, Listener, Pool, connect
from tensorferry.tensor import StorageKind, Tensor

BLOB = ferry.dumps(np.arange(64, dtype=np.uint8))
LENGTH = struct.Struct("<Q")


@pytest.fixture
def wire() -> Iterator[tuple[socket.socket, Link]]:
    sock, link = raw_pair()
    with link, sock:
        yield sock, link


@pytest.fixture
def shared() -> Iterator[Tensor]:
    with ferry.allocate(512, "uint8", storage="shm") as tensor:
        tensor.numpy()[:] = 1
        yield tensor


def referring(tensor: Tensor, **fields: int) -> bytes:
    """A blob by reference to ``tensor``, with fields of its plane record replaced."""
    data, _ = ferry.blob.export(tensor, ferry.blob.TransportMode.REFERENCE)
    names = ("handle", "offset", "stride", "size", "used", "modifier")
    at = len(data) - ferry.blob.PLANE_RECORD_LEN
    values = dict(zip(names, struct.unpack_from("<qQQQQQ", data, at), strict=True)) | fields
    return data[:at] + struct.pack("<qQQQQQ", *values.values()) + data[at + 48 :]


def refused(
    wire: tuple[socket.socket, Link], data: bytes, fds: list[int], kind: type[Exception], why: str = "."
) -> None:
    """This tensor is refused, and its link goes on with the next; no descriptor is left."""
    sock, link = wire
    before = descriptors()
    put(sock, data, fds)
    with pytest.raises(kind, match=why):
        link.recv(GUARD)
    assert descriptors() == before
    put(sock, BLOB)
    assert link.recv(GUARD).shape == (64,)


def ended(wire: tuple[socket.socket, Link], kind: type[Exception], why: str) -> None:
    """This stream is damaged: nothing more is read from it, and every attempt says why."""
    sock, link = wire
    before = descriptors()
    for _ in range(2):
        with pytest.raises(kind, match=why):
            link.recv(GUARD)
        put(sock, BLOB, [sock.fileno()] * 9)
        link.collect()
    assert len(descriptors()) <= len(before)  # what came with the refused frame is closed by now


# ---- descriptor tables ----


@pytest.mark.parametrize("lent", [False, True])
def test_fewer_descriptors_than_claimed(wire: tuple[socket.socket, Link], shared: Tensor, lent: bool) -> None:
    data = referring(shared)
    before = lend(1, len(data)) if lent else b""
    refused(wire, before + data, [], ferry.Malformed, "descriptor 0, 0 came")
    data = referring(shared, handle=1)
    before = lend(2, len(data)) if lent else b""
    refused(wire, before + data, [fileno(shared)], ferry.Malformed, "descriptor 1, 1 came")


@pytest.mark.parametrize("count", [2, 3, 253])
@pytest.mark.parametrize("lent", [False, True])
def test_more_descriptors_than_claimed(
    wire: tuple[socket.socket, Link], shared: Tensor, lent: bool, count: int
) -> None:
    data = referring(shared)
    before = lend(1, len(data)) if lent else b""
    refused(wire, before + data, [fileno(shared)] * count, ferry.Malformed, f"{count} descriptors came")
    put(wire[0], data, [fileno(shared)])
    wire[1].recv(GUARD).close()


def test_descriptors_with_an_inline_tensor(wire: tuple[socket.socket, Link], shared: Tensor) -> None:
    refused(wire, BLOB, [fileno(shared)] * 3, ferry.Malformed, "3 descriptors came")


@pytest.mark.parametrize("handle", [1, 252, 253, 1 << 31, (1 << 63) - 1, -2, -(1 << 63)])
def test_an_index_out_of_range(wire: tuple[socket.socket, Link], shared: Tensor, handle: int) -> None:
    refused(wire, referring(shared, handle=handle), [fileno(shared)], ferry.Malformed, "plane 0")


def test_an_index_into_253_descriptors_after_the_unused_ones(wire: tuple[socket.socket, Link], shared: Tensor) -> None:
    refused(wire, referring(shared, handle=252), [fileno(shared)] * 253, ferry.Malformed, "253 descriptors came")


def test_more_than_253_descriptors_in_pieces(wire: tuple[socket.socket, Link], shared: Tensor) -> None:
    sock, _ = wire
    before = descriptors()
    for i in range(3):
        put(sock, BLOB[i : i + 1], [fileno(shared)] * 253)
    ended(wire, ferry.Malformed, "more than 253")
    assert descriptors() == before


def test_descriptors_in_the_middle_of_a_blob(wire: tuple[socket.socket, Link], shared: Tensor) -> None:
    """The kernel drops them, for nobody asks for them there: the tensor is without."""
    sock, link = wire
    before = descriptors()
    data = referring(shared)
    put(sock, data[:50])
    put(sock, data[50:], [fileno(shared)])
    with pytest.raises(ferry.Malformed, match="0 came"):
        link.recv(GUARD)
    put(sock, BLOB[:100])
    put(sock, BLOB[100:], [fileno(shared)] * 100)
    assert link.recv(GUARD).shape == (64,)
    assert descriptors() == before


# ---- what is no memory, or too little ----


def test_a_pipe_a_directory_a_socket_a_device(wire: tuple[socket.socket, Link], shared: Tensor, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    fds = [reading, writing, wire[0].fileno()]
    fds += [os.open(path, os.O_RDONLY) for path in (tmp_path, "/dev/zero", "/dev/null")]
    for fd in fds:
        refused(wire, referring(shared), [fd], ferry.Malformed, "not memory")
    for fd in {*fds} - {wire[0].fileno()}:
        os.close(fd)


def test_a_descriptor_that_cannot_be_read(wire: tuple[socket.socket, Link], shared: Tensor, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(512))
    for flags in (os.O_WRONLY, os.O_PATH):
        fd = os.open(file, flags)
        refused(wire, referring(shared), [fd], ferry.Unsupported)
        os.close(fd)


@pytest.mark.parametrize("sealed", [False, True])
def test_memory_smaller_than_claimed(wire: tuple[socket.socket, Link], shared: Tensor, sealed: bool) -> None:
    fd = memfd(bytes(511), sealed=sealed)
    refused(wire, referring(shared), [fd], ferry.ForgedLength, "of 511 bytes of memory")
    os.close(fd)
    refused(wire, referring(shared, offset=4096), [fileno(shared)], ferry.ForgedLength, "of 4096 bytes of memory")
    huge = (1 << 64) - 1
    for fields in ({"offset": huge}, {"size": huge}, {"offset": huge, "size": huge}, {"offset": 1 << 63}):
        refused(wire, referring(shared, **fields), [fileno(shared)], ferry.WireError)
    refused(wire, referring(shared, size=100, used=100), [fileno(shared)], ferry.Malformed, "addresses 512")
    refused(wire, referring(shared, used=513), [fileno(shared)], ferry.Malformed, "uses 513")


def test_memory_that_is_empty(wire: tuple[socket.socket, Link], shared: Tensor) -> None:
    for sealed in (False, True):
        fd = memfd(b"", sealed=sealed)
        refused(wire, referring(shared), [fd], ferry.FerryError)
        os.close(fd)


def test_a_sparse_giant_that_may_shrink_is_not_read_out(wire: tuple[socket.socket, Link], shared: Tensor) -> None:
    fd = memfd(b"", sealed=False)
    os.ftruncate(fd, 1 << 50)
    refused(wire, referring(shared, size=1 << 49, used=1 << 49), [fd], ferry.Unsupported, "read out")
    os.close(fd)


def test_a_mapping_is_not_trusted_to_be_as_large_as_the_next_claim(
    wire: tuple[socket.socket, Link], shared: Tensor
) -> None:
    """The mapping that is kept from the first frame is held against what the second one claims."""
    sock, link = wire
    for _ in range(2):
        put(sock, referring(shared), [fileno(shared)])
        link.recv(GUARD).close()
    put(sock, referring(shared, offset=4000), [fileno(shared)])
    with pytest.raises(ferry.ForgedLength):
        link.recv(GUARD)
    put(sock, referring(shared), [fileno(shared)])
    link.recv(GUARD).close()


# ---- memory that shrinks under the reader ----


def test_memory_truncated_after_sending_kills_nobody(shared: Tensor) -> None:
    """Proven in a child: it looks at every byte, and ends by itself."""
    sock, link = raw_pair()
    step, stepped = socket.socketpair()
    unsealed = [memfd(bytes([7]) * 512, sealed=False) for _ in range(2)]
    data = referring(shared)

    def run() -> None:
        sock.close()
        step.close()
        first = link.recv(GUARD)
        assert first.storage is StorageKind.MEM
        stepped.sendall(b"1")
        assert stepped.recv(1) == b"2"  # by now all are truncated
        assert (first.numpy() == 7).all()
        with pytest.raises(ferry.ForgedLength):
            link.recv(GUARD)
        with link.recv(GUARD) as sealed:
            assert sealed.storage is StorageKind.SHM
            assert (sealed.numpy() == 1).all()
        with pytest.raises(ferry.EndOfStream):
            link.recv(GUARD)

    with child(run), link, stepped, step, sock:
        put(sock, data, [unsealed[0]])
        assert step.recv(1) == b"1"
        put(sock, data, [unsealed[1]])
        put(sock, data, [fileno(shared)])
        for fd in unsealed:
            os.ftruncate(fd, 0)
            os.close(fd)
        with pytest.raises(PermissionError):
            os.ftruncate(fileno(shared), 0)
        step.sendall(b"2")


def test_memory_that_shrinks_and_grows_all_the_time(shared: Tensor) -> None:
    """Whatever moment it is read at, it is read or refused."""
    sock, link = raw_pair()
    fd = memfd(bytes(512), sealed=False)
    data = referring(shared)

    def run() -> None:
        sock.close()
        outcomes = set()
        for _ in range(400):
            try:
                with link.recv(GUARD) as tensor:
                    assert tensor.numpy().sum() == 0
                outcomes.add("read")
            except ferry.ForgedLength:
                outcomes.add("refused")
        assert outcomes

    with child(run), link, sock:
        for i in range(400):
            os.ftruncate(fd, 0 if i % 2 else 512)
            put(sock, data, [fd])
            os.ftruncate(fd, 512 if i % 3 else 100)
    os.close(fd)


# ---- frames ----


@pytest.mark.parametrize("at", [1, 7, 8, 23, 24, 71, 72, 100, len(BLOB) - 1])
def test_half_a_blob_and_then_silence(wire: tuple[socket.socket, Link], at: int) -> None:
    sock, link = wire
    put(sock, BLOB[:at])
    for timeout in (0, 0.01):
        with pytest.raises(ferry.TimedOut, match=f"{at} bytes of a frame came"):
            link.recv(timeout)
    link.collect()
    put(sock, BLOB[at:])
    assert (link.recv(GUARD).numpy() == np.arange(64)).all()


@pytest.mark.parametrize("at", [1, 7, 8, 23, 24, 71, 72, 100, len(BLOB) - 1])
@pytest.mark.parametrize("taken_in", [False, True])
def test_half_a_blob_and_then_the_end(shared: Tensor, at: int, taken_in: bool) -> None:
    sock, link = raw_pair()
    before = descriptors()
    with link:
        put(sock, BLOB)
        put(sock, BLOB[:at], [fileno(shared)] * 5)
        sock.close()
        if taken_in:
            link.collect()
        assert link.recv(GUARD).shape == (64,)
        for _ in range(2):
            with pytest.raises(ferry.Truncated) as caught:
                link.recv(GUARD)
            assert caught.value.have == at
    assert len(descriptors()) == len(before) - 2


def test_a_blob_byte_by_byte(wire: tuple[socket.socket, Link], shared: Tensor) -> None:
    sock, link = wire
    data = referring(shared)
    for message in (BLOB, lend(9, len(data)) + data):
        for i in range(len(message)):
            put(sock, message[i : i + 1], [fileno(shared)] if i == 0 and message is not BLOB else [])
            if i < len(message) - 1:
                with pytest.raises(ferry.TimedOut):
                    link.recv(0)
        link.recv(GUARD).close()
    assert sock.recv(100) == give_back(9)


@pytest.mark.parametrize("size", [1 << 63, (1 << 64) - 1, (1 << 30) + 1])
def test_a_size_beyond_belief(wire: tuple[socket.socket, Link], size: int) -> None:
    put(wire[0], LENGTH.pack(size) + BLOB[8:])
    ended(wire, ferry.ForgedLength, "max_bytes")


@pytest.mark.parametrize("size", [0, 1, 23, 25, 71])
def test_a_size_that_no_frame_has(wire: tuple[socket.socket, Link], size: int) -> None:
    put(wire[0], LENGTH.pack(size) + BLOB[8:])
    ended(wire, ferry.Malformed, "neither a blob nor a control frame")


def test_a_large_size_is_believed_only_as_it_comes(wire: tuple[socket.socket, Link]) -> None:
    sock, link = wire
    put(sock, LENGTH.pack(1 << 30) + BLOB[8:])
    with pytest.raises(ferry.TimedOut):
        link.recv(0)
    assert sys.getsizeof(link._channel._data) <= 4 << 20


def test_blobs_that_cannot_be_believed_end_nothing(wire: tuple[socket.socket, Link]) -> None:
    for data in (
        LENGTH.pack(72) + bytes(64),
        BLOB[:8] + b"\xff" * (len(BLOB) - 8),
        LENGTH.pack(len(BLOB) - 8) + BLOB[8:-8],
    ):
        refused(wire, data, [], ferry.FerryError)


def test_garbage() -> None:
    chance = random.Random(7)
    before = descriptors()
    with ferry.allocate(64, "uint8", storage="shm") as shared:
        for _ in range(300):
            sock, link = raw_pair()
            with link:
                garbage = bytearray(chance.randbytes(chance.randrange(1, 400)))
                if chance.random() < 0.7:
                    garbage[:8] = LENGTH.pack(chance.choice([24, 72, len(garbage), 100, 1 << chance.randrange(64)]))
                if chance.random() < 0.3:
                    garbage[8:16] = LENGTH.pack(chance.choice([1, 2]) | chance.randrange(400) << 8)
                put(sock, bytes(garbage), [fileno(shared)] * chance.choice([0, 0, 1, 2]))
                sock.close()
                for _ in range(100):
                    try:
                        link.recv(GUARD).close()
                    except (ferry.EndOfStream, ferry.Truncated):
                        break
                    except ferry.FerryError:
                        continue
    del shared
    assert descriptors() == before


# ---- control frames ----


@pytest.mark.parametrize("what", [0, 4, 255, RETURN := 2 | 2 << 8, 1 << 63])
def test_a_control_frame_of_an_unknown_kind(wire: tuple[socket.socket, Link], what: int) -> None:
    put(wire[0], CONTROL.pack(24, what, 1))
    ended(wire, ferry.Malformed, "nothing that is known here")


@pytest.mark.parametrize("token", [0, 1, 2, 1 << 63, (1 << 64) - 1])
def test_what_was_never_lent_is_given_back(wire: tuple[socket.socket, Link], token: int) -> None:
    put(wire[0], give_back(token))
    ended(wire, ferry.Malformed, f"token {token} was given back")


def test_one_thing_given_back_twice(wire: tuple[socket.socket, Link]) -> None:
    sock, link = wire
    with Pool(8, "uint8", 2) as pool:
        for _ in range(2):
            with acquire(pool) as tensor:
                link.send(tensor)
        put(sock, give_back(1) * 2)
        link.collect()
        acquire(pool).close()
        with pytest.raises(ferry.Malformed, match="token 1"):
            link.recv(GUARD)
        sock.close()
        all_back(pool)


def test_a_tensor_is_announced_and_does_not_come(wire: tuple[socket.socket, Link], shared: Tensor) -> None:
    sock, link = wire
    before = len(descriptors())
    put(sock, lend(1, 200), [fileno(shared)] * 3)
    with pytest.raises(ferry.TimedOut):
        link.recv(0)
    sock.close()
    for _ in range(2):
        with pytest.raises(ferry.Truncated) as caught:
            link.recv(GUARD)
        assert (caught.value.need, caught.value.have) == (200, 0)
    assert len(descriptors()) == before - 1


def test_a_tensor_is_announced_and_the_link_is_closed(shared: Tensor) -> None:
    before = descriptors()
    for taken_in in (False, True):
        sock, link = raw_pair()
        with sock, link:
            put(sock, lend(1, 200), [fileno(shared)] * 3)
            if taken_in:
                link.collect()
    assert descriptors() == before


@pytest.mark.parametrize("second", [lend(2, 200), give_back(1), CONTROL.pack(24, 77, 1)])
def test_a_tensor_is_announced_and_something_else_comes(
    wire: tuple[socket.socket, Link], shared: Tensor, second: bytes
) -> None:
    before = descriptors()
    put(wire[0], lend(1, 200), [fileno(shared)] * 3)
    put(wire[0], second, [fileno(shared)] * 2)
    ended(wire, ferry.Malformed, "a blob was announced")
    assert descriptors() == before


@pytest.mark.parametrize("wrong", [0, 1, 5, 23, 24, 71, 72, -1, +1, 1000, (1 << 48) - 1])
def test_another_length_was_announced(wire: tuple[socket.socket, Link], shared: Tensor, wrong: int) -> None:
    sock, link = wire
    before = descriptors()
    data = referring(shared)
    length = len(data) + wrong if abs(wrong) == 1 else wrong
    put(sock, lend(1, length) + data + data, [fileno(shared)])
    ended(wire, ferry.Malformed, "announced")
    del link
    assert descriptors() == before


def test_descriptors_come_with_a_control_frame(wire: tuple[socket.socket, Link], shared: Tensor) -> None:
    sock, link = wire
    with Pool(8, "uint8", 1) as pool:
        with acquire(pool) as tensor:
            link.send(tensor)
        before = descriptors()
        put(sock, give_back(1), [fileno(shared)] * 4)
        ended(wire, ferry.Malformed, "brought descriptors")
        assert descriptors() == before
        with pytest.raises(ferry.TimedOut):  # it may still be looking at what it has
            pool.acquire(0)
        sock.close()
        all_back(pool)


def test_a_tensor_that_is_lent_and_refused_is_given_back(wire: tuple[socket.socket, Link], shared: Tensor) -> None:
    sock, link = wire
    for token, data in enumerate((referring(shared, handle=5), referring(shared, used=600), BLOB), 1):
        put(sock, lend(token, len(data)) + data, [] if data is BLOB else [fileno(shared)])
        try:
            link.recv(GUARD).close()
        except ferry.Malformed:
            assert data is not BLOB
        assert sock.recv(100) == give_back(token)
    unsealed = memfd(bytes(512), sealed=False)
    put(sock, lend(9, len(referring(shared))) + referring(shared), [unsealed])
    os.close(unsealed)
    kept = link.recv(GUARD)  # read out: the lender's memory is not looked at any more
    assert sock.recv(100) == give_back(9)
    assert kept.numpy().sum() == 0


def test_the_same_token_twice(wire: tuple[socket.socket, Link], shared: Tensor) -> None:
    sock, link = wire
    data = referring(shared)
    for _ in range(2):
        put(sock, lend(5, len(data)) + data, [fileno(shared)])
    first, second = link.recv(GUARD), link.recv(GUARD)
    first.close()
    assert sock.recv(100) == give_back(5)
    assert (second.numpy() == 1).all()
    link.close()
    second.close()
    assert link.fileno() == -1


def test_a_peer_cannot_fill_this_process(wire: tuple[socket.socket, Link], shared: Tensor) -> None:
    """While a pool only looks for its buffers, tensors and descriptors are taken in up to a bound."""
    sock, link = wire
    sock.setblocking(False)
    with Pool(8, "uint8", 1) as pool, acquire(pool) as tensor:
        link.send(tensor)
        before = len(descriptors())
        for _ in range(100):
            try:
                while True:
                    socket.send_fds(sock, [BLOB], [fileno(shared)] * 250)
            except BlockingIOError:
                pass
            with pytest.raises(ferry.TimedOut):
                pool.acquire(0)
        assert len(descriptors()) < before + 600
    sock.close()
    link.close()
    while link.collect():  # what is still on its way
        pass
    assert link.fileno() == -1


# ---- others are served ----


def test_a_listener_goes_on_serving_others(tmp_path: Path, shared: Tensor) -> None:
    path = tmp_path / "ferry.sock"
    attacks = [
        b"",
        b"\xff" * 100,
        BLOB[:50],
        LENGTH.pack(1 << 63),
        give_back(3),
        lend(1, 300),
        CONTROL.pack(24, 9, 9),
        referring(shared),
    ]

    def serve(listener: Listener) -> int:
        served = 0
        for link in listener:
            with link:
                try:
                    for tensor in link:
                        link.send(tensor)
                except ferry.FerryError:
                    continue
                served += 1
        return served

    with Listener(path) as listener:
        server = Thread(functools.partial(serve, listener))
        for attack in attacks:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.connect(str(path))
                if attack:
                    put(sock, attack, [fileno(shared)] * 2)
            with connect(path) as link:
                link.send(np.arange(5))
                assert link.recv(GUARD).shape == (5,)
        listener.close()
        assert server.done() == len(attacks) + 1  # the first attack is no more than a connection
