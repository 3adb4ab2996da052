"""Links in an asyncio event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from link_peers import GUARD, Thread, acquire

import tensorferry as ferry
from tensorferry.link import Link, Listener, Pool, connect


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, GUARD))


def test_sending_and_receiving() -> None:
    async def main() -> None:
        a, b = Link.pair()
        with a, b, ferry.allocate(5, "uint8", storage="shm") as shared:
            coming = asyncio.create_task(b.arecv())
            await asyncio.sleep(0)
            await a.asend(np.arange(3))
            assert (await coming).shape == (3,)
            await a.asend(shared)
            (await b.arecv()).close()
            with pytest.raises(ferry.Lossy):
                await a.asend(np.zeros(2, bool))
            a.close()
            with pytest.raises(ferry.EndOfStream):
                await b.arecv()
            with pytest.raises(ferry.Disconnected):
                await a.asend(shared)

    run(main())


def test_a_frame_larger_than_the_socket_takes() -> None:
    async def main() -> None:
        a, b = Link.pair()
        with a, b:
            sending = asyncio.create_task(a.asend(np.arange(8 << 20, dtype=np.int64)))
            await asyncio.sleep(0.05)
            assert not sending.done()
            got = await b.arecv()
            await sending
            assert got.numpy()[-1] == (8 << 20) - 1

    run(main())


def test_a_full_socket_waits_without_holding_the_loop_up() -> None:
    async def main() -> None:
        a, b = Link.pair()
        with a, b:
            count = 300  # small ones, that each go whole or not at all, but not all at once
            frame = np.arange(2000, dtype=np.int64)

            async def send() -> None:
                for i in range(count):
                    await a.asend(frame + i)

            sending = asyncio.create_task(send())
            for i in range(count):
                assert (await b.arecv()).numpy()[0] == i
            await sending

    run(main())


def test_two_links_in_one_loop_and_two_tasks_on_one_link() -> None:
    async def main() -> None:
        a, b = Link.pair()
        c, d = Link.pair()

        async def relay(source: Link, sink: Link) -> None:
            async for tensor in source:
                await sink.asend(tensor)
                tensor.close()

        with a, b, c, d, Pool(16, "int64", 2) as pool:
            relaying = [asyncio.create_task(relay(b, c)) for _ in range(2)]
            seen = []
            for i in range(200):
                sent = await pool.aacquire()
                assert sent is not None
                sent.numpy()[:] = i
                await a.asend(sent)
                sent.close()
                with await d.arecv() as got:
                    assert (got.numpy() == i).all()
                    seen.append(i)
            a.close()
            await asyncio.gather(*relaying)
            assert seen == list(range(200))

    run(main())


def test_iterating_ends_with_the_stream() -> None:
    async def main() -> None:
        a, b = Link.pair()
        with a, b:
            for i in range(3):
                await a.asend(np.zeros(i))
            a.close()
            assert [tensor.shape async for tensor in b] == [(0,), (1,), (2,)]

    run(main())


def test_closing_wakes_a_task_that_receives() -> None:
    async def main() -> None:
        for close_in_thread in (False, True):
            a, b = Link.pair()
            with a:
                receiving = [asyncio.create_task(b.arecv()) for _ in range(2)]
                await asyncio.sleep(0)
                if close_in_thread:
                    await asyncio.get_running_loop().run_in_executor(None, b.close)
                else:
                    b.close()
                for task in receiving:
                    with pytest.raises(ferry.Disconnected, match="this link was closed"):
                        await task

    run(main())


def test_closing_wakes_a_task_that_sends() -> None:
    async def main() -> None:
        a, b = Link.pair()
        with b:
            sending = asyncio.create_task(a.asend(np.zeros(8 << 20, np.uint8)))
            await asyncio.sleep(0.05)
            a.close()
            with pytest.raises(ferry.Disconnected, match="this link was closed"):
                await sending

    run(main())


def test_a_tensor_that_acquire_took_in_wakes_who_waits_for_it() -> None:
    async def main() -> None:
        a, b = Link.pair()
        with a, b, Pool(4, "uint8", 1) as pool:
            with acquire(pool) as tensor:
                a.send(tensor)
            receiving = asyncio.create_task(a.arecv())
            await asyncio.sleep(0)
            b.send(np.arange(9))
            b.recv(GUARD).close()
            acquire(pool).close()  # takes both in, before the loop has looked
            assert (await receiving).shape == (9,)

    run(main())


def test_a_cancelled_task_leaves_the_link_good() -> None:
    async def main() -> None:
        a, b = Link.pair()
        with a, b, Pool(4, "uint8", 1) as pool:
            receiving = asyncio.create_task(b.arecv())
            await asyncio.sleep(0)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            sending = asyncio.create_task(a.asend(np.zeros(4 << 20, np.uint8)))
            await asyncio.sleep(0.05)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert (await b.arecv()).nbytes == 4 << 20  # it is on its way, and arrives whole
            with acquire(pool) as tensor:
                await a.asend(tensor)
            (await b.arecv()).close()
            acquire(pool).close()

    run(main())


def test_sending_to_who_is_gone_gives_the_buffer_back() -> None:
    async def main() -> None:
        a, b = Link.pair()
        b.close()
        with a, Pool(4, "uint8", 1) as pool:
            with acquire(pool) as tensor, pytest.raises(ferry.Disconnected):
                await a.asend(tensor)
            assert pool.free == 1

    run(main())


def test_acquiring_waits_without_holding_the_loop_up() -> None:
    async def main() -> None:
        with Pool(4, "uint8", 1) as pool, Pool(4, "uint8", 1, when_empty="drop") as dropping:
            first = acquire(pool)
            waiting = asyncio.create_task(pool.aacquire())
            await asyncio.sleep(0.01)
            assert not waiting.done()
            first.close()
            second = await waiting
            assert second is not None
            second.close()
            with acquire(dropping):
                assert await dropping.aacquire() is None

    run(main())


def test_listening(tmp_path: Path) -> None:
    path = tmp_path / "ferry.sock"

    async def main() -> None:
        listener = Listener(path)
        shapes = []

        async def serve() -> None:
            async for link in listener:
                with link:
                    shapes.append((await link.arecv()).shape)

        serving = asyncio.create_task(serve())
        await asyncio.sleep(0)
        for i in range(3):
            with connect(path) as link:
                await link.asend(np.zeros(i))
        while len(shapes) < 3:
            await asyncio.sleep(0)
        listener.close()
        await serving
        assert shapes == [(0,), (1,), (2,)]

    run(main())


def test_a_thread_sends_to_a_loop() -> None:
    async def main() -> None:
        a, b = Link.pair()
        with b:

            def send() -> None:
                with a:
                    for i in range(100):
                        a.send(np.full(1000, i))

            sender = Thread(send)
            assert [int(tensor.numpy()[0]) async for tensor in b] == list(range(100))
            sender.done()

    run(main())
