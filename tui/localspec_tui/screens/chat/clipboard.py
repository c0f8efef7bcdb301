"""Copy text: by the terminal (OSC 52), which works over SSH, and by the desktop's own clipboard."""

from __future__ import annotations

import asyncio

import pyperclip
from textual.app import App


async def copy(app: App[int], text: str) -> None:
    """Put text on every clipboard that can be reached; a desktop without one is no mistake."""
    app.copy_to_clipboard(text)
    try:
        await asyncio.to_thread(pyperclip.copy, text)
    except (pyperclip.PyperclipException, OSError):
        return  # the terminal has it, or nobody can
