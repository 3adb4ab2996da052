"""Memory from elsewhere: descriptors that arrive, and what may be done with each kind.

A memfd sealed against shrinking, and a dma-buf, are mapped. Anything else that has bytes is read out once,
never mapped: whoever holds it could truncate it, and a reader of a truncated mapping dies of SIGBUS.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..arrays import dense_strides, reach
from ..dtypes import DType
from ..errors import ForgedLength, InUse, Malformed, Unsupported
from ..image import Colorimetry, PixelFormat
from ..tensor import Description, Plane, StorageKind, Tensor
from .allocating import image_description, plane_layout
from .descriptor import Descriptor, Nature, describe_other, nature_of, no_descriptor, require_linux, size_of
from .region import Hold, Region, look_through

__all__ = [
    "MAX_READ_OUT",
    "KeepRegion",
    "OpenRegion",
    "from_fd",
    "from_shm",
    "image_from_fd",
    "keep_region",
    "open_planes",
    "open_region",
]

MAX_READ_OUT = 1 << 30
"""Bytes of unsealed memory that are read out for one tensor: a sparse file claims any size for free."""

POLICIES = ("read", "refuse")

# Without waiting: somebody may have put a pipe there.
_OPEN_NAMED = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

OpenRegion = Callable[[int, bool], "Region | None"]
"""From a descriptor (borrowed) and whether to map for writing, to a mapping, or None to read it out."""

KeepRegion = Callable[[npt.NDArray[np.uint8], Region], Hold]
"""From the array through which a tensor looks at a region, to what keeps it for the tensor."""


def keep_region(root: npt.NDArray[np.uint8], region: Region) -> Hold:
    """A hold that closes the region with the tensor."""
    return Hold(root, region.close)


def open_region(fd: int, writable: bool, planes: Sequence[Plane] = ()) -> Region | None:
    """A mapping of what ``fd`` refers to, over a duplicate; None where it may shrink and must be read out.

    Malformed where ``fd`` is no memory at all (a pipe, a directory …); ForgedLength, before anything is
    mapped, where one of ``planes`` ends past it.
    """
    require_linux("memory by descriptor")
    nature = nature_of(fd)
    if nature is Nature.OTHER:
        raise Malformed(f"descriptor {fd} is {describe_other(fd)}, not memory", field="handle", value=fd)
    if not nature.mappable:
        return None
    if planes:
        _check_extents(planes, size_of(fd))
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
    ours = opener is open_region  # regions of a caller's own opener are the caller's
    if len(planes) == len(fds) == 1 and not ours:
        return _open_one(description, planes[0], fds[0], writable, policy, opener, keep)
    by_fd: dict[int, list[Plane]] = {}
    for plane, fd in zip(planes, fds, strict=True):
        by_fd.setdefault(fd, []).append(plane)
    regions: dict[int, Region | None] = {}
    parts: list[_Part] = []
    storage = StorageKind.MEM
    may_read = MAX_READ_OUT
    try:
        for fd, mine in by_fd.items():
            regions[fd] = region = open_region(fd, writable, mine) if ours else opener(fd, writable)
            if region is None:
                may_read -= _read_planes(fd, mine, policy, may_read)
                continue
            storage = region.storage
            _check_extents(mine, region.size)
            for plane in mine:
                plane.handle = region
            root = region.root()
            look_through(mine, root)
            parts.append((region, keep(root, region), mine))
    except BaseException:
        if ours:
            for region in regions.values():
                if region is not None:
                    region.close()
        raise
    hold = None if not parts else parts[0][1] if len(parts) == 1 else _Holds(parts, keep)
    return Tensor(description, tuple(planes), storage=storage, hold=hold)


def _open_one(
    description: Description,
    plane: Plane,
    fd: int,
    writable: bool,
    policy: str,
    opener: OpenRegion,
    keep: KeepRegion,
) -> Tensor:
    """The same for one plane that a caller's own opener maps: what a stream consists of, so that each step counts."""
    region = opener(fd, writable)
    if region is None:
        _read_planes(fd, [plane], policy, MAX_READ_OUT)
        return Tensor(description, (plane,))
    end = plane.offset + plane.size
    if end > region.size:
        _check_extents([plane], region.size)
    root = region.root()
    plane.handle = region
    plane.data = root.data[plane.offset : end]
    return Tensor(description, (plane,), storage=region.storage, hold=keep(root, region))


