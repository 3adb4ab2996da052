"""What every benchmark here shares: timing contenders side by side, and printing what came of it.

Machines drift: clocks change and neighbours come and go. So all contenders of a question are timed in every
round, each round starts with another one, and a ratio is taken within each round before the median is.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from timeit import Timer
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "Effort",
    "Target",
    "Timing",
    "environment",
    "interleave",
    "number",
    "optional",
    "percentile",
    "print_targets",
    "progress",
    "ratio",
    "rounds_of",
    "settle_memory",
    "table",
    "write_json",
]

Key = TypeVar("Key", bound=Hashable)


class Effort(NamedTuple):
    """How long to measure. A question's rounds stop after ``seconds``, but not before ``least``."""

    seconds: float
    least: int
    most: int
    loop: float
    """Seconds that one contender runs for in a round, at the least; a longer call runs once."""


class Timing(NamedTuple):
    """Seconds a call, one number for each round."""

    rounds: list[float]

    @property
    def median(self) -> float:
        return median(self.rounds)


def interleave(
    contenders: Mapping[Key, Callable[[], object]], effort: Effort, most: Mapping[Key, int] | None = None
) -> dict[Key, Timing]:
    """Time ``contenders`` in interleaved rounds, garbage collection off; ``most`` bounds one's calls in a round."""
    most = most or {}
    looped = {key: _looped(Timer(call), effort.loop, most.get(key, sys.maxsize)) for key, call in contenders.items()}
    return rounds_of(looped, effort)


def rounds_of(contenders: Mapping[Key, Callable[[], float]], effort: Effort) -> dict[Key, Timing]:
    """The same for contenders that time themselves: each returns its seconds."""
    taken: dict[Key, list[float]] = {key: [] for key in contenders}
    keys = list(contenders)
    start = perf_counter()
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for i in range(effort.most):
            if i >= effort.least and perf_counter() - start > effort.seconds:
                break
            # Backwards every other round, so that nobody always runs behind the same neighbour.
            first = i // 2 % len(keys)
            order = keys[first:] + keys[:first]
            for key in order[:: -1 if i % 2 else 1]:
                taken[key].append(contenders[key]())
    finally:
        if collecting:
            gc.enable()
    return {key: Timing(seconds) for key, seconds in taken.items()}


def settle_memory() -> None:
    """Bring glibc's malloc to the state in which a program that handles large blocks soon has it.

    It keeps or returns freed memory by thresholds that follow the largest block freed so far, up to 32 MiB.
    Without this, whether a block of 602 KB costs page faults would depend on what was measured before.
    """
    bytes(31 << 20)


def _looped(timer: Timer, seconds: float, most: int) -> Callable[[], float]:
    """A contender's seconds a call, from as many calls as take ``seconds`` together, or ``most``."""
    count = 1  # finding out how many also warms the contender up
    while (took := timer.timeit(count)) < seconds and count < most:
        count = min(most, max(count + 1, min(count * 10, int(count * 1.2 * seconds / max(took, 1e-9)))))
    return lambda: timer.timeit(count) / count


def ratio(one: Timing, other: Timing) -> float:
    """How many times as long as ``other`` ``one`` takes: the median of the rounds' own ratios."""
    return median(a / b for a, b in zip(one.rounds, other.rounds, strict=True))


def percentile(values: Sequence[float], part: float) -> float:
    """The value that ``part`` (0 to 1) of ``values`` do not exceed: one of them, none made up between two."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, math.ceil(part * len(ranked)) - 1))]


class Target(NamedTuple):
    """Something promised, and what was measured; ``measured`` None where there was nothing to measure against."""

    what: str
    limit: float
    measured: float | None
    unit: str
    at_least: bool = False
    """Whether ``limit`` is the least that was promised, not the most."""

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


def print_targets(targets: Iterable[Target]) -> None:
    verdicts = {True: "met", False: "NOT met", None: "not measured"}
    rows = [
        [
            t.what,
            f"{'≥' if t.at_least else '≤'} {t.limit:g} {t.unit}",
            "-" if t.measured is None else f"{t.measured:.2f} {t.unit}",
            verdicts[t.met],
        ]
        for t in targets
    ]
    print(table(["target", "limit", "measured", ""], rows))


def number(value: float) -> str:
    """Three significant digits, written out."""
    for below, digits in ((1, 3), (10, 2), (100, 1)):
        if value < below:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}".replace(",", " ")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns wide enough for what is in them, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, ["─" * width for width in widths], *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


def optional(module: str) -> Any:
    """``module``, or None where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def environment(*distributions: str) -> dict[str, str]:
    """What the numbers depend on: the machine and the versions; "-" for what is not installed."""
    facts = {
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "processor": f"{_processor()}, {_processors()} CPUs",
        "system": f"{platform.system()} {platform.release()}",
    }
    for name in distributions:
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts[name] = "-"
    return facts


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def progress(text: str) -> None:
    """One line on a terminal that the next one replaces; "" clears it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nnumbers written to {path}")
