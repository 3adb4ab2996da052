"""Labels: what a tensor is called, when it was measured, where it belongs in a sequence."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

__all__ = ["Device", "Labels"]

_BITS = {
    "seq": 32,
    "time_meas": 64,
    "time_pub": 64,
    "update_time_ns": 64,
    "channel": 32,
    "freq": 32,
    "batch_size": 32,
    "device": 8,
}


class Device(IntEnum):
    """Where the producer would like the tensor to be; a hint only."""

    CPU = 0
    GPU = 1
    NPU = 2
    DSP = 3


@dataclass(frozen=True, slots=True)
class Labels:
    """What VLink's container says beside the values; the defaults are those of a new container.

    ``time_meas``, ``time_pub`` and ``update_time_ns`` are nanoseconds since the Unix epoch, ``freq`` is in
    Hz. ``batch_size`` None follows the first dimension. ``device`` is a Device, or the bare number of a
    kind unknown here. Numbers must fit their unsigned fields on the wire (32 bits, 64 for times, 8 for
    device); ValueError otherwise.
    """

    name: str = ""
    model_id: str = ""
    layout: str = ""
    frame_id: str = "unknown"
    seq: int = 0
    time_meas: int = 0
    time_pub: int = 0
    update_time_ns: int = 0
    channel: int = 0
    freq: int = 0
    batch_size: int | None = None
    device: int = Device.CPU

    def __post_init__(self) -> None:
        for field, bits in _BITS.items():
            value = getattr(self, field)
            if value is not None and not 0 <= value < 1 << bits:
                raise ValueError(f"labels.{field} = {value} does not fit {bits} unsigned bits")

    def said(self) -> tuple[str, ...]:
        """The names of the labels that differ from their defaults."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) != field.default)
