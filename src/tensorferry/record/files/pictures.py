"""PNG, JPEG and WebP, through pillow.

A picture is read as what it holds: mono8, rgb8 or rgba8, upright as its EXIF orientation has it; grey of 16 bits is
a bare uint16 array [H, W]. What stands beside the pixels (ICC profile, EXIF, texts) is carried. Any 8-bit image is
written, in its own channels or as RGB (``record.colour``); so are bare arrays [H, W], [H, W, 3] and [H, W, 4] of
uint8, and, as PNG, [H, W] of uint16.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...dtypes import DType
from ...errors import Malformed, Unsupported
from ...image import Colorimetry, PixelFormat
from ...tensor import Tensor
from .. import colour
from .entry import Entry, Format, Loss, Notes, Written, unsaid
from .extras import need

__all__ = ["JPEG", "PNG", "WEBP"]

Array = npt.NDArray[Any]

_EXTRA = "record"
_ORIGIN = "picture"
_ORIENTATION = 0x0112
_GREY_16 = ("I;16", "I;16B", "I")

# What else a picture is stored as, and which of ours has its values exactly.
_AS = {"1": "L", "LA": "RGBA", "P": "RGB", "PA": "RGBA", "L": "L", "RGB": "RGB", "RGBA": "RGBA"}
_FORMATS = {"L": PixelFormat.MONO8, "RGB": PixelFormat.RGB8, "RGBA": PixelFormat.RGBA8}


class _Kind(NamedTuple):
    """One of pillow's formats: the longest side it has, which notes it keeps, and whether it has grey and alpha."""

    name: str
    longest: int
    keeps: frozenset[str]
    grey: bool = True
    alpha: bool = True


_PNG = _Kind("PNG", (1 << 31) - 1, frozenset({"icc_profile", "exif", "text"}))
_JPEG = _Kind("JPEG", 65_500, frozenset({"icc_profile", "exif", "xmp", "comment"}), alpha=False)
_WEBP = _Kind("WEBP", 16_383, frozenset({"icc_profile", "exif", "xmp"}), grey=False)
_NOTES = ("icc_profile", "exif", "xmp", "comment", "gamma", "chromaticity")


# ---- reading ----


def _read(kind: _Kind, data: memoryview) -> list[Entry]:
    pillow = need("PIL.Image", _EXTRA)
    if kind is _PNG:
        _refuse_deep(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(io.BytesIO(data), formats=(kind.name,)) as image:
                array, notes = _pixels(kind, image)
    except Unsupported:
        raise
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError) as error:
        raise Unsupported(
            f"the {kind.name} may be a bomb: {error}; raise PIL.Image.MAX_IMAGE_PIXELS to allow it", field="size"
        ) from None
    # pillow meets damage with half of Python's exceptions.
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise Malformed(f"the {kind.name} cannot be read: {why}", field="picture") from None
    if array.dtype == np.uint16:
        return [Entry("", notes.on(Tensor.from_array(array)))]
    format = _FORMATS["L" if array.ndim == 2 else "RGB" if array.shape[2] == 3 else "RGBA"]
    return [Entry("", notes.on(Tensor.image(format, array.shape[1], array.shape[0], array)))]


def _refuse_deep(data: memoryview) -> None:
    """Of 16 bits a channel, pillow reads grey alone; of colours it silently drops the lower half."""
    depth, colour_type = (*data[24:26], 0, 0)[:2]
    if depth == 16 and colour_type != 0:
        raise Unsupported("a PNG of 16 bits a colour: pillow would drop half of them", field="bit_depth", value=16)


def _pixels(kind: _Kind, image: Any) -> tuple[Array, Notes]:
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise Unsupported(f"the {kind.name} is animated: its pictures are not read", field="n_frames")
    image.load()
    items = {key: image.info[key] for key in _NOTES if image.info.get(key)}
    if kind is _PNG:
        items.pop("xmp", None)  # it is one of the texts
        if image.text:
            items["text"] = dict(image.text)
    if image.format == "MPO" and image.n_frames > 1:
        items["other_pictures"] = image.n_frames - 1
    mode = image.mode
    if mode in _GREY_16:
        if "transparency" in image.info:
            raise Unsupported("a grey PNG of 16 bits with a transparent value has no tensor here", field="transparency")
        return np.asarray(image).astype("<u2"), Notes(_ORIGIN, items)
    if mode not in _AS:
        raise Unsupported(
            f"a {kind.name} of mode {mode} has no tensor here: convert it to RGB by its profile first",
            field="mode",
            value=mode,
        )
    image = image.convert("RGBA" if "transparency" in image.info else _AS[mode])
    if image.getexif().get(_ORIENTATION, 1) != 1:
        image = need("PIL.ImageOps", _EXTRA).exif_transpose(image)
        if "exif" in items:
            items["exif"] = image.info.get("exif", b"")
            items = {key: value for key, value in items.items() if value}
    return np.array(image), Notes(_ORIGIN, items)


# ---- writing ----


def _write_png(entries: Sequence[Entry]) -> Written:
    return _write(_PNG, entries)


def _write_jpeg(entries: Sequence[Entry], *, quality: int = 90) -> Written:
    written = _write(_JPEG, entries, quality=quality)
    return written._replace(lost=[*written.lost, Loss("values", "", f"compressed by JPEG of quality {quality}")])


