"""Pixels from one format into another: exact arithmetic for each matrix and range, never implied.

``convert`` works on 8-bit images of every ``PixelFormat``. Between RGB and Y'CbCr it computes, for the matrix
and range that the colorimetry names, the formula of ITU-T H.273 (8.3), rounded to the nearest integer and
saturated: with Kr and Kb of BT.601, BT.709 or BT.2020 (non-constant luminance),

    E'Y = Kr·R + (1 - Kr - Kb)·G + Kb·B      E'Cb = (B - E'Y) / (2 - 2·Kb)      E'Cr = (R - E'Y) / (2 - 2·Kr)

    full:     Y = 255·E'Y          C = 128 + 255·E'C
    limited:  Y = 16 + 219·E'Y     C = 128 + 224·E'C

A chroma sample that several pixels share is repeated for each of them, not interpolated; the other way it is
the average of those pixels (at an odd edge: of those that are there).

What a colorimetry leaves unsaid is filled in as V4L2 does (V4L2_MAP_YCBCR_ENC_DEFAULT and
V4L2_MAP_QUANTIZATION_DEFAULT): the encoding follows the colour space where that is bt709 or bt2020, and is
BT.601 otherwise, whatever the image's size; Y'CbCr is limited, RGB and mono8 are full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..dtypes import DType
from ..errors import Lossy, Unsupported
from ..image import Colorimetry, PixelFormat
from ..tensor import Tensor

__all__ = ["convert", "losses", "meant"]

Array = npt.NDArray[Any]

_WEIGHTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}  # Kr, Kb
_RANGES = {"full": (0, 255, 255), "limited": (16, 219, 224)}  # black, luma's span, chroma's span
_NEUTRAL = 128

# Which channel stands where in a pixel; of planar formats, in which plane.
_ORDERS = {
    PixelFormat.RGB8: "RGB",
    PixelFormat.RGBA8: "RGBA",
    PixelFormat.BGRA8: "BGRA",
    PixelFormat.RGB8_PLANAR: "RGB",
    PixelFormat.RGBA8_PLANAR: "RGBA",
}
# Of packed Y'CbCr, where Cb and Cr stand in the four bytes of two pixels, and where luma starts.
_PACKED = {PixelFormat.YUYV: (1, 3, 0), PixelFormat.VYUY: (2, 0, 1)}
# Pixels that share a chroma sample: columns, rows.
_SHARING = {
    PixelFormat.NV12: (2, 2),
    PixelFormat.NV16: (2, 1),
    PixelFormat.NV24: (1, 1),
    PixelFormat.YUYV: (2, 1),
    PixelFormat.VYUY: (2, 1),
}

_BITS = 16  # of a fixed-point fraction: its error stays below 0.02, so only near-ties round otherwise
_STRIP = 1 << 16  # pixels worked on at once, so that what is computed on the way stays in the cache


def convert(
    tensor: Tensor,
    format: PixelFormat | str,
    *,
    colorimetry: Colorimetry | None = None,
    lossy: bool = False,
) -> Tensor:
    """``tensor`` as an image of ``format``: itself where it is one already, otherwise a copy with the smallest pitch.

    ``colorimetry`` is that of the result; None keeps what the tensor says. The result says which encoding and
    range it was computed for. Labels stay. Without ``lossy``, raises Lossy naming what ``losses`` names.
    Unsupported for an image of other samples than uint8, an encoding or a range that is unknown here, a change
    of colour space or transfer (their arithmetic is not done here), and RGB of limited range.
    """
    target = PixelFormat(format)
    source = _format_of(tensor)
    wanted = _result(tensor, target, colorimetry)
    lost = _losses(tensor, target, wanted)
    if lost and not lossy:
        raise Lossy(f"{source} as {target} loses {', '.join(lost)}: pass lossy=True for that", fields=lost)
    if source is target and not lost:
        return tensor if wanted == tensor.colorimetry else tensor.replace(colorimetry=wanted)
    width, height = tensor.width, tensor.height
    out = _Image(target, width, height)
    if source in _ORDERS and target in _ORDERS:
        out.fill(_channels(tensor))
    else:
        _through(tensor, out, meant(source, tensor.colorimetry), meant(target, wanted))
    return Tensor.image(target, width, height, out.memory, colorimetry=wanted, labels=tensor.labels)


def losses(tensor: Tensor, format: PixelFormat | str, *, colorimetry: Colorimetry | None = None) -> tuple[str, ...]:
    """What ``convert`` would lose: "alpha", "colour", "values" (rounded or averaged), "quantization"."""
    target = PixelFormat(format)
    return _losses(tensor, target, _result(tensor, target, colorimetry))


def _losses(tensor: Tensor, target: PixelFormat, wanted: Colorimetry | None) -> tuple[str, ...]:
    source = _format_of(tensor)
    lost = []
    if "A" in _ORDERS.get(source, "") and "A" not in _ORDERS.get(target, ""):
        lost.append("alpha")
    if target is PixelFormat.MONO8 is not source:
        lost.append("colour")
    if _rounds(source, target, tensor.colorimetry, wanted):
        lost.append("values")
    if tensor.quantization is not None and (source is not target or lost):
        lost.append("quantization")
    return tuple(lost)


def _rounds(source: PixelFormat, target: PixelFormat, had: Colorimetry | None, wanted: Colorimetry | None) -> bool:
    if source in _ORDERS and target in _ORDERS:
        return False
    old, new = meant(source, had), meant(target, wanted)
    if source in _ORDERS or target in _ORDERS:
        # Grey is as grey in every channel; everything else is rounded.
        return not (source is PixelFormat.MONO8 and old.range == "full")
    if PixelFormat.MONO8 in (source, target):
        return old.range != new.range
    return old != new or any(a < b for a, b in zip(_SHARING[source], _SHARING[target], strict=True))


# ---- what a colorimetry means ----


class Meaning(NamedTuple):
    """The matrix and the range of a format's values, with what was unsaid filled in."""

    encoding: str
    range: str


