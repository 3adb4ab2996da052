"""What the values of a tensor are like, without looking at more of them than is quick."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import Unsupported
from ..image import PixelFormat
from ..quantization import Quantization
from ..tensor import Tensor

__all__ = ["LIMIT", "Statistics", "statistics"]

Array = npt.NDArray[Any]
Number = int | float

LIMIT = 1 << 24
"""Elements that are looked at; of a larger array, the first ones in C order."""

_CHUNK = 1 << 20
_BINS = 24
_CHANNELS = ("red", "green", "blue", "alpha")
_FLATITER_DIMENSIONS = 32  # NumPy's own, for arrays that are not in C order


@dataclass(frozen=True, slots=True)
class Statistics:
    """``seen`` of ``count`` elements were looked at. NaN and infinities count for nothing but themselves.

    ``real_min`` and ``real_max`` are what quantized values stand for. ``histogram`` counts the values in
    equal steps from ``min`` to ``max``, and is empty where they are all the same.
    """

    of: str
    count: int
    seen: int
    min: Number | None = None
    max: Number | None = None
    mean: float | None = None
    std: float | None = None
    zeros: int = 0
    nan: int = 0
    inf: int = 0
    real_min: float | None = None
    real_max: float | None = None
    histogram: tuple[int, ...] = ()


def statistics(tensor: Tensor) -> list[Statistics]:
    """One for the values, or one for each plane of an image that has several.

    Raises Unsupported where there is no looking at them, and Malformed where a plane cannot hold its rows.
    """
    format, quantization = tensor.format, tensor.quantization
    if not isinstance(format, PixelFormat) or format.plane_count == 1:
        return [_of("values", tensor.numpy(), quantization)]
    names = _CHANNELS if format.is_planar else ("luma", "chroma")
    if quantization is not None and quantization.axis is not None:
        quantization = None  # its channels are not those of one plane
    return [_of(names[i], tensor.plane(i), quantization) for i in range(format.plane_count)]


def _of(name: str, array: Array, quantization: Quantization | None) -> Statistics:
    count, seen = array.size, min(array.size, LIMIT)
    if not seen:
        return Statistics(name, count, 0)
    with np.errstate(all="ignore"):
        lows: list[Number] = []
        highs: list[Number] = []
        total, usable, zeros, nan, inf = 0.0, 0, 0, 0, 0
        for _, part in _chunks(array):
            zeros += part.size - int(np.count_nonzero(part))
            if part.dtype.kind == "f":
                finite = part[np.isfinite(part)]
                missing = int(np.count_nonzero(np.isnan(part)))
                nan += missing
                inf += part.size - finite.size - missing
                part = finite
            if part.size:
                lows.append(part.min().item())
                highs.append(part.max().item())
                total += float(part.sum(dtype=np.float64))
                usable += part.size
        real = _real_range(array, quantization)
        if not usable:
            return Statistics(name, count, seen, zeros=zeros, nan=nan, inf=inf, real_min=real[0], real_max=real[1])
        low, high, mean = min(lows), max(highs), total / usable
        std, histogram = _spread(array, low, high, mean, usable)
    return Statistics(name, count, seen, low, high, mean, std, zeros, nan, inf, *real, histogram)


def _chunks(array: Array) -> Iterator[tuple[int, Array]]:
    """The first elements in C order, flat and a few at a time; each chunk with the index of its first."""
    dense = array.flags.c_contiguous
    if not dense and array.ndim > _FLATITER_DIMENSIONS:
        raise Unsupported(f"the values of {array.ndim} strided dimensions are not looked at", field="strides")
    flat = array.reshape(-1) if dense else array.flat
    end = min(array.size, LIMIT)
    for start in range(0, end, _CHUNK):
        part: Array = flat[start : min(start + _CHUNK, end)]
        if part.dtype.kind not in "iuf":  # bool; and bfloat16, which NumPy counts as "V"
            part = part.astype(np.uint8 if part.dtype.kind == "b" else np.float32)
        yield start, part


def _spread(array: Array, low: Number, high: Number, mean: float, usable: int) -> tuple[float, tuple[int, ...]]:
    """Standard deviation and histogram, once extremes and mean are known."""
    squares = 0.0
    counts = np.zeros(_BINS, np.int64)
    countable = high > low and math.isfinite(float(high) - float(low))
    for _, part in _chunks(array):
        values = part.astype(np.float64)
        values = values[np.isfinite(values)]
        squares += float(np.square(values - mean).sum())
        if countable:
            counts += np.histogram(values, _BINS, (float(low), float(high)))[0]
    return math.sqrt(squares / usable), tuple(counts.tolist()) if countable and counts.any() else ()


def _real_range(array: Array, quantization: Quantization | None) -> tuple[float | None, float | None]:
    """The smallest and largest real value that the stored ones stand for."""
    if quantization is None:
        return None, None
    scales = quantization.scales.astype(np.float64)
    points = np.zeros(1) if quantization.zero_points is None else quantization.zero_points.astype(np.float64)
    axis = quantization.axis
    inner = 1 if axis is None else math.prod(array.shape[axis + 1 :])
    low, high = math.inf, -math.inf
    for start, part in _chunks(array):
        channel = np.arange(start, start + part.size) // inner % len(scales)
        real = (part.astype(np.float64) - points[channel % len(points)]) * scales[channel]
        real = real[np.isfinite(real)]
        if real.size:
            low, high = min(low, float(real.min())), max(high, float(real.max()))
    return (low, high) if low <= high else (None, None)
