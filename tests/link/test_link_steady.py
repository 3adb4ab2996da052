"""A steady stream costs no mapping, no page fault and no descriptor."""

from __future__ import annotations

import gc
import resource
from typing import Any

import numpy as np
import pytest
from link_peers import GUARD, acquire, all_back, child, descriptors, mapped

import tensorferry as ferry
from tensorferry.link import Link, Pool
from tensorferry.memory.opening import open_region

BYTES = 1 << 20


def test_each_buffer_is_mapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def counted(*args: Any) -> Any:
        made.append(open_region(*args))
        return made[-1]

    monkeypatch.setattr("tensorferry.link.mappings.open_region", counted)
    a, b = Link.pair()
    with a, b, Pool(BYTES, "uint8", 4) as pool, Pool(BYTES, "uint8", 1) as other:
        before = mapped()
        for i in range(300):
            for source in (pool, other):
                with acquire(source) as sent:
                    sent.numpy()[:8] = i % 256
                    a.send(sent)
                with b.recv(GUARD) as got:
                    assert (got.numpy()[:8] == i % 256).all()
        assert len(made) == 5
        assert mapped() == before + 5
        everything = descriptors()
        with acquire(pool) as sent:
            a.send(sent)
        b.recv(GUARD).close()
        all_back(pool)
        assert descriptors() == everything
    del pool, other, sent, got
    made.clear()
    gc.collect()
    assert mapped() == before - 5  # the pools' own five went as well


def test_a_buffer_that_is_sent_by_reference_again_is_not_mapped_again() -> None:
    a, b = Link.pair()
    before = mapped()
    with a, b, ferry.allocate(BYTES, "uint8", storage="shm") as sent:
        for _ in range(50):
            a.send(sent)
            b.recv(GUARD).close()
        assert mapped() == before + 2
    assert mapped() == before


def test_memory_that_never_comes_again_is_not_kept() -> None:
    """A sender that allocates each frame anew must not fill the receiver with what it has dropped itself."""
    a, b = Link.pair()
    with a, b:
        before, everything = mapped(), len(descriptors())
        for i in range(200):
            with ferry.allocate(BYTES, "uint8", storage="shm") as sent:
                sent.numpy()[0] = i % 256
                a.send(sent)
            with b.recv(GUARD) as got:
                assert got.numpy()[0] == i % 256
        del got
        assert mapped() <= before + 16
        assert len(descriptors()) <= everything + 2 * 16
    assert mapped() == before


def test_pages_are_faulted_in_once() -> None:
    a, b = Link.pair()
    frames, pages = 200, BYTES // resource.getpagesize()

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def run() -> None:
        a.close()
        warm = 0
        total = np.int64(0)
        for count, tensor in enumerate(b):
            if count == 20:
                warm = faults()
            with tensor:
                total += tensor.numpy().sum()
        assert total == frames * BYTES
        # Mapped anew, or touched anew, each frame would cost as many faults as it has pages.
        assert faults() - warm < 2 * pages

    with child(run):
        b.close()
        with a, Pool(BYTES, "uint8", 4) as pool:
            for _ in range(frames):
                with acquire(pool) as tensor:
                    tensor.numpy()[:] = 1
                    a.send(tensor)
            all_back(pool)
