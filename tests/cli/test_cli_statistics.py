"""What the values are like: the numbers, and that looking at them stays quick."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import arrays, images

import tensorferry as ferry
from tensorferry.cli import statistics as module
from tensorferry.cli.statistics import Statistics, statistics
from tensorferry.dtypes import DType


def of(array: Any, quantization: ferry.Quantization | None = None) -> Statistics:
    (row,) = statistics(ferry.Tensor.from_array(array, quantization=quantization))
    return row


@given(arrays([row for row in DType if row.numpy.kind in "iub"]))
def test_integers_are_exact(array: Any) -> None:
    row = of(array)
    assert (row.count, row.seen) == (array.size, array.size)
    if array.size:
        assert (row.min, row.max) == (int(array.min()), int(array.max()))
        assert row.zeros == int((array == 0).sum())
        assert row.mean == pytest.approx(float(array.astype(np.float64).mean()))
        assert sum(row.histogram) in (0, array.size)


@given(arrays([DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16]))
def test_floats_are_finite_or_counted(array: Any) -> None:
    row = of(array)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = array.astype(np.float64)
    assert row.nan == int(np.isnan(values).sum())
    assert row.inf == int(np.isinf(values).sum())
    finite = values[np.isfinite(values)]
    if finite.size:
        assert (row.min, row.max) == (finite.min(), finite.max())
    else:
        assert row.min is row.max is row.mean is None


@given(images())
def test_images_have_a_row_a_plane(tensor: ferry.Tensor) -> None:
    rows = statistics(tensor)
    assert len(rows) == len(tensor.planes)
    assert sum(row.count for row in rows) == sum(tensor.plane(i).size for i in range(len(tensor.planes)))


def test_bool_and_bfloat16() -> None:
    assert of(np.array([True, False, True])).mean == pytest.approx(2 / 3)
    row = of(np.array([1.5, -2.0, 0.0], ml_dtypes.bfloat16))
    assert (row.min, row.max, row.zeros) == (-2.0, 1.5, 1)


def test_real_values() -> None:
    row = of(np.array([-128, 127], np.int8), ferry.Quantization.per_tensor(0.5, -8))
    assert (row.real_min, row.real_max) == (-60.0, 67.5)
    array = np.array([[0, 10], [0, 10]], np.uint8)
    assert of(array, ferry.Quantization.per_channel(0, [1.0, -2.0])).real_min == -20.0
    assert of(array, ferry.Quantization.per_channel(1, [1.0, 3.0], [5, 0])).real_max == 30.0


@given(st.data())
def test_real_values_are_what_dequantize_says(data: st.DataObject) -> None:
    array = data.draw(arrays([DType.INT8, DType.UINT8], max_dims=3))
    axis = data.draw(st.none() | st.integers(0, max(array.ndim - 1, 0))) if array.ndim else None
    count = 1 if axis is None else array.shape[axis]
    scales = data.draw(st.lists(st.floats(-8, 8, width=32), min_size=count, max_size=count))
    points = data.draw(st.none() | st.lists(st.integers(-200, 200), min_size=count, max_size=count))
    quantization = ferry.Quantization(scales, points, axis=axis)
    row = of(array, quantization)
    if array.size:
        real = quantization.dequantize(array)
        assert row.real_min == pytest.approx(float(real.min()), rel=1e-6, abs=1e-30)
        assert row.real_max == pytest.approx(float(real.max()), rel=1e-6, abs=1e-30)


def test_large_arrays_are_looked_at_from_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 1000)
    monkeypatch.setattr(module, "_CHUNK", 300)
    array = np.arange(5000)
    for form in (array, array.reshape(50, 100), np.arange(10_000)[::2] // 2):
        row = of(form)
        assert (row.count, row.seen, row.min, row.max, row.mean) == (5000, 1000, 0, 999, 499.5)


def test_a_view_that_stands_for_more_than_there_is_stays_quick() -> None:
    array = np.broadcast_to(np.arange(4, dtype=np.uint8), (1 << 40, 4))
    row = of(array)
    assert (row.count, row.seen, row.max) == (1 << 42, module.LIMIT, 3)


def test_extremes_do_not_overflow() -> None:
    row = of(np.array([np.finfo(np.float64).max, -np.finfo(np.float64).max, 0.0]))
    assert row.max == np.finfo(np.float64).max
    row = of(np.array([0, 2**64 - 1], np.uint64))
    assert (row.min, row.max) == (0, 2**64 - 1)
    row = of(np.array([-(2**63), 2**63 - 1]))
    assert (row.min, row.max) == (-(2**63), 2**63 - 1)


def test_nothing_at_all() -> None:
    row = of(np.zeros((3, 0, 2)))
    assert (row.count, row.seen, row.min, row.histogram) == (0, 0, None, ())
