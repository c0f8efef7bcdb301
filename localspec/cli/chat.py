"""`localspec chat`: talk line by line, from a terminal or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, assert_never

from localspec.app.opening import with_config
from localspec.chat import figures
from localspec.chat.answer_settings import AnswerOptions
from localspec.chat.answer_turns import AnswerTurn, AnswerTurns
from localspec.chat.answering import Summarised, Summarising
from localspec.chat.attachments import as_text
from localspec.chat.commands.command import CommandCall, CommandContext
from localspec.chat.commands.effects import (
    Act,
    ActionName,
    ActOnMessage,
    Ask,
    Effect,
    Put,
    Say,
    Setting,
    ShowSetting,
    Wait,
)
from localspec.chat.commands.own import OwnCommands, may_be_own, own_commands
from localspec.chat.commands.parsing import as_message, name_in, parse
from localspec.chat.commands.registry import IN_LINES, LINE_NAMES
from localspec.chat.messages import StoredMessage
from localspec.chat.session import AnswerVariant, ChatSession
from localspec.cli.shared import opening
from localspec.cli.shared.answer import LEGEND, AnswerOutput, write_answer
from localspec.cli.shared.answer_request import profiles_named, reads_standard_input, session_request
from localspec.cli.shared.arguments import (
    Parser,
    add_answer_flags,
    add_thinking_flags,
    pair_request,
    set_up_logging,
    verb_parser,
)
from localspec.cli.shared.console import (
    INTERRUPTED,
    SUCCESS,
    colours_unwanted,
    is_terminal,
    say,
    tell,
)
from localspec.cli.shared.question import with_dropped, with_files
from localspec.cli.shared.tool_flags import ToolsOfFlags, add_tool_flags
from localspec.errors import Cancelled, ContextFullError, EngineError, StoreError, UserError, os_errors_as
from localspec.inference.interface import OpenModels
from localspec.models.default_pair import name_of
from localspec.safe_text import safe_text
from localspec.storage.config import read_config
from localspec.storage.paths import chats_file, config_dir
from localspec.storage.text_file import decode_text, is_wide
from localspec.types.events import Finished, ModeChanged
from localspec.types.request import Mode

if TYPE_CHECKING:
    from localspec.chat.store import Store

_FENCE = '"""'
_INPUT = "standard input"
_BEYOND_COMMANDS = '''\
Ctrl+C stops an answer. A line ending in \\ continues on the next; """ opens and closes a block.
@FILE attaches a text or PDF file, @FILE:3-5 or @FILE#L3 some lines or pages of it.
@src/ lists a folder, @src/** or @src/*.py attaches its files; a \\ before the @ makes it plain text.'''
_MAKE_ROOM = "/compact summarises older messages, /undo takes back the last turn, /clear starts over"


def parser() -> Parser:
    """Return the parser of `localspec chat`."""
    result = verb_parser("chat", "Chat line by line; /help lists the commands. Lines can be piped in.")
    result.add_argument("--plain", action="store_true", help="line by line, for simple terminals")
    add_answer_flags(result)
    add_thinking_flags(result)
    add_tool_flags(result)
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(argv)
    if args.json:
        raise UserError("--json cannot be used in a chat", "use `localspec run --json` for one answer")
    if reads_standard_input(args):
        raise UserError(
            "a chat reads standard input, but a flag reads it as well", "name a file instead of -"
        )
    asked = session_request(args)
    profiles = profiles_named(args.profile)
    request = with_config(pair_request(args))
    files = opening.find_files(request)
    if sys.stdin is None or sys.stdin.closed:
        raise UserError("a chat needs standard input", "use `localspec run` for one answer")
    set_up_logging(verbose=args.verbose)
    reader = LineReader()
    with (
        open_store(keeps=reader.interactive) as store,
        opening.opened(request, files, verbose=args.verbose, explain=args.explain) as pair,
    ):
        models = pair.models
        session = ChatSession(
            store,
            profiles,
            asked,
            profiles[0].name,
            start="aside",
            tuned_for=pair.tuned_for,
        )
        session.shared.compaction_mode = read_config(config_dir() / "config.toml").compact
        if args.explain:
            say(session.asked.explained_sampling(session.followed, models.target.recommended))
        from localspec.cli.shared.tools import use_tools  # which a mistake in the arguments spares

        use_tools(session, ToolsOfFlags(args))
        dialogue = Dialogue(models, session, AnswerOutput.asked(args), shows_stats=args.stats)
        names = name_of(models.target) + (f" with draft {name_of(models.draft)}" if models.draft else "")
        say(f"{names}; {dialogue.mode_line()}. /help lists the commands.")
        return dialogue.talk(reader)


