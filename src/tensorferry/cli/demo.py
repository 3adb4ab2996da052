"""``tensorferry demo``: tensors through both formats, and frames to a second process, before your eyes."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, Protocol, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import FerryError, Lossy, WireError
from ..image import PixelFormat
from ..labels import Labels
from ..tensor import Tensor
from ..wire import dumps, loads
from .demo_tensors import LOST, Sample, damaged, samples
from .ending import BAD_DATA, complain, told
from .show import output
from .words import FORMATS, counted, dimensions

__all__ = ["Offer", "Peer", "PeerRefused", "Reading", "demo", "run"]

T = TypeVar("T")

_REPEATS = 15
_GOOD, _NO, _BAD, _DIM = "green", "yellow", "bold red", "dim"


class PeerRefused(Exception):
    """The peer would not read a blob."""


class Reading(NamedTuple):
    """What a peer understood of a blob. ``shape`` is of the allocation; ``blob`` is it written again."""

    dtype: int
    shape: tuple[int, ...]
    format: str
    payload: bytes
    blob: bytes


class Offer(NamedTuple):
    """A tensor that a peer made by itself: its blob, and what stands in it."""

    name: str
    blob: bytes
    dtype: int
    shape: tuple[int, ...]
    format: str
    payload: bytes


class Peer(Protocol):
    """Another implementation of the tensor blob, which reads ours and gives us its own."""

    @property
    def name(self) -> str: ...

    def read(self, blob: bytes) -> Reading:
        """Raises PeerRefused."""
        ...

    def offers(self) -> Iterable[Offer]: ...


def demo() -> None:
    """Send tensors through both formats, and frames to a second process; say what went through.

    In a clone, `make demo` has the published library read what is written here as well.
    """
    if not run(None):
        raise typer.Exit(BAD_DATA)


def run(peer: Peer | None) -> bool:
    """The whole demonstration, on stdout; whether everything went through that should have."""
    console = output()
    failures = _act_one(console, peer)
    console.print()
    failures += _act_two(console)
    for failure in failures:
        complain(failure)
    return not failures


# ---- act one ----


class _Crossing(NamedTuple):
    """How one tensor fared in one format: its cells in the table, why it was refused, and what went wrong."""

    cells: tuple[str | Text, ...]
    wire: bytes | None = None
    refusal: str = ""
    wrong: str = ""


def _act_one(console: Console, peer: Peer | None) -> list[str]:
    _title(console, "One: tensors through both formats")
    there = [] if peer is None else ["there"]
    table = _table(("tensor", "format", "bytes", "encode", "decode", "here", *there), right=(2, 3, 4))
    why = _table(("refused", "by", "why"))
    failures: list[str] = []
    crossed = refused = 0
    wires: dict[str, bytes] = {}
    for sample in samples():
        names = (Text(sample.name, "bold"), Text(f"  {_kind(sample.tensor)}", _DIM))
        for name, format in zip(names, FORMATS, strict=True):
            found = {FORMATS[format]: _cross(sample, format)}
            wire = found[FORMATS[format]].wire
            if wire is None:
                refused += 1
            else:
                crossed += 1
                wires.setdefault(format, wire)
            if peer is not None:
                asked = format == "blob" and wire is not None
                found[peer.name] = _beside(peer, sample, wire) if asked and wire else _Crossing((Text("–", _DIM),))
            table.add_row(name, format, *(cell for crossing in found.values() for cell in crossing.cells))
            for by, crossing in found.items():
                if crossing.refusal:
                    why.add_row(sample.name, by, Text(crossing.refusal, _NO))
                if crossing.wrong:
                    failures.append(f"{sample.name}: {by}: {crossing.wrong}")
    console.print(table)
    said = "encode: to one bytes object, with the one copy that this takes; decode: to an array over it, without any"
    console.print(Text(said, _DIM))
    if peer is None:
        said = "here: read back; `make demo` in a clone has the published library read and write the blobs too"
    else:
        said = f"here: read back; there: read by {peer.name}, and written again by it as the same bytes"
    console.print(Text(said, _DIM))
    console.print()
    console.print(why)
    failures += _offered(console, peer) if peer is not None else []
    failures += _harmed(console, wires)
    console.print()
    console.print(_verdict(crossed, refused, failures))
    return failures


def _kind(tensor: Tensor) -> str:
    if isinstance(tensor.format, PixelFormat):
        return f"{tensor.format} {tensor.width}×{tensor.height}"
    return f"{tensor.dtype}[{dimensions(tensor.shape)}]" if tensor.shape else f"{tensor.dtype} scalar"


def _cross(sample: Sample, format: str) -> _Crossing:
    """Out into ``format`` and back; or the refusal, where the format cannot say everything."""
    should = format in sample.carried_by
    try:
        wire, encode = _timed(lambda: dumps(sample.tensor, format=format))
        back, decode = _timed(lambda: loads(wire))
    except Lossy as error:
        wrong = "" if not should else told(error)
        return _Crossing(("–", "–", "–", Text("refused", _BAD if should else _NO)), None, _reason(error), wrong)
    except FerryError as error:
        return _Crossing(("–", "–", "–", Text("refused", _BAD)), None, "", told(error))
    differing = _differing(sample.tensor, back)
    if not should:
        differing.append("it should have been refused")
    elif dumps(back, format=format) != wire:
        differing.append("it is written again as other bytes")
    numbers = (f"{len(wire):,}", _duration(encode), _duration(decode))
    return _Crossing((*numbers, _exact(differing)), wire, "", ", ".join(differing))


def _exact(differing: list[str]) -> Text:
    return Text(", ".join(differing), _BAD) if differing else Text("exact", _GOOD)


def _reason(error: Lossy) -> str:
    """A refusal in short: what the format has not, and the fields that would be lost for it."""
    reasons = dict.fromkeys(LOST[kind] for field in error.fields if (kind := field.partition(".")[0]) in LOST)
    fields = ", ".join(field.removeprefix("labels.") for field in error.fields)
    return f"{'; '.join(reasons)} (Lossy: {fields})"


def _differing(sent: Tensor, came: Tensor) -> list[str]:
    """What ``came`` says otherwise than ``sent``, bits of the values included."""
    differing = [
        name for name in ("dtype", "shape", "format", "colorimetry") if getattr(sent, name) != getattr(came, name)
    ]
    if sent.quantization != came.quantization:
        differing.append("quantization")
    if _labels(sent) != _labels(came):
        differing.append("labels")
    if not differing and _values(sent) != _values(came):
        differing.append("values")
    return [f"other {name}" for name in differing]


def _labels(tensor: Tensor) -> Labels:
    """As the wire has them: unsaid ones are the defaults, an unsaid batch size is the first dimension."""
    labels = tensor.labels or Labels()
    if labels.batch_size is None and tensor.shape:
        labels = replace(labels, batch_size=tensor.shape[0])
    return labels


def _values(tensor: Tensor) -> bytes:
    """Every value, in order, without the gaps between rows."""
    if isinstance(tensor.format, PixelFormat):
        return b"".join(tensor.plane(i).tobytes() for i in range(tensor.format.plane_count))
    return tensor.numpy().tobytes()


def _beside(peer: Peer, sample: Sample, wire: bytes) -> _Crossing:
    """What the peer makes of our blob, and we of what it writes."""
    try:
        reading = peer.read(wire)
    except PeerRefused as error:
        if sample.beside:
            return _Crossing((Text("refused", _NO),), None, f"it takes {sample.beside}")
        return _Crossing((Text("refused", _BAD),), None, "", str(error))
    wrong = _misread(loads(wire), reading.dtype, reading.shape, reading.format, reading.payload)
    wrong += ["written again as other bytes"] * (reading.blob != wire)
    return _Crossing((_exact(wrong),), None, "", ", ".join(wrong))


def _misread(ours: Tensor, dtype: int, shape: tuple[int, ...], format: str, payload: bytes) -> list[str]:
    """Where a peer's facts about a blob and ours differ."""
    allocation = ours.shape
    if isinstance(ours.format, PixelFormat):
        allocation = ours.format.allocation(ours.width, ours.height)
    facts = {
        "dtype": ours.dtype.blob == dtype,
        "shape": allocation == shape,
        "format": (ours.format or "") == format,
        "bytes": b"".join(plane.data or b"" for plane in ours.planes) == payload,
    }
    return [f"other {name}" for name, same in facts.items() if not same]


