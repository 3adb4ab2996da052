"""From a message to a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from ..blob.importing import import_
from ..blob.planes import INLINE, BlobPlane
from ..blob.references import malformed
from ..errors import Lossy, Malformed, Truncated, Unsupported, WireError
from ..labels import Labels
from ..memory.descriptor import Descriptor
from ..memory.fetching import fetch
from ..parts import Buffer, flat
from ..tensor import Tensor
from .definitions import STAMPED, checked_kind, codec, type_name
from .projection import blob_by_reference, head_of, planes_of, view_over

__all__ = ["decode"]

_ENCAPSULATION = 4
_CDR_LITTLE_ENDIAN = b"\0\1"
_DESCRIPTOR_KINDS = frozenset({0, 1, 2, 5})  # heap, shared memory, dma-buf and CUDA: their handles are descriptors
_SECOND = 1_000_000_000
_SEQ_MAX = 2**32 - 1


def decode(
    data: Buffer,
    kind: str = "Tensor",
    *,
    by_pid: bool = False,
    fence: str | None = None,
    policy: str = "read",
    writable: bool = False,
    lossy: bool = False,
) -> Tensor:
    """The tensor in ``data``, a message of ``kind`` ("Tensor", "TensorStamped", "CameraFrame") as CDR bytes.

    Inline planes borrow from ``data`` where it is ``bytes``, from a copy of it otherwise, read-only. Planes by
    reference are descriptors of the process that the message names, and are fetched from it only with ``by_pid``:
    a pid in a message is a stranger's claim. ``fence``, ``policy`` and ``writable`` are as in ``blob.import_``.
    A stamped message's frame_id, seq and stamp become labels.frame_id, labels.seq and labels.time_meas.

    Raises WireError for bytes that cannot be believed, Unsupported for what cannot be reached or represented
    (a missing edgefirst-schemas too), and Lossy for a stamp before 1970 and a seq past 32 bits, unless ``lossy``
    lets the stamp go and keeps the seq's low 32 bits. Bytes behind the message are not looked at.
    Source: spec/blob.md, "The message".
    """
    kind = checked_kind(kind)
    message = _parse(data, kind)
    tensor = message.tensor if kind in STAMPED else message
    labels = _labels(message, lossy) if kind in STAMPED else None
    planes = planes_of(tensor)
    if any(plane.handle != INLINE for plane in planes):
        result = _by_reference(tensor, planes, by_pid, fence, policy, writable)
    else:
        result = import_(view_over(head_of(tensor, planes), planes), fence=fence)
    return result if labels is None else result.replace(labels=labels)


def _parse(data: Buffer, kind: str) -> Any:
    # The package borrows bytes, and copies anything else more slowly than this does.
    raw = data if type(data) is bytes else bytes(flat(data))
    if len(raw) < _ENCAPSULATION:
        raise Truncated(
            f"a message starts with {_ENCAPSULATION} bytes that say how it is encoded, {len(raw)} bytes are here",
            need=_ENCAPSULATION,
            have=len(raw),
        )
    if raw[:2] != _CDR_LITTLE_ENDIAN:  # the package does not look, and would misread the rest
        raise Unsupported(
            f"the encapsulation is {raw[:2].hex()}, only plain little-endian CDR (0001) is read here:"
            " have the sender write that",
            field="encapsulation",
            value=raw[:2],
        )
    try:
        return getattr(codec().edgefirst_msgs, kind).from_cdr(raw)
    except ValueError as error:
        raise _refused(kind, str(error), len(raw)) from None


def _refused(kind: str, why: str, have: int) -> WireError:
    text = f"these {have} bytes are no {type_name(kind)}: edgefirst-schemas says {why!r}"
    if "too short" in why:
        return Truncated(text, have=have)
    return Malformed(text, field=kind)


def _labels(message: Any, lossy: bool) -> Labels | None:
    """What the header says; None where it says nothing at all, as one that was never filled in."""
    stamp, seq = message.stamp, message.seq
    if not 0 <= stamp.nanosec < _SECOND:
        raise malformed("stamp", stamp.nanosec, f"the stamp has {stamp.nanosec} nanoseconds, a second has {_SECOND}")
    time_meas = stamp.sec * _SECOND + stamp.nanosec
    lost = [field for field, gone in (("stamp", time_meas < 0), ("seq", seq > _SEQ_MAX)) if gone]
    if lost and not lossy:
        raise Lossy(
            f"labels cannot say {' and '.join(lost)} (stamp {stamp.sec} s, seq {seq}): times start in 1970 and a seq"
            " has 32 bits; pass lossy=True to let the stamp go and keep the seq's low bits",
            fields=tuple(lost),
            value=seq if "seq" in lost else time_meas,
        )
    if not (message.frame_id or seq or time_meas):
        return None
    return Labels(frame_id=message.frame_id, seq=seq & _SEQ_MAX, time_meas=max(time_meas, 0))


def _by_reference(
    tensor: Any, planes: list[BlobPlane], by_pid: bool, fence: str | None, policy: str, writable: bool
) -> Tensor:
    raw = _raw_descriptors(tensor.storage_kind, planes)
    # In a blob a handle is an index into the table beside it; here that table is in the process.
    for plane in planes:
        if plane.handle in raw:
            plane.handle = raw.index(plane.handle)
    with _Table(tensor.pid, raw, by_pid) as fds:
        return import_(blob_by_reference(tensor, planes), fds, fence=fence, policy=policy, writable=writable)


def _raw_descriptors(kind: int, planes: Sequence[BlobPlane]) -> list[int]:
    """The descriptors among the handles, each once; ids of other kinds, and handle bytes, lead elsewhere."""
    if kind not in _DESCRIPTOR_KINDS:
        return []
    found = (plane.handle for plane in planes if plane.handle >= 0 and not len(plane.handle_bytes))
    return list(dict.fromkeys(found))


class _Table(Sequence[int]):
    """The descriptor table of a message: fetched from its process entry by entry, when one is asked for.

    So nothing is fetched for a message that is refused for another reason. Leaving it closes what was fetched.
    """

    def __init__(self, pid: int, raw: list[int], allowed: bool) -> None:
        self._pid = pid
        self._raw = raw
        self._allowed = allowed
        self._fetched: dict[int, Descriptor] = {}

    def __len__(self) -> int:
        return len(self._raw)

    @overload
    def __getitem__(self, i: int) -> int: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[int]: ...
    def __getitem__(self, i: int | slice) -> int | Sequence[int]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        raw = self._raw[i]
        if raw not in self._fetched:
            if not self._allowed:
                raise Unsupported(
                    f"the planes are in descriptor {raw} of process {self._pid}: pass by_pid=True to take it from"
                    " there, if the sender is to be trusted, or have it send them inline",
                    field="pid",
                    value=self._pid,
                )
            self._fetched[raw] = fetch(self._pid, raw, allow=True)
        return self._fetched[raw].fileno()

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._fetched.values():
            descriptor.close()
