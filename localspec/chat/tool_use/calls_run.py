"""Runs the calls of one answer: each checked, allowed or refused, and run to its end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from localspec.chat.messages import RunOutcome, ToolRun
from localspec.chat.schema_check import checked_arguments
from localspec.chat.tool_use.background import ends_before, in_background
from localspec.chat.tool_use.consent import CallAsked, ConsentDesk, Verdict
from localspec.chat.tool_use.kit import OfferedTools, ToolKit
from localspec.errors import Cancelled, LocalSpecError, UserError
from localspec.tools.tool import Arguments, Tell, Tool, ToolOutput, tell_nobody
from localspec.types.request import ToolCall

if TYPE_CHECKING:
    from concurrent.futures import Future

STOPPING_S = 2.0  # for a tool to end after the answer was stopped; then nothing waits for it any more
STOPPED = "The user stopped this before it ended."
_NOT_RUN = "This was not run: the user stopped the answer."


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call is being run."""

    call: ToolCall
    tool: Tool


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call has its result, `text` for the model, and what the tool returned if it was run."""

    run: ToolRun
    text: str
    output: ToolOutput | None = None


CallEvent = CallAsked | CallStarted | CallEnded


def run_calls(
    calls: Sequence[ToolCall],
    offered: OfferedTools,
    kit: ToolKit,
    desk: ConsentDesk,
    most: int = 10_000,
    tell: Tell = tell_nobody,
) -> Generator[CallEvent]:
    """Yield the steps of the calls of an answer; each call has one `CallEnded`, in the order of the calls.

    Results have at most `most` characters. `tell` hears what calls print, in threads of theirs.
    Nothing runs that neither a rule nor the user has allowed. Calls that only read run beside the others;
    one that writes, or runs something, waits for those before it and lets none begin before its end. After
    `desk.stop()` no call begins, and all that is left ends as stopped.
    """
    running: list[_RunningCall | CallEnded] = []
    for call in calls:
        step = yield from _prepared(call, offered, kit, desk, most, tell)
        if isinstance(step, CallEnded):
            running.append(step)
            continue
        if step.is_alone:
            yield from _ended(running, desk)
            running = []
        if desk.stopped.is_set():
            running.append(_not_run(call))
            continue
        step.start()
        yield CallStarted(call, step.tool)
        running.append(step)
        if step.is_alone:
            yield from _ended(running, desk)
            running = []
    yield from _ended(running, desk)


def _ended(running: Sequence[_RunningCall | CallEnded], desk: ConsentDesk) -> Generator[CallEnded]:
    for each in running:
        yield each if isinstance(each, CallEnded) else each.end(desk.stopped)


def _not_run(call: ToolCall) -> CallEnded:
    return CallEnded(ToolRun(call, "stopped"), _NOT_RUN)


def _prepared(
    call: ToolCall, offered: OfferedTools, kit: ToolKit, desk: ConsentDesk, most: int, tell: Tell
) -> Generator[CallEvent, None, _RunningCall | CallEnded]:
    """Check a call and have it allowed; return it ready to run, or its end."""
    if desk.stopped.is_set():
        return _not_run(call)
    if call.name not in offered.owners:
        return _failed(call, f"there is no tool `{call.name}`; tools: {', '.join(offered.owners)}")
    tool, box = offered.owners[call.name]
    try:
        arguments = arguments_of(call, tool)
        verdict = kit.judge(tool, arguments)
        if verdict.leave == "ask":
            asked = CallAsked(call, tool, box.preview(tool.name, arguments), verdict.always)
            verdict = yield from _asked(asked, kit, desk)
    except Cancelled:
        return _not_run(call)
    except LocalSpecError as error:
        return _failed(call, str(error), tool.source)
    if verdict.leave == "refused":
        refusal = f"This was not run: {verdict.because}."
        return CallEnded(ToolRun(call, "refused", tool.source, verdict.because), refusal)
    run = partial(box.run, tool.name, arguments, tell=tell)
    return _RunningCall(call, tool, run, lambda output: kit.present(tool, output, most), verdict.because)


def _asked(asked: CallAsked, kit: ToolKit, desk: ConsentDesk) -> Generator[CallEvent, None, Verdict]:
    """Ask the user about a call; raises `Cancelled` once the answer is stopped."""
    desk.ask(asked)
    yield asked
    decision = desk.wait(asked.call.id)
    if not decision.is_allowed:
        return Verdict("refused", f"the user refused it{f': {decision.word}' if decision.word else ''}")
    if decision.is_always and asked.always:
        kit.always(asked.always)
        return Verdict("allowed", f"the user always allows {asked.always} here")
    return Verdict("allowed", "the user allowed it")


def arguments_of(call: ToolCall, tool: Tool) -> Arguments:
    """Return the arguments of a call; raises `UserError` where they do not fit the tool's schema."""
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise UserError(f"the arguments of {call.name} are not JSON ({error})", "call it again") from None
    if not isinstance(value, dict):
        raise UserError(f"the arguments of {call.name} are not an object", "call it again with an object")
    for remark in checked_arguments(tool.as_function()).remarks(call.arguments or "{}", is_cut=False):
        raise UserError(remark.text, "call it again with arguments that fit")
    return value


def _failed(call: ToolCall, text: str, source: str = "") -> CallEnded:
    return CallEnded(ToolRun(call, "failed", source), f"Error: {text}", ToolOutput(text, is_error=True))


class _RunningCall:
    """A call in a thread of its own."""

    def __init__(
        self,
        call: ToolCall,
        tool: Tool,
        run: Callable[[threading.Event], ToolOutput],  # until that is set
        present: Callable[[ToolOutput], str],
        because: str,
    ) -> None:
        self.tool = tool
        self.is_alone = tool.effect in ("writes", "runs")
        self._call = call
        self._does = run
        self._present = present
        self._because = because
        self._stop = threading.Event()
        self._began_s = 0.0
        self._result: Future[tuple[ToolOutput, float]] | None = None

    def start(self) -> None:
        """Begin."""
        self._began_s = time.monotonic()
        self._result = in_background(self._run, self.tool.name)

    def _run(self) -> tuple[ToolOutput, float]:
        """Return the output, and the time at which it came."""
        try:
            return self._does(self._stop), time.monotonic()
        except Cancelled:
            raise
        except Exception as error:  # noqa: BLE001 - becomes the result of the call
            return ToolOutput(_flaw(self.tool, error), is_error=True), time.monotonic()

    def end(self, stopped: threading.Event) -> CallEnded:
        """Wait for the end, which comes soon once the answer is stopped."""
        assert self._result is not None  # it was started
        if not ends_before(self._result, stopped):
            self._stop.set()
        try:
            output, ended_s = self._result.result(STOPPING_S)
        except (Cancelled, TimeoutError):
            return self._ended("stopped", STOPPED, time.monotonic())
        outcome: RunOutcome = "done"
        if output.is_error:
            outcome = "stopped" if self._stop.is_set() else "failed"
        return replace(self._ended(outcome, self._present(output), ended_s), output=output)

    def _ended(self, outcome: RunOutcome, text: str, ended_s: float) -> CallEnded:
        seconds = ended_s - self._began_s
        return CallEnded(ToolRun(self._call, outcome, self.tool.source, self._because, seconds), text)


def _flaw(tool: Tool, error: Exception) -> str:
    """Return the reason why a call failed, for the model and the user."""
    if isinstance(error, LocalSpecError):
        return str(error)
    return f"{tool.name} failed: {type(error).__name__}: {error}"
