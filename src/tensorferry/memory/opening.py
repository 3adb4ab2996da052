"""Memory from elsewhere: descriptors that arrive, and what may be done with each kind.

A memfd sealed against shrinking, and a dma-buf, are mapped. Anything else that has bytes is read out once,
never mapped: whoever holds it could truncate it, and a reader of a truncated mapping dies of SIGBUS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..arrays import dense_strides, reach
from ..dtypes import DType
from ..errors import ForgedLength, Malformed, Unsupported
from ..image import Colorimetry, PixelFormat
from ..tensor import Description, Plane, StorageKind, Tensor
from .allocating import image_description, plane_layout
from .descriptor import Descriptor, Nature, describe_other, nature_of, require_linux, size_of
from .region import Hold, Region, look_through

__all__ = ["MAX_READ_OUT", "KeepRegion", "OpenRegion", "from_fd", "from_shm", "image_from_fd", "keep_region", "open_planes", "open_region"]

MAX_READ_OUT = 1 << 30
"""Bytes of unsealed memory that are read out for one plane: a sparse file claims any size for free."""

POLICIES = ("read", "refuse")

OpenRegion = Callable[[int, bool], "Region | None"]
"""From a descriptor (borrowed) and whether to map for writing, to a mapping, or None to read it out."""

KeepRegion = Callable[[npt.NDArray[np.uint8], Region], Hold]
"""From the array through which a tensor looks at a region, to what keeps it for the tensor."""


def keep_region(root: npt.NDArray[np.uint8], region: Region) -> Hold:
    """A hold that closes the region with the tensor."""
    return Hold(root, region.close)


def open_region(fd: int, writable: bool) -> Region | None:
    """A mapping of what ``fd`` refers to, over a duplicate; None where it may shrink and must be read out.

    Malformed where ``fd`` is no memory at all (a pipe, a directory …).
    """
    require_linux("memory by descriptor")
    nature = nature_of(fd)
    if nature is Nature.OTHER:
        raise Malformed(f"descriptor {fd} is {describe_other(fd)}, not memory", field="handle", value=fd)
    if not nature.mappable:
        return None
    return Region(Descriptor.duplicate(fd), writable=writable)


def open_planes(
    description: Description,
    planes: Sequence[Plane],
    fds: Sequence[int],
    *,
    writable: bool = False,
    policy: str = "read",
    opener: OpenRegion = open_region,
    keep: KeepRegion = keep_region,
) -> Tensor:
    """A tensor over ``planes``, plane i at its offset in the memory of descriptor ``fds[i]``.

    ``fds`` are borrowed: what is kept is duplicated. A descriptor that may shrink is read out (``policy``
    "read": the tensor then owns a copy on the heap) or refused ("refuse"). Raises ForgedLength where a plane
    ends past its memory, Malformed where a descriptor is no memory, Unsupported where it cannot be mapped.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy {policy!r} is none of {', '.join(map(repr, POLICIES))}")
    by_fd: dict[int, list[Plane]] = {}
    for plane, fd in zip(planes, fds, strict=True):
        by_fd.setdefault(fd, []).append(plane)
    regions: dict[int, Region | None] = {}
    holds: list[tuple[Hold, list[Plane]]] = []
    storage = StorageKind.MEM
    try:
        for fd, mine in by_fd.items():
            regions[fd] = region = opener(fd, writable)
            if region is None:
                _read_planes(fd, mine, policy)
                continue
            storage = region.storage
            for plane in mine:
                _check_extent(plane, region.size)
                plane.handle = region
            root = region.root()
            look_through(mine, root)
            holds.append((keep(root, region), mine))
    except BaseException:
        if opener is open_region:  # regions of a caller's own opener are the caller's
            for region in regions.values():
                if region is not None:
                    region.close()
        raise
    hold = None if not holds else holds[0][0] if len(holds) == 1 else _Holds(holds)
    return Tensor(description, tuple(planes), storage=storage, hold=hold)


def _read_planes(fd: int, planes: list[Plane], policy: str) -> None:
    """Read planes out of memory that may shrink, or refuse to."""
    if policy == "refuse":
        raise Unsupported(
            f"descriptor {fd} is {nature_of(fd).value}: have it sealed (F_SEAL_SHRINK),"
            " or allow it to be read out with policy='read'",
            field="policy",
            value=fd,
        )
    size = size_of(fd)
    for plane in planes:
        _check_extent(plane, size)
        plane.data = memoryview(_read_out(fd, plane.offset, plane.size)).toreadonly()
        plane.offset = 0


class _Holds:
    """The holds of a tensor whose planes live in several regions."""

    __slots__ = ("_holds",)

    def __init__(self, holds: list[tuple[Hold, list[Plane]]]) -> None:
        self._holds = holds

    def retain(self) -> None:
        for hold, _ in self._holds:
            hold.retain()

    def release(self, planes: Sequence[Plane]) -> None:
        for hold, mine in self._holds:
            hold.release(mine)


