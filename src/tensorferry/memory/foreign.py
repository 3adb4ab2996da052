"""Foreign memory: kinds that no Python can open by itself, and the plug-ins that can.

A CUDA IPC handle, a D3D11 texture or an IOSurface arrives as a few bytes or a number. An importer registered
for its kind turns them into memory; without one they are refused, by name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy.typing as npt

from ..arrays import borrow, flat_bytes
from ..errors import Unsupported
from ..tensor import Plane, StorageKind

__all__ = ["ENTRY_POINTS", "ForeignPlane", "Importer", "open_foreign", "register", "unregister"]

ENTRY_POINTS = "tensorferry.importers"
"""The entry-point group in which a distribution offers importers, each by its kind's name or number."""


class ForeignPlane(NamedTuple):
    """What arrived for one plane. Sizes and offsets are bytes; ``fd`` is borrowed, None without one.

    ``handle`` is the number on the wire: the index of ``fd``, or an id of the kind's own (an IOSurface's).
    """

    kind: StorageKind | int
    handle_bytes: bytes
    fd: int | None
    handle: int
    offset: int
    size: int
    stride: int
    modifier: int
    pid: int


Importer = Callable[[ForeignPlane], object]
"""Opens one plane. Returns what lends host memory (a buffer, an array, ``__dlpack__``) of at least ``size``
bytes from ``offset`` on, or anything else for memory that only a device sees: then it becomes the plane's
``handle``, and the plane has no host bytes. It duplicates the descriptor if it keeps it."""

_importers: dict[StorageKind | int, Importer] = {}
_lock = threading.Lock()


def register(kind: StorageKind | int | str, importer: Importer) -> None:
    """Have ``importer`` open memory of ``kind`` (a number for one that has no name here) in this process.

    ValueError where one is registered already.
    """
    key = _key(kind)
    with _lock:
        if key in _importers:
            raise ValueError(f"an importer for {key!s} is registered already: unregister it first")
        _importers[key] = importer


def unregister(kind: StorageKind | int | str) -> None:
    """Take an importer away; without one, nothing happens."""
    with _lock:
        _importers.pop(_key(kind), None)


def open_foreign(arrived: ForeignPlane, *, writable: bool = False) -> Plane:
    """The plane that a registered importer makes of what arrived; Unsupported without one.

    Read-only, unless ``writable`` asks for more and the importer's memory allows it.
    """
    importer = _importers.get(arrived.kind) or _from_entry_points(arrived.kind)
    if importer is None:
        name = str(arrived.kind) if isinstance(arrived.kind, StorageKind) else arrived.kind
        what = f"{len(arrived.handle_bytes)} handle bytes" if arrived.handle_bytes else f"handle {arrived.handle}"
        raise Unsupported(
            f"memory of kind {arrived.kind!s} arrived ({what}, {arrived.size} bytes from {arrived.offset}),"
            f" which nothing here can open: tensorferry.memory.register({name!r}, importer),"
            f" or install a distribution with an entry point in {ENTRY_POINTS!r}",
            field="storage_kind",
            value=arrived.kind,
        )
    opened = importer(arrived)
    array = _host_memory(opened)
    stride, size, modifier = arrived.stride, arrived.size, arrived.modifier
    if array is None:
        handle: Any = opened  # the importer's own, carried untouched
        return Plane(None, stride, size, offset=arrived.offset, modifier=modifier, handle=handle)
    if not array.flags.c_contiguous:
        raise Unsupported(
            f"the importer for {arrived.kind!s} gave an array with gaps (strides {array.strides}): it must give flat"
            " bytes from the allocation's start",
            field="strides",
            value=array.strides,
        )
    data = flat_bytes(array)[arrived.offset : arrived.offset + arrived.size]
    if len(data) < arrived.size:
        raise Unsupported(
            f"the importer for {arrived.kind!s} gave {array.nbytes} bytes, the plane ends at"
            f" {arrived.offset + arrived.size}",
            field="size",
            value=arrived.size,
        )
    return Plane(data if writable else data.toreadonly(), stride, size, modifier=modifier)


def _host_memory(opened: object) -> npt.NDArray[Any] | None:
    """What an importer opened as an array; None where only a device sees it."""
    try:
        return borrow(opened)
    except TypeError:  # nothing that lends memory
        return None
    except Unsupported as error:
        if error.field == "device" and error.value is not None:  # DLPack, but not for the host
            return None
        raise


def _from_entry_points(kind: StorageKind | int) -> Importer | None:
    from importlib.metadata import entry_points  # slow to import, and rarely asked

    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == str(kind):
            try:
                importer: Importer = entry.load()
            except Exception as error:
                raise Unsupported(
                    f"the importer for {kind!s} that is installed as {entry.value!r} cannot be loaded: {error!r}",
                    field="storage_kind",
                    value=kind,
                ) from error
            with _lock:
                return _importers.setdefault(kind, importer)
    return None


def _key(kind: StorageKind | int | str) -> StorageKind | int:
    return kind if isinstance(kind, int) else StorageKind(kind)
