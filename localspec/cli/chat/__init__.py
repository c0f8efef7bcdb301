"""`localspec chat`: talk line by line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from localspec.app.answer_options import answer_options
from localspec.app.options import decoding, pair_options
from localspec.app.tuned_pair import KnownPair
from localspec.chat.conversation import Conversation
from localspec.cli.chat.dialogue import Dialogue
from localspec.cli.chat.lines import line_reader
from localspec.cli.shared import opening
from localspec.cli.shared.answer import Decider
from localspec.cli.shared.arguments import (
    Parser,
    add_answer_flags,
    set_up_logging,
    verb_parser,
)
from localspec.cli.shared.console import say
from localspec.errors import UserError
from localspec.models.default_pair import name_of


def parser() -> Parser:
    """Return the parser of `localspec chat`."""
    result = verb_parser("chat", "Talk line by line; /help lists the commands. Lines may be piped in.")
    result.add_argument("--plain", action="store_true", help="line by line, for simple terminals")
    add_answer_flags(result)
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
    pair = known.seat(pair, opening.placed)
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
