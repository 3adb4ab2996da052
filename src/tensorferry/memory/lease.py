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


class Lease:
    """Counts claims on one use of a buffer; when the last is dropped, ``on_free`` runs, once.

    A tensor's claim ends with the last view of its memory. Each place that the buffer is lent to is a
    further claim. Claims may be dropped from any thread, and from a garbage collection in the middle of
    anything: nothing here takes a lock. A lease lives until it is free, whoever else forgets it.
    """

    __slots__ = ("_claims", "_free", "_watches")

    def __init__(self, on_free: Callable[[], None]) -> None:
        self._claims: set[object] = set()
        self._free = [on_free]
        self._watches: list[weakref.ref[Any]] = []

    def hold(self, root: npt.NDArray[np.uint8], region: Region | None = None) -> Hold:
        """A hold for a tensor that looks through ``root``, whose end ends the tensor's claim."""
        claim = object()
        self._claims.add(claim)
        _alive.add(self)
        self._watches.append(weakref.ref(root, lambda _: self.drop(claim)))
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
        super().__init__(root)
        self.lease = lease
