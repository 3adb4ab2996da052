"""What files hold, what a format is, and what is left behind when a tensor goes into one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...dtypes import DType
from ...errors import Unsupported
from ...image import PixelFormat
from ...labels import Labels
from ...parts import Buffer
from ...tensor import Tensor

__all__ = ["Entry", "Format", "Loss", "Notes", "Written", "allocation", "dense", "named", "plain", "unsaid", "widened"]

Array = npt.NDArray[Any]

# A view may stand for many more values than it has bytes; such a one is not written out.
_EXPANSION = 8
_SMALL = 1 << 26

# What holds every value of an element type that a format has not.
_WIDER = {DType.BFLOAT16: DType.FLOAT32, DType.BOOL: DType.UINT8}


class Entry(NamedTuple):
    """A tensor and what its file calls it; "" where the file has no name for it."""

    name: str
    tensor: Tensor


class Loss(NamedTuple):
    """Something that a file does not say, or says otherwise.

    ``field`` is its name as Lossy has it, ``value`` what it said, ``became`` what it is in the file; either
    may be "".
    """

    field: str
    value: str = ""
    became: str = ""

    @property
    def named(self) -> str:
        return f"{self.field} ({self.value})" if self.value else self.field

    @property
    def said(self) -> str:
        if not self.became:
            return self.named
        return f"{self.field} ({self.value} became {self.became})" if self.value else f"{self.field} ({self.became})"


class Written(NamedTuple):
    """A file in pieces (some borrowed from the tensors), the tensors as it holds them, what is left behind for it."""

    parts: Sequence[Buffer]
    entries: Sequence[Entry]
    lost: Sequence[Loss]


class Format(NamedTuple):
    """A kind of file.

    ``what`` is one file of it, for people. ``starts`` says of a file's first bytes, and its size, whether it is
    plainly one. ``read`` takes the bytes and options by keyword; its tensors may borrow them. ``write`` takes the
    entries, of which there is one unless ``many``, and options. It reduces them to what the format can say
    and tells what was left behind; Unsupported (or Lossy) where nothing sensible can be left behind.
    """

    what: str
    suffixes: tuple[str, ...]
    starts: Callable[[bytes, int], bool]
    read: Callable[..., list[Entry]]
    write: Callable[..., Written]
    many: bool = False


@dataclass(frozen=True, slots=True)
class Notes:
    """What a file said beside its tensors (``Carried``): kept for a file of the same ``origin``."""

    origin: str
    items: dict[str, Any]

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(f"{self.origin}.{key}" for key in self.items)

    def on(self, tensor: Tensor) -> Tensor:
        """``tensor``, carrying these notes where there are any."""
        if self.items:
            tensor._carried = self
        return tensor


def named(name: str) -> Labels | None:
    """Labels for what a file calls ``name``."""
    return Labels(name=name) if name else None


def unsaid(tensor: Tensor, *, keeps: Collection[str] = (), origin: str = "") -> list[Loss]:
    """What a file of nothing but values and a shape leaves unsaid of ``tensor``.

    ``keeps`` names what this one says all the same, notes of ``origin`` among them.
    """
    lost = []
    format = tensor.format
    if format is not None:
        lost.append(Loss("format", str(format)))
        if isinstance(format, PixelFormat) and format.is_semi_planar:
            lost.append(Loss("planes[1]", "chroma"))
    lost += [Loss(name) for name in ("colorimetry", "quantization") if getattr(tensor, name) is not None]
    if tensor.labels is not None:
        lost += [Loss(f"labels.{name}") for name in tensor.labels.said()]
    carried = tensor.carried
    if carried is not None and not (isinstance(carried, Notes) and carried.origin == origin):
        lost += [Loss(name) for name in carried.fields]
    return [loss for loss in lost if loss.field not in keeps]


def dense(tensor: Tensor) -> Array:
    """The values in C order: a view, or a copy where they stand otherwise. Of a semi-planar image, luma.

    Unsupported for strides that make much more of the values than there are bytes.
    """
    format = tensor.format
    if isinstance(format, PixelFormat) and format.is_planar:
        return np.stack([tensor.plane(i) for i in range(format.plane_count)])
    array = tensor.numpy()
    if array.nbytes > max(_EXPANSION * tensor.nbytes, _SMALL):
        raise Unsupported(
            f"its strides make {array.nbytes:,} bytes of values of {tensor.nbytes:,}: those are not written out",
            field="strides",
            value=tensor.strides,
        )
    return array if array.flags.c_contiguous else array.copy(order="C")


def allocation(tensor: Tensor, stride: int | None = None) -> Array:
    """The bytes of an image of a known format: its planes end to end, rows ``stride`` bytes apart, zeros between."""
    format = tensor.format
    assert isinstance(format, PixelFormat)
    table = format.plane_table(tensor.width, tensor.height, stride, tensor.dtype.size)
    memory: Array = np.zeros(sum(layout.size for layout in table), np.uint8)
    start = 0
    for i, layout in enumerate(table):
        rows = memory[start : start + layout.size].reshape(layout.rows, layout.pitch)
        rows[:, : layout.row_bytes] = tensor.plane(i).view(np.uint8)
        start += layout.size
    return memory


def plain(tensor: Tensor, array: Array) -> Tensor:
    """``array``, meaning what ``tensor`` means apart from its pixel format."""
    return Tensor.from_array(array, quantization=tensor.quantization, labels=tensor.labels)


def widened(tensor: Tensor, has: Iterable[DType]) -> tuple[Array, list[Loss]]:
    """The values as a type that the format ``has``, and what that changes. Unsupported where no type holds them."""
    array, dtype = dense(tensor), tensor.dtype
    if dtype in has:
        return array, []
    wider = _WIDER[dtype]
    return array.astype(wider.numpy), [Loss("dtype", str(dtype), f"{wider}, the values are exact")]
