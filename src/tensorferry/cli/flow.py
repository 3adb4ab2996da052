"""Frames as they go by: how many, how fast, how far apart; shown while they do, and summed up at the end."""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from .look import Facts
from .words import counted

__all__ = ["Flow", "live", "sized", "status"]

_REMEMBERED = 1 << 16
_RECENT = 2.0
_REFRESH = 0.1


class Flow:
    """Counts frames. ``gap`` is the time from one to the next; of the last 65,536 the median is taken."""

    def __init__(self) -> None:
        self.frames = 0
        self.bytes = 0
        self.by_reference = 0
        self._first = self._last = 0.0
        self._longest = 0.0
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=_REMEMBERED)  # when, gap, bytes

    def passed(self, size: int, *, by_reference: bool) -> None:
        """A frame of ``size`` bytes has just gone by."""
        now = time.monotonic()
        if self.frames:
            gap = now - self._last
            self._longest = max(self._longest, gap)
            self._recent.append((now, gap, size))
        else:
            self._first = now
        self._last = now
        self.frames += 1
        self.bytes += size
        self.by_reference += by_reference

    @property
    def seconds(self) -> float:
        """From the first frame to the last."""
        return self._last - self._first

    def facts(self) -> Facts:
        """The whole, for programs; times in seconds. Rates and gaps are None before the second frame."""
        several = self.frames > 1 and self.seconds > 0
        size = self.bytes / self.frames if self.frames else 0.0
        rate = (self.frames - 1) / self.seconds if several else None
        return {
            "frames": self.frames,
            "bytes": self.bytes,
            "by_reference": self.by_reference,
            "seconds": self.seconds,
            "frames_per_second": rate,
            "bytes_per_second": None if rate is None else rate * size,
            "gap_median": statistics.median(gap for _, gap, _ in self._recent) if self._recent else None,
            "gap_longest": self._longest if self._recent else None,
        }

    def summary(self) -> str:
        """The whole, for people."""
        facts = self.facts()
        said = f"{counted(self.frames, 'frame')}, {sized(self.bytes)}"
        if self.frames:
            way = "by reference" if self.by_reference == self.frames else "inline"
            mixed = 0 < self.by_reference < self.frames
            said += f", {f'{self.by_reference:,} of them by reference' if mixed else way}"
        rate, speed, median = facts["frames_per_second"], facts["bytes_per_second"], facts["gap_median"]
        if isinstance(rate, float) and isinstance(speed, float) and isinstance(median, float):
            said += f", in {self.seconds:.2f} s: {rate:,.1f} frames/s, {sized(speed)}/s"
            said += f"; from one to the next {_milliseconds(median)} (median), {_milliseconds(self._longest)} (longest)"
        return said

    def line(self) -> str:
        """What the last two seconds were like."""
        since = time.monotonic() - _RECENT
        recent = []
        for when, gap, size in reversed(self._recent):
            if when < since:
                break
            recent.append((gap, size))
        said = f"{counted(self.frames, 'frame')}  {sized(self.bytes)}"
        if not recent:
            return said
        span = sum(gap for gap, _ in recent) or 1e-9
        # A stream that has stopped slows down before your eyes.
        span = max(span, min(_RECENT, span + time.monotonic() - self._last))
        gaps = [gap for gap, _ in recent]
        speed = f"{len(recent) / span:,.1f} frames/s  {sized(sum(size for _, size in recent) / span)}/s"
        return f"{said}  {speed}  gap {_milliseconds(statistics.median(gaps))}, up to {_milliseconds(max(gaps))}"


@contextmanager
def live(flow: Flow, doing: str) -> Iterator[Callable[[], None]]:
    """A line on the terminal that follows ``flow`` whenever what this yields is called; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    shown_at = 0.0
    with Live(console=Console(stderr=True, highlight=False), auto_refresh=False, transient=True) as shown:

        def follow() -> None:
            nonlocal shown_at
            now = time.monotonic()
            if now - shown_at >= _REFRESH:
                shown_at = now
                shown.update(Text.assemble((f"{doing}  ", "bold cyan"), flow.line()), refresh=True)

        yield follow


@contextmanager
def status(waiting: str) -> Iterator[None]:
    """Say on the terminal what is waited for; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True, highlight=False).status(Text(waiting)):
        yield


def sized(count: float) -> str:
    """So many bytes, for people."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return counted(round(count), "byte")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"
