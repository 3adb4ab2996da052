"""Colours against the formula of H.273 in float64, sample by sample, and against OpenCV where it has the case."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorferry import Colorimetry, Labels, Lossy, PixelFormat, Quantization, Tensor, Unsupported
from tensorferry.record.colour import convert, losses, meant

Array = npt.NDArray[Any]

WEIGHTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}
RGB = {"rgb8": "RGB", "rgba8": "RGBA", "bgra8": "BGRA", "rgb8_planar": "RGB", "rgba8_planar": "RGBA"}
YUV = ["NV12", "NV16", "NV24", "YUYV", "VYUY"]
SHARING = {"NV12": (2, 2), "NV16": (2, 1), "NV24": (1, 1), "YUYV": (2, 1), "VYUY": (2, 1)}
# Rounded to the nearest, and what fixed-point arithmetic may be off by on top: far below the 1 that is promised.
EXACT = 0.53


def matrix(encoding: str, range: str) -> tuple[Array, Array]:
    """Y, Cb, Cr = M · RGB + c, all of them 0 to 255."""
    kr, kb = WEIGHTS[encoding]
    kg = 1 - kr - kb
    luma = np.array([kr, kg, kb])
    rows = np.array([luma, (np.array([0, 0, 1]) - luma) / (2 - 2 * kb), (np.array([1, 0, 0]) - luma) / (2 - 2 * kr)])
    if range == "full":
        return rows, np.array([0.0, 128, 128])
    return rows * np.array([[219], [224], [224]]) / 255, np.array([16.0, 128, 128])


def ycc_of(tensor: Tensor) -> Array:
    """[H, W, 3] float64: Y, Cb, Cr of every pixel, read from the planes' bytes one by one."""
    out = np.empty((tensor.height, tensor.width, 3))
    format = str(tensor.format)
    rows = [tensor.plane(i).tolist() for i in range(len(tensor.planes))]
    for y in range(tensor.height):
        for x in range(tensor.width):
            if format in ("YUYV", "VYUY"):
                row = rows[0][y]
                cb, cr = (1, 3) if format == "YUYV" else (2, 0)
                places = [2 * x + (format == "VYUY"), x // 2 * 4 + cb, x // 2 * 4 + cr]
                # A lone last pixel has one of the two: the other is the pair's before, or neutral.
                places = [at if at < len(row) else at - 4 for at in places]
                out[y, x] = [row[at] if at >= 0 else 128 for at in places]
            else:
                columns, lines = SHARING[format]
                chroma = rows[1][y // lines]
                out[y, x] = rows[0][y][x], chroma[x // columns * 2], chroma[x // columns * 2 + 1]
    return out


def rgb_of(tensor: Tensor) -> Array:
    """[H, W, C] of channels in the order R, G, B, A."""
    order = RGB[str(tensor.format)]
    if PixelFormat(str(tensor.format)).is_planar:
        return np.stack([tensor.plane(order.index(name)) for name in "RGBA"[: len(order)]], axis=-1)
    return tensor.numpy()[..., [order.index(name) for name in "RGBA"[: len(order)]]]


@st.composite
def pictures(draw: st.DrawFn, formats: list[str], colorimetry: Colorimetry | None = None) -> Tensor:
    format = PixelFormat(draw(st.sampled_from(formats)))
    width, height = draw(st.integers(1, 9)), draw(st.integers(1, 7))
    stride = format.min_pitch(width) + draw(st.sampled_from([0, 1, 7, 64]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = sum(layout.size for layout in format.plane_table(width, height, stride))
    memory = rng.integers(0, 256, size, dtype=np.uint8)
    if draw(st.booleans()):
        memory[memory < 128] = draw(st.integers(0, 255))
    return Tensor.image(format, width, height, memory, stride=stride, colorimetry=colorimetry)


meanings = st.tuples(st.sampled_from(list(WEIGHTS)), st.sampled_from(["full", "limited"]))


def colours(meaning: tuple[str, str]) -> Colorimetry:
    return Colorimetry(encoding=meaning[0], range=meaning[1])


@pytest.mark.parametrize("encoding", WEIGHTS)
@pytest.mark.parametrize("range", ["full", "limited"])
@pytest.mark.parametrize("source", YUV)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_to_rgb_is_the_formula(source: str, range: str, encoding: str, data: st.DataObject) -> None:
    tensor = data.draw(pictures([source], Colorimetry(encoding=encoding, range=range)))
    target = data.draw(st.sampled_from(list(RGB)))
    rows, constant = matrix(encoding, range)
    exact = np.clip((ycc_of(tensor) - constant) @ np.linalg.inv(rows).T, 0, 255)
    made = convert(tensor, target, lossy=True)
    assert made.format == target
    assert made.colorimetry == Colorimetry(range="full")
    channels = rgb_of(made)
    assert np.abs(channels[..., :3] - exact).max() <= EXACT
    assert (channels[..., 3:] == 255).all()


@pytest.mark.parametrize("encoding", WEIGHTS)
@pytest.mark.parametrize("range", ["full", "limited"])
@pytest.mark.parametrize("target", YUV)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_from_rgb_is_the_formula(target: str, range: str, encoding: str, data: st.DataObject) -> None:
    tensor = data.draw(pictures(list(RGB)))
    rows, constant = matrix(encoding, range)
    made = convert(tensor, target, colorimetry=Colorimetry(encoding=encoding, range=range), lossy=True)
    assert made.format == target
    assert made.colorimetry == Colorimetry(encoding=encoding, range=range)
    exact = np.clip(rgb_of(tensor)[..., :3] @ rows.T + constant, 0, 255)
    found = ycc_of(made)
    assert np.abs(found[..., 0] - exact[..., 0]).max() <= EXACT
    columns, lines = SHARING[target]
    for y in np.arange(0, made.height, lines):
        for x in np.arange(0, made.width, columns):
            block = np.s_[y : y + lines, x : x + columns]
            # The average of the pixels that share the sample. (Full range has chroma of 255.5, which saturates.)
            mean = np.clip((rgb_of(tensor)[block][..., :3].mean(axis=(0, 1)) @ rows.T + constant)[1:], 0, 255)
            lone = target in ("YUYV", "VYUY") and made.width % 2 and x == made.width - 1
            which = slice(0, 1) if lone and target == "YUYV" else slice(1, 2) if lone else slice(0, 2)
            assert np.abs(found[y, x, 1:] - mean)[which].max() <= EXACT


@given(pictures(YUV), meanings, meanings, st.sampled_from(YUV))
def test_between_yuv_formats(tensor: Tensor, old: tuple[str, str], new: tuple[str, str], target: str) -> None:
    tensor = tensor.replace(colorimetry=colours(old))
    made = convert(tensor, target, colorimetry=colours(new), lossy=True)
    before, after = ycc_of(tensor), ycc_of(made)
    if old == new:
        assert (before[..., 0] == after[..., 0]).all()
    if not losses(tensor, target, colorimetry=colours(new)) and (
        target in ("NV12", "NV16", "NV24") or made.width % 2 == 0
    ):
        assert (before == after).all()
    if old == new and SHARING[target] == (2, 2):
        for y in range(0, made.height, 2):
            for x in range(0, made.width, 2):
                mean = before[y : y + 2, x : x + 2, 1:].mean(axis=(0, 1))
                assert np.abs(after[y, x, 1:] - mean).max() <= 0.5


@given(pictures(list(RGB)), st.sampled_from(list(RGB)))
def test_channels_only_change_places(tensor: Tensor, target: str) -> None:
    drops = "A" in RGB[str(tensor.format)] and "A" not in RGB[target]
    assert losses(tensor, target) == (("alpha",) if drops else ())
    made = convert(tensor, target, lossy=True)
    before, after = rgb_of(tensor), rgb_of(made)
    assert (before[..., :3] == after[..., :3]).all()
    if after.shape[2] == 4:
        assert (after[..., 3:] == (before[..., 3:] if before.shape[2] == 4 else 255)).all()


@pytest.mark.parametrize("old", ["full", "limited"])
@pytest.mark.parametrize("new", ["full", "limited"])
def test_grey(old: str, new: str) -> None:
    """Every byte, in each range, through mono8 and through NV12."""
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    black, span = {"full": (0, 255), "limited": (16, 219)}[old]
    to_black, to_span = {"full": (0, 255), "limited": (16, 219)}[new]
    grey = Tensor.image("mono8", 16, 16, ramp, colorimetry=Colorimetry(range=old))
    exact = np.clip((ramp.astype(float) - black) / span * to_span + to_black, 0, 255)
    assert np.abs(convert(grey, "mono8", colorimetry=Colorimetry(range=new), lossy=True).numpy() - exact).max() <= 0.5
    wide = convert(grey, "NV12", colorimetry=Colorimetry(range=new), lossy=True)
    assert np.abs(wide.numpy() - exact).max() <= 0.5
    assert (wide.plane(1) == 128).all()
    back = convert(wide, "mono8", colorimetry=Colorimetry(range=new), lossy=True)
    assert (back.numpy() == wide.numpy()).all()
    in_rgb = np.clip((ramp.astype(float) - black) / span * 255, 0, 255)
    assert np.abs(convert(grey, "rgb8", lossy=True).numpy() - in_rgb[..., None]).max() <= 0.5


def test_luma_of_rgb_is_grey() -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (9, 5, 3), dtype=np.uint8)
    made = convert(Tensor.image("rgb8", 5, 9, pixels), "mono8", lossy=True)
    assert made.colorimetry == Colorimetry(encoding="bt601", range="full")
    assert np.abs(made.numpy() - pixels @ np.array([0.299, 0.587, 0.114])).max() <= EXACT


# ---- OpenCV ----


def random_yuv(format: str, width: int, height: int) -> tuple[Tensor, Array]:
    kind = PixelFormat(format)
    size = sum(layout.size for layout in kind.plane_table(width, height))
    # OpenCV takes luma below black as black; the formula has no such step.
    memory = np.random.default_rng(5).integers(16, 256, size, dtype=np.uint8)
    return Tensor.image(format, width, height, memory), memory


@pytest.mark.parametrize(
    ("format", "code", "shape"),
    [
        ("NV12", cv2.COLOR_YUV2RGB_NV12, (72, 64)),
        ("YUYV", cv2.COLOR_YUV2RGB_YUYV, (48, 64, 2)),
    ],
)
def test_opencv_decodes_to_the_same(format: str, code: int, shape: tuple[int, ...]) -> None:
    tensor, memory = random_yuv(format, 64, 48)
    theirs = cv2.cvtColor(memory.reshape(shape), code)
    ours = convert(tensor, "rgb8", lossy=True).numpy()
    assert np.abs(theirs.astype(int) - ours).max() <= 1


def test_opencv_decodes_vyuy_backwards_as_yuyv() -> None:
    """VYUY is YUYV with each four bytes in reverse, its two pixels swapped by that."""
    tensor, memory = random_yuv("VYUY", 64, 48)
    reversed_pairs = np.ascontiguousarray(memory.reshape(48, 32, 4)[..., ::-1]).reshape(48, 64, 2)
    theirs = cv2.cvtColor(reversed_pairs, cv2.COLOR_YUV2RGB_YUYV).reshape(48, 32, 2, 3)[:, :, ::-1].reshape(48, 64, 3)
    assert np.abs(theirs.astype(int) - convert(tensor, "rgb8", lossy=True).numpy()).max() <= 1


def test_opencv_encodes_to_the_same() -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    tensor = Tensor.image("rgb8", 64, 48, pixels)
    full = convert(tensor, "NV24", colorimetry=Colorimetry(range="full"), lossy=True)
    theirs = cv2.cvtColor(pixels, cv2.COLOR_RGB2YCrCb).astype(int)
    assert np.abs(theirs[..., 0] - full.numpy()).max() <= 1
    assert np.abs(theirs[..., 1] - full.plane(1)[:, 1::2]).max() <= 1
    assert np.abs(theirs[..., 2] - full.plane(1)[:, 0::2]).max() <= 1
    back = cv2.cvtColor(theirs.astype(np.uint8), cv2.COLOR_YCrCb2RGB).astype(int)
    planes = [theirs[..., 0].astype(np.uint8), theirs[..., 2:0:-1].astype(np.uint8).reshape(48, 128)]
    ours = Tensor.image("NV24", 64, 48, planes, colorimetry=Colorimetry(range="full"))
    assert np.abs(back - convert(ours, "rgb8", lossy=True).numpy()).max() <= 1
    limited = cv2.cvtColor(pixels, cv2.COLOR_RGB2YUV_I420).astype(int)
    assert np.abs(limited[:48] - convert(tensor, "NV12", lossy=True).numpy()).max() <= 1


# ---- what is said, and what is refused ----


def test_nothing_is_lost_in_silence() -> None:
    nv12, _ = random_yuv("NV12", 4, 4)
    with pytest.raises(Lossy) as caught:
        convert(nv12, "rgb8")
    assert caught.value.fields == ("values",)
    rgba = Tensor.image("rgba8", 2, 2, np.zeros((2, 2, 4), np.uint8))
    assert losses(rgba, "mono8") == ("alpha", "colour", "values")
    assert losses(nv12, "mono8") == ("colour", "values")
    assert losses(nv12, "mono8", colorimetry=Colorimetry(range="limited")) == ("colour",)
    assert losses(nv12, "NV24") == losses(nv12, "NV16") == losses(nv12, "NV12") == ()
    assert losses(convert(nv12, "NV24"), "NV12") == ("values",)
    assert losses(nv12.replace(quantization=Quantization(0.5)), "NV24") == ("quantization",)


def test_what_stays() -> None:
    nv12, _ = random_yuv("NV12", 4, 4)
    named = nv12.replace(labels=Labels(name="cam"), colorimetry=Colorimetry("bt709", "pq", "", ""))
    assert convert(named, "NV12") is named
    made = convert(named, "rgb8", lossy=True)
    assert made.labels == Labels(name="cam")
    assert made.colorimetry == Colorimetry("bt709", "pq", "", "full")
    assert convert(made, "NV12", lossy=True).colorimetry == Colorimetry("bt709", "pq", "bt709", "limited")
    assert convert(nv12, "NV12", colorimetry=Colorimetry(encoding="bt601")).colorimetry == Colorimetry(
        encoding="bt601", range="limited"
    )


def test_what_is_unsaid_is_what_v4l2_takes_it_for() -> None:
    assert meant("NV12", None) == ("bt601", "limited")
    assert meant("NV12", Colorimetry(space="bt709")) == ("bt709", "limited")
    assert meant("NV12", Colorimetry(space="bt2020")) == ("bt2020", "limited")
    assert meant("NV12", Colorimetry(space="srgb", range="full")) == ("bt601", "full")
    assert meant("mono8", None).range == "full"


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor.from_array(np.zeros((2, 2, 3), np.uint8)),
        Tensor.image("NV12", 2, 2, np.zeros(6, np.uint16), dtype="uint16"),
        Tensor.image("NV12", 2, 2, np.zeros(6, np.uint8), colorimetry=Colorimetry(encoding="ictcp")),
        Tensor.image("NV12", 2, 2, np.zeros(6, np.uint8), colorimetry=Colorimetry(range="odd")),
    ],
    ids=["bare", "uint16", "encoding", "range"],
)
def test_what_cannot_be_computed(tensor: Tensor) -> None:
    with pytest.raises(Unsupported):
        convert(tensor, "rgb8", lossy=True)


def test_rgb_of_limited_range_is_refused() -> None:
    rgb = Tensor.image("rgb8", 2, 2, np.zeros((2, 2, 3), np.uint8), colorimetry=Colorimetry(range="limited"))
    with pytest.raises(Unsupported, match="limited"):
        convert(rgb, "NV12", lossy=True)
    with pytest.raises(Unsupported, match="limited"):
        convert(rgb, "rgba8", colorimetry=Colorimetry(range="full"), lossy=True)
    assert convert(rgb, "rgba8").colorimetry == Colorimetry(range="limited")
    nv12, _ = random_yuv("NV12", 2, 2)
    with pytest.raises(Unsupported, match="limited"):
        convert(nv12, "rgb8", colorimetry=Colorimetry(range="limited"), lossy=True)
    with pytest.raises(Unsupported, match="space"):
        convert(nv12.replace(colorimetry=Colorimetry(space="bt2020")), "rgb8", colorimetry=Colorimetry("bt709"))


@pytest.mark.parametrize("source", list(PixelFormat))
@pytest.mark.parametrize("target", list(PixelFormat))
@pytest.mark.parametrize("size", [(0, 0), (0, 3), (3, 0), (1, 1)])
def test_the_smallest_images(source: PixelFormat, target: PixelFormat, size: tuple[int, int]) -> None:
    memory = np.zeros(sum(layout.size for layout in source.plane_table(*size)), np.uint8)
    made = convert(Tensor.image(source, *size, memory), target, lossy=True)
    assert (made.width, made.height, made.format) == (*size, target)
