"""The composition root: decides what a bare command starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.app.screen import ScreenRequest


def main(argv: Sequence[str] | None = None) -> int:
    """Run LocalSpec with the given arguments, by default those of the process; return the exit code."""
    from localspec.cli.main import main as command_line

    if argv is None:
        return command_line(sys.argv[1:], open_screen, preload)
    return command_line(argv, open_screen)


def preload(argv: Sequence[str]) -> None:
    """Start the process that is to open models, while this one finds out which."""
    from localspec.inference.worker import start_early

    start_early(tells_log=not {"-v", "--verbose"}.isdisjoint(argv))


def open_screen(argv: Sequence[str]) -> int:
    """Open the chat screen and return the exit code."""
    from localspec.cli.screen import main as screen_main

    return screen_main(argv, _launch)


def _launch(request: ScreenRequest) -> int:
    from localspec_tui.app import launch  # Textual takes 0.3 s, which a mistake in the flags does without

    return launch(request)


if __name__ == "__main__":
    sys.exit(main())
