"""`localspec doctor`: check for common problems, and print the command that fixes each."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from localspec import units
from localspec.app.checks.check import Check
from localspec.app.checks.examine import examine
from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import FAILURE, SUCCESS, Styled, colours_unwanted, is_terminal, print_result
from localspec.safe_text import safe_line

_WORDS = {"pass": "ok  ", "warn": "warn", "fail": "FAIL"}
_STYLES = {"pass": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}
_RESET = "\x1b[0m"


def parser() -> Parser:
    """Return the parser of `localspec doctor`."""
    return verb_parser(
        "doctor",
        "Check for common problems and print the command that fixes each. The exit code is 1 if a check "
        "fails; warnings do not change it.",
    ).with_output()


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().read(argv)
    checks = tuple(examine())
    wrong = any(check.verdict == "fail" for check in checks)
    lines = page(checks, colours=is_terminal(sys.stdout) and not colours_unwanted())
    print_result({"ok": not wrong, "checks": list(map(asdict, checks))}, lines, as_json=args.json)
    return FAILURE if wrong else SUCCESS


def page(checks: Sequence[Check], *, colours: bool) -> Iterator[str]:
    """Yield the lines of the report: a line for each check, below it the command that fixes it."""
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        word = _WORDS[check.verdict]
        what = f"  {check.name:<{width}}  {check.text}"
        style = _STYLES[check.verdict]
        yield Styled(f"{style}{word}{_RESET}{safe_line(what)}") if colours else f"{word}{what}"
        if check.mend:
            yield f"{'':>{width + 8}}fix: {check.mend}"
    tally = Counter(check.verdict for check in checks)
    wrong = (("failure", tally["fail"]), ("warning", tally["warn"]))
    parts = [units.counted(number, what) for what, number in wrong if number]
    yield f"{' and '.join(parts)}." if parts else "All is well."
