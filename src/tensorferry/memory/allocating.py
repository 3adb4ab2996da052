"""New tensors to write into, on the heap, in shared memory or in dma-bufs."""

from __future__ import annotations

import errno
import math
import mmap
import os
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..arrays import aligned_zeros
from ..dtypes import DType
from ..errors import Unsupported
from ..image import Colorimetry, PixelFormat
from ..tensor import Description, Plane, StorageKind, Tensor
from .descriptor import Descriptor, no_descriptor, require_linux
from .dmabuf import allocate_dma_buf
from .region import Hold, Region, look_through

if sys.platform == "linux":
    import fcntl

__all__ = ["allocate", "allocate_image", "image_description", "new_region", "plane_layout"]

_HUGE_PAGE = 2 << 20


def allocate(
    shape: int | Sequence[int],
    dtype: DType | npt.DTypeLike,
    *,
    storage: StorageKind | str = StorageKind.MEM,
    huge_pages: bool = False,
    heap: str | None = None,
) -> Tensor:
    """A new writable tensor of zeros in C order; ``t.numpy()`` is the memory itself.

    ``storage`` "mem" is this process's heap, 64-byte aligned. "shm" is a memfd sealed against shrinking and
    growing, mapped once, page aligned (``huge_pages``: of 2 MiB, where the machine has set some aside).
    "dmabuf" comes from the kernel's dma heap ``heap``. The tensor owns its memory: ``close`` releases it.
    Raises Unsupported where the machine has no such storage, ValueError for a negative dimension.
    """
    row = DType.of(dtype)
    dimensions = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    if any(n < 0 for n in dimensions):
        raise ValueError(f"shape {list(dimensions)} has a negative dimension")
    size = math.prod(dimensions) * row.size
    strides = Description(row, dimensions).strides
    description = Description(row, dimensions, strides)
    return _allocated(description, [(size, size)], StorageKind(storage), huge_pages, heap)


def allocate_image(
    format: PixelFormat | str,
    width: int,
    height: int,
    *,
    storage: StorageKind | str = StorageKind.MEM,
    stride: int | None = None,
    dtype: DType | npt.DTypeLike = DType.UINT8,
    colorimetry: Colorimetry | None = None,
    huge_pages: bool = False,
    heap: str | None = None,
) -> Tensor:
    """A new writable image of zeros, its planes one behind the other in one allocation.

    ``stride`` is the row pitch in bytes, None the smallest. Otherwise as ``allocate``.
    """
    format = PixelFormat(format)
    description = image_description(format, width, height, stride, DType.of(dtype), colorimetry)
    return _allocated(description, plane_layout(description, stride), StorageKind(storage), huge_pages, heap)


def image_description(
    format: PixelFormat, width: int, height: int, stride: int | None, dtype: DType, colorimetry: Colorimetry | None
) -> Description:
    """What an image says whose rows stand ``stride`` bytes apart (None: the smallest pitch)."""
    if width < 0 or height < 0:
        raise ValueError(f"an image of {width} × {height} pixels cannot be: give sizes of 0 or more")
    strides = format.strides(width, height, stride, dtype.size)
    return Description(dtype, format.grid(width, height), strides, format=format, colorimetry=colorimetry)


def plane_layout(description: Description, stride: int | None) -> list[tuple[int, int]]:
    """(bytes, stride) of every plane that a description asks for."""
    format = description.format
    if not isinstance(format, PixelFormat):
        size = math.prod(description.shape) * description.dtype.size
        return [(size, size)]
    width, height = format.extent(description.shape)
    return [(p.size, p.stride) for p in format.plane_table(width, height, stride, description.dtype.size)]


def _allocated(
    description: Description, layout: list[tuple[int, int]], storage: StorageKind, huge_pages: bool, heap: str | None
) -> Tensor:
    total = sum(size for size, _ in layout)
    if storage is StorageKind.MEM:
        return Tensor(description, _planes(layout, None, aligned_zeros(total)))
    region = new_region(total, storage, huge_pages=huge_pages, heap=heap)
    root = region.root()
    return Tensor(description, _planes(layout, region, root), storage=region.storage, hold=Hold(root, region.close))


def _planes(layout: list[tuple[int, int]], region: Region | None, root: npt.NDArray[np.uint8]) -> tuple[Plane, ...]:
    planes = []
    offset = 0
    for size, stride in layout:
        planes.append(Plane(None, stride, size, offset=offset, handle=region))
        offset += size
    look_through(planes, root)
    return tuple(planes)


def new_region(size: int, storage: StorageKind, *, huge_pages: bool = False, heap: str | None = None) -> Region:
    """New shared memory of at least ``size`` bytes, mapped for writing."""
    require_linux(f"storage {storage!s}")
    if storage is StorageKind.DMA_BUF:
        return Region(allocate_dma_buf(max(size, 1), heap), writable=True)
    if storage is not StorageKind.SHM:
        raise Unsupported(
            f"storage {storage!s} cannot be allocated here: use 'mem', 'shm' or 'dmabuf'",
            field="storage",
            value=storage,
        )
    return Region(_sealed_memfd(size, huge_pages), writable=True)


def _sealed_memfd(size: int, huge_pages: bool) -> Descriptor:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | (os.MFD_HUGETLB | os.MFD_HUGE_2MB if huge_pages else 0)
    page = _HUGE_PAGE if huge_pages else mmap.PAGESIZE
    try:
        memfd = Descriptor(os.memfd_create("tensorferry", flags))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise no_descriptor(-1, error) from error
        raise Unsupported(f"no memfd can be made: {error.strerror}", field="storage", value="shm") from error
    try:
        # At least a page: nothing can be mapped of an empty file, and an empty tensor must travel too.
        os.ftruncate(memfd.fileno(), max(-(-size // page), 1) * page)
        # Sealed for good: whoever gets the descriptor can neither shrink it under us nor seal it further.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(memfd.fileno(), fcntl.F_ADD_SEALS, seals)
    except (OSError, OverflowError) as error:
        memfd.close()
        raise Unsupported(
            f"{size} bytes of shared memory cannot be had: {error}", field="storage", value="shm"
        ) from error
    return memfd
