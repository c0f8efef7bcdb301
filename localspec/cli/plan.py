"""`localspec plan`: say where models would sit on this machine, and why, without loading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from localspec.app import placing
from localspec.app.options import pair_options
from localspec.cli.shared.arguments import Parser, add_model_flags, add_speculation_flags, verb_parser
from localspec.cli.shared.console import SUCCESS, print_result
from localspec.cli.shared.opening import note
from localspec.hardware.machine import known_machine


def parser() -> Parser:
    """Return the parser of `localspec plan`."""
    result = verb_parser(
        "plan",
        "Say which device each model would sit on, how fast that should be, and why, without loading "
        "anything. The flags are those of `localspec run`; the plan says what they cost.",
    )
    add_model_flags(result.with_output(told="log"), may_skip_plan=False)
    add_speculation_flags(result)
    return result


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().read(argv)
    pair = pair_options(args)
    placement, template = placing.plan(args, pair), pair.target.chat_template
    for text in known_machine(again=False).notes:
        note(f"{text}; see `localspec doctor`")
    lines = placing.lines(placement, explain=args.explain, template=template)
    value = asdict(placement) | {"chat_template": None if template is None else str(template)}
    print_result(value, lines, as_json=args.json)
    return SUCCESS
