"""Waiting for what the threads of a screen have found."""

from __future__ import annotations

from typing import Any

from textual.pilot import Pilot


async def settled(pilot: Pilot[Any]) -> None:
    """Return when all messages are handled and all workers are done."""
    await pilot.pause()
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()
