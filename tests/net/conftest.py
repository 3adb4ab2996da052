"""What every test of an engine needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from net_peers import GUARD, Pair, at, endpoint, to

from tensorferry.net import zenoh


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Settings of two sessions that are connected, and stay open."""
    pytest.importorskip("zenoh", reason="the extra zenoh is not installed")
    where = endpoint()
    settings = Pair(at(where), to(where))
    with zenoh.Publisher("warm/up", **settings.publisher) as warm, zenoh.Subscriber("warm/up", **settings.subscriber):
        assert warm.wait_for_subscriber(GUARD)
        yield settings
