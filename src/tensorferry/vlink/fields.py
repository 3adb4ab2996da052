"""Which field of a VLink envelope each of its bytes belongs to; of a damaged one, as far as can be said."""

from __future__ import annotations

from struct import Struct

from ..errors import FerryError, WireError
from ..fields import Field, Walk
from ..parts import Buffer
from .envelope import MAGIC_BEGIN, MAGIC_END_BYTES, VERSION_MAJOR, read_record
from .record import MAX_RANK, text_of

__all__ = ["fields"]


def _rows(names: str, code: str) -> tuple[tuple[str, Struct], ...]:
    return tuple((name, Struct(f"<{code}")) for name in names.split())


def _ranks(name: str) -> str:
    return " ".join(f"{name}[{i}]" for i in range(MAX_RANK))


# The seed's table; a Struct of one "s" is a text.
_HEADER = (
    _rows("header.frame_id", "16s") + _rows("header.seq header.reserved", "I")
    + _rows("header.time_meas header.time_pub", "Q")
)  # fmt: skip
_STRUCT = (
    _rows("data_ size_ update_time_ns_ num_elements_", "Q")
    + _rows("name_ model_id_", "32s") + _rows("layout_", "16s")
    + _rows(_ranks("shape_"), "I") + _rows(_ranks("strides_"), "I")
    + _rows("channel_ freq_ batch_size_", "I") + _rows("quant_scale_", "f") + _rows("quant_zero_point_", "i")
    + _rows("dtype_ rank_ device_ is_owner_ element_size_", "B")
    + _rows("reserved_buf_", "B") + _rows("reserved_buf2_", "H") + _rows("reserved_buf3_", "I")
)  # fmt: skip
_U32 = Struct("<I")


def fields(data: Buffer) -> list[Field]:
    """The fields of the envelope ``data``, in order; they cover all of it.

    Never raises: what cannot be read is one last field, ``unread``, whose value is the refusal. An envelope
    that was cut short is read up to the cut. What the numbers mean is not checked here: ``import_`` may
    still refuse.
    """
    walk = Walk(data)
    refusal: FerryError | None = None
    try:
        read_record(walk.data)
    except WireError as error:
        refusal = error
    _envelope(walk)
    return walk.finish(refusal)


def _envelope(walk: Walk) -> None:
    if not walk.number("magic_begin", _U32) or walk.fields[-1].value != MAGIC_BEGIN:
        return
    if not walk.number("version", _U32) or _U32.unpack_from(walk.data, 4)[0] // 1_000_000 != VERSION_MAJOR:
        return
    if not all(_field(walk, name, layout) for name, layout in _HEADER + _STRUCT):
        return
    size = next(field.value for field in walk.fields if field.name == "size_")
    if isinstance(size, int) and walk.raw("elements", size) and walk.data[walk.at : walk.at + 4] == MAGIC_END_BYTES:
        walk.number("magic_end", _U32)


def _field(walk: Walk, name: str, layout: Struct) -> bool:
    if not layout.format.endswith("s"):
        return walk.number(name, layout)
    return walk.text(name, layout.size, _text)


def _text(raw: bytes) -> str:
    return text_of(raw).decode("utf-8", "surrogateescape")
