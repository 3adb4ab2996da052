"""Asking instead of listening: the latest tensor of a topic, and which topics there are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from ...errors import Disconnected, FerryError, TimedOut
from ...link.channel import Deadline
from ...tensor import Tensor
from ..arrivals import Received
from .encodings import FORMATS
from .engine import key_of, load
from .publishing import TOKENS
from .reading import DEFAULT_MAX_BYTES, Reader
from .sessions import Config, Endpoints, use_session

if TYPE_CHECKING:
    import zenoh

__all__ = ["Topic", "get", "topics"]

_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.25  # seconds
_TOKEN_CHUNKS = 4


def get(
    topic: str,
    *,
    format: str | None = None,
    session: zenoh.Session | None = None,
    config: Config = None,
    connect: Endpoints = None,
    listen: Endpoints = None,
    timeout: float = 5.0,
    reference: bool = False,
    policy: str = "refuse",
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Tensor:
    """The latest tensor that was published under ``topic``, over memory of its own.

    Of several publishers' the newest. The session is found as ``Publisher`` does, the other arguments are as in
    ``Subscriber``. Asks again until somebody has one, for ``timeout`` seconds, then TimedOut; if all that is
    offered is refused, raises why.
    """
    key = key_of(topic)
    reader = Reader(format, reference, policy, max_bytes)
    with _session(session, config, connect, listen) as opened:
        for left in _tries(timeout):
            newest = _newest(_replies(opened, key, left), reader)
            if newest is not None:
                return newest.tensor
    raise TimedOut(
        f"nobody had a tensor under {key!r} within {timeout:g} s: check the name and that a publisher with latest=True"
        " is reachable (connect=, listen=)"
    )


def _replies(session: zenoh.Session, key: str, timeout: float) -> Iterator[zenoh.Sample]:
    engine = load()
    everybody, as_they_come = engine.QueryTarget.ALL, engine.ConsolidationMode.NONE
    for reply in session.get(key, target=everybody, consolidation=as_they_come, timeout=max(timeout, _FIRST_PAUSE)):
        if reply.ok is not None:
            yield reply.ok


def _newest(samples: Iterator[zenoh.Sample], reader: Reader) -> Received | None:
    """The newest that can be read; None for none. Raises the last refusal where every one was refused."""
    newest: Received | None = None
    refusal: FerryError | None = None
    for sample in samples:
        try:
            received = reader.read(sample)
        except FerryError as error:
            refusal = error
            continue
        if newest is None or received.log_time > newest.log_time:
            newest = received
    if newest is None and refusal is not None:
        raise refusal
    return newest


class Topic(NamedTuple):
    """A publisher that is alive."""

    name: str
    format: str
    """What it publishes: "blob", "vlink" or "cdr"."""
    session: str
    """The identity of its Zenoh session."""


def topics(
    *,
    session: zenoh.Session | None = None,
    config: Config = None,
    connect: Endpoints = None,
    listen: Endpoints = None,
    timeout: float = 1.0,
) -> list[Topic]:
    """The publishers of this package that are alive, by name; other users of Zenoh do not say so.

    Asks until there are any, for ``timeout`` seconds. A session that was open before knows its neighbours; a new
    one may know only some of them yet. The session is found as ``Publisher`` does.
    """
    found: set[Topic] = set()
    with _session(session, config, connect, listen) as opened:
        for left in _tries(timeout):
            replies = opened.liveliness().get(f"{TOKENS}/*/*/*/*", timeout=max(left, _FIRST_PAUSE))
            tokens = [_topic(str(reply.ok.key_expr)) for reply in replies if reply.ok is not None]
            found = {token for token in tokens if token is not None}
            if found:
                break
    return sorted(found)


def _topic(token: str) -> Topic | None:
    """What a token says; None for one that was not written by this package."""
    chunks = token.removeprefix(f"{TOKENS}/").split("/")
    if len(chunks) != _TOKEN_CHUNKS or chunks[2] not in FORMATS:
        return None
    try:
        return Topic(unquote(chunks[3], errors="strict"), chunks[2], chunks[0])
    except UnicodeDecodeError:
        return None


def _tries(timeout: float) -> Iterator[float]:
    """The seconds left for each try: the first at once, then with pauses, until ``timeout`` has passed."""
    deadline = Deadline(timeout)
    pause = _FIRST_PAUSE
    while True:
        left = deadline.left() or 0.0
        yield left
        left = deadline.left() or 0.0
        if not left:
            return
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LAST_PAUSE)


@contextmanager
def _session(
    session: zenoh.Session | None,
    config: Config,
    connect: Endpoints,
    listen: Endpoints,
) -> Iterator[zenoh.Session]:
    use = use_session(session, config, connect, listen)
    try:
        yield use.session
    except load().ZError as error:
        raise Disconnected(f"the session cannot be asked: {error}") from error
    finally:
        use.close()