def open_store(*, keeps: bool) -> Store:
    """Open the store of chats, or a temporary one if chats are not saved or cannot be."""
    from localspec.chat.store import Store  # SQLite: 10 ms that a mistake in the arguments spares

    if keeps:
        try:
            return Store(chats_file())
        except StoreError as error:
            opening.note(f"this chat is not saved: {error}")
    return Store(None)


class Dialogue:
    """One chat, from its first line to its last."""

    def __init__(
        self, models: OpenModels, session: ChatSession, output: AnswerOutput, *, shows_stats: bool = False
    ) -> None:
        self._models = models
        self._session = session
        self._followed = session.followed
        self._problems = set[str]()  # of the user's commands, already reported
        self._told: ModeChanged | None = None
        self._shows_stats = shows_stats
        self._output = output
        self._last: Finished | None = None
        self._last_options: AnswerOptions | None = None
        self._leaving = False
        self._prepared = ""  # by a prompt of a server, to begin the next message
        self._actions: dict[ActionName, Callable[[], None]] = {
            "help": self._help,
            "figures": self._show_figures,
            "undo": self._undo,
            "clear": self._clear,
            "color": self._colour,
            "compact": self._compact,
            "thinking": lambda: self._show_setting("thinking"),
            "exit": self._leave,
            "tools": self._tools,
        }

    def mode_line(self) -> str:
        """Return the mode of the next answer and its reason; first print notices about stale settings."""
        options = self._session.options(self._models)
        for notice in self._session.shared.take_notices():
            opening.note(notice)
        return f"mode {options.request.settings.mode}: {options.reason}"

    def talk(self, reader: LineReader) -> int:
        """Answer line after line until the last; return the exit code."""
        while not self._leaving and (entry := self._next_entry(reader)) is not None:
            text, is_block = entry
            try:
                if not is_block and (call := self._command_in(text)) is not None:
                    self._run(call)
                elif text.strip() or self._prepared:
                    prompt = text.strip("\n")
                    self._ask(prompt if is_block else as_message(with_dropped(prompt), LINE_NAMES.keys()))
            except (UserError, EngineError, StoreError) as error:
                if not reader.interactive:
                    raise
                tell(error)
            cancelled = self._last is not None and self._last.reason == "cancelled"
            if cancelled and not reader.interactive:
                return INTERRUPTED
        return SUCCESS

    def _command_in(self, text: str) -> CommandCall | None:
        """Return the command that a line is, also one of the user's own; raises UserError."""
        own = None
        if name_in(text) not in LINE_NAMES and may_be_own(text):
            own = self._own_commands().parse(text)
        return own or parse(text, LINE_NAMES)

    def _own_commands(self) -> OwnCommands:
        """Read the user's own commands; report each problem once."""
        found = own_commands(self._session.servers)
        for problem in [problem for problem in found.problems if problem not in self._problems]:
            self._problems.add(problem)
            opening.note(problem)
        return found

    def _run(self, call: CommandCall) -> None:
        """Run a command, and do what it leaves to do."""
        for effect in call.effects(CommandContext(self._session, self._models, Path.cwd())):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Ask(prompt):
                self._ask(prompt)
            case Say(text):
                say(text)
            case Put(text):
                self._prepare(text)
            case Wait():
                self._wait_for(effect)
            case ShowSetting(setting):
                self._show_setting(setting)
            case ActOnMessage("regenerate", _, modes):
                self._answer(next(iter(modes), None))
            case ActOnMessage("take back", message_id):
                self._session.chat.set_summary(message_id, "")
                say("the summary is taken back: the model reads all messages again")
            case Act(name):
                self._actions[name]()
            case _:  # such commands have no `in_lines`
                raise NotImplementedError(effect)

    def _wait_for(self, wait: Wait) -> None:
        say(f"{wait.what} ...")
        try:
            effect = wait.work(Event())
        except KeyboardInterrupt:
            say("stopped")
        else:
            self._carry_out(effect)

    def _prepare(self, text: str) -> None:
        """Show a text that is to begin the next message."""
        self._prepared = text
        say(safe_text(text))
        say("note: this begins your next message; an empty line sends it as it is, - drops it")

    def _with_prepared(self, text: str) -> str:
        """Return a message that begins with what was prepared; empty if that was all."""
        prepared = self._prepared
        self._prepared = ""
        prepared = as_text(prepared, Path(), self._session.servers_named_in(prepared))
        return "" if text.strip() == "-" else f"{prepared}\n\n{text}".rstrip()

    def _show_setting(self, setting: Setting) -> None:
        match setting:
            case "mode":
                say(self.mode_line())
            case "profile":
                say(f"profile {self._session.profile.title}: {self._session.profile.description}")
            case "system prompt":
                say(f"system prompt: {self._session.chat.system or 'none'}")
            case "temperature":
                say(f"temperature {self._session.sampling(self._models).temperature:g}")
            case "thinking":
                say(self._session.thinking)
            case _:
                assert_never(setting)

    def _next_entry(self, reader: LineReader) -> tuple[str, bool] | None:
        """Return the next entry, None at the end or after the second Ctrl+C in a row."""
        interrupted = False
        while True:
            try:
                return read_entry(reader)
            except EOFError:
                if reader.interactive:
                    say("")
                return None
            except KeyboardInterrupt:
                if not reader.interactive:
                    raise
                say("")
                if interrupted:
                    return None
                interrupted = True
                say("Ctrl+C again or Ctrl+D leaves")
            except UserError as error:
                if not reader.interactive:
                    raise
                tell(error)

    def _ask(self, text: str) -> None:
        """Answer a question; it counts only once the model has taken it."""
        if self._prepared and not (text := self._with_prepared(text)):
            say("dropped")
            return
        path = self._session.chat.path
        if path and path[-1].role == "user":  # Ctrl+C came before its answer
            self._take_back(path[-1])
        resources = self._session.resources_named_in(text, Event())  # Ctrl+C ends the waiting for them
        question = self._session.chat.ask(*with_files(text, resources))
        try:
            self._answer()
        except (UserError, EngineError):
            self._take_back(question)
            raise

    def _answer(self, mode: Mode | None = None) -> None:
        session = self._session
        if session.followed != self._followed:
            self._followed = session.followed
            say(session.route_shown(self._followed.name))
        self.mode_line()
        has_history = len(session.chat.path) > 1
        turn = AnswerTurn(AnswerTurns())
        try:
            with turn.taken(self._models):
                events = session.answer(self._models, turn, variant=AnswerVariant(mode))
                answer = write_answer(self._models, events, self._output, turn=turn)
        except ContextFullError as error:
            raise ContextFullError(error.message, _MAKE_ROOM if has_history else error.hint) from None
        except Cancelled:  # while no model was at work
            say("stopped")
            return
        self._last = answer.finished
        self._last_options = session.in_use
        if self._last is None:
            return
        if self._last.reason == "context":
            say(f"note: the context of {self._models.target.context} tokens is full: {_MAKE_ROOM}")
        self._tell_changes(answer.changes)
        self._make_room_in_time()
        if self._shows_stats and session.in_use is not None:
            mode = answer.changes[-1].mode if answer.changes else session.in_use.request.settings.mode
            say(f"[{figures.summary_line(mode, self._last.summary)}]")

    def _compact(self) -> None:
        """Have the older part of the chat summarised."""
        is_told = False
        try:
            for event in self._session.compact(self._models):
                if isinstance(event, Summarising) and not is_told:
                    say(f"summarising {event.what} ...")
                    is_told = True
                if isinstance(event, Summarised):
                    say(event.words)
        except (KeyboardInterrupt, Cancelled):
            say("stopped; nothing has changed")

    def _make_room_in_time(self) -> None:
        """Summarise the older part of a chat that is nearly full, or say that it can be done."""
        session = self._session
        if session.shared.compaction_mode == "off" or not session.is_nearly_full(self._models):
            return
        with suppress(UserError):  # nothing to summarise, or a summary of no use: the next answer may fit
            what = session.compaction(self._models)[1]
            if session.shared.compaction_mode == "auto":
                self._compact()
            else:
                say(f"note: the context is nearly full; /compact summarises {what}")

    def _take_back(self, question: StoredMessage) -> None:
        """Go back before a question; the messages stay in the saved chat."""
        if question.parent is None:
            self._begin_anew()
        else:
            self._session.chat.back_to(question.parent)

    def _begin_anew(self) -> None:
        """Open an empty chat with the same settings."""
        before = self._session.chat.info
        self._session.new()
        self._session.update_settings(**before.settings.settled, system_prompt=before.system)

    def _tell_changes(self, changes: Sequence[ModeChanged]) -> None:
        """Print changes of mode once; each answer repeats the current one."""
        for change in changes:
            if change != self._told:
                say(figures.note(change))
            self._told = change

    def _help(self) -> None:
        for command in (*IN_LINES, *self._own_commands().commands):
            say(f"{command.usage:<18} {command.in_lines}")
        say(_BEYOND_COMMANDS)

    def _show_figures(self) -> None:
        self._shows_stats = not self._shows_stats
        options = self._last_options
        if self._last is not None and options is not None:
            for line in figures.table(options.request.settings, options.reason, self._last.summary):
                say(line)
        say(f"a line of statistics after each answer: {'on' if self._shows_stats else 'off'}")

    def _undo(self) -> None:
        questions = [message for message in self._session.chat.path if message.role == "user"]
        if not questions:
            raise UserError("there is nothing to undo", "the conversation is empty")
        self._take_back(questions[-1])
        say(f"taken back; questions left: {len(questions) - 1}")

    def _clear(self) -> None:
        self._begin_anew()
        say("a new conversation")

    def _colour(self) -> None:
        if not self._output.colours and colours_unwanted():
            raise UserError("NO_COLOR is set, so colours stay off", "start with --color to use them anyway")
        self._output = replace(self._output, colours=not self._output.colours)
        say(LEGEND if self._output.colours else "colours off")

    def _tools(self) -> None:
        kit = self._session.kit
        on_now = self._session.tools_on()
        for name, words in ({} if kit is None else kit.words).items():
            say(f"{'on' if name in on_now else 'off':<4}{name:<12}{words}")

    def _leave(self) -> None:
        self._leaving = True


