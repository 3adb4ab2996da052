"""Our shared memory in the published library's hands: it maps our descriptor and reads what we wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import published
import pytest
from descriptors import none_left
from published import Published

import tensorferry as ferry
from tensorferry import DType, PixelFormat, Quantization, Tensor, blob
from tensorferry.blob import TransportMode

pytestmark = pytest.mark.skipif(
    not published.available(), reason="the published library has wheels for Linux on x86-64 and aarch64 only"
)

SHM = 1


def fill(t: Tensor) -> bytes:
    """Write noise into all of the tensor's memory; returns it."""
    out = b""
    for plane in t.planes:
        assert plane.data is not None
        noise = np.random.default_rng(plane.size).integers(0, 256, plane.size, dtype=np.uint8).tobytes()
        plane.data[:] = noise
        out += noise
    return out


def taken(t: Tensor) -> Any:
    return Published.imported(*blob.export(t, TransportMode.REFERENCE))


@pytest.mark.parametrize("row", [row for row in DType if row.blob is not None])
@pytest.mark.parametrize("shape", [(5,), (3, 8), (1, 3, 8, 8)], ids=str)
def test_bare_tensors(row: DType, shape: tuple[int, ...]) -> None:
    with none_left():
        t = ferry.allocate(shape, row, storage="shm")
        memory = fill(t)
        with taken(t) as theirs:
            assert (theirs.shape, theirs.dtype, theirs.storage_kind, theirs.plane_count) == (shape, row.blob, SHM, 1)
            assert theirs.copy_out()[: len(memory)] == memory
        t.close()


@pytest.mark.parametrize("format", PixelFormat)
@pytest.mark.parametrize(
    ("width", "height", "stride"), [(64, 48, None), (33, 17, None), (33, 17, 64), (33, 17, 192), (2, 2, 256)]
)
def test_every_image_format_odd_sizes_and_pitches(
    format: PixelFormat, width: int, height: int, stride: int | None
) -> None:
    if stride is not None and stride < format.min_pitch(width):
        stride = None
    with none_left():
        t = ferry.allocate_image(format, width, height, storage="shm", stride=stride)
        memory = fill(t)
        with taken(t) as theirs:
            assert theirs.format == format
            assert theirs.shape == format.allocation(width, height)
            assert theirs.plane_count == format.plane_count
            assert theirs.storage_kind == SHM
            assert theirs.copy_out()[: len(memory)] == memory
        t.close()


def test_what_we_write_later_is_there() -> None:
    """It maps the same memory: nothing was copied on the way."""
    t = ferry.allocate((4, 4), "uint8", storage="shm")
    with taken(t) as theirs:
        t.numpy()[:] = 77
        assert theirs.copy_out()[:16] == b"M" * 16


def test_it_outlives_our_tensor() -> None:
    with none_left():
        t = ferry.allocate((4, 4), "uint8", storage="shm")
        t.numpy()[:] = 77
        theirs = taken(t)
        t.close()
        assert theirs.copy_out()[:16] == b"M" * 16
        theirs.close()


def test_quantization_and_colours() -> None:
    colours = ferry.Colorimetry("bt2020", "pq", "bt2020", "limited")
    t = ferry.allocate_image("rgb8", 33, 17, dtype="int8", storage="shm", colorimetry=colours)
    t = t.replace(quantization=Quantization.per_channel(2, [0.5, 1, 2], [1, 2, 3]))
    with taken(t) as theirs:
        assert theirs.colorimetry == ("bt2020", "pq", "bt2020", "limited")
        assert theirs.quantization == (2, [0.5, 1, 2], [1, 2, 3])
