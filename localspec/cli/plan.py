"""`localspec plan`: show the placement of models on a machine, and why, without loading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from localspec.app import opening
from localspec.app.opening import with_config
from localspec.cli.shared.arguments import (
    Parser,
    add_machine_flag,
    add_model_flags,
    add_speculation_flags,
    pair_request,
    planned_for,
    verb_parser,
)
from localspec.cli.shared.console import SUCCESS, print_result
from localspec.cli.shared.opening import find_files, note
from localspec.hardware.machine import machine_to_plan


def parser() -> Parser:
    """Return the parser of `localspec plan`."""
    result = verb_parser(
        "plan",
        "Show which device each model would use, the expected speed, and the reasons. Nothing is loaded. "
        "Takes the flags of `localspec run`.",
    )
    add_model_flags(result.with_output(verbose="log"), may_skip_plan=False)
    add_speculation_flags(result)
    add_machine_flag(result.add_argument_group("machine").add_argument)
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().read(argv)
    request = with_config(pair_request(args))
    machine = machine_to_plan(args.machine)
    files = find_files(request)
    lines = [] if args.machine is None else [planned_for(args.machine)]
    plan = opening.placed(
        files, request, via=None, report=lines.append, explain=args.explain, machine=machine
    )
    placement = plan.placement
    assert placement is not None  # this command has no --no-fit
    if args.explain:
        lines += opening.explained(placement, files, request, machine)
    template = files.chat_template
    for text in machine.notes:
        note(f"{text}; see `localspec doctor`")
    value = asdict(placement) | {"chat_template": None if template is None else str(template)}
    print_result(value, lines, as_json=args.json)
    return SUCCESS
