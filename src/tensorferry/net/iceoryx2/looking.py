"""Looking around: which topics there are, and what killed processes left behind."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...errors import Disconnected, Unsupported
from .engine import ATTRIBUTE, REVISION, load, open_samples, use_node

__all__ = ["Topic", "clean_up", "topics"]


class Topic(NamedTuple):
    """A topic of this package that somebody has open."""

    name: str
    publishers: int
    """How many there are now, those that were killed and not yet cleaned up included."""
    subscribers: int


def topics(*, node: Any = None) -> list[Topic]:
    """The topics of this package that are open on this host, by name. ``node`` is as in ``Publisher``."""
    engine = load()
    used = use_node(node)
    try:
        services = engine.Service.list(used.node.config, engine.ServiceType.Ipc)
    except Exception as error:  # iceoryx2 names no error for it
        raise Disconnected(f"iceoryx2's services cannot be listed: {error}") from error
    found = []
    for service in services:
        if service.messaging_pattern() != engine.MessagingPattern.PublishSubscribe or not _is_ours(service):
            continue
        name = service.name().to_string()
        try:
            now = open_samples(used.node, name).dynamic_config
        except Unsupported:  # it went meanwhile, or takes nobody in
            continue
        found.append(Topic(name, now.number_of_publishers, now.number_of_subscribers))
    return sorted(found)


def _is_ours(service: Any) -> bool:
    return any(
        one.key.to_string() == ATTRIBUTE and one.value.to_string() == REVISION for one in service.attributes().values
    )


def clean_up(*, node: Any = None) -> int:
    """Remove what killed processes left in iceoryx2's directories and in shared memory; returns how many they were.

    iceoryx2 does so by itself whenever a process makes its first publisher or subscriber.
    """
    return int(use_node(node).node.try_cleanup_dead_nodes().cleanups)
