"""What a tensor is made of: a description of what its bytes mean, and the planes that they stand in."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from .arrays import dense_strides
from .dtypes import DType
from .image import Colorimetry, PixelFormat
from .quantization import Quantization

__all__ = ["Carried", "Description", "Handle", "Hold", "Plane", "StorageKind"]


class StorageKind(str, Enum):
    """Where a tensor's planes live. A member is also the string of its name: ``t.storage == "shm"``."""

    MEM = "mem"
    SHM = "shm"
    DMA_BUF = "dmabuf"
    IO_SURFACE = "iosurface"
    PBO = "pbo"
    CUDA = "cuda"
    D3D11 = "d3d11"

    __str__ = str.__str__


class Carried(Protocol):
    """What a wire format said that this model has no word for, kept so that it can be said again."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of what would be lost by writing the tensor in another format."""
        ...


class Handle(Protocol):
    """What a plane's memory is reached by from elsewhere."""

    def fileno(self) -> int:
        """The descriptor, borrowed."""
        ...

    def cpu_access(self, *, begin: bool, read: bool, write: bool) -> None:
        """Begin or end access by the CPU."""
        ...


class Hold(Protocol):
    """What keeps the memory of a tensor's planes."""

    def share(self, *tensors: object) -> None:
        """These tensors look at the same planes."""
        ...

    def release(self, tensor: object, planes: Sequence[Plane]) -> None:
        """``tensor`` is done; when no other looks at the planes, let their memory go. InUse while views live."""
        ...


class Plane:
    """One plane of a tensor: its bytes and how its rows stand in them. All numbers are bytes.

    ``data`` is a flat memoryview over the plane's memory (borrowed, read-only where the memory is), or None
    where the host cannot see it. ``stride`` is the row pitch of an image plane, and the whole size of a
    bare tensor's one plane. ``used`` of ``size`` bytes carry content. ``offset`` counts from the start of
    the allocation behind ``handle``; ``modifier`` is a DRM tiling modifier, 0 for linear memory.
    """

    __slots__ = ("data", "handle", "modifier", "offset", "size", "stride", "used")

    def __init__(
        self,
        data: memoryview | None,
        stride: int,
        size: int | None = None,
        used: int | None = None,
        *,
        offset: int = 0,
        modifier: int = 0,
        handle: Handle | None = None,
    ) -> None:
        self.data = data
        self.stride = stride
        self.size = len(data or b"") if size is None else size
        self.used = self.size if used is None else used
        self.offset = offset
        self.modifier = modifier
        self.handle = handle

    def __repr__(self) -> str:
        tail = f", modifier={self.modifier:#x}" if self.modifier else ""
        return f"Plane({self.size} bytes, stride={self.stride}{tail})"


class Description:
    """What a tensor's bytes mean. Immutable, and shared by every tensor that means the same.

    ``strides`` None is dense C order, left unsaid: it stays unsaid on the wire. ``format`` is a
    PixelFormat, a string for one that is unknown here (its planes are carried, its pixels are not read),
    or None.
    """

    __slots__ = ("colorimetry", "dtype", "format", "numpy_dtype", "quantization", "shape", "strides", "strides_given")

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        *,
        format: PixelFormat | str | None = None,
        colorimetry: Colorimetry | None = None,
        quantization: Quantization | None = None,
    ) -> None:
        if quantization is not None:
            quantization.check(shape)
        self.dtype = dtype
        self.numpy_dtype = dtype.numpy
        self.shape = shape
        self.strides_given = strides is not None
        self.strides = dense_strides(shape, dtype.size) if strides is None else strides
        self.format = format
        self.colorimetry = colorimetry or None
        self.quantization = quantization

    def changed(self, **changes: Any) -> Description:
        """Another description with ``changes`` made to it."""
        keep = {"format": self.format, "colorimetry": self.colorimetry, "quantization": self.quantization}
        return Description(self.dtype, self.shape, self.strides if self.strides_given else None, **{**keep, **changes})
