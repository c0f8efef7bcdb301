"""Tools on the command line: who uses them, and the question whether a call may run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from localspec.app.opening import OpenedPair
from localspec.chat.answer_settings import AnswerOptions, SessionRequest
from localspec.chat.answer_turns import AnswerTurn, AnswerTurns
from localspec.chat.messages import Attachment, StoredMessage
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.chat.tool_use.consent import CallAsked, Decision
from localspec.chat.tool_use.described import describe_arguments, describe_run, describe_wish, first_line
from localspec.chat.tool_use.kit import ToolKit
from localspec.cli.shared import opening
from localspec.cli.shared.answer import AnswerOutput, StreamedAnswer, write_answer
from localspec.cli.shared.console import is_terminal, on_interrupt, say
from localspec.errors import UserError
from localspec.inference.worker.client import Worker
from localspec.safe_text import safe_line, safe_text
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir
from localspec.storage.profiles import Profile

_LONGEST_PREVIEW = 60  # lines


def use_tools(session: ChatSession, args: argparse.Namespace) -> None:
    """Give a session its tools, and switch those of the flags on; raises UserError for another name."""

    def make() -> ToolKit:
        from localspec.app.tools import tool_kit  # no start waits for it

        return tool_kit(read_config(config_dir() / "config.toml"), Path.cwd(), yes=args.yes)

    session.make_kit = make
    if args.tools is None:
        return
    names = [name for name in args.tools.replace(",", " ").split() if name]
    assert session.kit is not None  # it was just given
    if unknown := [name for name in names if name not in session.kit.boxes]:
        raise UserError(f"there are no tools `{unknown[0]}`", f"tools: {', '.join(session.kit.boxes)}")
    session.update_settings(tools=tuple(names))


def answered_with_tools(
    args: argparse.Namespace,
    pair: OpenedPair[Worker],
    settings: tuple[SessionRequest, Sequence[Profile]],
    text: str,
    attached: Sequence[Attachment],
) -> tuple[AnswerOptions, StreamedAnswer]:
    """Answer in a chat that is not saved, whose model may call tools."""
    asked, profiles = settings
    turn = AnswerTurn(AnswerTurns())
    with Store(None) as store:
        session = ChatSession(
            store, profiles, asked, profiles[0].name, start="aside", tuned_for=pair.tuned_for
        )
        use_tools(session, args)
        session.chat.ask(text, attached)
        try:
            with turn.taken(pair.models):
                events = session.answer(pair.models, turn)
                answer = write_answer(pair.models, events, AnswerOutput.asked(args), turn=turn)
        finally:
            session.close()
        for notice in session.take_notices():
            opening.note(notice)
        assert session.in_use is not None  # of the answer
        return session.in_use, answer


class ConsoleConsent:
    """Asks in the terminal whether a call may run; where no user can answer, it may not."""

    def __init__(self, turn: AnswerTurn) -> None:
        self._turn = turn

    def ask(self, asked: CallAsked) -> None:
        """Ask about a call, and decide; Ctrl+C stops the answer instead."""
        say(f"{describe_wish(asked.tool)}:")
        for line in _shown(asked.preview or describe_arguments(asked.call.arguments)):
            say(f"  {line}")
        if not is_terminal(sys.stdin):
            say("note: it is not run, because standard input is no terminal; --yes RULE allows such calls")
            self._turn.desk.decide(asked.call.id, Decision(False, word="there is no user to ask"))
            return
        decision = self._asked(asked)
        if decision is None:
            self._turn.cancel()
        else:
            self._turn.desk.decide(asked.call.id, decision)

    def _asked(self, asked: CallAsked) -> Decision | None:
        always = ", a for always here" if asked.always else ""
        sys.stderr.write(f"Allow it? y for yes{always}, or say what to do instead: ")
        sys.stderr.flush()
        with on_interrupt(_interrupt):
            try:
                word = input().strip()
            except (EOFError, KeyboardInterrupt):
                say("")
                return None
        if word.lower() in ("y", "yes"):
            return Decision(True)
        if word.lower() in ("a", "always") and asked.always:
            return Decision(True, is_always=True)
        return Decision(False, word="" if word.lower() in ("n", "no") else word)


def tell_calls(answer: StoredMessage) -> None:
    """Print the calls of an answer."""
    for call in answer.calls:
        say(safe_line(f"→ {call.name}  {describe_arguments(call.arguments)}"))


def tell_result(result: StoredMessage) -> None:
    """Print how a call was run."""
    if result.run is not None:
        why = f": {first_line(result.content)}" if result.run.outcome == "failed" else ""
        say(f"← {describe_run(result.run)}{why}")


def _interrupt() -> None:
    raise KeyboardInterrupt


def _shown(text: str) -> Iterable[str]:
    lines = safe_text(text).splitlines()
    more = len(lines) - _LONGEST_PREVIEW
    return [*lines[:_LONGEST_PREVIEW], *([f"[{more:,} more lines]"] if more > 0 else [])]
