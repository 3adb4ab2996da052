"""From a tensor to an envelope, without copying a payload that need not be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..arrays import dense_strides
from ..errors import Lossy
from ..labels import Labels
from ..parts import Buffer, write_parts
from ..quantization import Quantization
from ..tensor import Tensor
from .envelope import MAGIC_BEGIN, MAGIC_END_BYTES, VERSION
from .importing import NEW_TEXTS, NO_SCALE, Reserved
from .record import MAX_RANK, RECORD, U32S, utf8_prefix

__all__ = ["export", "export_into", "export_parts"]

_U32_MAX = 2**32 - 1
_U64_MAX = 2**64 - 1
_NEW = Labels()
_NOTHING = Reserved(0, 0, 0, 0)
_TEXTS = {"frame_id": 16, "name": 32, "model_id": 32, "layout": 16}
"""Bytes of each char array. All may be filled: a text that arrived unterminated leaves so again."""

_ADVICE = {
    "shape": "reshape to 8 dimensions of 32 bits at most",
    "strides": "make a dense copy (numpy.ascontiguousarray)",
    "quantization": "dequantize the values, or take it away with replace(quantization=None)",
    "format": "make a plain tensor of the image's samples (Tensor.from_array(t.numpy()))",
    "colorimetry": "take it away with replace(colorimetry=None)",
}


def export(tensor: Tensor, *, lossy: bool = False) -> bytes:
    """``tensor`` as an envelope, version 2.1.0.

    An array that is not in one gapless piece is packed into C order first; strides that were never said
    are written as zeros. Raises Lossy, naming everything, for what the struct has no room for; ``lossy``
    lets labels be cut to their fields and another format's leftovers go, nothing else. Raises Unsupported
    for planes that have no bytes here. Source: spec/vlink-tensor.md, "Envelope" and "As a tensor".
    """
    return b"".join(export_parts(tensor, lossy=lossy))


def export_parts(tensor: Tensor, *, lossy: bool = False) -> list[Buffer]:
    """``tensor`` as an envelope in three pieces for writev, sendmsg and the like: head, elements, end.

    The elements are borrowed, not copied, and must not change until the pieces are written. Raises as
    ``export`` does.
    """
    lost = _losses(tensor, lossy)
    if lost:
        raise _lossy(lost)
    tensor = tensor.packed()
    elements = tensor._host_bytes(0)
    if tensor._origin:
        elements = elements[tensor._origin :]  # no stride is negative: nothing before it is addressed
    return [_head(tensor, len(elements)), elements, MAGIC_END_BYTES]


def export_into(tensor: Tensor, buffer: bytearray | memoryview, *, lossy: bool = False) -> int:
    """Write ``tensor`` as an envelope at the start of ``buffer``; returns its bytes.

    ``buffer`` is any writable buffer. ValueError, with nothing written, when it is too small.
    Otherwise raises as ``export`` does.
    """
    return write_parts(export_parts(tensor, lossy=lossy), buffer)


def _head(tensor: Tensor, size: int) -> bytes:
    """Everything before the ``size`` bytes of elements. Nothing in it can fail once _losses found none."""
    description = tensor._description
    dtype, shape, quantization = description.dtype, description.shape, description.quantization
    labels = _NEW if tensor._labels is None else tensor._labels
    frame_id, name, model_id, layout = NEW_TEXTS if labels is _NEW else _texts(labels)
    reserved = tensor._carried if isinstance(tensor._carried, Reserved) else _NOTHING
    pack = U32S[len(shape)].pack
    # struct's "32s" pads with zeros, and so fills the slots that no dimension uses.
    strides = pack(*[step // dtype.size for step in description.strides]) if description.strides_given else b""
    scale, zero_point = _quantization(quantization)
    batch_size = labels.batch_size
    if batch_size is None:
        batch_size = shape[0] if shape else 0
    return RECORD.pack(
        MAGIC_BEGIN, VERSION,
        frame_id, labels.seq, reserved.reserved, labels.time_meas, labels.time_pub,
        0, size, labels.update_time_ns, math.prod(shape),
        name, model_id, layout,
        pack(*shape), strides,
        labels.channel, labels.freq, batch_size, scale, zero_point,
        dtype.vlink, len(shape), labels.device, 0, dtype.size,
        reserved.reserved_buf, reserved.reserved_buf2, reserved.reserved_buf3,
    )  # fmt: skip


def _texts(labels: Labels) -> list[bytes]:
    """The labels' texts as char arrays, in NEW_TEXTS' order, cut to them where that was allowed."""
    # Only a lossy export still meets what UTF-8 has no bytes for, or a NUL, where a reader would stop.
    return [
        utf8_prefix(getattr(labels, name).encode("utf-8", "replace").partition(b"\0")[0], room)
        for name, room in _TEXTS.items()
    ]


def _quantization(quantization: Quantization | None) -> tuple[bytes, int]:
    """quant_scale_, bit for bit, and quant_zero_point_."""
    if quantization is None:
        return NO_SCALE[0], 0
    points = quantization.zero_points
    return quantization.scales.tobytes(), 0 if points is None else int(points[0])


def _losses(tensor: Tensor, lossy: bool) -> list[str]:
    """Names of all that an envelope cannot say of ``tensor``; without labels and leftovers if ``lossy``."""
    description = tensor._description
    shape, size = description.shape, description.dtype.size
    lost = []
    if len(shape) > MAX_RANK or (shape and max(shape) > _U32_MAX) or math.prod(shape) > _U64_MAX:
        lost.append("shape")
    if tensor._loose:
        lost += _lost_strides(shape, dense_strides(shape, size), size)
    elif description.strides_given:
        lost += _lost_strides(shape, description.strides, size)
    quantization = description.quantization
    # A scale of 0 with no zero point is how the struct says that there is no quantization.
    if quantization is not None and (quantization.axis is not None or _is_unsaid(quantization)):
        lost.append("quantization")
    if description.format is not None:
        lost.append("format")
    if description.colorimetry is not None:
        lost.append("colorimetry")
    if not lossy:
        if tensor._labels is not None:
            lost += _lost_labels(tensor._labels)
        if tensor._carried is not None and not isinstance(tensor._carried, Reserved):
            lost += tensor._carried.fields
    return lost


def _lost_strides(shape: Sequence[int], strides: Sequence[int], size: int) -> list[str]:
    """Strides go as u32 counts of elements; all zeros say that they are dense, unless nothing is stepped."""
    writable = all(0 <= step <= _U32_MAX * size and step % size == 0 for step in strides)
    mistaken = bool(strides) and not any(strides) and max(shape) > 1
    return [] if writable and not mistaken else ["strides"]


def _is_unsaid(quantization: Quantization) -> bool:
    scale, zero_point = _quantization(quantization)
    return zero_point == 0 and scale in NO_SCALE


def _lost_labels(labels: Labels) -> list[str]:
    """Texts longer than their field, or that a reader would not get back as they are."""
    lost = []
    for name, room in _TEXTS.items():
        text: str = getattr(labels, name)
        raw = text.encode("utf-8", "surrogatepass")
        if len(raw) > room or 0 in raw or raw.decode("utf-8", "replace") != text:
            lost.append(f"labels.{name}")
    return lost


def _lossy(lost: Sequence[str]) -> Lossy:
    advice = [_ADVICE[name] for name in lost if name in _ADVICE]
    if len(advice) < len(lost):
        advice.append("pass lossy=True to cut labels to their fields and leave the rest behind")
    return Lossy(f"a VLink tensor cannot carry {', '.join(lost)}; {'; '.join(advice)}", fields=tuple(lost))
