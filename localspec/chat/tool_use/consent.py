"""The user's consent to a call: asked by the answer that waits, given by whatever front end there is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from localspec.chat.tool_use.background import T, ends_before, in_background
from localspec.errors import Cancelled
from localspec.tools.tool import Arguments, Tool
from localspec.types.request import ToolCall

Leave = Literal["allowed", "refused", "ask"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the rules allow a call, or the user has to be asked; `because` names the rule.

    `always` is the rule that would allow such calls from then on, empty if there can be none.
    """

    leave: Leave
    because: str = ""
    always: str = ""


Judge = Callable[[Tool, Arguments], Verdict]
"""Applies the rules to a call."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The user's answer about a call: allowed, maybe always from now on, or refused with a word."""

    is_allowed: bool
    is_always: bool = False
    word: str = ""


@dataclass(frozen=True, slots=True)
class CallAsked:
    """A call waits for consent; `preview` shows in Markdown what it would do, unless its arguments do.

    `always` is the rule that "always" makes, empty if such a call has to be asked each time.
    """

    call: ToolCall
    tool: Tool
    preview: str = ""
    always: str = ""


class ConsentDesk:
    """Where one answer asks, and waits for decisions; `stopped` ends the waiting, and the calls that run."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._changed = threading.Condition()
        self._decisions: dict[str, Decision] = {}
        self.asked: CallAsked | None = None

    def ask(self, asked: CallAsked) -> None:
        """Put a call on the desk."""
        with self._changed:
            self._decisions.pop(asked.call.id, None)
            self.asked = asked

    def decide(self, call_id: str, decision: Decision) -> bool:
        """Decide about the call that waits; return False for one that does not, and change nothing."""
        with self._changed:
            if self.asked is None or self.asked.call.id != call_id:
                return False
            self.asked = None
            self._decisions[call_id] = decision
            self._changed.notify_all()
            return True

    def wait(self, call_id: str) -> Decision:
        """Return the decision about a call that was asked; raises `Cancelled` once the answer is stopped."""
        with self._changed:
            self._changed.wait_for(lambda: call_id in self._decisions or self.stopped.is_set())
            if call_id not in self._decisions:
                self.asked = None
                raise Cancelled("stopped")
            return self._decisions.pop(call_id)

    def until_stopped(self, work: Callable[[], T]) -> T:
        """Do work that may take long, and return its result; raises `Cancelled` once the answer is stopped.

        The work then goes on by itself, and nothing waits for it.
        """
        result = in_background(work, "tools")
        if not ends_before(result, self.stopped):
            raise Cancelled("stopped")
        return result.result()

    def stop(self) -> None:
        """End the waiting and the calls that run; any thread may call it."""
        self.stopped.set()
        with self._changed:
            self._changed.notify_all()
