"""The two wire formats as files: blobs end to end, and one VLink tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ... import blob, vlink
from ...errors import Lossy
from ...parts import Buffer
from ...tensor import Tensor
from .entry import Entry, Format, Loss, Written, dense, plain, widened

__all__ = ["BLOB", "VLINK"]

_BLOB_DTYPES = frozenset(blob.codes.DTYPES.values())

_Export = Callable[[Tensor, bool], Sequence[Buffer]]


def _read_blobs(data: memoryview) -> list[Entry]:
    return [_entry(blob.import_(piece)) for piece in blob.iter_blobs(data)] or [_entry(blob.import_(data))]


def _read_vlink(data: memoryview) -> list[Entry]:
    return [_entry(vlink.import_(data))]


def _entry(tensor: Tensor) -> Entry:
    return Entry("" if tensor.labels is None else tensor.labels.name, tensor)


def _write_blobs(entries: Sequence[Entry]) -> Written:
    return _write(entries, "a blob", lambda tensor, lossy: blob.export_parts(tensor, lossy=lossy))


def _write_vlink(entries: Sequence[Entry]) -> Written:
    return _write(entries, "a VLink tensor", lambda tensor, lossy: vlink.export_parts(tensor, lossy=lossy))


def _write(entries: Sequence[Entry], what: str, export: _Export) -> Written:
    parts: list[Buffer] = []
    held, lost = [], []
    for name, tensor in entries:
        try:
            parts += export(tensor, False)
        except Lossy as error:
            tensor, left = _reduced(tensor, error.fields)
            lost += left
            parts += _helped(tensor, what, export)
        held.append(Entry(name, tensor))
    return Written(parts, held, lost)


def _helped(tensor: Tensor, what: str, export: _Export) -> Sequence[Buffer]:
    try:
        return export(tensor, True)
    except Lossy as error:
        raise Lossy(
            f"{what} cannot carry {', '.join(error.fields)}, and leaving things behind cannot help it",
            fields=error.fields,
        ) from None


def _reduced(tensor: Tensor, fields: Sequence[str]) -> tuple[Tensor, list[Loss]]:
    """``tensor`` without what the wire format cannot say, as far as that can be done; and what that is."""
    lost = [Loss(field, str(tensor.format) if field == "format" else "") for field in fields]
    if "format" in fields and len(tensor.planes) == 2:
        lost.append(Loss("planes[1]", "chroma"))
    if "quantization" in fields:
        tensor = tensor.replace(quantization=None)
    if "colorimetry" in fields:
        tensor = tensor.replace(colorimetry=None)
    if "dtype" in fields:
        array, became = widened(tensor, _BLOB_DTYPES)
        lost = [loss for loss in lost if loss.field != "dtype"] + became
        tensor = plain(tensor, array)
    elif "format" in fields or "strides" in fields:
        tensor = plain(tensor, dense(tensor))
    return tensor, lost


def _starts_a_blob(head: bytes, size: int) -> bool:
    said, required = (int.from_bytes(head[at : at + 8], "little") for at in (0, 8))
    return blob.HEADER_LEN <= said <= size and not required


def _starts_an_envelope(head: bytes, size: int) -> bool:
    # The magic may also be the low half of a blob's size.
    return head.startswith(vlink.MAGIC_BEGIN_BYTES) and not _starts_a_blob(head, size)


BLOB = Format("a blob", (".blob", ".tblob"), _starts_a_blob, _read_blobs, _write_blobs, many=True)
VLINK = Format("a VLink tensor", (".vlt",), _starts_an_envelope, _read_vlink, _write_vlink)
