"""Quantization: how stored integers stand for real values, per tensor or per channel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .dtypes import DType

__all__ = ["Quantization"]

_INT32 = np.iinfo(np.int32)


class Quantization:
    """real = (stored - zero_point) × scale, with one scale for the tensor or one for each channel.

    ``scales`` is a read-only float32 array, ``zero_points`` a read-only int32 array of the same length, or
    None when symmetric. ``axis`` is the channel dimension, or None for one scale over the whole tensor.
    The values given are copied (and rounded to float32). Scales are carried as they come, since a wire
    may hold anything; ``quantize`` refuses those it cannot divide by.

    Two quantizations are equal when they map alike: zero points that are all 0 equal none at all.
    """

    __slots__ = ("axis", "scales", "zero_points")

    axis: int | None
    scales: npt.NDArray[np.float32]
    zero_points: npt.NDArray[np.int32] | None

    def __init__(
        self,
        scales: float | Sequence[float] | npt.NDArray[np.floating],
        zero_points: int | Sequence[int] | npt.NDArray[np.integer] | None = None,
        *,
        axis: int | None = None,
    ) -> None:
        self.scales = np.array(scales, dtype="<f4").reshape(-1)
        self.scales.flags.writeable = False
        self.axis = axis
        self.zero_points = None
        if axis is None and len(self.scales) != 1:
            raise ValueError(f"{len(self.scales)} scales without an axis: name the channel dimension as axis=")
        if axis is not None and axis < 0:
            raise ValueError(f"axis {axis} is negative: count dimensions from the front")
        if zero_points is not None:
            wide = np.asarray(zero_points).reshape(-1)
            if wide.size and not np.issubdtype(wide.dtype, np.integer):
                raise ValueError(f"zero_points must be integers, not {wide.dtype}")
            if len(wide) != len(self.scales):
                raise ValueError(f"{len(wide)} zero_points for {len(self.scales)} scales: give one each, or none")
            if wide.size and not (_INT32.min <= int(wide.min()) and int(wide.max()) <= _INT32.max):
                raise ValueError("zero_points must fit int32")
            self.zero_points = wide.astype("<i4")
            self.zero_points.flags.writeable = False

    @classmethod
    def per_tensor(cls, scale: float, zero_point: int | None = None) -> Quantization:
        """One scale for every element; ``zero_point`` None is symmetric."""
        return cls([scale], None if zero_point is None else [zero_point])

    @classmethod
    def per_channel(
        cls,
        axis: int,
        scales: Sequence[float] | npt.NDArray[np.floating],
        zero_points: Sequence[int] | npt.NDArray[np.integer] | None = None,
    ) -> Quantization:
        """A scale, and perhaps a zero point, for each index of dimension ``axis``."""
        return cls(scales, zero_points, axis=axis)

    @property
    def symmetric(self) -> bool:
        """Whether no zero point shifts the values."""
        return self.zero_points is None or not self.zero_points.any()

    def check(self, shape: tuple[int, ...]) -> None:
        """ValueError unless this quantization fits a tensor of ``shape``."""
        if self.axis is None:
            return
        if self.axis >= len(shape):
            raise ValueError(f"quantization axis {self.axis} is outside the shape {list(shape)}")
        if shape[self.axis] != len(self.scales):
            raise ValueError(
                f"{len(self.scales)} scales for dimension {self.axis} of {list(shape)}: it needs {shape[self.axis]}"
            )

    def dequantize(self, array: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """The real values of stored ``array``, float32, computed in float64; ``array`` is not changed."""
        stored = np.asarray(array)
        scales, zero_points = self._broadcast(stored.shape)
        real = (stored.astype(np.float64) - zero_points) * scales
        return np.asarray(real, dtype=np.float32)

    def quantize(self, array: npt.ArrayLike, dtype: DType | npt.DTypeLike = "int8") -> npt.NDArray[np.generic]:
        """``array`` of reals as stored integers of ``dtype``, rounded half to even and saturated.

        ValueError for a NaN among the values, a ``dtype`` that is no integer, or a scale that is not
        above zero and finite.
        """
        target = DType.of(dtype).numpy
        if not np.issubdtype(target, np.integer):
            raise ValueError(f"dtype {target} cannot hold quantized values: name an integer type")
        if not (np.isfinite(self.scales).all() and (self.scales > 0).all()):
            raise ValueError("scales must be above zero and finite to quantize by them")
        reals = np.asarray(array, dtype=np.float64)
        if np.isnan(reals).any():
            raise ValueError("array holds NaN, which no integer stands for")
        scales, zero_points = self._broadcast(reals.shape)
        stored = np.rint(reals / scales) + zero_points
        limits = np.iinfo(str(target))
        result = np.asarray(np.clip(stored, limits.min, limits.max))
        # float64 rounds the limits of 64-bit types up, past what the type holds: saturate those by hand.
        top, bottom = result >= limits.max, result <= limits.min
        whole = np.asarray(np.where(top | bottom, 0, result)).astype(target)
        return np.asarray(np.where(top, limits.max, np.where(bottom, limits.min, whole)).astype(target))

    def _broadcast(self, shape: tuple[int, ...]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        self.check(shape)
        wanted = [1] * len(shape)
        if self.axis is not None:
            wanted[self.axis] = len(self.scales)
        scales = self.scales.astype(np.float64).reshape(wanted)
        points = np.zeros(len(self.scales)) if self.zero_points is None else self.zero_points.astype(np.float64)
        return scales, points.reshape(wanted)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantization):
            return NotImplemented
        if self.axis != other.axis or self.scales.tobytes() != other.scales.tobytes():
            return False
        if self.zero_points is None or other.zero_points is None:
            return self.symmetric and other.symmetric
        return bool(np.array_equal(self.zero_points, other.zero_points))

    def __hash__(self) -> int:
        return hash((self.axis, self.scales.tobytes()))

    def __repr__(self) -> str:
        points = "" if self.zero_points is None else f", zero_points={_brief(self.zero_points)}"
        axis = "" if self.axis is None else f", axis={self.axis}"
        return f"Quantization({_brief(self.scales)}{points}{axis})"


def _brief(values: npt.NDArray[np.generic]) -> str:
    if len(values) == 1:
        return f"{values[0]:g}"
    shown = ", ".join(f"{value:g}" for value in values[:4])
    return f"[{shown}{', …' if len(values) > 4 else ''}]"
