"""Packages that only some formats need, imported when they are."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...errors import Unsupported

__all__ = ["need"]


def need(module: str, extra: str) -> Any:
    """The optional ``module``, which the extra ``extra`` installs. Unsupported where it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        package = "pillow" if module.startswith("PIL") else module.partition(".")[0]
        raise Unsupported(
            f"this needs {package} ({error}): pip install 'tensorferry[{extra}]'", field="import", value=package
        ) from None
