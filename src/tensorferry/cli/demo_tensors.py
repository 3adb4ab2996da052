"""The tensors that ``tensorferry demo`` sends: what pipelines carry, in small."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..image import Colorimetry
from ..labels import Labels
from ..quantization import Quantization
from ..tensor import Tensor

__all__ = ["LOST", "Sample", "damaged", "samples", "scene"]

Array = npt.NDArray[Any]

LOST = {
    "dtype": "no code for this element type",
    "quantization": "no scale a channel, only one for all",
    "format": "no pixel formats",
    "labels": "no labels",
}
"""What a format has not, by the field that ``Lossy`` names for it."""


class Sample(NamedTuple):
    """``carried_by`` are the formats that can say all of it. ``beside`` is why the published library refuses
    the blob, where docs/blob.md says that it does.
    """

    name: str
    tensor: Tensor
    carried_by: tuple[str, ...]
    beside: str = ""


def samples() -> list[Sample]:
    random = np.random.default_rng(20)
    both = ("blob", "vlink")
    features = random.standard_normal((1, 64, 80, 80), np.float32)
    activation = random.integers(-128, 128, (1, 32, 40, 40), np.int8)
    weights = random.integers(-127, 128, (32, 16, 3, 3), np.int8)
    hidden = random.standard_normal((1, 128, 768), np.float32).astype(ml_dtypes.bfloat16)
    boxes = random.uniform(0, 640, (100, 6)).astype(np.float32)
    labels = Labels(name="boxes", frame_id="camera_front", seq=4711, time_meas=1_760_000_000_123_456_789)
    per_channel = Quantization.per_channel(0, np.linspace(0.001, 0.02, 32))
    return [
        Sample("features", Tensor.from_array(features), both),
        Sample(
            "quantized activation", Tensor.from_array(activation, quantization=Quantization.per_tensor(0.05, -3)), both
        ),
        Sample("per-channel weights", Tensor.from_array(weights, quantization=per_channel), ("blob",)),
        Sample("hidden states", Tensor.from_array(hidden), ("vlink",)),
        Sample("camera frame", nv12(scene(1280, 720)), ("blob",)),
        Sample("odd-sized frame", nv12(scene(641, 479)), ("blob",), "NV12 of an odd width only by reference"),
        Sample("crop of a picture", Tensor.from_array(scene(640, 480)[100:300, 200:520]), both),
        Sample("labelled boxes", Tensor.from_array(boxes, labels=labels), ("vlink",)),
        Sample("a single number", Tensor.from_array(np.float32(0.87)), both, "no tensors without dimensions"),
    ]


def damaged(blob: bytes, envelope: bytes) -> list[tuple[str, bytes]]:
    """Sound bytes that something happened to on the way."""

    def patched(data: bytes, offset: int, patch: bytes) -> bytes:
        return data[:offset] + patch + data[offset + len(patch) :]

    return [
        ("a blob cut off in its plane", blob[: len(blob) // 2]),
        ("a blob that claims four billion dimensions", patched(blob, 44, b"\xff" * 4)),
        ("a blob that needs a feature from the future", patched(blob, 8, b"\x01")),
        ("an envelope without its last word", envelope[:-4] + bytes(4)),
        ("an envelope whose strides reach too far", patched(envelope, 8 + 188, b"\xff\xff\xff\x7f")),
    ]


def scene(width: int, height: int) -> Array:
    """A generated picture, [H, W, 3] uint8: gradients (the sky), curved and straight edges (hills, a road, a sun)."""
    y, x = np.mgrid[0:height, 0:width] / np.array([height, width], np.float64).reshape(2, 1, 1)
    picture = np.stack([0.35 + 0.5 * y, 0.55 + 0.35 * y, 0.95 - 0.15 * y], axis=-1)
    far, near = 0.55 + 0.06 * np.sin(9 * x + 1), 0.68 + 0.04 * np.sin(5 * x)
    sun = np.hypot((x - 0.78) * width / height, y - 0.22)
    picture += np.exp(-12 * sun)[..., None] * [0.5, 0.35, 0.0]
    picture[sun < 0.07] = (1.0, 0.95, 0.7)
    picture[y > far] = (0.30, 0.42, 0.50)
    ground = y > near
    picture[ground] = (np.stack([0.20 + 0.2 * y, 0.45 - 0.1 * y, 0.15 + 0 * y], axis=-1))[ground]
    half = 0.02 + 0.45 * (y - 0.68)
    picture[ground & (abs(x - 0.5) < half)] = (0.27, 0.27, 0.30)
    dashes = (np.floor(3 / (y - 0.6 + 1e-9)) % 2 == 0) & (abs(x - 0.5) < half / 20)
    picture[ground & dashes] = (0.95, 0.95, 0.9)
    return np.asarray(np.clip(picture * 255, 0, 255).astype(np.uint8))


def nv12(rgb: Array) -> Tensor:
    """A picture as a camera gives it: NV12, BT.709, limited range. Chroma of odd edges is the last pixels' own."""
    height, width = rgb.shape[:2]
    red, green, blue = np.moveaxis(rgb.astype(np.float32) / 255, -1, 0)
    grey = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    luma = np.rint(16 + 219 * grey).astype(np.uint8)
    pairs = np.stack([(blue - grey) / 1.8556, (red - grey) / 1.5748], axis=-1)
    even = np.pad(pairs, ((0, height % 2), (0, width % 2), (0, 0)), "edge")
    means = even.reshape(even.shape[0] // 2, 2, even.shape[1] // 2, 2, 2).mean(axis=(1, 3))
    chroma = np.rint(128 + 224 * means).astype(np.uint8).reshape(means.shape[0], -1)
    # Both planes at one pitch: that of the width made even.
    luma = np.pad(luma, ((0, 0), (0, width % 2)))
    colorimetry = Colorimetry("bt709", "bt709", "bt709", "limited")
    memory = np.concatenate([luma, chroma])
    return Tensor.image("NV12", width, height, memory.reshape(-1), colorimetry=colorimetry)
