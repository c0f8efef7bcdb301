"""`localspec doctor`: look at everything that commonly goes wrong, and say what mends it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from localspec.cli.shared.arguments import Parser, set_up_logging, verb_parser
from localspec.cli.shared.console import colours_unwanted, is_terminal
from localspec.cli.shared.errors import FAILURE, SUCCESS

if TYPE_CHECKING:
    from localspec.cli.doctor.hardware import Check

SCHEMA = 1
_WORDS = {"pass": "ok  ", "warn": "warn", "fail": "FAIL"}
_STYLES = {"pass": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}
_RESET = "\x1b[0m"


def parser() -> Parser:
    """Return the parser of `localspec doctor`."""
    result = verb_parser(
        "doctor",
        "Look at everything that commonly goes wrong, and say what mends it. The exit code is 1 if something "
        "fails; a warning alone leaves it at 0.",
    )
    result.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    result.add_argument(
        "-v", "--verbose", action="store_true", help="print log and tracebacks to standard error"
    )
    return result


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().parse_args(argv)
    set_up_logging(verbose=args.verbose)
    checks = tuple(examine())
    wrong = any(check.verdict == "fail" for check in checks)
    if args.json:
        value = {"schema": SCHEMA, "ok": not wrong, "checks": [asdict(check) for check in checks]}
        print(json.dumps(value, ensure_ascii=False))
    else:
        for line in page(checks, colours=is_terminal(sys.stdout) and not colours_unwanted()):
            print(line)
    return FAILURE if wrong else SUCCESS


def examine() -> Iterator[Check]:
    """Look at the machine, then at files and the terminal."""
    from localspec.cli.doctor.files import file_checks
    from localspec.cli.doctor.hardware import machine_checks
    from localspec.hardware import devices, machine

    sight = devices.look()
    yield from machine_checks(sight, machine.recall(sight) or sight.machine, os.environ)
    yield from file_checks(os.environ)


def page(checks: Sequence[Check], *, colours: bool) -> Iterator[str]:
    """Yield the lines of the report: a line for each check, below it the command that mends it."""
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        style, reset = (_STYLES[check.verdict], _RESET) if colours else ("", "")
        yield f"{style}{_WORDS[check.verdict]}{reset}  {check.name:<{width}}  {check.text}"
        if check.mend:
            yield f"{'':>{width + 8}}mend: {check.mend}"
    yield _total(checks)


def _total(checks: Sequence[Check]) -> str:
    failures = sum(check.verdict == "fail" for check in checks)
    warnings = sum(check.verdict == "warn" for check in checks)
    if not failures and not warnings:
        return "All is well."
    parts = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in ((failures, "failure"), (warnings, "warning"))
        if count
    ]
    return f"{' and '.join(parts)}."
