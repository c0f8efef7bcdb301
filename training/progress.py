"""What the kit tells the person who runs it; other libraries stay silent."""

from __future__ import annotations

import logging

log = logging.getLogger("training")


def show_progress() -> None:
    """Write progress to standard error."""
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)