def _read_planes(fd: int, planes: Sequence[Plane], policy: str, limit: int) -> int:
    """Read planes out of memory that may shrink, or refuse to; returns their bytes, at most ``limit``."""
    if policy == "refuse":
        raise Unsupported(
            f"descriptor {fd} is {nature_of(fd).value}: have it sealed (F_SEAL_SHRINK),"
            " or allow it to be read out with policy='read'",
            field="policy",
            value=fd,
        )
    _check_extents(planes, size_of(fd))
    total = sum(plane.size for plane in planes)
    if total > limit:
        raise Unsupported(
            f"{total} bytes of memory that may shrink are more than the {MAX_READ_OUT} that are read out for a"
            " tensor: have it sealed (F_SEAL_SHRINK), so that it can be mapped",
            field="size",
            value=total,
        )
    for plane in planes:
        try:
            plane.data = memoryview(_read_out(fd, plane.offset, plane.size)).toreadonly()
        except OSError as error:
            raise Unsupported(f"descriptor {fd} cannot be read: {error.strerror}", field="fd", value=fd) from error
        plane.offset = 0
    return total


_Part = tuple[Region, Hold, "list[Plane]"]
"""A region, what keeps it for a tensor, and the tensor's planes that live in it."""


class _Holds(Hold):
    """The holds of a tensor whose planes live in several regions: let go of all together, or of none."""

    __slots__ = ("_keep", "_parts")

    def __init__(self, parts: list[_Part], keep: KeepRegion) -> None:
        super().__init__(None)
        self._parts = parts
        self._keep = keep

    def let_go(self, planes: Sequence[Plane]) -> None:
        gone = 0
        try:
            for _, hold, mine in self._parts:
                hold.let_go(mine)
                gone += 1
        except InUse:
            for i, (region, _, mine) in enumerate(self._parts[:gone]):
                root = region.root()
                look_through(mine, root)
                self._parts[i] = region, self._keep(root, region), mine
            raise

    def finish(self) -> None:
        for _, hold, _ in self._parts:
            hold.finish()


def _check_extents(planes: Sequence[Plane], size: int) -> None:
    for plane in planes:
        if plane.offset + plane.size > size:
            raise ForgedLength(
                f"a plane runs from byte {plane.offset} to {plane.offset + plane.size} of {size} bytes of memory",
                field="size",
                value=plane.size,
            )


def _read_out(fd: int, offset: int, size: int) -> bytearray:
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
    row, dimensions = DType.of(dtype), tuple(int(n) for n in shape)
    steps = dense_strides(dimensions, row.size) if strides is None else tuple(int(n) for n in strides)
    size = reach(dimensions, steps, row.size)
    _check_offsets([offset])
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
    _check_offsets(offsets)
    planes = [Plane(None, pitch, size, offset=at) for (size, pitch), at in zip(layout, offsets, strict=True)]
    return open_planes(description, planes, fds, writable=writable, policy=policy)


def _plane_offsets(offset: int | Sequence[int], layout: list[tuple[int, int]], *, one_memory: bool) -> list[int]:
    if not isinstance(offset, int):
        return list(offset)
    offsets = []
    for size, _ in layout:
        offsets.append(offset)
        offset += size if one_memory else 0
    return offsets


def _check_offsets(offsets: Sequence[int]) -> None:
    if any(offset < 0 for offset in offsets):
        raise ValueError(f"offset {min(offsets)} lies before the memory")


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
        opened = Descriptor(os.open(f"/dev/shm/{bare}", _OPEN_NAMED))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise no_descriptor(-1, error) from error
        raise Unsupported(
            f"shared memory {name!r} cannot be opened: {error.strerror}", field="name", value=name
        ) from error
    try:
        return from_fd(opened.fileno(), shape, dtype, offset=offset, strides=strides, policy=policy)
    finally:
        opened.close()
