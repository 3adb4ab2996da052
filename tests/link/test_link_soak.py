"""The short form of ``make soak``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "soak" / "soak.py"


def test_a_short_soak() -> None:
    command = [sys.executable, "-W", "error", str(SOAK), "--frames", "4000", "--kills", "10", "--limit", "120"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none lost, none torn" in done.stdout
    assert "10 peers killed" in done.stdout
    assert done.stdout.endswith("ok\n")
    assert not done.stderr
