"""The tensor: a description plus planes of bytes. It knows no wire format and moves nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from . import dlpack
from .arrays import borrow, dense_strides, flat_bytes, spanning_bytes, view
from .dtypes import DType
from .errors import Closed, InUse, Malformed, Unsupported
from .image import Colorimetry, PixelFormat, PlaneLayout
from .labels import Labels
from .lending import lend_image
from .pickling import reduce_tensor
from .plane import Carried, Description, Handle, Hold, Plane, StorageKind
from .quantization import Quantization

__all__ = ["Carried", "Description", "Handle", "Hold", "Plane", "StorageKind", "Tensor"]

Array = npt.NDArray[Any]


class _Keep(Enum):
    KEEP = "keep"


_KEEP = _Keep.KEEP


class Tensor:
    """A tensor: element type, shape and strides, planes of bytes, and what they mean.

    Immutable in what it says; the memory itself is as writable as its lender made it. Make one with
    ``from_array``, ``image``, or by reading a wire format. It borrows its planes unless it is said to own
    them: memory that it borrows stays alive as long as the tensor, or any view taken from it, does.
    """

    __slots__ = (
        "__weakref__",
        "_carried",
        "_description",
        "_hold",
        "_labels",
        "_loose",
        "_origin",
        "_planes",
        "_storage",
    )

    def __init__(
        self,
        description: Description,
        planes: tuple[Plane, ...],
        *,
        labels: Labels | None = None,
        storage: StorageKind = StorageKind.MEM,
        origin: int = 0,
        loose: bool = False,
        carried: Carried | None = None,
        hold: Hold | None = None,
    ) -> None:
        """For the formats and for ``memory``; users call ``from_array`` or ``image``.

        ``origin`` is where element 0 stands in plane 0, in bytes. ``loose`` says that the planes are an
        array's that is not in C order: they may span memory that is not the tensor's, and must not travel
        as they are. ``hold`` is what keeps the planes' memory where the tensor owns it.
        """
        self._description = description
        self._planes: tuple[Plane, ...] | None = planes
        self._labels = labels
        self._storage = storage
        self._origin = origin
        self._loose = loose
        self._carried = carried
        self._hold = hold

    # ---- making one ----

    @classmethod
    def from_array(
        cls,
        array: object,
        *,
        quantization: Quantization | None = None,
        labels: Labels | None = None,
        byteswap: bool = False,
    ) -> Tensor:
        """A tensor over the memory of ``array``: an ndarray, anything with ``__dlpack__`` on the CPU, or a buffer.

        Borrows, whatever the strides: negative, broadcast and zero-sized arrays included. Raises
        Unsupported for element types that neither format has and for big-endian ones, unless
        ``byteswap`` asks for a little-endian copy; TypeError for what lends no memory; ValueError for a
        quantization that does not fit the shape.
        """
        lent = borrow(array, byteswap=byteswap)
        dtype = DType.of(lent.dtype)
        shape = lent.shape
        if lent.flags.c_contiguous:
            dense = dense_strides(shape, dtype.size)
            description = Description(dtype, shape, dense, quantization=quantization)
            data = flat_bytes(lent)
            return cls(description, (Plane(data, len(data)),), labels=labels)
        span = spanning_bytes(lent)
        description = Description(dtype, shape, lent.strides, quantization=quantization)
        plane = Plane(span.data, len(span.data))
        return cls(description, (plane,), labels=labels, origin=span.origin, loose=True)

    @classmethod
    def image(
        cls,
        format: PixelFormat | str,
        width: int,
        height: int,
        planes_or_array: object,
        *,
        stride: int | Sequence[int] | None = None,
        dtype: DType | npt.DTypeLike | None = None,
        colorimetry: Colorimetry | None = None,
        quantization: Quantization | None = None,
        labels: Labels | None = None,
    ) -> Tensor:
        """An image of ``width`` × ``height`` pixels over borrowed memory.

        ``planes_or_array`` is one array or buffer that holds the whole allocation, planes one behind the
        other, or a list with one for each plane. ``stride`` is the row pitch in bytes (a list: one for
        each plane); None takes it from an array's own rows, or the smallest pitch for flat buffers.
        ``dtype`` is the type of a sample, by default the array's own, uint8 for plain buffers. ValueError
        when the memory is too small for the format's planes, or the pitch for a row.
        """
        format = PixelFormat(format)
        lent = lend_image(format, width, height, planes_or_array, stride, dtype)
        planes = tuple(Plane(data, pitch) for data, pitch in lent.planes)
        description = Description(
            lent.dtype,
            format.grid(width, height),
            format.strides(width, height, planes[0].stride, lent.dtype.size),
            format=format,
            colorimetry=colorimetry,
            quantization=quantization,
        )
        return cls(description, planes, labels=labels, loose=lent.loose)

    def replace(
        self,
        *,
        labels: Labels | _Keep | None = _KEEP,
        quantization: Quantization | _Keep | None = _KEEP,
        colorimetry: Colorimetry | _Keep | None = _KEEP,
    ) -> Tensor:
        """Another tensor over the same planes, with the given parts replaced (None takes a part away)."""
        changes: dict[str, Any] = {}
        if quantization is not _KEEP:
            changes["quantization"] = quantization
        if colorimetry is not _KEEP:
            changes["colorimetry"] = colorimetry
        description = self._description.changed(**changes) if changes else self._description
        planes = self.planes
        other = Tensor(
            description,
            planes,
            labels=self._labels if labels is _KEEP else labels,
            storage=self._storage,
            origin=self._origin,
            loose=self._loose,
            carried=self._carried,
            hold=self._hold,
        )
        if self._hold is not None:
            self._hold.share(self, other)
        return other

    def packed(self) -> Tensor:
        """The same values in C order: this tensor, or a copy when it is over an array that is not.

        Strides that came over a wire, and pitches that were asked for, stay: whoever said them meant them.
        """
        if not self._loose:
            return self
        format = self._description.format
        if isinstance(format, PixelFormat):
            planes = [np.ascontiguousarray(self.plane(i)) for i in range(len(self.planes))]
            copy = Tensor.image(format, self.width, self.height, planes, dtype=self.dtype)
        else:
            copy = Tensor.from_array(np.ascontiguousarray(self.numpy()).reshape(self.shape))
        copy._labels, copy._carried = self._labels, self._carried
        return copy.replace(quantization=self.quantization, colorimetry=self.colorimetry)

    # ---- what it says ----

    @property
    def dtype(self) -> DType:
        return self._description.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, in elements; of an image, the grid that its format addresses."""
        return self._description.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one index to the next, for each dimension; C order where the wire left them unsaid."""
        return self._description.strides

    @property
    def strides_given(self) -> bool:
        """Whether strides were said. Unsaid ones mean dense C order, and stay unsaid on the wire."""
        return self._description.strides_given

    @property
    def format(self) -> PixelFormat | str | None:
        """The pixel format; a plain string for one unknown here; None for a bare tensor."""
        return self._description.format

    @property
    def colorimetry(self) -> Colorimetry | None:
        return self._description.colorimetry

    @property
    def quantization(self) -> Quantization | None:
        return self._description.quantization

    @property
    def labels(self) -> Labels | None:
        return self._labels

    @property
    def storage(self) -> StorageKind:
        return self._storage

    @property
    def carried(self) -> Carried | None:
        """What a wire format said beyond this model, kept for writing it again; None mostly."""
        return self._carried

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes, in the format's order. Raises Closed after ``close``."""
        planes = self._planes
        if planes is None:
            raise Closed("this tensor was closed: take what you need from it before")
        return planes

    @property
    def nbytes(self) -> int:
        """Bytes of all planes, gaps included."""
        return sum(plane.size for plane in self.planes)

    @property
    def width(self) -> int:
        """Pixels in a row of an image; Unsupported where the format is unknown or there is none."""
        return self._known_format().extent(self.shape)[0]

    @property
    def height(self) -> int:
        """Rows of an image; Unsupported where the format is unknown or there is none."""
        return self._known_format().extent(self.shape)[1]

    # ---- looking at the values ----

    def numpy(self) -> Array:
        """The elements as an ndarray of ``shape``: a view, never a copy, read-only where the memory is.

        Of a semi-planar image (NV12, NV16, NV24) the grid addresses luma; chroma is ``plane(1)``. Raises
        Unsupported where there is no such array: an unknown format, a tiling modifier, memory that the
        host cannot see, or channel planes that stand apart in memory (take ``plane(i)`` of each).
        """
        description = self._description
        data = self._host_bytes(0)
        format = description.format
        if format is not None:
            if not isinstance(format, PixelFormat):
                raise self._unknown_format(format)
            if format.is_planar:
                return self._planar_view()
        return view(description.shape, description.numpy_dtype, data, self._origin, description.strides)

    def plane(self, i: int) -> Array:
        """Plane ``i`` as a 2-D view, rows × the samples used in a row (bytes, for one-byte types).

        A bare tensor's plane is one row of its elements in memory order. Raises IndexError past the last
        plane, Unsupported as ``numpy`` does, Malformed where the plane's stride or size cannot hold its
        rows.
        """
        data = self._host_bytes(i)
        itemsize, dtype = self.dtype.size, self._description.numpy_dtype
        if self.format is None:
            return view((1, len(data) // itemsize), dtype, data, 0, (len(data), itemsize))
        layout = self._layout(i)
        offset = self._origin if i == 0 else 0
        if layout.rows and (layout.rows - 1) * layout.pitch + layout.row_bytes > len(data) - offset:
            raise Malformed(
                f"plane {i} has {len(data)} bytes, too few for {layout.rows} rows {layout.pitch} bytes apart",
                field="size",
                value=len(data),
            )
        return view((layout.rows, layout.row_bytes // itemsize), dtype, data, offset, (layout.pitch, itemsize))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"a view of {array.dtype} as {np.dtype(dtype)} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **request: Any) -> Any:
        return dlpack.lend(self.numpy(), **request)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU

    @contextmanager
    def cpu_access(self, mode: str) -> Iterator[Tensor]:
        """Bracket looking at, or writing, the planes by the CPU: ``mode`` is "read", "write" or "readwrite".

        dma-bufs that a device writes or reads need it; for other memory, and for foreign memory that the CPU
        cannot see, it does nothing.
        """
        if mode not in ("read", "write", "readwrite"):
            raise ValueError(f"mode {mode!r} is none of 'read', 'write', 'readwrite'")
        read, write = "read" in mode, "write" in mode
        handles = {id(plane.handle): plane.handle for plane in self.planes}
        begun: list[Handle] = []
        try:
            for handle in handles.values():
                if handle is None or not hasattr(handle, "cpu_access"):
                    continue
                handle.cpu_access(begin=True, read=read, write=write)
                begun.append(handle)
            yield self
        finally:
            for handle in reversed(begun):
                handle.cpu_access(begin=False, read=read, write=write)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickled by value; from protocol 5 on the planes are out-of-band buffers."""
        return reduce_tensor(self, int(protocol))

    # ---- letting go ----

    def close(self) -> None:
        """Let go of the planes; afterwards every look at them raises Closed. Closing twice is fine.

        Memory that the tensor owns is released, unless views of it are alive: then InUse, and nothing is
        changed. Memory that it borrows stays its lender's, and views of that live on.
        """
        planes = self._planes
        if planes is not None and self._hold is not None:
            self._hold.release(self, planes)
            self._hold = None
        self._planes = None

    def __enter__(self) -> Tensor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; where views are alive, the memory goes with the last of them."""
        try:
            self.close()
        except InUse:
            self._planes = None
            self._hold = None

    def __repr__(self) -> str:
        if self._planes is None:
            return f"<Tensor {self.dtype} {list(self.shape)}, closed>"
        what = f"{self.dtype} {'×'.join(map(str, self.shape)) or 'scalar'}"
        if self.format is not None:
            what = f"{self.format} {what}, {len(self._planes)} plane{'s'[: len(self._planes) > 1]}"
        parts = [what, f"{self.nbytes} bytes", str(self.storage)]
        parts += [str(part) for part in (self.colorimetry, self.quantization) if part is not None]
        if self.labels is not None:
            parts.append(repr(self.labels.name or "labelled"))
        return f"<Tensor {', '.join(parts)}>"

    # ---- inside ----

    def _known_format(self) -> PixelFormat:
        format = self._description.format
        if isinstance(format, PixelFormat):
            return format
        if format is None:
            raise Unsupported("a bare tensor has no pixels: it has no format", field="format", value=None)
        raise self._unknown_format(format)

    def _unknown_format(self, format: str) -> Unsupported:
        return Unsupported(
            f"pixel format {format!r} is unknown here: its planes are carried (planes[i].data), not read as pixels",
            field="format",
            value=format,
        )

    def _host_bytes(self, i: int) -> memoryview:
        plane = self.planes[i]
        if plane.modifier:
            raise Unsupported(
                f"plane {i} is tiled (modifier {plane.modifier:#x}): its bytes are no rows of samples",
                field="modifier",
                value=plane.modifier,
            )
        if plane.data is None:
            raise Unsupported(
                f"plane {i} lives in {self.storage} memory that this process cannot read",
                field="storage",
                value=self.storage,
            )
        return plane.data

    def _layout(self, i: int) -> PlaneLayout:
        format, stride = self._known_format(), self.planes[i].stride
        width, height = format.extent(self.shape)
        try:
            return format.plane_table(width, height, stride, self.dtype.size)[i]
        except ValueError as error:
            raise Malformed(f"plane {i}: {error}", field="stride", value=stride) from None

    def _planar_view(self) -> Array:
        """[C, H, W] over planes that stand evenly spaced in one piece of memory."""
        channels = [self.plane(i) for i in range(len(self.planes))]
        first = channels[0]
        if first.size == 0:
            return np.empty(self.shape, first.dtype)
        owners = {id(plane.data.obj) for plane in self.planes if plane.data is not None}
        places = [channel.__array_interface__["data"][0] for channel in channels]
        step = places[1] - places[0]
        even = all(b - a == step for a, b in itertools.pairwise(places))
        if len(owners) != 1 or not even or any(channel.strides != first.strides for channel in channels):
            raise Unsupported(
                f"the {len(channels)} planes stand apart in memory, so no one view covers them:"
                " take plane(i) of each, or numpy.stack them",
                field="planes",
                value=len(channels),
            )
        return np.lib.stride_tricks.as_strided(
            first, (len(channels), *first.shape), (step, *first.strides), writeable=first.flags.writeable
        )
