"""Envelopes laid out from the seed's field table, by hand: nothing here comes from the code under test."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

# The seed's table: field, offset in the struct, struct code, default of a new container.
TABLE: dict[str, tuple[int, str, Any]] = {
    "frame_id": (0, "16s", b"unknown"),
    "seq": (16, "I", 0),
    "reserved": (20, "I", 0),
    "time_meas": (24, "Q", 0),
    "time_pub": (32, "Q", 0),
    "data_": (40, "Q", 0),
    "size_": (48, "Q", 0),
    "update_time_ns": (56, "Q", 0),
    "num_elements": (64, "Q", 0),
    "name": (72, "32s", b""),
    "model_id": (104, "32s", b""),
    "layout": (136, "16s", b""),
    "channel": (216, "I", 0),
    "freq": (220, "I", 0),
    "batch_size": (224, "I", 0),
    "quant_scale": (228, "f", 0.0),
    "quant_zero_point": (232, "i", 0),
    "dtype": (236, "B", 0),
    "rank": (237, "B", 0),
    "device": (238, "B", 0),
    "is_owner": (239, "B", 0),
    "element_size": (240, "B", 0),
    "reserved_buf": (241, "B", 0),
    "reserved_buf2": (242, "H", 0),
    "reserved_buf3": (244, "I", 0),
}
SIZES = [0, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8]


def _build(
    elements: bytes = b"",
    *,
    shape: tuple[int, ...] = (),
    strides: tuple[int, ...] | None = None,
    begin: int = 0x98B7F19A,
    version: int = 2_001_000,
    end: int = 0x98B7F19F,
    **said: Any,
) -> bytes:
    """An envelope; strides in elements, C order unless said; what is not said is what follows from the rest."""
    if strides is None:
        step = 1
        dense: list[int] = []
        for dimension in reversed(shape):
            dense.insert(0, step)
            step *= dimension
        strides = tuple(dense)
    count = 1
    for dimension in shape:
        count *= dimension
    dtype = said.get("dtype", 0)
    fields = {name: default for name, (_, _, default) in TABLE.items()} | {
        "size_": len(elements),
        "num_elements": count,
        "batch_size": shape[0] if shape else 0,
        "rank": len(shape),
        "element_size": SIZES[dtype] if dtype < len(SIZES) else 0,
    }
    image = bytearray(248)
    struct.pack_into(f"<{len(shape)}I", image, 152, *shape)
    struct.pack_into(f"<{len(strides)}I", image, 184, *strides)
    for name, value in (fields | said).items():
        offset, code, _ = TABLE[name]
        struct.pack_into("<" + code, image, offset, value)
    return struct.pack("<II", begin, version) + bytes(image) + elements + struct.pack("<I", end)


@pytest.fixture(scope="session")
def build() -> Callable[..., bytes]:
    return _build
