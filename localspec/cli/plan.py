"""`localspec plan`: say where models would sit on this machine, and why, without loading them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from localspec.app import placing
from localspec.app.options import pair_options
from localspec.cli.shared.arguments import (
    Parser,
    add_device_flags,
    add_model_flags,
    add_placing_flags,
    add_speculation_flags,
    set_up_logging,
    verb_parser,
)
from localspec.cli.shared.console import SUCCESS, print_json


def parser() -> Parser:
    """Return the parser of `localspec plan`."""
    result = verb_parser(
        "plan",
        "Say which device each model would sit on, how fast that should be, and why, without loading "
        "anything. The flags are those of `localspec run`; the plan says what they cost.",
    )
    add_model_flags(result)
    add_device_flags(result)
    add_speculation_flags(result)
    add_placing_flags(result, may_skip=False)
    group = result.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    group.add_argument("-v", "--verbose", action="store_true", help="print log to standard error")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().parse_args(argv)
    pair = pair_options(args)
    set_up_logging(verbose=args.verbose)
    placement = placing.plan(args, pair)
    if args.json:
        print_json(placing.as_json(placement))
    else:
        for line in placing.lines(placement, explain=args.explain):
            sys.stdout.write(f"{line}\n")
    return SUCCESS
