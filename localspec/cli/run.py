"""`localspec run`: answer one question and leave."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.cli import figures, opening, placing
from localspec.cli.answer import Answer, write_answer
from localspec.cli.arguments import (
    Parser,
    add_answer_flags,
    verb_parser,
)
from localspec.cli.console import say
from localspec.cli.logs import set_up_logging
from localspec.cli.options import AnswerOptions, answer_options, decoding, pair_options
from localspec.cli.prompt import read_prompt
from localspec.cli.report import FAILURE, INTERRUPTED, SUCCESS
from localspec.errors import UserError
from localspec.types import Finished, Message, Request

if TYPE_CHECKING:
    from localspec.runtime import Runtime


def parser() -> Parser:
    """Return the parser of `localspec run`."""
    result = verb_parser(
        "run", "Answer one question and leave. The question may be piped in, or go below one."
    )
    result.add_argument("prompt", nargs="*", metavar="PROMPT", help="the question")
    result.add_argument("-p", "--prompt", dest="flag_prompt", metavar="TEXT", help="the question, as a flag")
    result.add_argument(
        "--no-chat", action="store_true", help="continue the bare text, without a chat template"
    )
    add_answer_flags(result)
    placing.add_placing_flags(result)
    return result


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().parse_intermixed_args(argv)
    if args.list_devices:
        return opening.list_devices()
    options, pair, how = answer_options(args), pair_options(args), decoding(args)
    _check_combinations(args, options)
    if how.mode in ("off", "ngram"):
        pair = replace(pair, draft=None)  # nobody would ask it
    prompt = _prompt(args, options)
    set_up_logging(verbose=args.verbose)
    pair = placing.placed(args, pair, here=True)
    with opening.open_runtime(pair) as runtime:
        opening.tell_notes(runtime, pair)
        settled = opening.settle(runtime, how)
        request = Request(
            prompt=prompt,
            sampling=options.sampling,
            settings=settled.settings,
            max_tokens=options.max_tokens,
            stop=options.stop,
            seed=options.seed,
            template_variables=options.template_variables,
            steps_down=settled.steps_down,
        )
        answer = write_answer(runtime, request, silent=args.json, colours=bool(args.color))
        return _conclude(args, runtime, settled, answer)


def _check_combinations(args: argparse.Namespace, options: AnswerOptions) -> None:
    if args.flag_prompt is not None and args.prompt:
        raise UserError("the question is given twice: with -p and without", "keep one of them")
    if args.no_chat and options.system:
        raise UserError(
            "--no-chat continues a bare text, which has no system prompt", "leave out -sys and -sysf"
        )
    if args.no_chat and options.template_variables:
        raise UserError("--no-chat uses no chat template", "leave out --chat-template-kwargs")
    if args.json and args.color:
        raise UserError("--json and --color do not go together", "keep one of them")


def _prompt(args: argparse.Namespace, options: AnswerOptions) -> tuple[Message, ...] | str:
    text = read_prompt(args.prompt if args.flag_prompt is None else [args.flag_prompt])
    if args.no_chat:
        return text
    system = (Message("system", options.system),) if options.system else ()
    return (*system, Message("user", text))


def _conclude(args: argparse.Namespace, runtime: Runtime, settled: opening.Settled, answer: Answer) -> int:
    finished = answer.finished
    if finished is None:
        say("error: the answer broke off")
        return FAILURE
    if args.json:
        _print_json(runtime, settled, answer, finished)
    if args.stats:
        for change in answer.changes:
            say(figures.note(change))
        for line in figures.table(settled.settings, settled.reason, finished.summary):
            say(line)
    if finished.reason == "context":
        say(f"note: the context of {runtime.target.context} tokens is full; a larger -c leaves more room")
    return INTERRUPTED if finished.reason == "cancelled" else SUCCESS


def _print_json(runtime: Runtime, settled: opening.Settled, answer: Answer, finished: Finished) -> None:
    settings = settled.settings
    value = {
        "schema": figures.SCHEMA,
        "text": answer.text,
        "finish_reason": finished.reason,
        "mode": settings.mode,
        **figures.models(runtime),
        "timings": figures.timings(finished.summary),
        "speculation": figures.speculation(settings, settled.reason, finished.summary, answer.changes),
        "notes": list(runtime.notes),
    }
    print(json.dumps(value))
