"""The style sheet of the screen, for small programs that show one widget of it."""

from __future__ import annotations

from pathlib import Path

import localspec_tui

STYLES = Path(localspec_tui.__file__).with_name("app.tcss")
