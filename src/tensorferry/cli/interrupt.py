"""Ctrl-C between two frames, never in the middle of one."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

__all__ = ["Interrupt"]


class Interrupt:
    """While entered, Ctrl-C is noted and ``check`` raises KeyboardInterrupt; a second one raises it at once.

    A buffer is given back inside a finalizer, and what is raised there is swallowed: Ctrl-C would be lost.
    """

    def __init__(self) -> None:
        self._noted = False

    def check(self) -> None:
        if self._noted:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.check()
        self._noted = True

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
