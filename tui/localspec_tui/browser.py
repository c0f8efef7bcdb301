"""A browser for links, with its own window and without access to the screen's terminal."""

from __future__ import annotations

import subprocess
import sys
import webbrowser
from pathlib import Path

_ON_TERMINALS = {"browsh", "carbonyl", "elinks", "links", "links2", "lynx", "w3m", "www-browser"}
_CODE = """
import sys, webbrowser
browser = webbrowser.get()
if isinstance(browser, webbrowser.BackgroundBrowser):  # which would not wait to see whether it fails
    browser = webbrowser.GenericBrowser([browser.name, *browser.args])
sys.exit(not browser.open(sys.argv[1], 2))
"""
_ANSWER_S = 5.0  # from which on a browser runs as long as its window is open


def open_in_window(address: str) -> bool:
    """Open an address, and return whether a browser took it; may take five seconds.

    The browser gets its own session, so even a text browser has no terminal.
    """
    try:
        name = getattr(webbrowser.get(), "name", "")
    except webbrowser.Error:  # there is none
        return False
    if Path(name.partition(" ")[0]).name in _ON_TERMINALS:
        return False
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _CODE, address],
        stdin=nowhere,
        stdout=nowhere,
        stderr=nowhere,
        start_new_session=True,
    )
    try:
        return process.wait(_ANSWER_S) == 0
    except subprocess.TimeoutExpired:
        return True