def meant(format: PixelFormat | str, colorimetry: Colorimetry | None) -> Meaning:
    """What ``colorimetry`` says of an image of ``format``, and what it leaves unsaid. Unsupported for unknown words."""
    said = colorimetry or Colorimetry()
    encoding = said.encoding or {"bt709": "bt709", "bt2020": "bt2020"}.get(said.space, "bt601")
    range = said.range or ("limited" if PixelFormat(format) in _SHARING else "full")
    for field, value, known in (("encoding", encoding, _WEIGHTS), ("range", range, _RANGES)):
        if value not in known:
            raise Unsupported(
                f"colorimetry.{field} {value!r} is none of {', '.join(known)}: its colours cannot be computed here",
                field=field,
                value=value,
            )
    return Meaning(encoding, range)


def _result(tensor: Tensor, target: PixelFormat, asked: Colorimetry | None) -> Colorimetry | None:
    """The colorimetry that an image of ``target`` made of ``tensor`` has."""
    source, had = _format_of(tensor), tensor.colorimetry or Colorimetry()
    if asked is not None:
        for field in ("space", "transfer"):
            before, after = getattr(had, field), getattr(asked, field)
            if before and after and before != after:
                raise Unsupported(
                    f"colorimetry.{field} goes from {before} to {after}: only matrix and range are converted here",
                    field=field,
                    value=after,
                )
    elif source is target or (source in _ORDERS and target in _ORDERS):
        return tensor.colorimetry
    said = asked or had
    kept = Colorimetry(said.space or had.space, said.transfer or had.transfer, said.encoding, said.range)
    if asked is not None and "limited" in (source in _ORDERS and had.range, target in _ORDERS and asked.range):
        raise Unsupported("RGB of limited range is not converted here: it must be full", field="range", value="limited")
    if target in _ORDERS:
        return Colorimetry(kept.space, kept.transfer, "", "full")
    if asked is None and (source in _ORDERS or target is PixelFormat.MONO8):
        # A range that was said of other values than these says nothing of these.
        kept = Colorimetry(kept.space, kept.transfer, kept.encoding, "")
    meaning = meant(target, kept)
    return Colorimetry(kept.space, kept.transfer, *meaning)


