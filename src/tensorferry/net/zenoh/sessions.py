"""Zenoh sessions: one that the caller opened, or one for each setting, shared and closed with its last user."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from ...errors import Disconnected
from .engine import load

if TYPE_CHECKING:
    import zenoh

__all__ = ["Config", "Endpoints", "SessionUse", "use_session"]

Config: TypeAlias = "zenoh.Config | str | os.PathLike[str] | Mapping[str, Any] | None"
Endpoints: TypeAlias = "str | Sequence[str] | None"


class _Undeclared(Protocol):
    def undeclare(self) -> Any: ...


Entity = TypeVar("Entity", bound=_Undeclared)


class _Shared:
    """A session of ours and how many use it."""

    def __init__(self, session: zenoh.Session) -> None:
        self.session = session
        self.users = 0


_lock = threading.Lock()
_shared: dict[Hashable, _Shared] = {}


class SessionUse:
    """One user's claim on a session, with what it declared there.

    ``close`` takes that back, and closes a shared session that nobody else uses.
    """

    def __init__(self, session: zenoh.Session, key: Hashable | None) -> None:
        self.session = session
        self.pid = os.getpid()
        self._key = key
        self._declared: list[Any] = []
        self._closed = False

    def declared(self, entity: Entity) -> Entity:
        """Keep ``entity`` until the claim ends."""
        self._declared.append(entity)
        return entity

    @property
    def closed(self) -> bool:
        """Whether the claim has ended."""
        return self._closed

    def check(self) -> None:
        """Disconnected where the session cannot be used: it was closed, or is another process's."""
        if os.getpid() != self.pid:
            raise Disconnected("a Zenoh session serves only the process that opened it: open one after the fork")
        if self.session.is_closed():
            raise Disconnected("the Zenoh session was closed")

    def close(self) -> None:
        """End the claim. Closing twice is fine."""
        with _lock:
            if self._closed or os.getpid() != self.pid:
                return
            self._closed = True
        try:
            while self._declared:
                entity = self._declared.pop()
                if not self.session.is_closed():
                    entity.undeclare()
        finally:
            self._drop()

    def _drop(self) -> None:
        with _lock:
            shared = None if self._key is None else _shared.get(self._key)
            if shared is None or shared.session is not self.session:
                return
            shared.users -= 1
            if shared.users:
                return
            del _shared[self._key]
        self.session.close()  # type: ignore[no-untyped-call]

    def close_with(self, owner: object) -> None:
        """Close when ``owner`` is collected, if nobody closes before."""
        # At the process's end the peers see it go, and there is nothing to wait for.
        weakref.finalize(owner, _close_in_background, self).atexit = False


def _close_in_background(use: SessionUse) -> None:
    """A collection may run in the middle of anything, and in a thread of the session, which closing waits for."""
    if not use.closed:
        threading.Thread(target=use.close, daemon=True).start()


def use_session(session: zenoh.Session | None, config: Config, connect: Endpoints, listen: Endpoints) -> SessionUse:
    """A claim on ``session``, or on the one that the settings make; ``Publisher`` documents them.

    Disconnected where the session is closed or cannot be opened, ValueError for settings that Zenoh refuses.
    """
    if session is not None:
        if config is not None or connect is not None or listen is not None:
            raise ValueError("session is open already: config, connect and listen are for one that is to be opened")
        use = SessionUse(session, None)
        use.check()
        return use
    if config is None:
        path = os.environ.get("ZENOH_CONFIG")
        config = Path(path) if path else None
    key = (_key(config), _endpoints(connect), _endpoints(listen))
    with _lock:
        shared = _shared.get(key)
        if shared is None or shared.session.is_closed():
            shared = _shared[key] = _Shared(_open(config, key[1], key[2]))
        shared.users += 1
        return SessionUse(shared.session, key)


def _key(config: Config) -> Hashable:
    # Not the text that Zenoh gives of a configuration: secrets are left out of that.
    if isinstance(config, Mapping):
        return json.dumps(config, sort_keys=True)
    if isinstance(config, os.PathLike):
        return os.path.abspath(config)
    return config


def _endpoints(endpoints: Endpoints) -> tuple[str, ...] | None:
    if endpoints is None:
        return None
    return (endpoints,) if isinstance(endpoints, str) else tuple(endpoints)


def _open(config: Config, connect: tuple[str, ...] | None, listen: tuple[str, ...] | None) -> zenoh.Session:
    engine = load()
    if isinstance(config, engine.Config) and (connect is not None or listen is not None):
        raise ValueError("config is a zenoh.Config, which is not changed here: set connect and listen in it")
    try:
        settings = _configured(config)
        for name, endpoints in (("connect", connect), ("listen", listen)):
            if endpoints is not None:
                settings.insert_json5(f"{name}/endpoints", json.dumps(endpoints))
    except engine.ZError as error:
        raise ValueError(f"Zenoh refuses the configuration: {error}") from error
    try:
        session: zenoh.Session = engine.open(settings)
    except engine.ZError as error:
        raise Disconnected(f"no Zenoh session could be opened: {error}") from error
    return session


def _configured(config: Config) -> zenoh.Config:
    """The configuration: one of our own, but for a zenoh.Config, which is the caller's."""
    if config is not None and not isinstance(config, (str, os.PathLike, Mapping)):
        return config
    kinds = load().Config
    made: zenoh.Config
    if config is None:
        made = kinds()
    elif isinstance(config, Mapping):
        made = kinds.from_json5(json.dumps(config))
    elif isinstance(config, str) and config.lstrip().startswith("{"):
        made = kinds.from_json5(config)
    else:
        made = kinds.from_file(os.fspath(config))
    return made


def _forget() -> None:
    """In a forked child: the sessions, and the threads that serve them, are the parent's."""
    global _lock
    _lock = threading.Lock()
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
