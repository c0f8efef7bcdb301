"""`localspec plan`: show the placement of models on this machine, and why, without loading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from localspec.app import opening
from localspec.app.opening import with_config
from localspec.cli.shared.arguments import (
    Parser,
    add_model_flags,
    add_speculation_flags,
    pair_request,
    verb_parser,
)
from localspec.cli.shared.console import SUCCESS, print_result
from localspec.cli.shared.opening import find_files, note
from localspec.hardware.machine import known_machine


def parser() -> Parser:
    """Return the parser of `localspec plan`."""
    result = verb_parser(
        "plan",
        "Show which device each model would use, the expected speed, and the reasons. Nothing is loaded. "
        "Takes the flags of `localspec run`.",
    )
    add_model_flags(result.with_output(verbose="log"), may_skip_plan=False)
    add_speculation_flags(result)
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().read(argv)
    request = with_config(pair_request(args))
    files = find_files(request)
    lines: list[str] = []
    placement = opening.placed(files, request, via=None, report=lines.append, explain=args.explain).placement
    assert placement is not None  # this command has no --no-fit
    template = files.chat_template
    for text in known_machine(again=False).notes:
        note(f"{text}; see `localspec doctor`")
    value = asdict(placement) | {"chat_template": None if template is None else str(template)}
    print_result(value, lines, as_json=args.json)
    return SUCCESS
