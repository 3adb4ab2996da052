"""What a link carries, and how it waits and ends."""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from link_peers import GUARD, Array, Thread, blocked, fileno, inode, put, raw_pair, reference

import tensorferry as ferry
from tensorferry.link import Link, channel
from tensorferry.tensor import StorageKind

ARRAYS = [
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.arange(24, dtype=np.int16).reshape(2, 3, 4)[:, ::-1, ::2],
    np.array(7.5),
    np.zeros((0, 5), np.uint8),
    np.frombuffer(b"read only", np.uint8),
]


@pytest.mark.parametrize("array", ARRAYS, ids=["dense", "strided", "scalar", "empty", "read-only"])
def test_an_array_goes_inline(array: Array) -> None:
    a, b = Link.pair()
    with a, b:
        a.send(array)
        with b.recv(GUARD) as tensor:
            assert tensor.storage is StorageKind.MEM
            assert tensor.numpy().dtype == array.dtype
            np.testing.assert_array_equal(tensor.numpy(), array)
            assert not tensor.numpy().flags.writeable


def test_a_buffer_goes_too_and_what_is_none_is_refused() -> None:
    a, b = Link.pair()
    with a, b:
        a.send(bytearray(b"bytes"))
        assert b.recv(GUARD).numpy().tobytes() == b"bytes"
        with pytest.raises(TypeError):
            a.send(object())
        a.send(np.arange(3))
        assert b.recv(GUARD).shape == (3,)


def test_shared_memory_goes_by_reference() -> None:
    a, b = Link.pair()
    with a, b, ferry.allocate((4, 5), "uint16", storage="shm") as sent:
        sent.numpy()[:] = np.arange(20).reshape(4, 5)
        a.send(sent)
        with b.recv(GUARD) as got:
            assert got.storage is StorageKind.SHM
            assert inode(got) == inode(sent)
            assert fileno(got) != fileno(sent)
            np.testing.assert_array_equal(got.numpy(), sent.numpy())
            assert not got.numpy().flags.writeable
            sent.numpy()[2, 3] = 999
            assert got.numpy()[2, 3] == 999


def test_a_receiver_may_write_where_it_asks_to() -> None:
    a, b = Link.pair(writable=True)
    with a, b, ferry.allocate(8, "uint8", storage="shm") as sent:
        a.send(sent)
        with b.recv(GUARD) as got:
            got.numpy()[3] = 77
        assert sent.numpy()[3] == 77


def test_an_image_in_one_allocation_and_one_in_two() -> None:
    a, b = Link.pair()
    with a, b, ferry.allocate_image("NV12", 64, 32, storage="shm") as image:
        image.plane(0)[:] = 1
        image.plane(1)[:] = 2
        a.send(image)
        with b.recv(GUARD) as got:
            assert got.format is ferry.PixelFormat.NV12
            assert inode(got) == inode(image)
            assert (got.plane(0) == 1).all()
            assert (got.plane(1) == 2).all()
    with (
        ferry.allocate((32, 64), "uint8", storage="shm") as luma,
        ferry.allocate((16, 64), "uint8", storage="shm") as chroma,
    ):
        luma.numpy()[:] = 3
        chroma.numpy()[:] = 4
        c, d = Link.pair()
        with c, d, ferry.image_from_fd([fileno(luma), fileno(chroma)], "NV12", 64, 32) as image:
            c.send(image)
            with d.recv(GUARD) as got:
                assert (got.plane(0) == 3).all()
                assert (got.plane(1) == 4).all()


@pytest.mark.parametrize("storage", ["mem", "shm"])
def test_nothing_at_all(storage: str) -> None:
    a, b = Link.pair()
    with a, b, ferry.allocate((0, 3), "float32", storage=storage) as sent:
        a.send(sent)
        with b.recv(GUARD) as got:
            assert got.shape == (0, 3)
            assert got.numpy().size == 0


def test_sixty_four_mebibytes_inline() -> None:
    data = np.random.default_rng(1).integers(0, 255, 64 << 20, dtype=np.uint8)
    a, b = Link.pair()
    with a, b:
        receiver = Thread(lambda: b.recv(GUARD))
        a.send(data, GUARD)
        got = receiver.done()
        assert zlib.crc32(got.planes[0].data) == zlib.crc32(data.data)


def test_both_ways_and_in_order() -> None:
    a, b = Link.pair()
    with a, b, ferry.allocate(3, "int32", storage="shm") as shared:
        for i in range(50):
            a.send(np.full(i, i))
            b.send(shared)
            a.send(shared)
        for i in range(50):
            assert b.recv(GUARD).shape == (i,)
            assert a.recv(GUARD).storage is StorageKind.SHM
            assert b.recv(GUARD).storage is StorageKind.SHM


def test_what_it_means_comes_along() -> None:
    quantization = ferry.Quantization([0.5, 0.25], [1, 2], axis=0)
    a, b = Link.pair()
    with a, b:
        a.send(ferry.Tensor.from_array(np.zeros((2, 3), np.int8), quantization=quantization))
        assert b.recv(GUARD).quantization == quantization


