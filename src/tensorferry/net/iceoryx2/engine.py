"""The engine, loaded when it is first needed; this process's node; and a topic's service, in both its parts."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import weakref
from types import ModuleType
from typing import Any, NamedTuple

from ...errors import Disconnected, Unsupported
from .message import MessageHeader

__all__ = ["ATTRIBUTE", "REVISION", "Service", "Settings", "UsedNode", "load", "name_of", "open_samples", "use_node"]

ATTRIBUTE, REVISION = "tensorferry", "1"
"""What marks a service as one of ours, and says which layout its messages have."""

_MORE_NODES = 4  # those that only look: topics, a command line


@functools.cache
def load() -> ModuleType:
    """The module ``iceoryx2``, which logs errors only unless IOX2_LOG_LEVEL says more. Unsupported without it."""
    try:
        engine = importlib.import_module("iceoryx2")
    except ImportError as error:
        raise Unsupported(
            f"iceoryx2 is not installed ({error}): pip install 'tensorferry[iceoryx2]'", field="iceoryx2"
        ) from error
    engine.set_log_level_from_env_or(engine.LogLevel.Error)
    return engine


def name_of(topic: str) -> str:
    """iceoryx2's name for ``topic``: the same, without a leading slash. ValueError for what no service is called."""
    name = topic.removeprefix("/")
    engine = load()
    try:
        engine.ServiceName.new(name)
    except engine.SemanticStringError as error:
        raise ValueError(
            f"topic {topic!r} is no name of a service ({error}): use 1 to {engine.ServiceName.max_len()} ASCII"
            " characters, such as 'camera/front'"
        ) from None
    return name


# ---- nodes ----


class UsedNode:
    """A node, which lives as long as somebody uses it, in the process that made it."""

    __slots__ = ("__weakref__", "forked", "node", "pid")

    def __init__(self, node: Any) -> None:
        self.node = node
        self.pid = os.getpid()
        self.forked = False
        """Whether this is a process that was forked since: the node and all that it opened are its parent's."""
        _used.add(self)

    def refuse(self) -> Disconnected:
        """What to raise in a process that was forked since."""
        return Disconnected(
            f"this was opened by process {self.pid}, and a fork shares it with no other: open one of your own"
        )


_used: weakref.WeakSet[UsedNode] = weakref.WeakSet()


def _note_fork() -> None:
    for used in _used:
        used.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)

_shared: weakref.WeakValueDictionary[int, UsedNode] = weakref.WeakValueDictionary()


def use_node(node: Any = None) -> UsedNode:
    """The caller's ``node``, an iceoryx2.Node; None for the one that all of this process share."""
    if node is not None:
        return UsedNode(node)
    used = _shared.get(os.getpid())
    if used is None:
        engine = load()
        builder = engine.NodeBuilder.new().name(engine.NodeName.new("tensorferry"))
        builder = builder.signal_handling_mode(engine.SignalHandlingMode.Disabled)  # signals are Python's
        try:
            used = UsedNode(builder.create(engine.ServiceType.Ipc))
        except engine.NodeCreationFailure as error:
            raise Disconnected(
                f"iceoryx2 has no node for this process ({error}): can its directories be written to?"
            ) from error
        _shared[used.pid] = used
    return used


# ---- services ----


class Settings(NamedTuple):
    """What a topic is created with. All who open it afterwards take it as it is."""

    depth: int
    """Messages that may wait for a subscriber."""
    hold: int
    """Tensors that a subscriber may have at a time."""
    max_publishers: int
    max_subscribers: int

    def check(self) -> Settings:
        for field, value in self._asdict().items():
            if value < 1:
                raise ValueError(f"{field} {value} leaves nothing to work with: give 1 or more")
        return self


class Service:
    """A topic that is open: its samples, and the events that tell of them."""

    __slots__ = ("events", "samples", "used")

    def __init__(self, used: UsedNode, topic: str, settings: Settings) -> None:
        """Open ``topic``, or create it with ``settings``. Unsupported where it is something else, or full."""
        engine = load()
        self.used = used
        self.samples = _open(used.node, topic, settings)
        events = used.node.service_builder(engine.ServiceName.new(topic)).event()
        try:
            self.events = (
                events.max_notifiers(settings.max_publishers)
                .max_listeners(settings.max_subscribers)
                .max_nodes(_nodes(settings))
                .open_or_create()
            )
        except engine.EventOpenOrCreateError:
            try:
                self.events = used.node.service_builder(engine.ServiceName.new(topic)).event().open()
            except engine.EventOpenError as error:
                raise _not_opened(topic, error) from error

    @property
    def subscribers(self) -> int:
        """How many there are, those that were killed and not yet cleaned up included."""
        return int(self.samples.dynamic_config.number_of_subscribers)


def _open(node: Any, topic: str, settings: Settings) -> Any:
    engine = load()
    wanted = (
        _samples(node, topic)
        .subscriber_max_buffer_size(settings.depth)
        .subscriber_max_borrowed_samples(settings.hold)
        .max_publishers(settings.max_publishers)
        .max_subscribers(settings.max_subscribers)
        .max_nodes(_nodes(settings))
        .history_size(0)
    )
    try:
        return wanted.open_or_create_with_attributes(_marked())
    except engine.PublishSubscribeOpenOrCreateError:
        pass  # most often because it was created with less than is wanted here: then that must do
    return open_samples(node, topic)


def open_samples(node: Any, topic: str) -> Any:
    """The samples of ``topic``, which must be there, however it was created. Unsupported where it is not."""
    engine = load()
    try:
        return _samples(node, topic).open_with_attributes(_marked())
    except engine.PublishSubscribeOpenError as error:
        raise _not_opened(topic, error) from error


def _samples(node: Any, topic: str) -> Any:
    engine = load()
    service = node.service_builder(engine.ServiceName.new(topic))
    return service.publish_subscribe(engine.Slice[ctypes.c_uint8]).user_header(MessageHeader).enable_safe_overflow(True)


def _marked() -> Any:
    engine = load()
    return engine.AttributeVerifier.new().require(
        engine.AttributeKey.new(ATTRIBUTE), engine.AttributeValue.new(REVISION)
    )


def _nodes(settings: Settings) -> int:
    return settings.max_publishers + settings.max_subscribers + _MORE_NODES


def _not_opened(topic: str, error: Exception) -> Unsupported:
    return Unsupported(
        f"{topic!r} cannot be opened ({error}): a service of that name that is not tensorferry's, or all its places"
        " are taken (max_publishers, max_subscribers of whoever opened it first)",
        field="topic",
        value=topic,
    )
