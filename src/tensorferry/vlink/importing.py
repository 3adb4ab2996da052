"""From an envelope to a tensor: what the bytes mean, and whether it can be believed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

import numpy as np

from ..arrays import reach
from ..errors import InvalidUtf8, Malformed, Unsupported
from ..labels import Device, Labels
from ..parts import Buffer, flat
from ..quantization import Quantization
from ..tensor import Description, Plane, Tensor
from .codes import DTYPES
from .envelope import MAGIC_END_BYTES, OVERHEAD, PAYLOAD_OFFSET, SIZE_OFFSET, STRUCT_OFFSET, read_record
from .header import NEW_FRAME_ID
from .record import MAX_RANK, U32S, text_of

__all__ = ["NEW_TEXTS", "NO_SCALE", "Reserved", "import_"]

NO_SCALE = (b"\0\0\0\0", b"\0\0\0\x80")
"""The bits of 0.0 and -0.0: a quant_scale_ that says nothing."""

_Texts = tuple[bytes, bytes, bytes, bytes]
_TEXTS = (("frame_id", 0), ("name", 72), ("model_id", 104), ("layout", 136))
NEW_TEXTS = (NEW_FRAME_ID, bytes(32), bytes(32), bytes(16))
"""frame_id, name_, model_id_ and layout_ of a new container."""
_NEW = ("unknown", "", "", "")
_DESCRIPTION = Struct("<32s32sIII4siBB")
_DESCRIBED = slice(STRUCT_OFFSET + 152, STRUCT_OFFSET + 238)
_KNOWN_DEVICES = tuple(Device)

_MAX_REMEMBERED = 256
_remembered: dict[bytes, tuple[Description, int]] = {}
"""What stood before the elements of envelopes without labels: what it means, and size_."""


class Reserved:
    """Reserved slots that are not all 0: no application's to use, kept so that they are written again.

    ``reserved`` is the header's, the others are the struct's. ``fields`` names those that are not 0.
    """

    __slots__ = ("reserved", "reserved_buf", "reserved_buf2", "reserved_buf3")

    def __init__(self, reserved: int, reserved_buf: int, reserved_buf2: int, reserved_buf3: int) -> None:
        self.reserved = reserved
        self.reserved_buf = reserved_buf
        self.reserved_buf2 = reserved_buf2
        self.reserved_buf3 = reserved_buf3

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(name for name in self.__slots__ if getattr(self, name))


def import_(data: Buffer) -> Tensor:
    """The tensor in ``data``, one whole envelope; its plane borrows all the element bytes, read-only.

    Raises WireError for bytes that cannot be believed; Unsupported for a rank above 8 and for an unknown
    element type, at which the published reader would guess. num_elements_ and element_size_ are derived,
    not read. Source: spec/vlink-tensor.md, "Envelope" and "As a tensor".
    """
    envelope = flat(data)
    # Frames of an unlabelled stream differ in nothing before their elements: what was believed once is again.
    before = bytes(envelope[:PAYLOAD_OFFSET])
    known = _remembered.get(before)
    if known is not None and len(envelope) == OVERHEAD + known[1] and envelope[-4:] == MAGIC_END_BYTES:
        return Tensor(known[0], (Plane(envelope[PAYLOAD_OFFSET:-4].toreadonly(), known[1], known[1], known[1]),))
    (
        _, _,
        frame_id, seq, reserved, time_meas, time_pub,
        _, size, update_time_ns, _,
        name, model_id, layout,
        _, _, channel, freq, batch_size, _, _, _, _,
        device, _, _,
        reserved_buf, reserved_buf2, reserved_buf3,
    ) = read_record(envelope)  # fmt: skip
    description, needed = _described(bytes(envelope[_DESCRIBED]))
    if needed > size:
        raise _too_small(size, needed, description)
    labels = None
    texts = (frame_id, name, model_id, layout)
    numbers = (seq, time_meas, time_pub, update_time_ns, channel, freq, device)
    shape = description.shape
    if texts != NEW_TEXTS or any(numbers) or batch_size != (shape[0] if shape else 0):
        labels = _labels(texts, numbers, batch_size, shape)
    carried = None
    if reserved or reserved_buf or reserved_buf2 or reserved_buf3:
        carried = Reserved(reserved, reserved_buf, reserved_buf2, reserved_buf3)
    if labels is None and carried is None:
        if len(_remembered) >= _MAX_REMEMBERED:
            _remembered.clear()
        _remembered[before] = description, size
    elements = envelope[PAYLOAD_OFFSET:-4].toreadonly()
    return Tensor(description, (Plane(elements, size),), labels=labels, carried=carried)


# Frames of a stream mean the same, so what one meant is remembered; whether its bytes are here is not.
@lru_cache(maxsize=256)
def _described(part: bytes) -> tuple[Description, int]:
    """What the struct from shape_ to rank_ says, and the bytes of elements that it needs."""
    dimensions, steps, _, _, _, scale, zero_point, code, rank = _DESCRIPTION.unpack(part)
    dtype = DTYPES.get(code)
    if rank > MAX_RANK or dtype is None:
        raise _unknown(rank, code)
    shape = U32S[rank].unpack_from(dimensions)
    strides = U32S[rank].unpack_from(steps)
    quantization = None
    if zero_point or scale not in NO_SCALE:
        # Bit for bit, NaNs too; a zero point of 0 is none.
        quantization = Quantization(np.frombuffer(scale, "<f4"), [zero_point] if zero_point else None)
    if rank and not any(strides):  # the producer never set them: dense
        return Description(dtype, shape, quantization=quantization), math.prod(shape) * dtype.size
    in_bytes = tuple(stride * dtype.size for stride in strides)
    return Description(dtype, shape, in_bytes, quantization=quantization), reach(shape, in_bytes, dtype.size)


def _labels(texts: _Texts, numbers: Sequence[int], batch_size: int, shape: tuple[int, ...]) -> Labels | None:
    """What the container says beside its values; None where that is what a new one of ``shape`` would say."""
    frame_id, name, model_id, layout = [
        _text(raw, field, offset) for raw, (field, offset) in zip(texts, _TEXTS, strict=True)
    ]
    if not any(numbers) and batch_size == (shape[0] if shape else 0) and (frame_id, name, model_id, layout) == _NEW:
        return None  # bytes behind a text's NUL are none of its, and no label
    seq, time_meas, time_pub, update_time_ns, channel, freq, device = numbers
    return Labels(
        name,
        model_id,
        layout,
        frame_id,
        seq,
        time_meas,
        time_pub,
        update_time_ns,
        channel,
        freq,
        batch_size,
        _KNOWN_DEVICES[device] if device < len(_KNOWN_DEVICES) else device,
    )


def _text(raw: bytes, field: str, offset: int) -> str:
    try:
        return text_of(raw).decode()
    except UnicodeDecodeError as error:
        raise InvalidUtf8(
            f"{field} is not UTF-8: {error.reason} at byte {error.start} of {raw!r};"
            " vlink.Tensor reads it all the same",
            field=field,
            value=raw,
            offset=STRUCT_OFFSET + offset,
        ) from None


def _unknown(rank: int, code: int) -> Unsupported:
    if rank > MAX_RANK:
        return Unsupported(
            f"rank {rank}: the struct has room for {MAX_RANK} dimensions, so what is meant cannot be known",
            field="rank",
            value=rank,
        )
    return Unsupported(
        f"dtype {code} is {'unset' if code == 0 else 'unknown to this version'}: set it at the producer,"
        " or take the bytes from vlink.Tensor",
        field="dtype",
        value=code,
    )


def _too_small(size: int, needed: int, description: Description) -> Malformed:
    how = f" with strides {list(description.strides)}" if description.strides_given else ""
    return Malformed(
        f"size_ is {size} bytes, {description.dtype} of shape {list(description.shape)}{how} addresses {needed}",
        field="size_",
        value=size,
        offset=SIZE_OFFSET,
    )
