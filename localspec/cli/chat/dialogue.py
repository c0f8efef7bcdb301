"""The chat behind `localspec chat`: a conversation, its settings, and the commands that change them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, get_args

from localspec.app import figures
from localspec.app.options import DRAFT_MODES, MODES
from localspec.chat.answer_settings import Choice
from localspec.chat.conversation import Conversation
from localspec.cli.chat.lines import Entry, LineReader, read_entry
from localspec.cli.shared.answer import Decider, write_answer
from localspec.cli.shared.arguments import decimal
from localspec.cli.shared.console import LEGEND, colours_unwanted, say
from localspec.cli.shared.errors import INTERRUPTED, SUCCESS, tell
from localspec.errors import ContextFullError, EngineError, UserError
from localspec.types import Finished, Mode, ModeChanged, Request

if TYPE_CHECKING:
    from localspec.inference.runtime import Runtime

_MODES: tuple[Mode, ...] = get_args(Mode)
_MAKE_ROOM = "/undo takes back the last turn, /clear starts over"


class Dialogue:
    """One chat, from its first line to its last."""

    def __init__(
        self,
        runtime: Runtime,
        conversation: Conversation,
        decider: Decider,
        *,
        shows_stats: bool = False,
        colours: bool = False,
    ) -> None:
        self._runtime = runtime
        self._conversation = conversation
        self._decider = decider
        self._told: ModeChanged | None = None
        self._shows_stats = shows_stats
        self._colours = colours
        self._last: Finished | None = None
        self._last_choice: Choice | None = None
        self._answers = 0
        self._leaving = False

    def talk(self, reader: LineReader) -> int:
        """Answer line after line until the last; return the exit code."""
        while not self._leaving:
            entry = self._next_entry(reader)
            if entry is None:
                break
            try:
                self._enter(entry)
            except (UserError, EngineError) as error:
                if not reader.interactive:
                    raise
                tell(error)
            if self._was_cancelled and not reader.interactive:
                return INTERRUPTED
        return SUCCESS

    def _next_entry(self, reader: LineReader) -> Entry | None:
        """Return what is said next, None at the end or at the second Ctrl+C in a row."""
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

    @property
    def _was_cancelled(self) -> bool:
        return self._last is not None and self._last.reason == "cancelled"

    def _enter(self, entry: Entry) -> None:
        if entry.text.startswith("/") and not entry.is_block:
            self._command(entry.text)
        elif entry.text.strip():
            self._answer(self._conversation.ask(entry.text.strip("\n")))

    def _answer(self, conversation: Conversation) -> None:
        """Answer the last question; what is asked counts only once the model has taken it."""
        questions = [turn.content for turn in conversation.turns if turn.role == "user"]
        if news := self._decider.take(questions):
            say(news)
        options, choice = self._decider.options, self._decider.choice
        request = Request(
            prompt=conversation.messages,
            sampling=options.sampling,
            settings=choice.settings,
            max_tokens=options.max_tokens,
            stop=options.stop,
            # the same seed again would write the same answer again
            seed=None if options.seed is None else (options.seed + self._answers) % 2**32,
            template_variables=options.template_variables,
            steps_down=choice.steps_down,
        )
        try:
            answer = write_answer(self._runtime, request, silent=False, colours=self._colours)
        except ContextFullError as error:
            has_history = len(conversation.turns) > 1
            raise ContextFullError(error.message, _MAKE_ROOM if has_history else error.hint) from None
        self._conversation = conversation.answer(answer.text) if answer.text else conversation
        self._last, self._last_choice = answer.finished, choice
        self._answers += 1
        if self._last is None:
            return
        self._decider.learn(choice, answer)
        if self._last.reason == "context":
            say(f"note: the context of {self._runtime.target.context} tokens is full: {_MAKE_ROOM}")
        self._tell_changes(answer.changes)
        if self._shows_stats:
            mode = answer.changes[-1].mode if answer.changes else choice.settings.mode
            say(f"[{figures.summary_line(mode, self._last.summary)}]")

    def _tell_changes(self, changes: Sequence[ModeChanged]) -> None:
        """Print the changes of mode; each answer repeats the one that still holds."""
        for change in changes:
            if change != self._told:
                say(figures.note(change))
            self._told = change

    def _command(self, entry: str) -> None:
        name, _, argument = entry.partition(" ")
        commands = self._commands()
        if name not in commands:
            close = get_close_matches(name, commands, n=1)
            meant = f"; did you mean `{close[0]}`?" if close else ""
            raise UserError(
                f"there is no command `{name}`{meant}",
                "/help lists them; a space before the / makes it a message",
            )
        commands[name](argument.strip())

    def _commands(self) -> dict[str, Callable[[str], None]]:
        return {
            "/help": self._help,
            "/mode": self._mode,
            "/stats": self._stats,
            "/regen": self._regenerate,
            "/undo": self._undo,
            "/clear": self._clear,
            "/system": self._system,
            "/temp": self._temperature,
            "/color": self._color,
            "/exit": self._exit,
            "/quit": self._exit,
        }

    def _help(self, _argument: str) -> None:
        say(
            f"/mode [{'|'.join(MODES)}]  show or change the decoding mode\n"
            "/stats             figures of the last answer; also switches a line after each on or off\n"
            "/regen             write the last answer anew\n"
            "/undo              take back the last question and its answer\n"
            "/clear             start over\n"
            "/system [TEXT]     show or set the system prompt; /system - removes it\n"
            "/temp [N]          show or set the temperature\n"
            "/color             mark tokens by origin, or stop it\n"
            "/exit              leave, as Ctrl+D does\n"
            'Ctrl+C stops an answer. A line ending in \\ goes on in the next; """ opens and closes a block.'
        )

    def _mode(self, argument: str) -> None:
        if argument and argument not in MODES:
            raise UserError(f"there is no mode `{argument}`", f"modes: {', '.join(MODES)}")
        if argument in DRAFT_MODES and self._runtime.draft is None:
            raise UserError(
                f"mode {argument} needs a draft model", "start again with -md FILE, or use /mode ngram"
            )
        if argument:
            self._decider.choose_mode(next((mode for mode in _MODES if mode == argument), None))
        choice = self._decider.choice
        say(f"mode {choice.settings.mode}: {choice.reason}")

    def _stats(self, _argument: str) -> None:
        self._shows_stats = not self._shows_stats
        choice = self._last_choice
        if self._last is not None and choice is not None:
            say("\n".join(figures.table(choice.settings, choice.reason, self._last.summary)))
        say(f"a line of figures after each answer: {'on' if self._shows_stats else 'off'}")

    def _regenerate(self, _argument: str) -> None:
        self._answer(self._conversation.regenerate())

    def _undo(self, _argument: str) -> None:
        self._conversation = self._conversation.undo()
        say(f"taken back; questions left: {len(self._conversation.turns) // 2}")

    def _clear(self, _argument: str) -> None:
        self._conversation = self._conversation.clear()
        say("a new conversation")

    def _system(self, argument: str) -> None:
        if argument:
            self._conversation = self._conversation.with_system("" if argument == "-" else argument)
        say(f"system prompt: {self._conversation.system or 'none'}")

    def _temperature(self, argument: str) -> None:
        if argument:
            self._decider.set_temperature(_number(argument))
        say(f"temperature {self._decider.options.sampling.temperature:g}")

    def _color(self, _argument: str) -> None:
        if not self._colours and colours_unwanted():
            raise UserError(
                "NO_COLOR is set, so colours stay off", "start with --color to have them all the same"
            )
        self._colours = not self._colours
        say(LEGEND if self._colours else "colours off")

    def _exit(self, _argument: str) -> None:
        self._leaving = True


def _number(text: str) -> float:
    try:
        return decimal(0, 100)(text)
    except argparse.ArgumentTypeError as error:
        raise UserError(f"/temp: {error}") from None