def _format_of(tensor: Tensor) -> PixelFormat:
    format = tensor.format
    if not isinstance(format, PixelFormat):
        raise Unsupported(
            "a tensor without a known pixel format has no colours: make one with Tensor.image",
            field="format",
            value=format,
        )
    if tensor.dtype is not DType.UINT8:
        raise Unsupported(
            f"an image of {tensor.dtype} samples has no 8-bit colours: scale its values to uint8 first",
            field="dtype",
            value=tensor.dtype,
        )
    return format


# ---- the samples of an image ----


def _channels(tensor: Tensor) -> dict[str, Array]:
    """R, G, B and perhaps A, as [H, W] views."""
    format = _format_of(tensor)
    order = _ORDERS[format]
    if format.is_planar:
        return {name: tensor.plane(i) for i, name in enumerate(order)}
    pixels = tensor.numpy()
    return {name: pixels[..., i] for i, name in enumerate(order)}


class _Samples(NamedTuple):
    """Luma [H, W] and chroma, each sample of which ``sharing`` (columns, rows) pixels share. Views mostly."""

    y: Array
    cb: Array
    cr: Array
    sharing: tuple[int, int]


def _samples(tensor: Tensor) -> _Samples:
    format = _format_of(tensor)
    if format in _PACKED:
        cb_at, cr_at, y_at = _PACKED[format]
        row = tensor.plane(0)
        cb, cr = row[:, cb_at::4], row[:, cr_at::4]
        wide = max(cb.shape[1], cr.shape[1])
        return _Samples(row[:, y_at::2], _completed(cb, wide), _completed(cr, wide), (2, 1))
    chroma = tensor.plane(1)
    return _Samples(tensor.plane(0), chroma[:, 0::2], chroma[:, 1::2], _SHARING[format])


def _completed(chroma: Array, wide: int) -> Array:
    """The last pixel of an odd row of YUYV or VYUY has one chroma sample: the other is its neighbour's, or neutral."""
    missing = wide - chroma.shape[1]
    if not missing:
        return chroma
    last = chroma[:, -1:] if chroma.shape[1] else np.full((len(chroma), 1), _NEUTRAL, np.uint8)
    return np.concatenate([chroma, last], axis=1)


class _Image:
    """Memory for an image, planes one behind the other at the smallest pitch, and where its samples go."""

    def __init__(self, format: PixelFormat, width: int, height: int) -> None:
        self.format = format
        table = format.plane_table(width, height)
        self.memory: Array = np.zeros(sum(layout.size for layout in table), np.uint8)
        self.planes: list[Array] = []
        start = 0
        for layout in table:
            plane = self.memory[start : start + layout.size].reshape(layout.rows, -1 if layout.rows else layout.pitch)
            self.planes.append(plane[:, : layout.row_bytes])
            start += layout.size

    def channels(self) -> dict[str, Array]:
        order = _ORDERS[self.format]
        if self.format.is_planar:
            return dict(zip(order, self.planes, strict=True))
        return {name: self.planes[0][:, i :: len(order)] for i, name in enumerate(order)}

    def fill(self, channels: dict[str, Array]) -> None:
        """Take RGB from ``channels``; alpha is opaque where they have none."""
        for name, out in self.channels().items():
            out[...] = channels.get(name, 255)

    def luma(self) -> Array:
        return self.planes[0][:, _PACKED[self.format][2] :: 2] if self.format in _PACKED else self.planes[0]

    def chroma(self) -> tuple[Array, Array]:
        """Where Cb and Cr go; one may lack the last column (``_completed``)."""
        if self.format in _PACKED:
            cb_at, cr_at, _ = _PACKED[self.format]
            return self.planes[0][:, cb_at::4], self.planes[0][:, cr_at::4]
        return self.planes[1][:, 0::2], self.planes[1][:, 1::2]


# ---- from samples to samples ----


