"""Tensors through multiprocessing: by descriptor where they have one, by value otherwise."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from typing import Any

import numpy as np
import pytest

import tensorferry as ferry
from tensorferry import StorageKind, Tensor
from tensorferry.link import Pool


def add_one(inbox: SimpleQueue[Any], outbox: SimpleQueue[Any]) -> None:
    """Add 1 to every element of what comes, in place, and tell what it was."""
    while (t := inbox.get()) is not None:
        view = t.plane(t.format is not None and t.format.is_semi_planar)
        if view.flags.writeable:
            view += 1
        outbox.put((str(t.storage), view.flags.writeable, t.shape, t.labels))
        del t, view


@pytest.fixture(params=["fork", "spawn"])
def child(request: pytest.FixtureRequest) -> Any:
    """Hands a tensor to another process and returns what that process said of it."""
    context = get_context(request.param)
    inbox, outbox = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=add_one, args=(inbox, outbox))
    process.start()

    def hand(t: Tensor) -> Any:
        inbox.put(t)
        return outbox.get()

    yield hand
    inbox.put(None)
    process.join(60)
    assert process.exitcode == 0


Hand = Callable[[Tensor], Any]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_shared_memory_is_the_same_memory_there(child: Hand) -> None:
    t = ferry.allocate((2, 3), "int16", storage="shm").replace(labels=ferry.Labels(seq=7))
    assert child(t) == ("shm", True, (2, 3), ferry.Labels(seq=7))
    assert child(t)[:2] == ("shm", True)
    assert t.numpy().tolist() == [[2, 2, 2], [2, 2, 2]]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_every_plane_of_an_image(child: Hand) -> None:
    t = ferry.allocate_image("NV12", 5, 3, storage="shm", stride=8)
    assert child(t)[0] == "shm"
    assert t.plane(0).max() == 0
    assert t.plane(1).min() == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_read_only_stays_read_only(child: Hand) -> None:
    t = ferry.allocate((4,), "uint8", storage="shm")
    handle = t.planes[0].handle
    assert handle is not None
    with ferry.from_fd(handle.fileno(), (4,), "uint8") as u:
        assert child(u)[:2] == ("shm", False)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_what_has_no_descriptor_goes_by_value(child: Hand) -> None:
    a = np.zeros(3, np.uint8)
    assert child(Tensor.from_array(a))[0] == "mem"
    assert a.tolist() == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_pools_buffer_goes_by_value(child: Hand) -> None:
    """multiprocessing gives nothing back: the buffer would be written under the reader."""
    with Pool((3,), "uint8", 1) as pool:
        t = pool.acquire()
        assert t is not None
        t.numpy()[:] = 0
        assert child(t)[0] == "mem"
        assert t.numpy().tolist() == [0, 0, 0]


def test_other_picklers_take_values() -> None:
    t = ferry.allocate((2,), "uint8", storage="shm")
    assert pickle.loads(pickle.dumps(t)).storage is StorageKind.MEM
