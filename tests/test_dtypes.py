from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensorferry import DType, Unsupported

# (name, blob code, VLink code, bytes): the tables of spec/blob.md, spec/vlink-tensor.md and the seeds.
TABLE = [
    ("bool", None, 1, 1),
    ("int8", 1, 2, 1),
    ("uint8", 0, 3, 1),
    ("int16", 3, 4, 2),
    ("uint16", 2, 5, 2),
    ("int32", 5, 6, 4),
    ("uint32", 4, 7, 4),
    ("int64", 7, 8, 8),
    ("uint64", 6, 9, 8),
    ("float16", 8, 10, 2),
    ("bfloat16", None, 11, 2),
    ("float32", 9, 12, 4),
    ("float64", 10, 13, 8),
]


def test_every_row() -> None:
    assert [(row.value, row.blob, row.vlink, row.size) for row in DType] == TABLE


@pytest.mark.parametrize("row", DType)
def test_found_by_whatever_names_it(row: DType) -> None:
    assert DType.of(row) is row
    assert DType.of(row.value) is row
    assert DType.of(row.numpy) is row
    assert DType.of(row.numpy.type) is row
    assert np.dtype(row.value) == row.numpy
    assert row == row.value
    assert str(row) == row.value
    assert row.numpy.itemsize == row.size


def test_bfloat16_is_ml_dtypes() -> None:
    assert DType.BFLOAT16.numpy == np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", [np.complex64, np.object_, "M8[ns]", np.dtype("S3"), [("x", "f4")], ml_dtypes.int4])
def test_other_types_are_refused_by_name(dtype: object) -> None:
    with pytest.raises(Unsupported) as caught:
        DType.of(np.dtype(dtype))  # type: ignore[call-overload]
    assert caught.value.field == "dtype"


@pytest.mark.parametrize("name", ["u8", "i8", "f4", "u1", "float", "Float32", ""])
def test_short_names_are_refused(name: str) -> None:
    """NumPy's u8 has eight bytes, the blob's page's has eight bits."""
    with pytest.raises(Unsupported, match="full name"):
        DType.of(name)


def test_big_endian_says_how_to_swap() -> None:
    with pytest.raises(Unsupported, match="byteswap=True"):
        DType.of(np.dtype(">f4"))
