"""Tensors through multiprocessing: memory that has a descriptor travels as one, not as bytes."""

from __future__ import annotations

import functools
import pickle
from typing import Any

from ..labels import Labels
from ..tensor import Carried, Description, Plane, Tensor
from .descriptor import Descriptor
from .lease import LeaseHold
from .opening import open_planes
from .region import Region

__all__ = ["pass_by_descriptor"]

_Geometry = tuple[int, int, int, int, int]  # offset, size, stride, used, index of the descriptor


@functools.cache
def pass_by_descriptor() -> None:
    """Have multiprocessing pass tensors by descriptor where they have one; the first call counts.

    Called when the first shared memory is made or mapped, since importing multiprocessing's part takes a
    while. A pool's tensor goes by value: multiprocessing gives nothing back.
    """
    from multiprocessing.reduction import ForkingPickler

    ForkingPickler.register(Tensor, _reduced)


def _reduced(tensor: Tensor) -> tuple[Any, ...]:
    regions = [plane.handle for plane in tensor.planes if isinstance(plane.handle, Region)]
    if len(regions) < len(tensor.planes) or isinstance(tensor._hold, LeaseHold):
        return tensor.__reduce_ex__(pickle.DEFAULT_PROTOCOL)  # what multiprocessing pickles by
    from multiprocessing.reduction import DupFd

    distinct = list(dict.fromkeys(regions))
    geometry = [
        (plane.offset, plane.size, plane.stride, plane.used, distinct.index(region))
        for plane, region in zip(tensor.planes, regions, strict=True)
    ]
    duplicates = [DupFd(region.fileno()) for region in distinct]
    writable = all(region.writable for region in distinct)
    return _received, (tensor._description, geometry, duplicates, writable, tensor.labels, tensor.carried)


def _received(
    description: Description,
    geometry: list[_Geometry],
    duplicates: list[Any],
    writable: bool,
    labels: Labels | None,
    carried: Carried | None,
) -> Tensor:
    arrived = [Descriptor(duplicate.detach()) for duplicate in duplicates]
    try:
        planes = [Plane(None, stride, size, used, offset=offset) for offset, size, stride, used, _ in geometry]
        table = [arrived[index].fileno() for *_, index in geometry]
        tensor = open_planes(description, planes, table, writable=writable)
    finally:
        for descriptor in arrived:
            descriptor.close()
    tensor._labels, tensor._carried = labels, carried
    return tensor
