"""`localspec run`: answer one question and leave."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from localspec.app import figures
from localspec.app.options import grammar, pair_options, profiles_named, session_request
from localspec.app.tuned_pair import KnownPair
from localspec.chat.answer_settings import AnswerOptions, Chooser, followed
from localspec.chat.messages import Attachment
from localspec.chat.prompting import question_of
from localspec.cli.shared import opening
from localspec.cli.shared.answer import AnswerOutput, StreamedAnswer, write_answer
from localspec.cli.shared.arguments import (
    Parser,
    add_answer_flags,
    add_thinking_flags,
    set_up_logging,
    verb_parser,
)
from localspec.cli.shared.console import (
    FAILURE,
    INTERRUPTED,
    SUCCESS,
    is_terminal,
    print_json,
    read_utf8,
    say,
)
from localspec.cli.shared.question import tell_unread, with_files
from localspec.errors import UserError
from localspec.inference.interface import OpenModels
from localspec.types import Finished, GenerationEvent, Message

MOST_BYTES = 64 * 2**20  # of standard input: far more than any context holds
_HOW = 'write `localspec run "question"`, or pipe a text into it'


def parser() -> Parser:
    """Return the parser of `localspec run`."""
    result = verb_parser(
        "run", "Answer one question and leave. The question may be piped in, or go below one."
    )
    result.add_argument("prompt", nargs="*", metavar="PROMPT", help="the question; @FILE attaches a file")
    result.add_argument("-p", "--prompt", dest="flag_prompt", metavar="TEXT", help="the question, as a flag")
    result.add_argument(
        "--no-chat", action="store_true", help="continue the bare text, without a chat template"
    )
    add = result.add_argument_group("what the answer looks like").add_argument
    about = "only what fits a JSON schema; where the template opens the model's thinking, from its end on"
    add("-jf", "--json-schema", "--json-schema-file", metavar="FILE", dest="json_schema", help=about)
    about = "only what fits a grammar in llama.cpp's GBNF, likewise"
    add("--grammar", "--grammar-file", metavar="FILE", dest="grammar", help=about)
    add_answer_flags(result)
    add_thinking_flags(result)
    return result


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().parse_intermixed_args(argv)
    asked, profiles, pair = session_request(args), profiles_named(args.profile), pair_options(args)
    system = asked.system
    if system is None:
        system = "" if args.no_chat else profiles[0].system_prompt
    _check_combinations(args, system)
    form = grammar(args)
    if asked.speculation.mode in ("off", "ngram"):
        pair = replace(pair, draft=None)  # nobody would ask it
    words = args.prompt if args.flag_prompt is None else [args.flag_prompt]
    text, files = read_prompt(words, attaches=not args.no_chat)
    question = question_of(text, files)
    set_up_logging(verbose=args.verbose)
    with opening.start_worker(verbose=args.verbose) as models:
        known = KnownPair(args, via=models.look)
        pair = known.place(pair, say)
        opening.load(models, pair)
        opening.tell_notes(models, pair)
        experience, by_name = known.experience, {profile.name: profile for profile in profiles}
        profile = followed(profiles[0], by_name, [(text, [file.source for file in files])])
        if args.explain:
            say(asked.explained_sampling(profile, models.target.recommended))
        system_message = (Message("system", system),) if system else ()
        prompt = question if args.no_chat else (*system_message, Message("user", question))
        chosen: list[AnswerOptions] = []

        def events() -> Iterator[GenerationEvent]:
            chosen.append(Chooser(models, experience, opening.note).options(profile, asked))
            yield from models.generate(replace(chosen[0].request, prompt=prompt, grammar=form))

        answer = write_answer(models, events(), AnswerOutput.asked(args), is_bare=args.no_chat)
        (options,) = chosen
        return _conclude(args, models, options, answer)


def _check_combinations(args: argparse.Namespace, system: str) -> None:
    if args.flag_prompt is not None and args.prompt:
        raise UserError("the question is given twice: with -p and without", "keep one of them")
    if args.no_chat and system:
        raise UserError(
            "--no-chat continues a bare text, which has no system prompt", "leave out -sys and -sysf"
        )
    for given, flag in ((args.chat_template_kwargs, "kwargs"), (args.chat_template, "file")):
        if args.no_chat and given:
            raise UserError("--no-chat uses no chat template", f"leave out --chat-template-{flag}")
    if args.json and args.color:
        raise UserError("--json and --color do not go together", "keep one of them")


def _conclude(
    args: argparse.Namespace, models: OpenModels, options: AnswerOptions, answer: StreamedAnswer
) -> int:
    finished = answer.finished
    if finished is None:
        say("error: the answer broke off")
        return FAILURE
    if args.json:
        _print_json(models, options, answer, finished)
    for change in answer.changes:
        if args.stats or change.draft_failed:
            say(figures.note(change))
    if args.stats:
        for line in figures.table(options.request.settings, options.reason, finished.summary):
            say(line)
    if finished.reason == "context":
        target = models.target
        larger = "; a larger -c leaves more room" * (target.training_context > target.context)
        say(f"note: the context of {target.context} tokens is full{larger}")
    if (args.json_schema or args.grammar) and finished.reason in ("length", "context", "circles"):
        say("note: the answer was cut off before it was what it has to be")
    return INTERRUPTED if finished.reason == "cancelled" else SUCCESS


def _print_json(
    models: OpenModels, options: AnswerOptions, answer: StreamedAnswer, finished: Finished
) -> None:
    settings = options.request.settings
    value = {
        "text": answer.text,
        "reasoning": answer.thinking,
        "finish_reason": finished.reason,
        "mode": settings.mode,
        **figures.models(models),
        "timings": figures.timings(finished.summary),
        "speculation": figures.speculation(settings, options.reason, finished.summary, answer.changes),
        "notes": list(models.notes),
    }
    print_json(value)


def read_prompt(words: Sequence[str], *, attaches: bool) -> tuple[str, tuple[Attachment, ...]]:
    """Return the words of the arguments with the text of standard input, if any, below them, and their files.

    A text that is piped in names no files: it may be anything.
    """
    argument = " ".join(words)
    if argument.encode("utf-8", "ignore").decode() != argument:  # the terminal's encoding made no sense of it
        raise UserError(
            "the prompt is not valid text", "write it in the terminal's encoding, or pipe it as UTF-8"
        )
    has_input = sys.stdin is not None and not sys.stdin.closed and not is_terminal(sys.stdin)
    piped = read_utf8(sys.stdin, MOST_BYTES).rstrip("\r\n") if has_input else ""
    if argument.strip():
        if not attaches:
            tell_unread(argument, "--no-chat continues the text alone")
        argument, files = with_files(argument) if attaches else (argument, ())
        return f"{argument}\n\n{piped}" if piped.strip() else argument, files
    if piped.strip():
        tell_unread(piped, "the text is piped in; `localspec run` attaches what its arguments name")
        return piped, ()
    if words:
        raise UserError("the prompt is empty", _HOW)
    if has_input:
        raise UserError("standard input is empty, and there is no prompt", _HOW)
    raise UserError("there is no prompt", f"{_HOW}; `localspec chat` talks line by line")
