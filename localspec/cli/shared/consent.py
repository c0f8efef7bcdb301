"""Calls of tools in the terminal: they are shown, and asked about."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from localspec.chat.answer_turns import AnswerTurn
from localspec.chat.messages import StoredMessage
from localspec.chat.tool_use.consent import CallAsked, Decision
from localspec.chat.tool_use.described import (
    describe_arguments,
    describe_run,
    describe_wish,
    shown_call,
    why_failed,
)
from localspec.cli.shared.console import is_terminal, on_interrupt, say
from localspec.safe_text import safe_line, safe_text

_LONGEST_PREVIEW = 500  # lines


class ConsoleConsent:
    """Asks in the terminal whether a call may run; where no user can answer, it may not."""

    def __init__(self, turn: AnswerTurn) -> None:
        self._turn = turn

    def ask(self, asked: CallAsked) -> None:
        """Ask about a call, and decide; Ctrl+C stops the answer instead."""
        say(f"{describe_wish(asked.tool)}:")
        for line in _shown(shown_call(asked)):
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
    if result.run is None:
        return
    if result.is_step:
        say(safe_line(f"LocalSpec {describe_run(result.run)}: {result.content}"))
    else:
        why = f": {why_failed(result.content)}" if result.run.outcome == "failed" else ""
        say(f"← {describe_run(result.run)}{why}")


def _interrupt() -> None:
    raise KeyboardInterrupt


def _shown(text: str) -> Iterable[str]:
    lines = safe_text(text).splitlines()
    more = len(lines) - _LONGEST_PREVIEW
    return [*lines[:_LONGEST_PREVIEW], *([f"[{more:,} more lines]"] if more > 0 else [])]