class LineReader:
    """The lines of standard input: typed, with history and editing where the system has them, or piped."""

    def __init__(self) -> None:
        self.interactive = is_terminal(sys.stdin)
        self._piped = _piped_lines()
        if self.interactive:
            with suppress(ImportError):  # on Windows, whose terminals edit lines themselves
                import readline

                readline.parse_and_bind("set enable-bracketed-paste on")

    def line(self, prompt: str) -> str:
        """Ask for a line, or read one; raises EOFError at the end."""
        if self.interactive:
            return self._typed(prompt)
        try:
            return next(self._piped).rstrip("\r\n")
        except StopIteration:
            raise EOFError from None

    def _typed(self, prompt: str) -> str:
        if not is_terminal(sys.stdout):  # the answers go to a file, where a prompt has no place
            sys.stderr.write(prompt)
            sys.stderr.flush()
            prompt = ""
        try:
            text = input(prompt)
            text.encode("utf-8")
        except UnicodeError:
            raise UserError("the line is not valid text", "write it in the terminal's encoding") from None
        return text


def _piped_lines() -> Iterator[str]:
    """Yield the lines of a pipe or a file as they come; raises UserError where it cannot be read."""
    offset = 0
    stream = sys.stdin.buffer
    with os_errors_as("standard input cannot be read", UserError, "use `localspec run` for one answer"):
        while data := stream.readline():
            if offset == 0 and is_wide(data):  # a line of it does not end at a byte
                yield from decode_text(data + stream.read(), _INPUT).splitlines()
                return
            yield decode_text(data, _INPUT, offset=offset)
            offset += len(data)


def read_entry(reader: LineReader) -> tuple[str, bool]:
    """Return the next entry: a line, several that end in a backslash, or a block between triple quotes.

    True with a block, which is never a command.
    """
    lines = [reader.line("> ")]
    if is_block := lines[0].lstrip().startswith(_FENCE):
        lines[0] = lines[0].lstrip().removeprefix(_FENCE)
    with suppress(EOFError):  # what is said without an end counts, too
        while not lines[-1].rstrip().endswith(_FENCE) if is_block else lines[-1].endswith("\\"):
            lines[-1] = lines[-1] if is_block else lines[-1][:-1]
            lines.append(reader.line(". "))
    text = "\n".join(lines)
    return (text.rstrip().removesuffix(_FENCE).strip("\n") if is_block else text), is_block
