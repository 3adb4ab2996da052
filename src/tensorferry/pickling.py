"""Pickling of tensors: by protocol 5 their planes travel out of band, so that nobody copies them twice.

multiprocessing, concurrent.futures, joblib, Ray and Dask pickle what they move; the planes are handed to
them as buffers. Pickles are for processes that trust each other and run the same version: for anything
else there are two wire formats.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import Unsupported
from .labels import Labels
from .parts import flat
from .plane import Carried, Description, Plane

__all__ = ["reduce_tensor"]

_Geometry = tuple[int, int, int]  # size, stride, used


def reduce_tensor(tensor: Any, protocol: int) -> tuple[Any, ...]:
    """What ``Tensor.__reduce_ex__`` returns: the planes as buffers, out of band from protocol 5 on.

    A tensor over an array that is not in C order is packed first. Raises Unsupported for memory that this
    process cannot read.
    """
    packed = tensor.packed()
    geometry = [(plane.size, plane.stride, plane.used) for plane in packed.planes]
    buffers = [_as_pickled(buffer, protocol) for buffer in _buffers(packed.planes)]
    return _restored, (type(tensor), packed._description, geometry, buffers, packed.labels, packed.carried)


def _buffers(planes: tuple[Plane, ...]) -> list[memoryview]:
    """The planes' bytes; as one buffer where they stand one behind the other in one piece of memory."""
    views = []
    for i, plane in enumerate(planes):
        if plane.data is None or plane.modifier:
            raise Unsupported(f"plane {i} cannot be pickled: this process cannot read its bytes", field="storage")
        views.append(plane.data)
    if len(views) == 1 or len({id(view.obj) for view in views}) != 1:
        return views
    arrays = [np.frombuffer(view, np.uint8) for view in views]
    places = [array.__array_interface__["data"][0] for array in arrays]
    ends = [place + array.size for place, array in zip(places, arrays, strict=True)]
    if places[1:] != ends[:-1]:
        return views
    first = arrays[0]
    whole = np.lib.stride_tricks.as_strided(first, (ends[-1] - places[0],), (1,), writeable=first.flags.writeable)
    return [whole.data]


def _as_pickled(buffer: memoryview, protocol: int) -> object:
    return pickle.PickleBuffer(buffer) if protocol >= 5 else bytes(buffer)


def _restored(
    make: Callable[..., Any],
    description: Description,
    geometry: list[_Geometry],
    buffers: list[Any],
    labels: Labels | None,
    carried: Carried | None,
) -> Any:
    views = [flat(buffer) for buffer in buffers]
    planes = []
    start = 0
    for i, (size, stride, used) in enumerate(geometry):
        view = views[i] if len(views) == len(geometry) else views[0][start : start + size]
        planes.append(Plane(view, stride, size, used))
        start += size
    return make(description, tuple(planes), labels=labels, carried=carried)
