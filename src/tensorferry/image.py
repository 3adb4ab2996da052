"""Pixel formats: what grid they address, how they are allocated, which planes they have.

Everything here is arithmetic over (width, height, pitch), from the table "Images" of the spec page
blob.md. Widths and heights are pixels; pitches, strides and sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

__all__ = ["Colorimetry", "PixelFormat", "PlaneLayout"]


@dataclass(frozen=True, slots=True)
class Colorimetry:
    """How pixel values mean colour. "" is unspecified; a value unknown here is carried, never an error.

    space: bt709, bt2020, srgb, smpte170m. transfer: bt709, srgb, pq, hlg, linear. encoding: bt601,
    bt709, bt2020. range: full, limited.
    """

    space: str = ""
    transfer: str = ""
    encoding: str = ""
    range: str = ""

    def __bool__(self) -> bool:
        return bool(self.space or self.transfer or self.encoding or self.range)

    def __str__(self) -> str:
        return "/".join(part or "-" for part in (self.space, self.transfer, self.encoding, self.range))


class PlaneLayout(NamedTuple):
    """Where one plane's pixels stand: ``rows`` rows of ``row_bytes`` used bytes, ``pitch`` bytes apart.

    ``stride`` is what the blob's plane record carries (the image's pitch) and ``size`` the plane's bytes.
    ``pitch`` differs from ``stride`` for the chroma of NV24 alone, whose rows are two pitches long.
    """

    rows: int
    row_bytes: int
    pitch: int
    stride: int
    size: int


class _Shape(Enum):
    """The four ways in which the formats lay out their samples."""

    PACKED = "packed"  # [H, W, C], one plane
    GREY = "grey"  # [H, W], one plane
    PLANAR = "planar"  # [C, H, W], a plane a channel
    SEMI_PLANAR = "semi-planar"  # [H, W] luma, and one plane of interleaved chroma


class _Row(NamedTuple):
    """What tells one format from another."""

    shape: _Shape
    channels: int
    chroma_rows: int = 0  # in halves of a luma row
    chroma_pairs: int = 0  # in halves of a pair a pixel


class PixelFormat(str, Enum):
    """A pixel format. A member is also the string of its name: ``t.format == "NV12"`` holds."""

    RGB8 = "rgb8"
    RGBA8 = "rgba8"
    BGRA8 = "bgra8"
    YUYV = "YUYV"
    VYUY = "VYUY"
    MONO8 = "mono8"
    RGB8_PLANAR = "rgb8_planar"
    RGBA8_PLANAR = "rgba8_planar"
    NV12 = "NV12"
    NV16 = "NV16"
    NV24 = "NV24"

    __str__ = str.__str__

    @property
    def channels(self) -> int:
        """Samples that a pixel has in the grid: C of [H, W, C] and [C, H, W], otherwise 1."""
        return _ROWS[self].channels

    @property
    def _shape(self) -> _Shape:
        return _ROWS[self].shape

    @property
    def is_planar(self) -> bool:
        """Whether each channel has a plane of its own (the grid is [C, H, W])."""
        return self._shape is _Shape.PLANAR

    @property
    def is_semi_planar(self) -> bool:
        """Whether chroma pairs stand in a second plane behind luma (NV12, NV16, NV24)."""
        return self._shape is _Shape.SEMI_PLANAR

    @property
    def plane_count(self) -> int:
        if self.is_planar:
            return self.channels
        return 2 if self.is_semi_planar else 1

    def grid(self, width: int, height: int) -> tuple[int, ...]:
        """The shape that the image's tensor has, in samples."""
        if self._shape is _Shape.PACKED:
            return (height, width, self.channels)
        if self.is_planar:
            return (self.channels, height, width)
        return (height, width)

    def extent(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """(width, height) of a grid; ValueError when ``shape`` is no grid of this format."""
        if len(shape) == len(self.grid(0, 0)):
            height, width = shape[1:] if self.is_planar else shape[:2]
            if self.grid(width, height) == shape:
                return width, height
        wanted = self.grid(0, 0)
        names = ["H", "W"] if len(wanted) == 2 else ["C", "H", "W"] if self.is_planar else ["H", "W", "C"]
        raise ValueError(
            f"shape {list(shape)} is no {self} grid: it must be [{', '.join(names)}]"
            + (f" with C = {self.channels}" if len(wanted) == 3 else "")
        )

    def allocation(self, width: int, height: int) -> tuple[int, ...]:
        """The shape of one allocation that holds every plane, in samples (rows × row elsewhere)."""
        if self._shape is _Shape.GREY:
            return (height, width, 1)
        if self.is_semi_planar:
            return (height + self._chroma_height(height) * _ROWS[self].chroma_pairs, width)
        return self.grid(width, height)

    def row_bytes(self, width: int, itemsize: int = 1) -> int:
        """Used bytes of one row of the first plane."""
        return width * itemsize * (self.channels if self._shape is _Shape.PACKED else 1)

    def min_pitch(self, width: int, itemsize: int = 1) -> int:
        """The smallest pitch: a row's bytes, for semi-planar formats those of the width made even."""
        return self.row_bytes(width + width % 2 if self.is_semi_planar else width, itemsize)

    def strides(self, width: int, height: int, pitch: int | None = None, itemsize: int = 1) -> tuple[int, ...]:
        """The grid's byte strides: C order, with the row dimension's stride at the pitch."""
        pitch = self.min_pitch(width, itemsize) if pitch is None else pitch
        if self._shape is _Shape.PACKED:
            return (pitch, self.channels * itemsize, itemsize)
        return (pitch * height, pitch, itemsize) if self.is_planar else (pitch, itemsize)

    def plane_table(
        self, width: int, height: int, pitch: int | None = None, itemsize: int = 1
    ) -> tuple[PlaneLayout, ...]:
        """The planes of a ``width`` × ``height`` image, in order, at a pitch of ``pitch`` bytes.

        ``pitch`` None is the smallest one; a smaller pitch than that is a ValueError. ``itemsize`` is the
        bytes of one sample. Odd widths and heights round chroma up.
        """
        smallest = self.min_pitch(width, itemsize)
        if pitch is None:
            pitch = smallest
        elif pitch < smallest:
            raise ValueError(f"stride {pitch} is below the {smallest} bytes that a row of {self} {width} wide needs")
        used = self.row_bytes(width, itemsize)
        first = PlaneLayout(height, used, pitch, pitch, pitch * height)
        if self.is_planar:
            return (first,) * self.channels
        if not self.is_semi_planar:
            return (first,)
        rows, long = self._chroma_height(height), _ROWS[self].chroma_pairs
        # NV24 has a chroma pair a pixel; the others one for two, so an odd width rounds up to a whole pair.
        chroma = used * 2 if long == 2 else smallest
        return first, PlaneLayout(rows, chroma, pitch * long, pitch, pitch * long * rows)

    def _chroma_height(self, height: int) -> int:
        return (height * _ROWS[self].chroma_rows + 1) // 2


_ROWS = {
    PixelFormat.RGB8: _Row(_Shape.PACKED, 3),
    PixelFormat.RGBA8: _Row(_Shape.PACKED, 4),
    PixelFormat.BGRA8: _Row(_Shape.PACKED, 4),
    PixelFormat.YUYV: _Row(_Shape.PACKED, 2),
    PixelFormat.VYUY: _Row(_Shape.PACKED, 2),
    PixelFormat.MONO8: _Row(_Shape.GREY, 1),
    PixelFormat.RGB8_PLANAR: _Row(_Shape.PLANAR, 3),
    PixelFormat.RGBA8_PLANAR: _Row(_Shape.PLANAR, 4),
    PixelFormat.NV12: _Row(_Shape.SEMI_PLANAR, 1, 1, 1),
    PixelFormat.NV16: _Row(_Shape.SEMI_PLANAR, 1, 2, 1),
    PixelFormat.NV24: _Row(_Shape.SEMI_PLANAR, 1, 2, 2),
}
