"""Hypothesis strategies for tensors, and damage for bytes. Shared by the tests of every room."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from tensorferry import Colorimetry, DType, Labels, PixelFormat, Quantization, Tensor

BLOB_DTYPES = [row for row in DType if row.blob is not None]
INTEGERS = [row for row in DType if row.numpy.kind in "iu"]

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
interesting = st.sampled_from([0, 1, 7, 8, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1])
text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)
float32s = st.floats(width=32, allow_nan=False)
colours = st.builds(Colorimetry, text, text, text, text)


def shapes(max_dims: int = 5) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, 4), max_size=max_dims).map(tuple)


@st.composite
def arrays(draw: st.DrawFn, dtypes: list[DType], max_dims: int = 5) -> npt.NDArray[Any]:
    """Any array of any bits: dense, transposed, reversed, stepped, broadcast or read-only."""
    row = draw(st.sampled_from(dtypes))
    shape = draw(shapes(max_dims))
    size = int(np.prod(shape, dtype=int)) * row.size
    bits = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, 256, size, dtype=np.uint8)
    if row is DType.BOOL:
        bits &= 1
    array: npt.NDArray[Any] = bits.view(row.numpy).reshape(shape)
    if array.ndim and draw(st.booleans()):
        array = array.transpose(draw(st.permutations(range(array.ndim))))
        array = array[tuple(slice(None, None, draw(st.sampled_from([1, -1, 2, -2]))) for _ in range(array.ndim))]
        if draw(st.booleans()):
            array = np.broadcast_to(array, (draw(st.integers(0, 3)), *array.shape))
    return array


@st.composite
def quantizations(draw: st.DrawFn, shape: tuple[int, ...], *, per_channel: bool = True) -> Quantization | None:
    axes: list[int | None] = [None, *range(len(shape))] if per_channel else [None]
    axis = draw(st.sampled_from(axes))
    count = 1 if axis is None else shape[axis]
    if count == 0 or draw(st.booleans()):
        return None
    scales = draw(st.lists(float32s, min_size=count, max_size=count))
    points = draw(st.none() | st.lists(st.integers(-(2**31), 2**31 - 1), min_size=count, max_size=count))
    return Quantization(scales, points, axis=axis)


labels = st.builds(
    Labels,
    name=text,
    model_id=text,
    layout=text.filter(lambda t: len(t.encode()) <= 16),
    frame_id=text.filter(lambda t: len(t.encode()) <= 16),
    seq=u32,
    time_meas=u64,
    time_pub=u64,
    update_time_ns=u64,
    channel=u32,
    freq=u32,
    batch_size=u32,
    device=st.integers(0, 255),
)


@st.composite
def bare_tensors(draw: st.DrawFn, dtypes: list[DType] | None = None) -> Tensor:
    array = draw(arrays(dtypes or list(DType)))
    return Tensor.from_array(array, quantization=draw(quantizations(array.shape)))


@st.composite
def images(draw: st.DrawFn) -> Tensor:
    """An image of any format, extent, pitch and sample type, in one allocation or in planes apart."""
    format = draw(st.sampled_from(PixelFormat))
    row = draw(st.sampled_from([DType.UINT8, DType.INT8, DType.UINT16, DType.FLOAT32]))
    width, height = draw(st.integers(0, 9)), draw(st.integers(0, 7))
    pitch = format.min_pitch(width, row.size) + draw(st.sampled_from([0, 0, 8, 64]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = [layout.size for layout in format.plane_table(width, height, pitch, row.size)]
    memory = rng.integers(0, 256, sum(sizes), dtype=np.uint8)
    ends = np.cumsum(sizes)
    apart = [memory[end - size : end].copy() for size, end in zip(sizes, ends, strict=True)]
    return Tensor.image(
        format,
        width,
        height,
        apart if draw(st.booleans()) else memory,
        stride=pitch,
        dtype=row,
        colorimetry=draw(st.none() | colours),
        quantization=draw(quantizations(format.grid(width, height))),
    )


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """``whole`` with fields overwritten by telling values, cut, or with bytes behind it."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 3))):
        width = draw(st.sampled_from([1, 4, 8]))
        if len(data) >= width:
            at = draw(st.integers(0, (min(len(data), 512) - width) // 4)) * 4 if len(data) > 8 else 0
            value = draw(interesting | u64) % (1 << 8 * width)
            data[at : at + width] = value.to_bytes(width, "little")
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    data += draw(st.binary(max_size=16))
    return bytes(data)


def same_bits(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Whether two arrays agree in dtype, shape and every bit."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def same_pixels(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in what they say and in every used sample of every plane."""
    said = (a.dtype, a.shape, a.format, a.colorimetry, a.quantization, len(a.planes))
    if said != (b.dtype, b.shape, b.format, b.colorimetry, b.quantization, len(b.planes)):
        return False
    if a.format is None:
        return same_bits(a.numpy(), b.numpy())
    return all(same_bits(a.plane(i), b.plane(i)) for i in range(len(a.planes)))
