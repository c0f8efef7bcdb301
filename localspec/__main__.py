"""The composition root: decides what a bare command starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run LocalSpec with the given arguments, by default those of the process; return the exit code."""
    from localspec.cli.main import main as command_line  # the screen, once there is one, needs none of it

    return command_line(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
