"""PNG, JPEG and WebP: what comes out of a picture, what goes into one, and what is refused."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
from strategies import damaged, same_pixels

from tensorferry import (
    Colorimetry,
    FerryError,
    Labels,
    Lossy,
    Malformed,
    PixelFormat,
    Quantization,
    Tensor,
    Unsupported,
    dumps,
)
from tensorferry.record import files
from tensorferry.record.colour import convert

Array = npt.NDArray[Any]


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def read(wire: bytes) -> Tensor:
    ((name, tensor),) = files.read(wire)
    assert name == ""
    return tensor


def wire_of(tensor: Tensor, kind: str, **options: Any) -> bytes:
    return b"".join(files.encode(tensor, kind, **options).parts)


def pixels_of(format: str, width: int = 7, height: int = 5) -> Tensor:
    kind = PixelFormat(format)
    size = sum(layout.size for layout in kind.plane_table(width, height))
    return Tensor.image(kind, width, height, np.random.default_rng(7).integers(0, 256, size, dtype=np.uint8))


@pytest.mark.parametrize("format", ["rgb8", "rgba8", "mono8"])
@pytest.mark.parametrize("kind", ["png", "webp"])
def test_what_is_kept_exactly(format: str, kind: str, tmp_path: Path) -> None:
    tensor = pixels_of(format)
    if (format, kind) == ("mono8", "webp"):
        with pytest.raises(Lossy) as caught:
            files.write(tensor, tmp_path / "a.webp")
        assert caught.value.fields == ("format",)
        files.write(tensor, tmp_path / "a.webp", lossy=True)
        assert (read((tmp_path / "a.webp").read_bytes()).numpy() == tensor.numpy()[..., None]).all()
        return
    assert files.write(tensor, tmp_path / f"a.{kind}") == []
    wire = (tmp_path / f"a.{kind}").read_bytes()
    assert same_pixels(read(wire), tensor)
    assert (np.asarray(Image.open(io.BytesIO(wire))) == tensor.numpy()).all()


@pytest.mark.parametrize("format", ["bgra8", "rgb8_planar", "rgba8_planar"])
@pytest.mark.parametrize("kind", ["png", "webp"])
def test_channels_are_put_in_order(format: str, kind: str) -> None:
    tensor = pixels_of(format)
    target = "rgb8" if format == "rgb8_planar" else "rgba8"
    written = files.encode(tensor, kind)
    assert written.lost == []
    assert same_pixels(read(b"".join(written.parts)), convert(tensor, target))


@pytest.mark.parametrize("format", ["NV12", "NV16", "NV24", "YUYV", "VYUY"])
@pytest.mark.parametrize("colorimetry", [None, Colorimetry(encoding="bt709", range="full")])
def test_yuv_goes_through_its_matrix(format: str, colorimetry: Colorimetry | None, tmp_path: Path) -> None:
    tensor = pixels_of(format).replace(colorimetry=colorimetry)
    with pytest.raises(Lossy) as caught:
        files.write(tensor, tmp_path / "a.png")
    assert caught.value.fields == ("values",)
    assert list(tmp_path.iterdir()) == []
    (loss,) = files.write(tensor, tmp_path / "a.png", lossy=True)
    assert loss.said == f"values ({format} became rgb8 by {'bt709 full' if colorimetry else 'bt601 limited'})"
    there = read((tmp_path / "a.png").read_bytes())
    assert (there.numpy() == convert(tensor, "rgb8", lossy=True).numpy()).all()


def test_jpeg_is_lossy(tmp_path: Path) -> None:
    ramp = np.repeat(np.add.outer(np.arange(64), np.arange(48)).astype(np.uint8)[..., None], 4, axis=2)
    tensor = Tensor.image("rgba8", 48, 64, ramp)
    with pytest.raises(Lossy) as caught:
        files.write(tensor, tmp_path / "a.jpg")
    assert caught.value.fields == ("alpha", "values")
    files.write(tensor, tmp_path / "a.jpg", lossy=True, quality=95)
    there = read((tmp_path / "a.jpg").read_bytes())
    assert there.format == "rgb8"
    assert np.abs(there.numpy().astype(int) - ramp[..., :3]).max() <= 4
    grey = Tensor.image("mono8", 48, 64, np.ascontiguousarray(ramp[..., 0]))
    assert read(wire_of(grey, "jpeg")).format == "mono8"
    assert [loss.named for loss in files.encode(tensor, "webp", quality=50).lost] == ["values"]


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (4, 5, 4)])
def test_bare_arrays_that_leave_no_doubt(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    written = files.encode(Tensor.from_array(array), "png")
    assert written.lost == []
    assert (read(b"".join(written.parts)).numpy() == array).all()


def test_depth_of_16_bits() -> None:
    depth = np.random.default_rng(1).integers(0, 2**16, (6, 9), dtype=np.uint16)
    wire = wire_of(Tensor.from_array(depth), "png")
    there = read(wire)
    assert there.format is None
    assert there.dtype == "uint16"
    assert (there.numpy() == depth).all()
    assert (np.asarray(Image.open(io.BytesIO(wire))) == depth).all()


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.zeros((4, 5), np.uint16), "jpeg"),
        (np.zeros((4, 5), np.float32), "png"),
        (np.zeros((3, 4, 5), np.uint8), "png"),
        (np.zeros((4, 5, 4), np.uint8), "jpeg"),
        (np.zeros((4, 5), np.uint8), "webp"),
        (np.zeros((0, 5), np.uint8), "png"),
        (np.zeros((1, 20_000, 3), np.uint8), "webp"),
        (np.zeros((1, 70_000, 3), np.uint8), "jpeg"),
    ],
)
def test_arrays_that_are_no_picture(array: Array, kind: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported):
        files.write(Tensor.from_array(array), tmp_path / "a", format=kind, lossy=True)
    assert list(tmp_path.iterdir()) == []


def test_what_a_picture_does_not_say() -> None:
    tensor = pixels_of("rgb8").replace(
        quantization=Quantization(0.5), labels=Labels(name="cam"), colorimetry=Colorimetry("bt2020", "pq")
    )
    assert [loss.field for loss in files.encode(tensor, "png").lost] == ["quantization", "labels.name", "colorimetry"]
    conventional = pixels_of("rgb8").replace(colorimetry=Colorimetry("srgb", "srgb", "", "full"))
    assert files.encode(conventional, "png").lost == []
    dark = pixels_of("mono8").replace(colorimetry=Colorimetry(range="limited"))
    (loss,) = files.encode(dark, "png").lost
    assert loss.field == "values"


# ---- what pictures are made of ----


def test_kinds_of_png() -> None:
    rgb = Image.fromarray(pixels_of("rgb8").numpy())
    two = rgb.convert("1")
    assert (read(saved(two, "PNG")).numpy() == np.asarray(two.convert("L"))).all()
    palette = rgb.quantize(16)
    assert (read(saved(palette, "PNG")).numpy() == np.asarray(palette.convert("RGB"))).all()
    clear = read(saved(palette, "PNG", transparency=3))
    assert clear.format == "rgba8"
    assert ((clear.numpy()[..., 3] == 0) == (np.asarray(palette) == 3)).all()
    keyed = read(saved(rgb, "PNG", transparency=tuple(pixels_of("rgb8").numpy()[0, 0].tolist())))
    assert keyed.format == "rgba8"
    assert keyed.numpy()[0, 0, 3] == 0
    grey_alpha = Image.fromarray(pixels_of("rgba8").numpy()).convert("LA")
    assert (read(saved(grey_alpha, "PNG")).numpy() == np.asarray(grey_alpha.convert("RGBA"))).all()


def png(depth: int, colour_type: int, row: bytes) -> bytes:
    """One pixel."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", 1, 1, depth, colour_type, 0, 0, 0)
    idat = zlib.compress(b"\0" + row)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", idat) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("colour_type", "channels"), [(2, 3), (4, 2), (6, 4)])
