"""Waiting for a socket in an asyncio event loop, whatever happens to the socket meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from ..memory.descriptor import Descriptor

__all__ = ["Waker", "readable"]

Waker = Callable[[], None]


async def readable(
    fds: Sequence[int], wakers: Sequence[set[Waker]], look_again: float | None, skip: Callable[[], bool]
) -> None:
    """Wait until one of ``fds`` can be read, one of ``wakers`` is called (from any thread), or ``look_again`` seconds.

    Returns at once if ``skip`` says so, asked when whoever calls the wakers would already wake this.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(ready.set)

    # Of our own, since the loop must never watch a number that was closed, perhaps used again, under it; and
    # two tasks may wait for one socket.
    watched = [Descriptor.duplicate(fd) for fd in fds]
    for waking in wakers:
        waking.add(wake)
    for descriptor in watched:
        loop.add_reader(descriptor.fileno(), ready.set)
    try:
        if not skip():
            await asyncio.wait_for(ready.wait(), look_again)
    except asyncio.TimeoutError:
        pass
    finally:
        for waking in wakers:
            waking.discard(wake)
        for descriptor in watched:
            loop.remove_reader(descriptor.fileno())
            descriptor.close()
