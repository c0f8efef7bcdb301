"""`localspec run`: answer one question and leave."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace

from localspec import units
from localspec.app import answer_json
from localspec.app.opening import with_config
from localspec.chat import figures
from localspec.chat.answer_settings import AnswerOptions, SettingsSelector, followed
from localspec.chat.prompting import question_of
from localspec.chat.schema_check import CheckedSchema, checked_answer
from localspec.cli.shared import opening
from localspec.cli.shared.answer import AnswerOutput, StreamedAnswer, write_answer
from localspec.cli.shared.answer_request import grammar, profiles_named, session_request
from localspec.cli.shared.arguments import (
    Parser,
    add_answer_flags,
    add_thinking_flags,
    pair_request,
    set_up_logging,
    verb_parser,
)
from localspec.cli.shared.console import (
    FAILURE,
    INTERRUPTED,
    SUCCESS,
    ConsoleStatus,
    at_fence,
    on_interrupt,
    print_json,
    say,
)
from localspec.cli.shared.prompt import GivenPrompt
from localspec.cli.shared.tool_flags import ToolsOfFlags, add_tool_flags
from localspec.errors import EngineError, UserError
from localspec.inference.interface import OpenModels, QuickChooser
from localspec.types.events import Finished, GenerationEvent
from localspec.types.models import GivenTemplate
from localspec.types.request import Message

MIN_LIMIT_S = 2.0  # for measuring after the answer, once a day for a pair of models
LIMIT_SHARE = 0.1  # of the answer's own time, where that is more


def parser() -> Parser:
    """Return the parser of `localspec run`."""
    result = verb_parser(
        "run",
        "Answer one question and exit. The question may be piped in; below a question, piped text is added.",
    )
    about = "the question; @FILE attaches a file, @src/** the files of a folder; - reads standard input"
    result.add_argument("prompt", nargs="*", metavar="PROMPT", help=about)
    result.add_argument("-p", "--prompt", dest="flag_prompt", metavar="TEXT", help="the question, as a flag")
    about = "do not read standard input, so that a loop or another program can"
    result.add_argument("--no-stdin", action="store_true", help=about)
    result.add_argument(
        "--no-chat", action="store_true", help="continue the text as it is, without a chat template"
    )
    add = result.add_argument_group("form of the answer").add_argument
    about = "answer in JSON that fits this schema; thinking, if there is any, comes first and is free"
    add("-j", "--json-schema", metavar="TEXT|FILE", help=about)
    add("-jf", "--json-schema-file", metavar="FILE", help="the same, always from a file")
    about = "answer in text that fits this grammar (llama.cpp's GBNF); thinking is free"
    add("--grammar", metavar="TEXT|FILE", help=about)
    add("--grammar-file", metavar="FILE", help="the same, always from a file")
    add_answer_flags(result)
    add_thinking_flags(result)
    add_tool_flags(result)
    return result


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; everything after `--` is the question (argparse loses it if flags may follow)."""
    flags, words = at_fence(argv)
    args = parser().parse_intermixed_args(flags)
    args.prompt += words
    return args


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = arguments(argv)
    asked = session_request(args)
    profiles = profiles_named(args.profile)
    request = with_config(pair_request(args))
    files = opening.find_files(request)
    system = asked.system
    if system is None:
        system = "" if args.no_chat else profiles[0].system_prompt
    _check_combinations(args, system)
    form = grammar(args)
    checked = checked_answer(form)
    if asked.speculation.mode in ("off", "ngram"):
        files = replace(files, draft=None)  # not needed
    with ExitStack() as stack:
        tools = stack.enter_context(closing(ToolsOfFlags(args)))
        given = GivenPrompt(args, tools.resources_named_in)
        early = given.read() if given.is_there() else None
        set_up_logging(verbose=args.verbose)
        pair = stack.enter_context(opening.opened(request, files, verbose=args.verbose, explain=args.explain))
        models = pair.models
        text, attached = early or given.read()
        question = question_of(text, attached)
        by_name = {profile.name: profile for profile in profiles}
        profile = followed(profiles[0], by_name, [(text, [file.source for file in attached])])
        if args.explain:
            say(asked.explained_sampling(profile, models.target.recommended))
        if args.tools is not None:
            from localspec.cli.shared.tools import answered_with_tools  # which a usual start does without

            answered = answered_with_tools(args, tools, pair, (asked, profiles), text, attached)
            return _conclude(args, models, *answered)
        system_message = (Message("system", system),) if system else ()
        prompt = question if args.no_chat else (*system_message, Message("user", question))
        chosen: list[AnswerOptions] = []

        def events() -> Iterator[GenerationEvent]:
            chosen.append(SettingsSelector(models, pair.tuned_for, opening.note).options(profile, asked))
            yield from models.generate(replace(chosen[0].request, prompt=prompt, grammar=form))

        answer = write_answer(models, events(), AnswerOutput.asked(args), is_bare=args.no_chat)
        (options,) = chosen
        code = _conclude(args, models, options, answer)
        if code == SUCCESS and answer.finished is not None and answer.finished.reason == "stop":
            _remark(checked, answer.text)
        if code == SUCCESS and options.reason == units.UNMEASURED:
            _measure(models, answer)
        return code


