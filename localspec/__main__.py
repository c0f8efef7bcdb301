"""The composition root: decides what a bare command starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run LocalSpec with the given arguments, by default those of the process; return the exit code."""
    from localspec.cli.main import main as command_line

    return command_line(sys.argv[1:] if argv is None else argv, open_screen)


def open_screen(argv: Sequence[str]) -> int:
    """Open the chat screen and return the exit code."""
    from localspec_tui.launch import main as launch  # Textual takes 0.3 s

    return launch(argv)


if __name__ == "__main__":
    sys.exit(main())
