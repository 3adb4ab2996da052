"""The blob's codes for element types and storage kinds, and its five strings as the model's words."""

from __future__ import annotations

from ..dtypes import DType
from ..image import Colorimetry, PixelFormat
from ..tensor import Description, StorageKind
from .strings import BlobStrings

__all__ = ["DTYPES", "STORAGE_CODES", "STORAGE_KINDS"]

DTYPES: dict[int, DType] = {row.blob: row for row in DType if row.blob is not None}

# D3D11 is not here: the published table gives its kind no number yet.
STORAGE_CODES: dict[StorageKind, int] = {
    StorageKind.MEM: 0,
    StorageKind.SHM: 1,
    StorageKind.DMA_BUF: 2,
    StorageKind.IO_SURFACE: 3,
    StorageKind.PBO: 4,
    StorageKind.CUDA: 5,
}
STORAGE_KINDS: dict[int, StorageKind] = {code: kind for kind, code in STORAGE_CODES.items()}

_FORMATS: dict[str, PixelFormat] = {format.value: format for format in PixelFormat}
NO_STRINGS = BlobStrings()


def format_of(strings: BlobStrings) -> PixelFormat | str | None:
    """The pixel format named; one unknown here stays the string that it is."""
    return _FORMATS.get(strings.format, strings.format or None)


def colorimetry_of(strings: BlobStrings) -> Colorimetry | None:
    return Colorimetry(*strings[1:]) if any(strings[1:]) else None


def strings_of(description: Description) -> BlobStrings:
    """What the five strings say of a description."""
    if description.format is None and description.colorimetry is None:
        return NO_STRINGS
    colorimetry = description.colorimetry or Colorimetry()
    return BlobStrings(
        str(description.format or ""),
        colorimetry.space,
        colorimetry.transfer,
        colorimetry.encoding,
        colorimetry.range,
    )
