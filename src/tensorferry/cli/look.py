"""One tensor looked at from all sides: what inspect shows, and what it says as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from functools import cached_property

from ..errors import FerryError, WireError
from ..fields import UNREAD, Field
from ..image import PixelFormat
from ..tensor import Tensor
from .inputs import Piece
from .statistics import Statistics, statistics

__all__ = ["Facts", "Look", "refused", "to_json"]

Facts = dict[str, object]

_NUMBERS = ("handle", "offset", "stride", "size", "used", "modifier", "handle_bytes_len", "data_len")


class Look:
    """A piece of a file, the tensor in it or why it was refused, and the fields that could be read."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.tensor: Tensor | None = None
        self.refusal: FerryError | None = None
        try:
            self.tensor = piece.load()
        except FerryError as error:
            self.refusal = error

    @cached_property
    def fields(self) -> list[Field]:
        return self.piece.fields()

    @cached_property
    def values(self) -> dict[str, object]:
        """What each field says, by its name."""
        return {field.name: field.value for field in self.fields}

    @cached_property
    def offsets(self) -> dict[str, int]:
        return {field.name: field.offset for field in self.fields}

    @cached_property
    def statistics(self) -> list[Statistics] | FerryError:
        """Of the values; or why there are none."""
        if self.tensor is None:
            assert self.refusal is not None
            return self.refusal
        try:
            return statistics(self.tensor)
        except FerryError as error:
            return error

    @cached_property
    def wrong(self) -> Field | None:
        """The field that was refused: where the refusal says that it stands, or what it is called."""
        refusal = self.refusal
        offset = refusal.offset if isinstance(refusal, WireError) else None
        read = [field for field in self.fields if field.name != UNREAD]
        if offset is not None:
            return next((field for field in read if field.offset <= offset < field.offset + field.length), None)
        if refusal is None or refusal.field is None:
            return None
        named = [field for field in read if field.name.rpartition(".")[2].rstrip("_") == refusal.field]
        return next((field for field in named if field.value == refusal.value), named[0] if named else None)

    def array(self, name: str) -> list[object]:
        """The numbers ``name[0]``, ``name[1]`` and so on that were read."""
        values = self.values
        found: list[object] = []
        while f"{name}[{len(found)}]" in values:
            found.append(values[f"{name}[{len(found)}]"])
        return found

    def planes(self) -> list[dict[str, int | None]]:
        """The blob's plane records as far as they were read, and where each and its data start."""
        rows: list[dict[str, int | None]] = []
        while f"planes[{len(rows)}].handle" in self.values:
            prefix = f"planes[{len(rows)}]"
            row: dict[str, int | None] = {"at": self.offsets[f"{prefix}.handle"]}
            for name in _NUMBERS:
                value = self.values.get(f"{prefix}.{name}")
                row[name] = value if isinstance(value, int) else None
            row["data_at"] = self.offsets.get(f"{prefix}.data")
            rows.append(row)
        return rows

    def summary(self) -> Facts:
        """Which tensor this is and what kind of one: a row of a table."""
        tensor, piece = self.tensor, self.piece
        facts: Facts = {
            "index": piece.index,
            "format": piece.format,
            "offset": piece.offset,
            "bytes": len(piece.data),
            "dtype": None,
            "shape": None,
            "pixel_format": None,
            "refusal": None if self.refusal is None else refused(self.refusal),
        }
        if tensor is not None:
            facts["dtype"] = str(tensor.dtype)
            facts["shape"] = list(tensor.shape)
            facts["pixel_format"] = None if tensor.format is None else str(tensor.format)
        return facts

    def facts(self) -> Facts:
        """Everything, as JSON has words for it."""
        facts = self.summary()
        if self.tensor is not None:
            facts.update(_tensor_facts(self.tensor))
            numbers = self.statistics
            facts["statistics"] = (
                {"unavailable": refused(numbers)}
                if isinstance(numbers, FerryError)
                else [asdict(row) for row in numbers]
            )
        if self.piece.format == "blob":
            facts["planes"] = self.planes()
        facts["fields"] = [
            {"offset": field.offset, "length": field.length, "name": field.name, "value": _plain(field.value)}
            for field in self.fields
        ]
        return facts


def refused(error: FerryError) -> Facts:
    """An error as JSON has words for it."""
    facts: Facts = {"error": type(error).__name__, "message": str(error), "field": error.field}
    facts.update({name: getattr(error, name, None) for name in ("offset", "need", "have")})
    return facts


def to_json(facts: object) -> str:
    """JSON that any reader takes: NaN and the infinities, which it has no numbers for, become words."""
    return json.dumps(_finite(facts), indent=2, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _plain(value: object) -> object:
    if isinstance(value, FerryError):
        return refused(value)
    return None if isinstance(value, memoryview) else value


def _tensor_facts(tensor: Tensor) -> Facts:
    quantization, colorimetry, labels = tensor.quantization, tensor.colorimetry, tensor.labels
    facts: Facts = {
        "strides": list(tensor.strides),
        "strides_given": tensor.strides_given,
        "storage": str(tensor.storage),
        "colorimetry": None if colorimetry is None else asdict(colorimetry),
        "quantization": None,
        "labels": None if labels is None else asdict(labels),
        "leftovers": [] if tensor.carried is None else list(tensor.carried.fields),
    }
    if isinstance(tensor.format, PixelFormat):
        facts.update(width=tensor.width, height=tensor.height)
    if quantization is not None:
        points = quantization.zero_points
        facts["quantization"] = {
            "axis": quantization.axis,
            "scales": quantization.scales.tolist(),
            "zero_points": None if points is None else points.tolist(),
        }
    return facts