@pytest.mark.parametrize("storage", ["mem", "shm"])
def test_labels_are_not_lost_unasked(storage: str) -> None:
    a, b = Link.pair()
    with a, b, ferry.allocate(4, "uint8", storage=storage) as bare:
        with bare.replace(labels=ferry.Labels(name="left")) as labelled:
            with pytest.raises(ferry.Lossy, match=r"labels\.name") as caught:
                a.send(labelled)
            assert caught.value.fields == ("labels.name",)
            a.send(labelled, lossy=True)
            assert b.recv(GUARD).labels is None
        with pytest.raises(ferry.Lossy, match="dtype"):
            a.send(np.zeros(3, bool), lossy=True)
        with pytest.raises(ferry.TimedOut):  # nothing of what was refused was sent
            b.recv(0)


def test_a_closed_tensor_is_refused_and_the_link_goes_on() -> None:
    a, b = Link.pair()
    with a, b:
        tensor = ferry.allocate(4, "uint8", storage="shm")
        tensor.close()
        with pytest.raises(ferry.Closed):
            a.send(tensor)
        a.send(np.arange(2))
        assert b.recv(GUARD).shape == (2,)


def test_a_policy_may_refuse_what_could_shrink() -> None:
    fd = os.memfd_create("unsealed")
    os.write(fd, bytes(512))
    data, tensor = reference()
    for policy in ("read", "refuse"):
        sock, link = raw_pair(policy=policy)
        with sock, link:
            put(sock, data, [fd])
            if policy == "refuse":
                with pytest.raises(ferry.Unsupported, match="sealed"):
                    link.recv(GUARD)
            else:
                got = link.recv(GUARD)
                assert got.storage is StorageKind.MEM
                assert got.numpy().sum() == 0
    tensor.close()
    os.close(fd)


def test_a_fence_is_minded_unless_it_was_waited_for() -> None:
    data, tensor = reference()
    fenced = data[:32] + struct.pack("<i", 0) + data[36:]
    for options in ({}, {"fence": "ignore"}):
        sock, link = raw_pair(**options)
        with sock, link:
            put(sock, fenced, [fileno(tensor)])
            if options:
                np.testing.assert_array_equal(link.recv(GUARD).numpy(), tensor.numpy())
            else:
                with pytest.raises(ferry.Unsupported, match="fence"):
                    link.recv(GUARD)
    tensor.close()


def test_the_peer_of_a_pair_is_who_made_it() -> None:
    a, b = Link.pair()
    with a, b:
        assert a.peer == b.peer == (os.getpid(), os.getuid(), os.getgid())
        assert a.peer.pid == os.getpid()
        assert f"to process {os.getpid()}" in repr(a)


# ---- time ----


def fill(link: Link) -> int:
    """Send until the socket is full; how many frames went, numbered from 0."""
    for sent in itertools.count():
        try:
            link.send(np.arange(4096) + sent, 0)
        except ferry.TimedOut as error:
            if "nothing was sent" not in str(error):
                raise
            break
    return sent


def test_a_full_socket_times_out_with_nothing_sent() -> None:
    a, b = Link.pair()
    with a, b:
        frame = np.arange(4096, dtype=np.int64)
        sent = fill(a)
        assert sent > 0
        for i in range(sent):
            assert b.recv(GUARD).numpy()[0] == i
        with pytest.raises(ferry.TimedOut):
            b.recv(0)
        a.send(frame)  # the link is as good as before
        assert b.recv(GUARD).shape == (4096,)


def test_half_a_frame_breaks_the_link() -> None:
    a, b = Link.pair()
    with b:
        with a:
            with pytest.raises(ferry.TimedOut, match="half a frame"):
                a.send(np.zeros(8 << 20, np.uint8), 0.05)
            for _ in range(2):
                with pytest.raises(ferry.Disconnected, match="only in part"):
                    a.send(np.zeros(2), 0)
            b.send(np.arange(3))  # the other direction is whole
            assert a.recv(GUARD).shape == (3,)
        for _ in range(2):
            with pytest.raises(ferry.Truncated) as caught:
                b.recv(GUARD)
            assert caught.value.need is not None
            assert caught.value.have is not None
            assert caught.value.need > 8 << 20 > caught.value.have > 0


