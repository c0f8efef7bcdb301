"""Waiting for what the threads of a screen have found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot

TURNS = 1000


async def settled(pilot: Pilot[Any]) -> None:
    """Return when all messages are handled and all workers are done."""
    await pilot.pause()
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def until(pilot: Pilot[Any], condition: Callable[[], object]) -> bool:
    """Wait until a condition holds; return False if it does not within some seconds."""
    for _ in range(TURNS):
        await pilot.pause()
        if condition():
            return True
        await asyncio.sleep(0.005)  # threads of the program need the CPU, too
    return False
