"""No test of a link may leave a descriptor, a child or a thread behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker

import pytest
from link_peers import children, descriptors


@pytest.fixture(scope="session")
def spawning() -> None:
    """What multiprocessing starts once, with the first child that it spawns, and keeps."""
    resource_tracker.ensure_running()


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> Iterator[None]:
    """What is there before the tests need not be looked through at each of their many collections."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = descriptors(), children(), threading.active_count()
    yield
    assert (descriptors(), children(), threading.active_count()) == before