def _remark(checked: CheckedSchema | None, text: str) -> None:
    """Say which parts of a JSON schema were not enforced, and whether the answer meets all of it."""
    if checked is not None:
        for remark in checked.remarks(text, is_cut=False):
            say(f"note: {remark.text}")


def _measure(models: OpenModels, answer: StreamedAnswer) -> None:
    """Measure what the next answer needs to choose its mode; Ctrl+C gives that up."""
    if answer.finished is None or not isinstance(models, QuickChooser):
        return
    sys.stdout.flush()
    summary = answer.finished.summary
    limit_s = max(MIN_LIMIT_S, LIMIT_SHARE * (summary.prompt_s + summary.decode_s))
    with suppress(EngineError), on_interrupt(models.cancel), ConsoleStatus() as status:
        status.update(units.MEASURING_LAST)
        models.measure_before_leaving(limit_s)


def _check_combinations(args: argparse.Namespace, system: str) -> None:
    if args.flag_prompt is not None and args.prompt:
        raise UserError("the question is given twice: with -p and without", "use only one of them")
    if args.no_chat and system:
        raise UserError("--no-chat continues a text, which has no system prompt", "leave out -sys and -sysf")
    template = args.chat_template
    flag = "--chat-template" if isinstance(template, GivenTemplate) else "--chat-template-file"
    flags = ((args.chat_template_kwargs, "--chat-template-kwargs"), (template not in (None, "own"), flag))
    for given, name in flags:
        if args.no_chat and given:
            raise UserError("--no-chat uses no chat template", f"leave out {name}")
    if args.tools is not None and (args.no_chat or _wants_form(args)):
        raise UserError(
            "--tools cannot be combined with --no-chat, a schema or a grammar",
            "leave out --no-chat, -j and --grammar",
        )
    if args.json and args.color:
        raise UserError("--json and --color cannot be combined", "use only one of them")


def _conclude(
    args: argparse.Namespace, models: OpenModels, options: AnswerOptions, answer: StreamedAnswer
) -> int:
    finished = answer.finished
    if finished is None:
        say("error: the answer was interrupted")
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
        larger = "; a larger -c gives more space" * (target.training_context > target.context)
        say(f"note: the context of {target.context} tokens is full{larger}")
    if _wants_form(args) and finished.reason in ("length", "context", "circles"):
        say("note: the answer was cut off before it matched the grammar")
    return INTERRUPTED if finished.reason == "cancelled" else SUCCESS


def _wants_form(args: argparse.Namespace) -> bool:
    forms = (args.json_schema, args.json_schema_file, args.grammar, args.grammar_file)
    return any(form is not None for form in forms)


def _print_json(
    models: OpenModels, options: AnswerOptions, answer: StreamedAnswer, finished: Finished
) -> None:
    settings = options.request.settings
    value = {
        "text": answer.text,
        "reasoning": answer.thinking,
        "finish_reason": finished.reason,
        "mode": settings.mode,
        **answer_json.models(models),
        "timings": answer_json.timings(finished.summary),
        "speculation": answer_json.speculation(settings, options.reason, finished.summary, answer.changes),
        "notes": list(models.notes),
    }
    print_json(value)
