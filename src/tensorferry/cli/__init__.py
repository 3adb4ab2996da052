"""The command line ``tensorferry``: one module a command. It composes the library and knows nothing itself."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; leaves with 0, 1 for bad data, 2 for bad usage."""
    try:
        from .app import app
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("click", "rich", "typer"):
            raise
        print("tensorferry: the command line needs typer and rich: install tensorferry[cli]", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    app()
