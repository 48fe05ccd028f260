"""An event loop in its own thread, for sockets that are served while the agent computes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
TRIES = 100  # of 10 ms: how long connections may take to close


@contextmanager
def loop_in_thread(name: str, loop: asyncio.AbstractEventLoop | None = None) -> Iterator[asyncio.AbstractEventLoop]:
    """A loop, by default a new one, that runs until the block ends.

    Its servers must be closed by then; remaining connections are aborted.
    """
    loop = loop or asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        run_in(loop, _abort_connections(loop))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def run_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of another thread, and wait for its result."""
    return asyncio.run_coroutine_threadsafe(work, loop).result()


async def _abort_connections(loop: asyncio.AbstractEventLoop) -> None:
    """Of closed servers: those that were just being accepted, which are tasks at first, and those with data that nobody
    reads."""
    idle = 0
    for _ in range(TRIES):
        await asyncio.sleep(0.01)
        # No public name lists the connections of a loop; a loop that has no such list leaves this to the system.
        known = list(getattr(loop, "_transports", {}).values())
        remaining = [one for one in known if getattr(one, "_sock", None) is not None]  # the others are closed
        for transport in remaining:
            transport.abort()
        idle = 0 if remaining or len(asyncio.all_tasks()) > 1 else idle + 1
        if idle == 3:
            return


async def cancel_others() -> None:
    """Cancel all other tasks of the running loop, and wait until they have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