def _offered(console: Console, peer: Peer) -> list[str]:
    """Tensors that the peer made, read here."""
    console.print()
    table = _table((f"made by {peer.name}", "bytes", "decode", "here"), right=(1, 2))
    failures = []
    for offer in peer.offers():
        try:
            ours, decode = _timed(partial(loads, offer.blob))
            wrong = _misread(ours, offer.dtype, offer.shape, offer.format, offer.payload)
            wrong += ["written again as other bytes"] * (dumps(ours) != offer.blob)
        except FerryError as error:
            table.add_row(offer.name, f"{len(offer.blob):,}", "–", Text(told(error), _BAD))
            failures.append(f"{peer.name}'s {offer.name}: {told(error)}")
            continue
        name = Text.assemble((offer.name, "bold"), (f"  {_kind(ours)}", _DIM))
        table.add_row(name, f"{len(offer.blob):,}", _duration(decode), _exact(wrong))
        failures += [f"{peer.name}'s {offer.name}: {', '.join(wrong)}"] * bool(wrong)
    console.print(table)
    return failures


def _harmed(console: Console, wires: dict[str, bytes]) -> list[str]:
    """Damaged bytes: each must be refused."""
    if len(wires) < len(FORMATS):
        return []
    console.print()
    table = _table(("damaged on the way", "refused with"))
    failures = []
    for name, wire in damaged(wires["blob"], wires["vlink"]):
        try:
            loads(wire)
        except WireError as error:
            table.add_row(Text(name, "bold"), Text(told(error), _NO))
        else:
            table.add_row(Text(name, "bold"), Text("nothing: it was believed", _BAD))
            failures.append(f"{name} was believed")
    console.print(table)
    return failures


