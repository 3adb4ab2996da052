from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from strategies import INTEGERS

from tensorferry import Quantization


def test_per_tensor() -> None:
    q = Quantization.per_tensor(0.5, -7)
    assert (q.axis, q.scales.tolist(), q.zero_points is not None and q.zero_points.tolist()) == (None, [0.5], [-7])
    assert q.dequantize(np.array([-7, -6, 0], np.int8)).tolist() == [0.0, 0.5, 3.5]
    assert q.quantize([0.0, 0.5, 3.5, 1e9, -1e9]).tolist() == [-7, -6, 0, 127, -128]
    assert q.dequantize(np.array([1], np.int8)).dtype == np.float32


def test_symmetric_has_no_zero_point() -> None:
    assert Quantization.per_tensor(0.5).symmetric
    assert Quantization.per_tensor(0.5).zero_points is None
    assert Quantization.per_tensor(0.5, 0).symmetric
    assert not Quantization.per_tensor(0.5, 1).symmetric


def test_per_channel_goes_along_its_axis() -> None:
    q = Quantization.per_channel(1, [1.0, 0.5, 2.0], [0, 1, -1])
    stored = np.ones((2, 3, 4), np.int8)
    real = q.dequantize(stored)
    assert real.shape == (2, 3, 4)
    assert real[0, :, 0].tolist() == [1.0, 0.0, 4.0]
    assert np.array_equal(q.quantize(real, np.int8), stored)


def test_rounds_half_to_even_and_saturates() -> None:
    q = Quantization.per_tensor(1.0)
    assert q.quantize([0.5, 1.5, 2.5, -0.5, -1.5], "int8").tolist() == [0, 2, 2, 0, -2]
    assert q.quantize([300.0, -300.0, np.inf, -np.inf], "uint8").tolist() == [255, 0, 255, 0]


@pytest.mark.parametrize("row", INTEGERS)
def test_saturates_to_the_very_limits(row: object) -> None:
    limits = np.iinfo(str(row))
    got = Quantization.per_tensor(1.0).quantize([np.inf, -np.inf, 1e30, -1e30, 0.0], str(row))
    assert got.tolist() == [limits.max, limits.min, limits.max, limits.min, 0]
    assert got.dtype == np.dtype(str(row))


@given(
    hnp.arrays(np.int8, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)),
    st.floats(2**-20, 2**20, width=32),
    st.integers(-128, 127),
)
def test_quantize_undoes_dequantize(
    stored: np.ndarray[tuple[int, ...], np.dtype[np.int8]], scale: float, zp: int
) -> None:
    q = Quantization.per_tensor(scale, zp)
    assert np.array_equal(q.quantize(q.dequantize(stored), "int8"), stored)


def test_values_are_copied_and_cannot_be_written() -> None:
    scales = np.array([0.5, 0.25], np.float32)
    q = Quantization.per_channel(0, scales)
    scales[0] = 9
    assert q.scales.tolist() == [0.5, 0.25]
    with pytest.raises(ValueError, match="read-only"):
        q.scales[0] = 1


def test_equal_when_they_map_alike() -> None:
    assert Quantization.per_tensor(0.5) == Quantization.per_tensor(0.5, 0)
    assert hash(Quantization.per_tensor(0.5)) == hash(Quantization.per_tensor(0.5, 0))
    assert Quantization.per_tensor(0.5) != Quantization.per_tensor(0.5, 1)
    assert Quantization.per_tensor(0.5) != Quantization.per_channel(0, [0.5])
    assert Quantization.per_tensor(float("nan")) == Quantization.per_tensor(float("nan"))
    assert Quantization.per_tensor(1.0) != "1.0"


def test_what_is_refused() -> None:
    for wrong in (
        lambda: Quantization([0.5, 0.25]),
        lambda: Quantization([0.5], [1, 2]),
        lambda: Quantization([0.5], axis=-1),
        lambda: Quantization([0.5], [2**31]),
        lambda: Quantization.per_channel(0, [0.5, 0.25]).check((3, 2)),
        lambda: Quantization.per_channel(2, [0.5, 0.25]).check((3, 2)),
        lambda: Quantization.per_tensor(0.0).quantize([1.0]),
        lambda: Quantization.per_tensor(float("nan")).quantize([1.0]),
        lambda: Quantization.per_tensor(1.0).quantize([float("nan")]),
        lambda: Quantization.per_tensor(1.0).quantize([1.0], "float32"),
    ):
        with pytest.raises(ValueError, match=r"\w+ \w+"):
            wrong()
    with pytest.raises(ValueError, match="integers, not float64"):
        Quantization([0.5], np.array([0.5]))


def test_repr_is_brief() -> None:
    assert repr(Quantization.per_tensor(0.5, -7)) == "Quantization(0.5, zero_points=-7)"
    assert repr(Quantization.per_channel(0, [1, 2, 3, 4, 5])) == "Quantization([1, 2, 3, 4, …], axis=0)"
