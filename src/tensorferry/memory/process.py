"""Which process this is, without asking the kernel each time."""

from __future__ import annotations

import os

__all__ = ["this_process"]

_pid = os.getpid()


def _forked() -> None:
    global _pid
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def this_process() -> int:
    """``os.getpid()``, a system call less."""
    return _pid