def test_an_interrupt_in_the_middle_of_a_frame_breaks_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    a, b = Link.pair()
    with a, b:
        with monkeypatch.context() as patch:
            patch.setattr(a._channel, "_wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                a.send(np.zeros(8 << 20, np.uint8))
        with pytest.raises(ferry.Disconnected, match="only in part"):
            a.send(np.zeros(2))


def test_nothing_comes() -> None:
    a, b = Link.pair()
    with a, b:
        for timeout in (0, 0.01):
            with pytest.raises(ferry.TimedOut, match="nothing came"):
                b.recv(timeout)
        a.send(np.arange(2))
        assert b.recv(0).shape == (2,)


def test_another_thread_may_be_receiving() -> None:
    a, b = Link.pair()
    with a, b:
        receiver = Thread(lambda: b.recv(GUARD))
        blocked(receiver)
        with pytest.raises(ferry.TimedOut):
            b.recv(0.01)
        a.send(np.arange(5))
        assert receiver.done().shape == (5,)


def test_selectors() -> None:
    a, b = Link.pair()
    with a, b, selectors.DefaultSelector() as selector:
        selector.register(b, selectors.EVENT_READ)
        assert selector.select(0) == []
        a.send(np.arange(6))
        assert [key.fileobj for key, _ in selector.select(GUARD)] == [b]
        assert b.recv(0).shape == (6,)
        assert selector.select(0) == []
        a.close()
        assert selector.select(GUARD)
        with pytest.raises(ferry.EndOfStream):
            b.recv(0)
        selector.unregister(b)


def test_a_frame_may_be_too_long_for_the_receiver() -> None:
    a, b = Link.pair(max_bytes=1000)
    with a, b:
        a.send(np.zeros(800, np.uint8))
        assert b.recv(GUARD).nbytes == 800
        a.send(np.zeros(1000, np.uint8))
        for _ in range(2):
            with pytest.raises(ferry.ForgedLength, match="max_bytes"):
                b.recv(GUARD)


def test_more_descriptors_than_a_message_carries(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Link.pair()
    with (
        a,
        b,
        ferry.allocate((32, 64), "uint8", storage="shm") as luma,
        ferry.allocate((16, 64), "uint8", storage="shm") as chroma,
        ferry.image_from_fd([fileno(luma), fileno(chroma)], "NV12", 64, 32) as image,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(channel, "MAX_DESCRIPTORS", 1)
            with pytest.raises(ferry.Unsupported, match="descriptors"):
                a.send(image)
        a.send(image)
        b.recv(GUARD).close()


# ---- the end ----


def test_the_other_side_closes() -> None:
    a, b = Link.pair()
    with b:
        with a:
            for i in range(3):
                a.send(np.full(2, i))
        assert [int(tensor.numpy()[0]) for tensor in b] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(ferry.EndOfStream):
                b.recv()
        assert list(b) == []
        with pytest.raises(ferry.Disconnected):
            b.send(np.zeros(1))


def test_what_was_left_unread_does_not_spoil_the_end() -> None:
    """A peer that goes with bytes unread resets the connection; all that it sent is there all the same."""
    a, b = Link.pair()
    with b:
        a.send(np.arange(4))
        b.send(np.zeros(3))
        a.close()
        assert [tensor.shape for tensor in b] == [(4,)]


def test_this_side_closes() -> None:
    a, b = Link.pair()
    with b:
        a.close()
        a.close()
        assert a.fileno() == -1
        assert "closed" in repr(a)
        for use in (lambda: a.send(np.zeros(1)), a.recv, lambda: a.recv(0)):
            with pytest.raises(ferry.Disconnected, match="this link was closed"):
                use()
        assert a.collect() is False


@pytest.mark.parametrize("timeout", [None, GUARD])
def test_closing_wakes_who_receives(timeout: float | None) -> None:
    a, b = Link.pair()
    with a:
        receivers = [Thread(lambda: b.recv(timeout)) for _ in range(2)]
        for receiver in receivers:
            blocked(receiver)
        b.close()
        for receiver in receivers:
            with pytest.raises(ferry.Disconnected, match="this link was closed"):
                receiver.done()
        assert b.fileno() == -1


def test_closing_wakes_who_sends() -> None:
    a, b = Link.pair()
    with b:
        sender = Thread(lambda: a.send(np.zeros(8 << 20, np.uint8)))
        blocked(sender)
        a.close()
        with pytest.raises(ferry.Disconnected, match="this link was closed"):
            sender.done()


def test_closing_inside_recv_does_not_hang() -> None:
    """As a signal handler does that closes the link in the very thread that receives."""
    a, b = Link.pair()
    before = signal.signal(signal.SIGALRM, lambda *_: b.close())
    try:
        with a:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(ferry.Disconnected, match="this link was closed"):
                b.recv()
            assert b.fileno() == -1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_signals_without_end_keep_nobody_from_timing_out() -> None:
    a, b = Link.pair()
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with a, b:
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
            with pytest.raises(ferry.TimedOut, match="nothing came"):
                b.recv(0.3)
            closer = Thread(b.close)
            with pytest.raises(ferry.Disconnected, match="this link was closed"):
                b.recv()
            closer.done()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_link_that_is_forgotten_closes_all_it_has() -> None:
    data, tensor = reference()
    sock, link = raw_pair()
    put(sock, data, [fileno(tensor)])
    put(sock, data[:40], [fileno(tensor)])
    link.collect()
    del link
    assert sock.recv(1) == b""
    sock.close()
    tensor.close()
