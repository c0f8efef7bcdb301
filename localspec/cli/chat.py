"""`localspec chat`: talk line by line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from localspec.chat.conversation import Conversation
from localspec.cli import opening, placing
from localspec.cli.answer_options import answer_options
from localspec.cli.arguments import (
    Parser,
    add_answer_flags,
    verb_parser,
)
from localspec.cli.console import say
from localspec.cli.deciding import Decider
from localspec.cli.dialogue import Dialogue
from localspec.cli.experience import KnownPair
from localspec.cli.lines import line_reader
from localspec.cli.logs import set_up_logging
from localspec.cli.options import decoding, pair_options
from localspec.default_pair import name_of
from localspec.errors import UserError


def parser() -> Parser:
    """Return the parser of `localspec chat`."""
    result = verb_parser("chat", "Talk line by line; /help lists the commands. Lines may be piped in.")
    result.add_argument("--plain", action="store_true", help="line by line, for simple terminals")
    add_answer_flags(result)
    placing.add_placing_flags(result)
    return result


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().parse_args(argv)
    if args.list_devices:
        return opening.list_devices()
    if args.json:
        raise UserError("--json does not go with a chat", "use `localspec run --json` for one answer")
    options, pair, how = answer_options(args), pair_options(args), decoding(args)
    if sys.stdin is None or sys.stdin.closed:
        raise UserError("there is no standard input to talk through", "use `localspec run` for one answer")
    set_up_logging(verbose=args.verbose)
    known = KnownPair(args, here=True)
    pair = known.seat(pair, partial(placing.placed, here=True))
    with opening.open_runtime(pair) as runtime, line_reader() as reader:
        opening.tell_notes(runtime, pair)
        decider = Decider(runtime, known.experience, options, how.asked)
        choice = decider.choice
        names = name_of(runtime.target) + (f" with draft {name_of(runtime.draft)}" if runtime.draft else "")
        say(f"{names}; mode {choice.settings.mode}: {choice.reason}. /help lists the commands.")
        dialogue = Dialogue(
            runtime,
            Conversation(options.system),
            decider,
            shows_stats=args.stats,
            colours=bool(args.color),
        )
        return dialogue.talk(reader)
