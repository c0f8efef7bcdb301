"""Work in a thread of its own, as a stream of what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TypeVar

from localspec.chat.tool_use.background import in_background

T = TypeVar("T")


async def in_thread(work: Callable[[Callable[[T], None]], object]) -> AsyncGenerator[T]:
    """Yield what some work tells, from any thread, until it has ended; raises what it raises.

    Closing the generator does not end the work.
    """
    loop = asyncio.get_running_loop()
    told = asyncio.Queue[T | None]()

    def tell(step: T | None) -> None:
        with suppress(RuntimeError):  # the loop has ended, and its clients with it
            loop.call_soon_threadsafe(told.put_nowait, step)

    running = in_background(lambda: work(tell), "tools")
    running.add_done_callback(lambda _ended: tell(None))
    while (step := await told.get()) is not None:
        yield step
    running.result()  # raises what went wrong