def _check_extent(plane: Plane, size: int) -> None:
    if plane.offset + plane.size > size:
        raise ForgedLength(
            f"a plane runs from byte {plane.offset} to {plane.offset + plane.size} of {size} bytes of memory",
            field="size",
            value=plane.size,
        )


def _read_out(fd: int, offset: int, size: int) -> bytearray:
    if size > MAX_READ_OUT:
        raise Unsupported(
            f"{size} bytes of memory that may shrink are more than the {MAX_READ_OUT} that are read out:"
            " have it sealed (F_SEAL_SHRINK), so that it can be mapped",
            field="size",
            value=size,
        )
    data = bytearray(size)
    view = memoryview(data)
    done = 0
    while done < size:
        got = os.preadv(fd, [view[done:]], offset + done)
        if got == 0:  # it was truncated since its size was taken
            raise ForgedLength(
                f"the memory ends at byte {offset + done}, {size - done} bytes early", field="size", value=size
            )
        done += got
    return data


def from_fd(
    fd: int,
    shape: Sequence[int],
    dtype: DType | npt.DTypeLike,
    *,
    offset: int = 0,
    strides: Sequence[int] | None = None,
    writable: bool = False,
    policy: str = "read",
) -> Tensor:
    """A tensor over the memory behind descriptor ``fd``, which is duplicated and stays the caller's.

    ``offset`` and ``strides`` are bytes; strides None is dense C order. Mapped read-only, unless ``writable``
    asks for more and the memory allows it, if it cannot shrink (a sealed memfd, a dma-buf); otherwise read
    out, or refused with ``policy="refuse"``. Raises as ``open_planes`` does; ValueError for strides that
    address bytes before the first element, or too few.
    """
    row, dimensions = DType.of(dtype), tuple(shape)
    steps = dense_strides(dimensions, row.size) if strides is None else tuple(strides)
    size = reach(dimensions, steps, row.size)
    if offset < 0:
        raise ValueError(f"offset {offset} lies before the memory")
    plane = Plane(None, size, size, offset=offset)
    return open_planes(Description(row, dimensions, steps), [plane], [fd], writable=writable, policy=policy)


def image_from_fd(
    fd: int | Sequence[int],
    format: PixelFormat | str,
    width: int,
    height: int,
    *,
    offset: int | Sequence[int] = 0,
    stride: int | None = None,
    dtype: DType | npt.DTypeLike = DType.UINT8,
    colorimetry: Colorimetry | None = None,
    writable: bool = False,
    policy: str = "read",
) -> Tensor:
    """An image over the memory behind ``fd``, or behind one descriptor for each plane; all are duplicated.

    ``offset`` is where the first plane starts, the others following it; or one offset for each plane.
    ``stride`` is the row pitch in bytes, None the smallest. Otherwise as ``from_fd``.
    """
    format = PixelFormat(format)
    description = image_description(format, width, height, stride, DType.of(dtype), colorimetry)
    layout = plane_layout(description, stride)
    fds = [fd] * len(layout) if isinstance(fd, int) else list(fd)
    offsets = _plane_offsets(offset, layout, one_memory=isinstance(fd, int))
    if not len(fds) == len(offsets) == len(layout):
        raise ValueError(f"{format} has {len(layout)} planes: give one descriptor and one offset, or one for each")
    planes = [
        Plane(None, pitch, size, offset=at) for (size, pitch), at in zip(layout, offsets, strict=True)
    ]
    return open_planes(description, planes, fds, writable=writable, policy=policy)


def _plane_offsets(offset: int | Sequence[int], layout: list[tuple[int, int]], *, one_memory: bool) -> list[int]:
    if not isinstance(offset, int):
        return list(offset)
    offsets = []
    for size, _ in layout:
        offsets.append(offset)
        offset += size if one_memory else 0
    return offsets


def from_shm(
    name: str,
    shape: Sequence[int],
    dtype: DType | npt.DTypeLike,
    *,
    offset: int = 0,
    strides: Sequence[int] | None = None,
    policy: str = "read",
) -> Tensor:
    """A tensor over POSIX shared memory ``name`` (as shm_open and multiprocessing.shared_memory name it).

    Such memory carries no seals, so it is read out, not mapped; otherwise as ``from_fd``.
    """
    require_linux("POSIX shared memory by name")
    bare = name.removeprefix("/")
    if not bare or "/" in bare or bare in (".", ".."):
        raise ValueError(f"{name!r} is no name of shared memory: it is one word, perhaps with a / before it")
    try:
        opened = Descriptor(os.open(f"/dev/shm/{bare}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError as error:
        raise Unsupported(f"shared memory {name!r} cannot be opened: {error.strerror}", field="name", value=name) from error
    try:
        return from_fd(opened.fileno(), shape, dtype, offset=offset, strides=strides, policy=policy)
    finally:
        opened.close()