def test_png_of_16_bits_a_colour_is_refused(colour_type: int, channels: int) -> None:
    with pytest.raises(Unsupported, match="16 bits"):
        read(png(16, colour_type, b"\x12\x34" * channels))
    assert read(png(16, 0, b"\x12\x34")).numpy().tolist() == [[0x1234]]


def test_what_is_refused_of_pictures() -> None:
    rgb = Image.fromarray(pixels_of("rgb8").numpy())
    for kind in ("PNG", "WEBP"):
        with pytest.raises(Unsupported, match="animated"):
            read(saved(rgb, kind, save_all=True, append_images=[rgb.rotate(180)], duration=100))
    with pytest.raises(Unsupported, match="mode CMYK"):
        read(saved(rgb.convert("CMYK"), "JPEG"))


def test_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = saved(Image.new("L", (100, 100)), "PNG")
    for limit in (9_999, 4_000):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(Unsupported, match="bomb"):
            read(wire)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_pictures_stand_upright(orientation: int, kind: str) -> None:
    """Orientation n is made by hand: what transposition brings the stored rows and columns to their places."""
    upright = np.zeros((16, 32), np.uint8)
    upright[:8, :16] = 250
    turned = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: upright.T[::-1],
        7: upright.T[::-1, ::-1],
        8: upright.T[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "maker"
    there = read(saved(Image.fromarray(np.ascontiguousarray(turned)), kind, exif=exif, lossless=True))
    grey = there.numpy() if there.format == "mono8" else there.numpy()[..., 0]
    assert grey.shape == upright.shape
    assert np.abs(grey.astype(int) - upright).max() < 8
    # Written again it is not turned again, and the rest of the EXIF is there.
    again = wire_of(there, "png")
    assert read(again).shape == there.shape
    kept = Image.open(io.BytesIO(again)).getexif()
    assert kept[0x010F] == "maker"
    assert kept.get(0x0112, 1) == 1


def test_what_stands_beside_the_pixels_is_carried(tmp_path: Path) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("Author", "nobody")
    profile = b"not a profile, but 128 bytes or more of something".ljust(140)
    wire = saved(Image.fromarray(pixels_of("rgb8").numpy()), "PNG", icc_profile=profile, pnginfo=info)
    tensor = read(wire)
    assert tensor.carried is not None
    assert set(tensor.carried.fields) == {"picture.icc_profile", "picture.text"}
    with pytest.raises(Lossy, match="icc_profile"):
        dumps(tensor)
    assert files.write(tensor, tmp_path / "a.png") == []
    again = Image.open(tmp_path / "a.png")
    assert isinstance(again, PngImagePlugin.PngImageFile)
    assert again.info["icc_profile"] == profile
    assert again.text["Author"] == "nobody"
    assert [loss.field for loss in files.encode(tensor, "webp").lost] == ["picture.text"]


@given(st.data(), st.sampled_from(["PNG", "JPEG", "WEBP"]))
def test_damaged_pictures_are_refused_or_read(data: st.DataObject, kind: str) -> None:
    wire = saved(Image.fromarray(pixels_of("rgb8").numpy()), kind)
    with contextlib.suppress(FerryError):
        files.read(data.draw(damaged(wire)), format={"PNG": "png", "JPEG": "jpeg", "WEBP": "webp"}[kind])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_truncated_pictures_are_refused(kind: str) -> None:
    wire = saved(Image.fromarray(pixels_of("rgb8", 64, 64).numpy()), kind)
    for end in (0, 4, 12, 40, len(wire) // 2, len(wire) * 3 // 4):
        with pytest.raises(Malformed):
            files.read(wire[:end], format={"PNG": "png", "JPEG": "jpeg", "WEBP": "webp"}[kind])
