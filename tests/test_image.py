from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorferry import Colorimetry, PixelFormat

W, H = 640, 480
EVEN = {  # format: (grid, allocation, ((stride, bytes) of each plane)), from the table in spec/blob.md
    "rgb8": ((H, W, 3), (H, W, 3), [(1920, 1920 * H)]),
    "rgba8": ((H, W, 4), (H, W, 4), [(2560, 2560 * H)]),
    "bgra8": ((H, W, 4), (H, W, 4), [(2560, 2560 * H)]),
    "YUYV": ((H, W, 2), (H, W, 2), [(1280, 1280 * H)]),
    "VYUY": ((H, W, 2), (H, W, 2), [(1280, 1280 * H)]),
    "mono8": ((H, W), (H, W, 1), [(640, 640 * H)]),
    "rgb8_planar": ((3, H, W), (3, H, W), [(640, 640 * H)] * 3),
    "rgba8_planar": ((4, H, W), (4, H, W), [(640, 640 * H)] * 4),
    "NV12": ((H, W), (720, W), [(640, 640 * H), (640, 640 * 240)]),
    "NV16": ((H, W), (960, W), [(640, 640 * H), (640, 640 * H)]),
    "NV24": ((H, W), (1440, W), [(640, 640 * H), (640, 1280 * H)]),
}


def test_all_eleven() -> None:
    assert {str(format) for format in PixelFormat} == set(EVEN)


@pytest.mark.parametrize("format", PixelFormat)
def test_the_table(format: PixelFormat) -> None:
    grid, allocation, planes = EVEN[format.value]
    assert format.grid(W, H) == grid
    assert format.extent(grid) == (W, H)
    assert format.allocation(W, H) == allocation
    assert [(p.stride, p.size) for p in format.plane_table(W, H)] == planes
    assert format.plane_count == len(planes)
    assert format == format.value
    assert str(format) == format.value


def test_a_wide_pitch() -> None:
    luma, chroma = PixelFormat.NV12.plane_table(33, 17, 64)
    assert luma == (17, 33, 64, 64, 64 * 17)
    assert chroma == (9, 34, 64, 64, 64 * 9)
    assert PixelFormat.NV12.strides(33, 17, 64) == (64, 1)
    assert PixelFormat.RGB8.strides(33, 17, 128) == (128, 3, 1)
    assert PixelFormat.RGB8_PLANAR.strides(33, 17, 40) == (40 * 17, 40, 1)
    assert PixelFormat.RGB8.plane_table(33, 17, 128) == ((17, 99, 128, 128, 128 * 17),)


def test_nv24_chroma_rows_are_two_pitches_long() -> None:
    assert PixelFormat.NV24.plane_table(33, 17)[1] == (17, 66, 68, 34, 68 * 17)
    assert PixelFormat.NV24.plane_table(33, 17, 40)[1] == (17, 66, 80, 40, 80 * 17)


def test_samples_of_more_bytes() -> None:
    """As the published library lays them out: pitches, strides and sizes times the sample's bytes."""
    assert PixelFormat.RGB8.plane_table(64, 48, None, 4) == ((48, 768, 768, 768, 36864),)
    assert PixelFormat.RGB8.strides(64, 48, None, 2) == (384, 6, 2)
    assert [(p.stride, p.size) for p in PixelFormat.NV12.plane_table(64, 48, None, 2)] == [(128, 6144), (128, 3072)]
    assert [p.stride for p in PixelFormat.RGB8_PLANAR.plane_table(64, 48, None, 2)] == [128] * 3


@given(st.sampled_from(PixelFormat), st.integers(0, 70), st.integers(0, 70), st.integers(0, 99))
def test_any_extent_and_pitch(format: PixelFormat, width: int, height: int, wider: int) -> None:
    pitch = format.min_pitch(width) + wider
    table = format.plane_table(width, height, pitch)
    assert format.extent(format.grid(width, height)) == (width, height)
    for layout in table:
        assert layout.stride == pitch
        assert layout.size == layout.rows * layout.pitch
        assert layout.row_bytes <= layout.pitch
    if format.is_semi_planar:
        assert pitch >= width + width % 2
        luma_rows, chroma_rows = table[0].rows, table[1].size // pitch if pitch else 0
        if pitch:
            assert luma_rows + chroma_rows == format.allocation(width, height)[0]


@pytest.mark.parametrize("format", ["NV12", "NV16", "NV24"])
def test_an_odd_row_is_not_below_a_whole_pair(format: str) -> None:
    assert PixelFormat(format).min_pitch(33) == 34
    with pytest.raises(ValueError, match=r"stride 33 is below the 34 bytes"):
        PixelFormat(format).plane_table(33, 17, 33)


@pytest.mark.parametrize(
    ("format", "shape"),
    [("rgb8", (4, 4)), ("rgb8", (4, 4, 4)), ("rgb8_planar", (4, 4, 3)), ("NV12", (4, 4, 1)), ("mono8", ())],
)
def test_no_grid_of_the_format(format: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"no \w+ grid"):
        PixelFormat(format).extent(shape)


def test_colorimetry() -> None:
    assert not Colorimetry()
    assert Colorimetry(range="full")
    assert str(Colorimetry("bt709", range="limited")) == "bt709/-/-/limited"
    assert Colorimetry("a space from tomorrow").space == "a space from tomorrow"
