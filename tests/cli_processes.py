"""The command line as processes that meet, and a clock for what would take long."""

from __future__ import annotations

import json
import subprocess
from typing import Any

__all__ = ["PIPES", "Clock", "Ended"]

PIPES: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


class Ended:
    """A process that has ended, and what it said."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        out, err = process.communicate(timeout=60)
        self.status, self.out, self.err = process.returncode, out.decode(), err.decode()
        assert "Traceback" not in self.err, self.err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Clock:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