def _verdict(crossed: int, refused: int, failures: list[str]) -> Text:
    if failures:
        return Text(f"{counted(len(failures), 'thing')} went wrong", _BAD)
    return Text.assemble(
        (f"{crossed} crossings, bit-exact", _GOOD),
        f"; {refused} refused because something would have been lost; nothing misread",
    )


# ---- act two ----


def _act_two(console: Console) -> list[str]:
    from .demo_race import HEIGHT, WIDTH, race  # multiprocessing is slow to import

    _title(console, "Two: camera frames to a second process")
    if sys.platform != "linux":
        console.print(Text(f"passing memory by descriptor needs Linux, this is {sys.platform}: left out", _NO))
        return []
    console.print(
        f"{WIDTH}×{HEIGHT} rgb8, {WIDTH * HEIGHT * 3 / 1e6:.1f} MB a frame, filled by one process, every byte read and"
        " verified by the other; by descriptor (tensorferry.link) and pickled (multiprocessing.Pipe)\n"
    )
    try:
        if console.is_terminal:
            with console.status("sending frames both ways in turn"):
                laps = race()
        else:
            laps = race()
    except RuntimeError as error:
        return [str(error)]
    table = _table(("a frame", "filled", "handed over", "read", "in all", ""), right=range(1, 6))
    for lap in laps:
        times = (f"{value:.2f} ms" for value in (lap.fill, lap.hand_over, lap.read, lap.whole))
        table.add_row(Text(lap.way, "bold"), *times, f"{lap.megabytes_a_second:,.0f} MB/s")
    reference, pipe = laps
    ratios = (f"{pipe.hand_over / reference.hand_over:.0f}×", "", f"{pipe.whole / reference.whole:.1f}×", "")
    table.add_row(Text("faster by reference", _GOOD), "", *(Text(ratio, _GOOD) for ratio in ratios))
    console.print(table)
    said = f"medians of {reference.frames} frames each; filling and reading are the same work both ways"
    console.print(Text(said, _DIM))
    return []


# ---- both ----


def _title(console: Console, title: str) -> None:
    console.print(Text(title, "bold cyan"))
    console.print()


def _table(columns: Iterable[str], right: Iterable[int] = ()) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if i in right else "left"
        # Numbers whole, words folded.
        table.add_column(column, justify=justify, no_wrap=i in right, overflow="fold")
    return table


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """What ``work`` gives, and the median of its seconds."""
    seconds = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - begun)
    return result, statistics.median(seconds)


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} µs"
