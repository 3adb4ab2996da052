"""What all tests share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _collected_tests_are_no_garbage() -> Iterator[None]:
    """Many tests collect garbage to see that nothing is left: let them not walk thousands of tests each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
