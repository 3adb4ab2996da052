"""What a tensor means beyond its values and shape, as JSON, for files that have room for a text beside an array."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import Malformed, Unsupported
from ...image import Colorimetry, PixelFormat
from ...labels import Labels
from ...quantization import Quantization
from ...tensor import Tensor
from .entry import allocation, dense

__all__ = ["Facts", "array_of", "facts_of", "tensor_of", "text_of", "told"]

Array = npt.NDArray[Any]
Facts = dict[str, Any]

_VERSION = 1


def text_of(tensors: dict[str, Facts]) -> str:
    """What is to be said of each tensor, by name, as one text; "" where that is nothing."""
    said = {name: facts for name, facts in tensors.items() if facts}
    return json.dumps({"version": _VERSION, "tensors": said}, allow_nan=False) if said else ""


def told(text: str, names: Sequence[str]) -> dict[str, Facts]:
    """What ``text`` says of the tensors ``names``. Malformed, or Unsupported for a later version."""
    try:
        root = json.loads(text)
        version, tensors = root["version"], root["tensors"]
        if version != _VERSION:
            raise Unsupported(
                f"the notes that tensorferry left in the file are of version {version!r}, this reads {_VERSION}:"
                " read it with a later release",
                field="version",
                value=version,
            )
        if not all(name in names and isinstance(facts, dict) for name, facts in tensors.items()):
            raise ValueError("it speaks of tensors that are not there")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _malformed(error) from None
    facts_by_name: dict[str, Facts] = tensors
    return facts_by_name


def facts_of(tensor: Tensor, name: str) -> Facts:
    """What a file that calls ``tensor`` ``name`` and holds ``array_of`` it has to say besides."""
    facts: Facts = {}
    format = tensor.format
    if isinstance(format, PixelFormat):
        facts["pixels"] = {"format": format.value, "width": tensor.width, "height": tensor.height}
    if tensor.colorimetry is not None:
        facts["colorimetry"] = {key: value for key, value in asdict(tensor.colorimetry).items() if value}
    quantization = tensor.quantization
    if quantization is not None:
        points = quantization.zero_points
        facts["quantization"] = {
            "axis": quantization.axis,
            "scales": [_number(scale) for scale in quantization.scales],
            "zero_points": None if points is None else points.tolist(),
        }
    labels = tensor.labels
    said = () if labels is None else labels.said()
    if labels is not None and (said != ("name",) or labels.name != name):
        facts["labels"] = {field: getattr(labels, field) for field in said}
    return facts


def array_of(tensor: Tensor) -> Array:
    """What stands for ``tensor``: its values, or, of a semi-planar image, its whole allocation, row by row."""
    format = tensor.format
    if not isinstance(format, PixelFormat) or not format.is_semi_planar:
        return dense(tensor)
    return allocation(tensor).view(tensor.dtype.numpy).reshape(_rows_and_samples(format, tensor.width, tensor.height))


def _rows_and_samples(format: PixelFormat, width: int, height: int) -> tuple[int, ...]:
    """The shape of a semi-planar image's allocation, at the smallest pitch."""
    return (format.allocation(width, height)[0], format.min_pitch(width))


def tensor_of(array: Array, name: str, facts: Facts, default: Labels | None) -> Tensor:
    """The tensor that ``facts`` make of ``array``. Malformed, or Unsupported for a pixel format unknown here."""
    try:
        labels = default
        if "labels" in facts:
            labels = Labels(**_checked(facts["labels"]))
        colours = Colorimetry(**{key: str(value) for key, value in facts.get("colorimetry", {}).items()})
        quantization = _quantization(facts.get("quantization"))
        pixels = facts.get("pixels")
        if pixels is None:
            tensor = Tensor.from_array(array, quantization=quantization, labels=labels)
            return tensor.replace(colorimetry=colours) if colours else tensor
        if pixels["format"] not in list(PixelFormat):
            raise Unsupported(f"pixel format {pixels['format']!r} is unknown here", field="format", value=pixels)
        format, width, height = PixelFormat(pixels["format"]), pixels["width"], pixels["height"]
        if not (type(width) is type(height) is int) or min(width, height) < 0:
            raise TypeError(f"an image cannot be {width!r} × {height!r}")
        wanted = (_rows_and_samples if format.is_semi_planar else PixelFormat.grid)(format, width, height)
        if array.shape != wanted:
            raise ValueError(f"a {format} image of {width} × {height} has an array of {wanted}, not {array.shape}")
        return Tensor.image(
            format, width, height, array, quantization=quantization, labels=labels, colorimetry=colours or None
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _malformed(error, name) from None


def _malformed(error: Exception, name: str = "") -> Malformed:
    where = f" about {name!r}" if name else ""
    return Malformed(
        f"the notes that tensorferry left in the file{where} cannot be believed: {error}", field="tensorferry"
    )


def _checked(said: dict[str, Any]) -> dict[str, Any]:
    texts = {field.name for field in fields(Labels) if isinstance(field.default, str)}
    for key, value in said.items():
        if type(value) is not (str if key in texts else int):
            raise TypeError(f"labels.{key} cannot be {value!r}")
    return said


def _quantization(said: Any) -> Quantization | None:
    if said is None:
        return None
    return Quantization([_real(scale) for scale in said["scales"]], said["zero_points"], axis=said["axis"])


def _number(scale: np.float32) -> float | str:
    """A scale as a JSON number, or, where JSON has none, as the hexadecimal digits of its bits."""
    return float(scale) if math.isfinite(scale) else f"{int(scale.view(np.uint32)):#010x}"


def _real(said: object) -> Any:
    if isinstance(said, str):
        return np.uint32(int(said, 16)).view(np.float32)
    if isinstance(said, (int, float)):
        return np.float32(said)
    raise TypeError(f"a scale cannot be {said!r}")
