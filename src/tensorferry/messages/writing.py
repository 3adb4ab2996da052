"""From a tensor to a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..blob.exporting import TransportMode, export, export_parts
from ..blob.header import PLANE_RECORD_LEN, padding
from ..blob.planes import RECORD, BlobPlane
from ..blob.view import BlobView
from ..errors import Lossy, Unsupported
from ..labels import Labels
from ..parts import Buffer
from ..tensor import Tensor
from .definitions import STAMPED, checked_kind, codec
from .projection import view_over

__all__ = ["encode"]

_SECOND = 1_000_000_000
_LAST_SECOND = 2**31 - 1
_SAID_BY_STAMPED = frozenset({"frame_id", "seq", "time_meas"})


def encode(
    tensor: Tensor,
    kind: str = "Tensor",
    *,
    mode: TransportMode = TransportMode.INLINE,
    lossy: bool = False,
) -> bytes:
    """``tensor`` as a message of ``kind`` ("Tensor", "TensorStamped", "CameraFrame"): CDR bytes, little-endian.

    Inline, the planes are copied into the message, once. By reference it names the tensor's own descriptors and
    this process, and is good while both live. labels.frame_id, seq and time_meas become a stamped message's header;
    no labels at all are an empty one.

    Raises Lossy, naming everything, for what the message has no field for; ``lossy`` lets labels and another
    format's leftovers go, nothing else. Unsupported as ``blob.export`` does, and without edgefirst-schemas.
    Source: spec/blob.md, "The message".
    """
    kind = checked_kind(kind)
    _refuse_losses(tensor, kind, lossy)
    view = _projected(tensor, mode)
    msgs = codec().edgefirst_msgs
    try:
        message = _without_planes(msgs, view)
        if kind in STAMPED:
            message = _stamped(getattr(msgs, kind), message, tensor.labels)
        data = _with_planes(message.to_bytes(), view.planes)
        getattr(msgs, kind).from_cdr(data)  # costs microseconds, whatever the planes' size
    except ValueError as error:
        raise Unsupported(f"edgefirst-schemas does not write this tensor: {error}", field=kind) from error
    return data


def _projected(tensor: Tensor, mode: TransportMode) -> BlobView:
    """The tensor's blob, its handles the raw descriptors. What it cannot say has been refused, or is let go."""
    if mode is TransportMode.INLINE:
        return _inline_view(export_parts(tensor, lossy=True))
    data, fds = export(tensor, mode, lossy=True)
    view = BlobView.parse(data)
    for plane in view.planes:
        plane.handle = fds[plane.handle]
    return view


def _inline_view(parts: list[Buffer]) -> BlobView:
    """A view of the blob that ``parts`` would join to: each plane's record ends the part before its bytes."""
    planes = []
    for before, data in zip(parts[0::2], parts[1::2], strict=False):
        handle, offset, stride, size, used, modifier, _, _ = RECORD.unpack_from(before, len(before) - PLANE_RECORD_LEN)
        planes.append(BlobPlane(handle, offset, stride, size, used, modifier, data=memoryview(data)))
    return view_over(parts[0], planes)


def _without_planes(msgs: Any, view: BlobView) -> Any:
    """The package's message with an empty record for each plane: it would copy payloads byte by byte, several times."""
    header = view.header
    axis, scales, zero_points = view.quantization
    return msgs.Tensor(
        storage_kind=header.storage_kind,
        pid=header.pid,
        fence_fd=header.fence_fd,
        dtype=header.dtype,
        quant_axis=axis,
        shape=list(view.shape),
        strides=list(view.strides),
        quant_scales=scales.tolist(),
        quant_zero_points=zero_points.tolist(),
        planes=[msgs.TensorPlane()] * len(view.planes),
        **view.strings._asdict(),
    )


def _with_planes(empty: bytes, planes: Sequence[BlobPlane]) -> bytes:
    """The message with the planes' own records in the place of ``empty``'s.

    They end every message, and in CDR they are what they are in a blob: 56 bytes, the payload, and padding to 8
    counted from the end of the encapsulation, but none behind the last.
    """
    parts: list[Buffer] = [empty[: len(empty) - len(planes) * PLANE_RECORD_LEN]]
    pad = 0
    for plane in planes:
        parts += [bytes(pad), plane.scalars(), plane.data]
        pad = padding(len(plane.data))
    return b"".join(parts)


def _stamped(kind: Any, tensor: Any, labels: Labels | None) -> Any:
    time = codec().builtin_interfaces.Time
    if labels is None:
        return kind(tensor=tensor)
    seconds, nanoseconds = divmod(labels.time_meas, _SECOND)
    stamp = time(sec=seconds, nanosec=nanoseconds) if seconds <= _LAST_SECOND else time()
    return kind(stamp=stamp, frame_id=labels.frame_id, seq=labels.seq, tensor=tensor)


def _refuse_losses(tensor: Tensor, kind: str, lossy: bool) -> None:
    """Lossy, naming all that a message of ``kind`` cannot say of ``tensor``."""
    lost, advice = [], []
    if tensor.dtype.blob is None:
        lost.append("dtype")
        advice.append(f"it has no code for {tensor.dtype}: convert the values first (astype)")
    if tensor.colorimetry is not None and tensor.format is None:
        lost.append("colorimetry")
        advice.append("it has colour for images only: take it away with replace(colorimetry=None)")
    spare = [] if lossy else _spare(tensor, kind)
    if spare:
        advice.append("pass lossy=True to leave the labels behind")
    if lost or spare:
        text = f"a {kind} message cannot carry {', '.join(lost + spare)}; {'; '.join(advice)}"
        raise Lossy(text, fields=(*lost, *spare))


def _spare(tensor: Tensor, kind: str) -> list[str]:
    """What would be lost, and may be."""
    lost = list(tensor.carried.fields) if tensor.carried is not None else []
    labels = tensor.labels
    if labels is not None:
        carried = _SAID_BY_STAMPED if kind in STAMPED else frozenset()
        lost += [f"labels.{name}" for name in labels.said() if name not in carried]
        if "time_meas" in carried and labels.time_meas // _SECOND > _LAST_SECOND:
            lost.append("labels.time_meas")
    return lost
