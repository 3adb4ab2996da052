"""The engine, loaded when it is first needed, and its names for topics and for quality of service."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

from ...errors import Unsupported

__all__ = ["choice", "key_of", "load"]


@functools.cache
def load() -> ModuleType:
    """The module ``zenoh``. Unsupported where it is not installed."""
    try:
        return importlib.import_module("zenoh")
    except ImportError as error:
        raise Unsupported(
            f"Zenoh is not installed ({error}): pip install 'tensorferry[zenoh]'", field="zenoh"
        ) from error


def key_of(topic: str, *, wildcards: bool = False) -> str:
    """Zenoh's key expression for ``topic``: the same, without a leading slash.

    ``wildcards`` allows ``*``, ``**`` and ``$*``, as a subscription may have them. ValueError for what no key
    expression can be.
    """
    key = topic.removeprefix("/")
    if not wildcards and "*" in key:
        raise ValueError(f"topic {topic!r} has wildcards, which only a subscription may: name one topic")
    try:
        load().KeyExpr(key)
    except load().ZError as error:
        raise ValueError(
            f"topic {topic!r} is no Zenoh key expression: {_reason(error)}; use chunks with single slashes between"
            " them, such as 'camera/front', without '#', '?' and '$'"
        ) from None
    return key


def choice(kind: str, value: Any, field: str) -> Any:
    """Member ``value`` of Zenoh's ``kind`` (Priority …): itself, or named in any case. ValueError for no member."""
    members = getattr(load(), kind)
    if value is None or isinstance(value, members):
        return value
    member = getattr(members, str(value).upper().replace("-", "_"), None)
    if not isinstance(member, members):
        names = [name.lower() for name in dir(members) if name.isupper() and name not in ("DEFAULT", "MIN", "MAX")]
        raise ValueError(f"{field} {value!r} is none of {', '.join(names)}")
    return member


def _reason(error: Exception) -> str:
    """What Zenoh says, without the place in its source."""
    return str(error).partition(" at /")[0]