def _write_webp(entries: Sequence[Entry], *, quality: int | None = None) -> Written:
    if quality is None:
        return _write(_WEBP, entries, lossless=True, exact=True)
    written = _write(_WEBP, entries, quality=quality)
    return written._replace(lost=[*written.lost, Loss("values", "", f"compressed by WebP of quality {quality}")])


def _write(kind: _Kind, entries: Sequence[Entry], **parameters: Any) -> Written:
    pillow = need("PIL.Image", _EXTRA)
    ((name, tensor),) = entries
    picture, lost = _picture(kind, tensor)
    array = np.ascontiguousarray(picture.numpy())
    height, width = array.shape[:2]
    if not 0 < width <= kind.longest or not 0 < height <= kind.longest:
        raise Unsupported(
            f"a {kind.name} has sides of 1 to {kind.longest:,} pixels, not {width} × {height}",
            field="size",
            value=(width, height),
        )
    notes: dict[str, Any] = {}
    if isinstance(tensor.carried, Notes) and tensor.carried.origin == _ORIGIN:
        notes = {key: value for key, value in tensor.carried.items.items() if key in kind.keeps}
    lost += _beside(tensor, notes)
    text = notes.pop("text", {})
    if text:
        parameters["pnginfo"] = need("PIL.PngImagePlugin", _EXTRA).PngInfo()
        for key, value in text.items():
            parameters["pnginfo"].add_itxt(key, str(value))
    stream = io.BytesIO()
    try:
        pillow.fromarray(array).save(stream, kind.name, **parameters, **notes)
    except (OSError, ValueError) as error:
        raise Unsupported(f"pillow cannot write the {kind.name}: {error}", field="picture") from None
    return Written([stream.getbuffer()], [Entry(name, picture)], lost)


def _beside(tensor: Tensor, notes: dict[str, Any]) -> list[Loss]:
    """What is left behind that is not in the pixels."""
    lost = unsaid(tensor, keeps={"format", "planes[1]", "colorimetry"}, origin=_ORIGIN)
    carried = tensor.carried
    if isinstance(carried, Notes) and carried.origin == _ORIGIN:
        lost += [Loss(f"{_ORIGIN}.{key}") for key in carried.items if key not in notes]
    said = tensor.colorimetry or Colorimetry()
    # By convention a picture without a profile is sRGB; the matrix and the range are spent on its RGB.
    if said.space not in ("", "srgb") or said.transfer not in ("", "srgb"):
        lost.append(Loss("colorimetry", str(said)))
    return lost


def _picture(kind: _Kind, tensor: Tensor) -> tuple[Tensor, list[Loss]]:
    """What is written: a bare tensor, or an image in one of pillow's formats; and what that changes."""
    format = tensor.format
    if format is None:
        _check_bare(kind, tensor)
        return tensor, []
    if not isinstance(format, PixelFormat):
        raise Unsupported(f"pixel format {format!r} is unknown here: it has no picture", field="format", value=format)
    target = _target(kind, format)
    wanted = None
    if format is PixelFormat.MONO8:
        said = tensor.colorimetry or Colorimetry()
        wanted = Colorimetry(said.space, said.transfer, said.encoding, "full") if said.range else None
    bare = tensor.replace(quantization=None)
    lost = []
    for loss in colour.losses(bare, target, colorimetry=wanted):
        if loss == "values":
            encoding, range = colour.meant(format, tensor.colorimetry)
            lost.append(Loss(loss, str(format), f"{target} by {encoding} {range}"))
        else:
            lost.append(Loss(loss))
    if format is PixelFormat.MONO8 is not target:
        lost.append(Loss("format", str(format), str(target)))
    return colour.convert(bare, target, colorimetry=wanted, lossy=True), lost


def _target(kind: _Kind, format: PixelFormat) -> PixelFormat:
    if format is PixelFormat.MONO8 and kind.grey:
        return format
    if format in (PixelFormat.RGBA8, PixelFormat.BGRA8, PixelFormat.RGBA8_PLANAR) and kind.alpha:
        return PixelFormat.RGBA8
    return PixelFormat.RGB8


def _check_bare(kind: _Kind, tensor: Tensor) -> None:
    """A bare array is a picture where its shape leaves no doubt."""
    shape, dtype = tensor.shape, tensor.dtype
    grey, colours = len(shape) == 2, len(shape) == 3 and shape[2] in (3, 4)
    if dtype is DType.UINT8 and ((grey and kind.grey) or (colours and (shape[2] == 3 or kind.alpha))):
        return
    if dtype is DType.UINT16 and grey and kind is _PNG:
        return
    raise Unsupported(
        f"an array {dtype} {list(shape)} is no {kind.name}: it must be uint8 of"
        f" {'[H, W], ' if kind.grey else ''}[H, W, 3]{' or [H, W, 4]' if kind.alpha else ''}"
        f"{', or uint16 [H, W]' if kind is _PNG else ''}; or an image made with Tensor.image",
        field="shape",
        value=shape,
    )


PNG = Format(
    "a PNG", (".png",), lambda head, size: head.startswith(b"\x89PNG\r\n\x1a\n"), partial(_read, _PNG), _write_png
)
JPEG = Format(
    "a JPEG", (".jpg", ".jpeg"), lambda head, size: head.startswith(b"\xff\xd8\xff"), partial(_read, _JPEG), _write_jpeg
)
WEBP = Format(
    "a WebP",
    (".webp",),
    lambda head, size: head[:4] == b"RIFF" and head[8:12] == b"WEBP",
    partial(_read, _WEBP),
    _write_webp,
)
