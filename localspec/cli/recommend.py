"""`localspec recommend`: which pair of models suits this machine."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import get_args

from localspec import units
from localspec.app.recommendation import RankedPair, ranking
from localspec.cli.shared.arguments import Parser, add_machine_flag, planned_for, verb_parser
from localspec.cli.shared.console import SUCCESS, print_result, say
from localspec.hardware.machine import machine_to_plan
from localspec.models.catalogue import shipped
from localspec.types.request import TaskType

SHOWN = 5
WIDTH = 100
_OF_MODEL = ("quant", "bytes", "parameters", "licence", "checked")


def parser() -> Parser:
    """Return the parser of `localspec recommend`."""
    result = verb_parser(
        "recommend",
        "Rank pairs of target and draft models by what fits this machine, how fast they should write, and "
        "how good they are. Nothing is downloaded.",
    )
    add = result.add_argument
    add("--task", choices=get_args(TaskType), help="task to rank for; models made for it rank higher")
    add_machine_flag(add)
    add("--all", action="store_true", help=f"show every pair that fits, not only the best {SHOWN}")
    return result.with_output(verbose="tracebacks")


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(argv)
    options = ranking(machine_to_plan(args.machine), args.task)
    date = shipped().date
    value = {"date": date, "task": args.task, "pairs": [*map(_pair_json, options)]}
    shown = lines(options, len(options) if args.all else SHOWN)
    heading = () if args.machine is None else (planned_for(args.machine), "")
    print_result(value, (*heading, *shown), as_json=args.json)
    if not args.json:
        say(
            f"The catalogue is of {date}; its sizes are rounded and most of its files were not looked up. "
            "Speeds are expected, not measured: `localspec pair TARGET --measure` measures them."
        )
    return SUCCESS


def lines(options: Sequence[RankedPair], most: int) -> Iterator[str]:
    """Return the best pairs with their reasons, then why the others do not fit."""
    usable = [option for option in options if option.placement is not None]
    if not usable:
        yield "Nothing in the catalogue fits this machine."
    for number, option in enumerate(usable[:most], 1):
        yield f"{number}. {title(option)}"
        for reason in why(option):
            yield textwrap.fill(reason, WIDTH, initial_indent="   ", subsequent_indent="     ")
        if option.missing:
            wanted = " ".join(model.reference for model in option.missing)
            yield f"   localspec pull {wanted}"
        yield ""
    if (more := len(usable) - most) > 0:
        yield f"{more} more fit; --all shows them."
        yield ""
    unusable = [option for option in options if option.placement is None]
    if unusable:
        yield "These do not:"
    for option in unusable[:most]:
        text = f"{option.names}: {option.problem}"
        yield textwrap.fill(text, WIDTH, initial_indent="   ", subsequent_indent="     ")
    if (more := len(unusable) - most) > 0:
        yield f"   and {more} larger ones"


def title(option: RankedPair) -> str:
    """Return a pair in one line: names, expected speed, what is to download."""
    about = "about " if not all(model.checked for model in option.missing) else ""
    to_come = f"{about}{units.size(option.download_bytes)} to download" if option.missing else "on disk"
    return f"{option.names}: {option.speed}, {to_come}"


def why(option: RankedPair) -> Iterator[str]:
    """Return the reasons for a pair, its licences last."""
    yield from option.reasons
    if option.placement is not None:
        yield from option.placement.reasons
    yield f"licence: {option.licences}"


def _pair_json(option: RankedPair) -> dict[str, object]:
    placement = option.placement
    return {
        "name": option.pair.name,
        "fits": placement is not None,
        "problem": option.problem or None,
        "tokens_per_s": placement.tokens_per_s if placement else None,
        "mode": placement.mode if placement else None,
        "download_bytes": option.download_bytes,
        "reasons": option.reasons,
        "models": [
            {
                "role": role,
                "title": model.title,
                "reference": model.reference or None,
                "path": path,
                **{name: getattr(model, name) for name in _OF_MODEL},
            }
            for role, model, path in zip(("target", "draft"), option.pair.models, option.files, strict=False)
        ],
        "placement": asdict(placement) if placement else None,
    }
