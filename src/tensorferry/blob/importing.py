"""From a blob to a tensor: what the bytes mean, and whether it can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from ..arrays import reach
from ..errors import Unsupported
from ..image import PixelFormat
from ..memory.opening import KeepRegion, OpenRegion, keep_region, open_region
from ..quantization import Quantization
from ..tensor import Description, Plane, Tensor
from .codes import DTYPES, colorimetry_of, format_of
from .header import HEADER_LEN, PLANE_RECORD_LEN, padding
from .planes import INLINE, BlobPlane
from .references import Reference, field_offset, malformed, open_reference, read_reference
from .view import BlobView

__all__ = ["Appended", "import_"]


class Appended:
    """What a later revision of the format put where this one ends: kept, and written again untouched.

    ``strings`` and ``planes`` stood at the end of those regions, ``end`` behind the last one.
    """

    __slots__ = ("end", "planes", "strings")

    fields = ("appended",)

    def __init__(self, strings: bytes, planes: bytes, end: bytes) -> None:
        self.strings = strings
        self.planes = planes
        self.end = end


def import_(
    blob: bytes | bytearray | memoryview | BlobView,
    fds: Sequence[int] = (),
    *,
    fence: str | None = None,
    policy: str = "read",
    writable: bool = False,
    references: bool = True,
    opener: OpenRegion = open_region,
    keep: KeepRegion = keep_region,
) -> Tensor:
    """The tensor in ``blob``. Inline planes borrow from the blob's bytes and are read-only.

    ``fds`` is the descriptor table that travelled beside the blob, for planes by reference: borrowed, what
    is kept is duplicated, so that the producer and the caller may close theirs. What a descriptor is counts,
    not what the blob says: memory that cannot shrink is mapped, read-only unless ``writable`` asks for more;
    other memory is read out (``policy="read"``) or refused (``policy="refuse"``). A blob with a fence is
    refused, someone may still be writing, unless the caller has waited and says ``fence="ignore"``.
    ``references=False`` refuses planes by reference, whatever kind of memory they name: those of a blob out
    of a file lead nowhere. ``opener`` and ``keep`` are for callers that keep mappings between blobs, as a link does.

    Raises WireError for bytes that cannot be believed; Unsupported for an element type that is unknown
    here, for memory that cannot be reached and for kinds that no importer is registered for.
    Source: spec/blob.md, "Checks" and "Transport modes".
    """
    if not isinstance(blob, BlobView):
        if fds and references:  # descriptors go with references mostly: look for one first
            reference = _familiar_reference(blob)
            if reference is not None:
                return open_reference(reference, fds, fence, policy, writable, opener, keep)
        familiar = _familiar(blob)
        if familiar is not None:
            return familiar
    view = blob if isinstance(blob, BlobView) else BlobView.parse(blob)
    description = describe(view)
    records = view.planes
    _check_planes(view, description.format)
    appended = _appended(view)
    if not records[0].is_inline:
        if not references:
            raise Unsupported(
                "the planes are by reference, in memory of the process that wrote the blob: record inline blobs",
                field="handle",
                value=records[0].handle,
            )
        _check_addressed(view, description)
        reference = read_reference(view, description, appended)
        _remember_reference(view, description, appended)
        return open_reference(reference, fds, fence, policy, writable, opener, keep)
    planes = tuple(_inline(view, i, record) for i, record in enumerate(records))
    _check_addressed(view, description)
    if len(planes) == 1 and appended is None:
        _remember(view, description, planes[0])
    return Tensor(description, planes, carried=appended)


# Frames of a stream differ in nothing but their payload. What stands before it has been believed once, so
# the same bytes are believed again without a second look; only the payload's presence must be checked.
_HEAD = Struct("<QQQ")  # size, required_mask, planes_bytes
_MAX_PREFIX = 1024
_MAX_REMEMBERED = 256
_remembered: dict[bytes, tuple[Description, int, int, int]] = {}
_remembered_references: dict[bytes, Reference] = {}


def _prefix_len(size: int, planes_bytes: int) -> int:
    """Bytes before the payload of a blob with one inline plane and nothing appended."""
    return size - planes_bytes + PLANE_RECORD_LEN


def _familiar(blob: bytes | bytearray | memoryview) -> Tensor | None:
    """The tensor in ``blob`` if all before its payload is remembered; None when it must be parsed."""
    if type(blob) is memoryview:
        if blob.format != "B" or blob.ndim != 1 or not blob.c_contiguous:
            return None
    elif type(blob) is not bytes and type(blob) is not bytearray:
        return None
    if len(blob) < HEADER_LEN:
        return None
    size, _, planes_bytes = _HEAD.unpack_from(blob)
    start = _prefix_len(size, planes_bytes)
    if not 0 < start <= _MAX_PREFIX or size > len(blob):
        return None
    known = _remembered.get(bytes(blob[:start]))
    if known is None:
        return None
    description, length, stride, used = known
    data = memoryview(blob).toreadonly()[start : start + length]
    return Tensor(description, (Plane(data, stride, length, used),))


def _remember(view: BlobView, description: Description, plane: Plane) -> None:
    start = _prefix_len(view.header.size, view.header.planes_bytes)
    if start > _MAX_PREFIX:
        return
    if len(_remembered) >= _MAX_REMEMBERED:
        _remembered.clear()
    _remembered[bytes(view.data[:start])] = description, plane.size, plane.stride, plane.used


def _familiar_reference(blob: bytes | bytearray | memoryview) -> Reference | None:
    """What a blob by reference says, if just these bytes are remembered: buffers of a pool repeat them whole."""
    if (type(blob) is bytes or type(blob) is bytearray) and len(blob) <= _MAX_PREFIX:
        return _remembered_references.get(bytes(blob))
    return None


def _remember_reference(view: BlobView, description: Description, appended: Appended | None) -> None:
    if view.header.size > _MAX_PREFIX or appended is not None:
        return
    if len(_remembered_references) >= _MAX_REMEMBERED:
        _remembered_references.clear()
    data = bytes(view.data)  # a copy, so that the caller's buffer is not kept
    _remembered_references[data] = read_reference(BlobView.parse(data), description, None)


def describe(view: BlobView) -> Description:
    """What a blob says of its tensor, apart from where its bytes are."""
    header = view.header
    dtype = DTYPES.get(header.dtype)
    if dtype is None:
        raise Unsupported(
            f"dtype {header.dtype} is unknown to this version: read it with a newer tensorferry",
            field="dtype",
            value=header.dtype,
        )
    strings = view.strings
    return Description(
        dtype,
        view.shape,
        view.strides if header.strides_len or not header.ndim else None,
        format=format_of(strings),
        colorimetry=colorimetry_of(strings),
        quantization=_quantization(view),
    )


def _quantization(view: BlobView) -> Quantization | None:
    header = view.header
    if header.quant_axis == -2 and not header.quant_scales_len and not header.quant_zero_points_len:
        return None
    axis, scales, zero_points = view.quantization
    wanted = 0
    if axis == -1:
        wanted = 1
    elif 0 <= axis < len(view.shape):
        wanted = view.shape[axis]
    elif axis != -2:
        raise malformed("quant_axis", axis, f"quant_axis {axis} is no dimension of {len(view.shape)}, nor -1 or -2", 40)
    if len(scales) != wanted:
        raise malformed("quant_axis", axis, f"quant_axis {axis} needs {wanted} scales, {len(scales)} are here", 40)
    points = len(zero_points)
    if points and points != wanted:
        raise malformed(
            "quant_zero_points_len", points, f"{points} zero points for {wanted} scales: as many, or none", 56
        )
    if axis == -2:
        return None
    return Quantization(scales, zero_points if points else None, axis=None if axis == -1 else axis)


def _check_planes(view: BlobView, format: PixelFormat | str | None) -> None:
    """The rules that hold between the plane records."""
    records = view.planes
    wanted = format.plane_count if isinstance(format, PixelFormat) else 1 if format is None else len(records) or 1
    if len(records) != wanted:
        what = f"an image in {format}" if format else "a tensor without a pixel format"
        raise malformed("plane_count", len(records), f"{len(records)} planes came, {what} has {wanted}", 48)
    for i, record in enumerate(records):
        handle = record.handle
        if handle < INLINE:
            raise malformed("handle", handle, f"plane {i} has handle {handle}: -1 is inline", field_offset(view, i, 0))
        if record.is_inline != records[0].is_inline:
            what = "one of planes 0 and {i} is inline and the other by reference: all must be, or none"
            raise malformed("handle", handle, what.format(i=i), field_offset(view, i, 0))
    for i, record in enumerate(records):
        brings = len(record.data)
        if not record.is_inline and brings:
            what = f"plane {i} by reference brings {brings} bytes too"
            raise malformed("data", brings, what, field_offset(view, i, 52))
        if record.used > record.size:
            what = f"plane {i} uses {record.used} of {record.size} bytes"
            raise malformed("used", record.used, what, field_offset(view, i, 32))
    if isinstance(format, PixelFormat):
        try:
            format.extent(view.shape)
        except ValueError as error:
            raise malformed("shape", view.shape, str(error), view.regions.shape) from None


def _inline(view: BlobView, i: int, record: BlobPlane) -> Plane:
    """Plane ``i``, whose bytes stand in the blob; its offset means nothing there."""
    if record.modifier:
        what = f"plane {i} is inline and tiled (modifier {record.modifier:#x})"
        raise malformed("modifier", record.modifier, what, field_offset(view, i, 40))
    if len(record.handle_bytes):
        what = f"plane {i} is inline and has handle bytes"
        raise malformed("handle_bytes", len(record.handle_bytes), what, field_offset(view, i, 48))
    if record.size != len(record.data):
        what = f"plane {i} says {record.size} bytes and brings {len(record.data)} inline"
        raise malformed("size", record.size, what, field_offset(view, i, 24))
    return Plane(memoryview(record.data).toreadonly(), record.stride, record.size, record.used)


def _check_addressed(view: BlobView, description: Description) -> None:
    """Every byte that shape and strides address must be inside its plane.

    The planes of a format that is unknown here are carried: what they address is not known either.
    """
    shape, strides, format = description.shape, description.strides, description.format
    if format is not None and not isinstance(format, PixelFormat):
        return
    if format is not None and format.is_planar:
        shape, strides = shape[1:], strides[1:]  # dimension 0 steps from plane to plane
    try:
        grid = reach(shape, strides, description.dtype.size)
    except ValueError as error:
        raise malformed("strides", strides, str(error), view.regions.strides) from None
    for i, record in enumerate(view.planes):
        needed = grid
        if format is not None and format.is_semi_planar and i == 1:
            layout = format.plane_table(*format.extent(shape), None, description.dtype.size)[1]
            needed = layout.rows * layout.row_bytes  # at the least: its own stride is held against it when read
        if needed > record.size:
            what = f"plane {i} has {record.size} bytes, shape {list(shape)} addresses {needed}"
            raise malformed("size", record.size, what, field_offset(view, i, 24))


def _appended(view: BlobView) -> Appended | None:
    header, regions, data = view.header, view.regions, view.data
    strings = data[view.strings_end : regions.planes]
    # A writer pads the strings to a whole word with zeros: no more than that says nothing.
    padded = len(strings) == padding(view.strings_end) and not any(strings)
    if padded and view.planes_end == regions.end == header.size:
        return None
    return Appended(
        b"" if padded else bytes(strings),
        bytes(data[view.planes_end : regions.end]),
        bytes(data[regions.end :]),
    )
