"""Leases: memory that goes back to somebody when nobody here, and nobody that it was lent to, looks at it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .region import Hold, Region

__all__ = ["Lease", "LeaseHold"]


_alive: set[Lease] = set()


class _Watch(weakref.ref[Any]):
    """A tensor's claim on ``lease``, which also sees when the last view of its memory is gone."""

    __slots__ = ("lease",)

    lease: Lease

    # As an object of its own, not as the array that it watches.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def _gone(watch: _Watch) -> None:
    watch.lease.drop(watch)


class Lease:
    """Counts claims on one use of a buffer; when the last is dropped, ``on_free`` runs, once.

    A tensor's claim ends with the last view of its memory. Each place that the buffer is lent to is a
    further claim. Claims may be dropped from any thread, and from a garbage collection in the middle of
    anything: nothing here takes a lock. A lease lives until it is free, whoever else forgets it.
    """

    __slots__ = ("_claims", "_free")

    def __init__(self, on_free: Callable[[], None]) -> None:
        self._claims: set[object] = set()
        self._free = [on_free]

    def hold(self, root: npt.NDArray[np.uint8], region: Region | None = None) -> Hold:
        """A hold for a tensor that looks through ``root``, whose end ends the tensor's claim."""
        watch = _Watch(root, _gone)
        watch.lease = self
        self._claims.add(watch)
        _alive.add(self)
        return LeaseHold(root, self)

    @property
    def claims(self) -> list[object]:
        """What claims the buffer now."""
        return list(self._claims)

    def claim(self, claim: object) -> None:
        """Claim the buffer for ``claim`` (hashable); only while another claim is held."""
        self._claims.add(claim)

    def drop(self, claim: object) -> None:
        """Drop a claim; one that is not there is no matter."""
        self._claims.discard(claim)
        if not self._claims:
            try:
                on_free = self._free.pop()  # of two threads that see no claims, one gets it
            except IndexError:
                return
            _alive.discard(self)
            on_free()


class LeaseHold(Hold):
    """The hold of a leased tensor, by which its lease is found when it is lent on."""

    __slots__ = ("lease",)

    def __init__(self, root: npt.NDArray[np.uint8], lease: Lease) -> None:
        self._root = root  # as Hold does, without the call
        self._finish = None
        self._sharers = None
        self.lease = lease