def _through(tensor: Tensor, out: _Image, old: Meaning, new: Meaning) -> None:
    """Between formats of which one is Y'CbCr or grey."""
    source, target = _format_of(tensor), out.format
    if source is PixelFormat.MONO8:
        _from_grey(tensor.plane(0), out, old, new)
    elif source in _ORDERS:
        if old.range == "limited":
            raise Unsupported(
                f"{source} of limited range is not converted: if its values are full, say so with"
                " replace(colorimetry=...)",
                field="range",
                value="limited",
            )
        channels = _channels(tensor)
        _from_rgb([channels[name] for name in "RGB"], out, new)
    elif target is PixelFormat.MONO8:
        out.planes[0][...] = _ranged(_samples(tensor).y, old, new)
    elif target in _ORDERS:
        channels = out.channels()
        _to_rgb(_samples(tensor), old, [channels[name] for name in "RGB"])
        if "A" in channels:
            channels["A"][...] = 255
    elif old == new:
        _resampled(_samples(tensor), out)
    else:
        between = _Image(PixelFormat.RGB8, tensor.width, tensor.height)
        channels = between.channels()
        _to_rgb(_samples(tensor), old, [channels[name] for name in "RGB"])
        _from_rgb([channels[name] for name in "RGB"], out, new)


def _strips(height: int, width: int) -> Iterator[slice]:
    """Whole rows, an even number at once."""
    step = max(2, _STRIP // max(width, 1) // 2 * 2)
    for top in range(0, height, step):
        yield slice(top, min(top + step, height))


def _to_rgb(samples: _Samples, meaning: Meaning, outs: Sequence[Array]) -> None:
    y, cb, cr, (columns, rows) = samples
    weights = _decoding(meaning)
    width = y.shape[1]
    for strip in _strips(*y.shape):
        shared = slice(strip.start // rows, -(-strip.stop // rows))
        blue = cb[shared].astype(np.int32)
        red = cr[shared].astype(np.int32)
        luma = y[strip].astype(np.int32)
        luma *= weights.luma
        for out, (of_blue, of_red, constant) in zip(outs, weights.channels, strict=True):
            tint = blue * of_blue + red * of_red + constant
            value = _spread(tint, columns, rows, width, len(luma))
            value += luma
            _settle(value, out[strip])


def _spread(chroma: Array, columns: int, rows: int, width: int, height: int) -> Array:
    """Each sample repeated for the pixels that share it; always an array of its own."""
    if columns == 2:
        wide = np.empty((len(chroma), width), chroma.dtype)
        wide[:, 0::2] = chroma
        wide[:, 1::2] = chroma[:, : width // 2]
        chroma = wide
    return chroma if rows == 1 else np.repeat(chroma, rows, axis=0)[:height]


def _settle(value: Array, out: Array) -> None:
    """Fixed-point ``value``, which has its half for rounding already, as bytes. Spoils ``value``."""
    value >>= _BITS
    np.clip(value, 0, 255, out=value)
    out[...] = value


def _from_rgb(channels: Sequence[Array], out: _Image, meaning: Meaning) -> None:
    weights = _encoding(meaning)
    target = out.luma()
    for strip in _strips(*target.shape):
        _settle(_weighed([channel[strip] for channel in channels], weights.luma, 1), target[strip])
    if out.format is PixelFormat.MONO8:
        return
    columns, rows = _SHARING[out.format]
    targets = out.chroma()
    for strip in _strips(*target.shape):
        shared = slice(strip.start // rows, -(-strip.stop // rows))
        sums = [_summed(channel[strip], columns, rows) for channel in channels]
        for chroma, of in zip(targets, weights.chroma, strict=True):
            value = _weighed(sums, of, columns * rows)
            _settle(value[:, : chroma.shape[1]], chroma[shared])


def _weighed(channels: Sequence[Array], weights: tuple[float, float, float, float], pixels: int) -> Array:
    """Fixed-point Σ weight × channel + constant, where each channel is a sum over ``pixels``."""
    *factors, constant = weights
    value = np.full(channels[0].shape, round((constant + 0.5) * (1 << _BITS)), np.int32)
    for channel, factor in zip(channels, factors, strict=True):
        value += channel.astype(np.int32) * round(factor / pixels * (1 << _BITS))
    return value


def _summed(channel: Array, columns: int, rows: int) -> Array:
    """Sums over the pixels that share a chroma sample; a missing edge counts as its neighbour, as averaging has it."""
    height, width = channel.shape
    total = channel.astype(np.int32)
    if columns == 2:
        total = _paired(total, width)
    return _paired(total.T, height).T if rows == 2 else total


def _paired(values: Array, width: int) -> Array:
    pairs: Array = values[:, 0::2].copy()
    pairs[:, : width // 2] += values[:, 1::2]
    if width % 2:
        pairs[:, -1] *= 2
    return pairs


def _from_grey(grey: Array, out: _Image, old: Meaning, new: Meaning) -> None:
    if out.format in _ORDERS:
        value = _ranged(grey, old, Meaning(new.encoding, "full"))
        out.fill(dict.fromkeys("RGB", value))
        return
    out.luma()[...] = _ranged(grey, old, new)
    for chroma in out.chroma() if out.format in _SHARING else ():
        chroma[...] = _NEUTRAL


def _ranged(luma: Array, old: Meaning, new: Meaning) -> Array:
    """Luma of one range in another."""
    if old.range == new.range:
        return luma
    (black, span, _), (to_black, to_span, _) = _RANGES[old.range], _RANGES[new.range]
    table = np.floor((np.arange(256) - black) * (to_span / span) + to_black + 0.5)
    other: Array = np.clip(table, 0, 255).astype(np.uint8)[luma]
    return other


def _resampled(samples: _Samples, out: _Image) -> None:
    """The same values, their chroma shared by other pixels."""
    columns, rows = _SHARING[out.format]
    height, width = samples.y.shape
    out.luma()[...] = samples.y
    for chroma, target in zip((samples.cb, samples.cr), out.chroma(), strict=True):
        if samples.sharing != (columns, rows):
            full = _spread(chroma, *samples.sharing, width, height)
            chroma = (_summed(full, columns, rows) + columns * rows // 2) // (columns * rows)
        target[...] = chroma[:, : target.shape[1]]


# ---- the matrices ----


class _Decoding(NamedTuple):
    """Fixed-point factors: R, G, B = luma·Y + of_blue·Cb + of_red·Cr + constant."""

    luma: int
    channels: tuple[tuple[int, int, int], ...]


@lru_cache(maxsize=16)
def _decoding(meaning: Meaning) -> _Decoding:
    kr, kb = _WEIGHTS[meaning.encoding]
    kg = 1 - kr - kb
    black, luma_span, chroma_span = _RANGES[meaning.range]
    luma, chroma = 255 / luma_span, 255 / chroma_span
    blue, red = 2 * (1 - kb) * chroma, 2 * (1 - kr) * chroma
    one = 1 << _BITS

    def row(of_blue: float, of_red: float) -> tuple[int, int, int]:
        constant = 0.5 - luma * black - (of_blue + of_red) * _NEUTRAL
        return round(of_blue * one), round(of_red * one), round(constant * one)

    return _Decoding(round(luma * one), (row(0, red), row(-blue * kb / kg, -red * kr / kg), row(blue, 0)))


class _Encoding(NamedTuple):
    """Factors of R, G, B and a constant, for luma and for Cb and Cr."""

    luma: tuple[float, float, float, float]
    chroma: tuple[tuple[float, float, float, float], ...]


@lru_cache(maxsize=16)
def _encoding(meaning: Meaning) -> _Encoding:
    kr, kb = _WEIGHTS[meaning.encoding]
    kg = 1 - kr - kb
    black, luma_span, chroma_span = _RANGES[meaning.range]
    luma, chroma = luma_span / 255, chroma_span / 255
    blue, red = chroma / (2 - 2 * kb), chroma / (2 - 2 * kr)
    return _Encoding(
        (kr * luma, kg * luma, kb * luma, black),
        (
            (-kr * blue, -kg * blue, (1 - kb) * blue, _NEUTRAL),
            ((1 - kr) * red, -kg * red, -kb * red, _NEUTRAL),
        ),
    )
