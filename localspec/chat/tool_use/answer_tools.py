"""The tools of one answer: offered to each of its messages, and their calls run until its rounds end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from localspec.chat.messages import StoredMessage, ToolRun
from localspec.chat.tool_use.calls_run import CallEnded, CallEvent, run_calls
from localspec.chat.tool_use.consent import ConsentDesk
from localspec.chat.tool_use.kit import OfferedTools, ToolKit
from localspec.chat.tool_use.offer import ToolOffer
from localspec.tools.results import unmarked
from localspec.types.request import ToolCall

AGAIN = "[You made this call before, with the same result: take the next step, or answer.]"
ENOUGH = (
    "[No more tools can be called for this question. Answer it now in plain words with what you have found, "
    "and say what is missing.]"
)
SILENT = (
    "[You have said nothing. If something is still to be done, make the next call. "
    "If not, answer now in plain words: what you found, what you did, and what is missing.]"
)
LAST_WORD = (
    "[You have said nothing, and no tools can be called now. Answer in plain words with what you know or "
    "have found, and say what is missing.]"
)
NO_MORE = "this answer may make no more calls; ask again to go on"
_MOST_SILENT = 2  # messages of one answer
SAME_ROUNDS = 3  # of the same calls with the same results, after which the answer comes without tools
SAME_READS = 2  # if these calls only read files or compute: nothing can be different the next time


class AnswerTools:
    """What one answer may call, and what it has called; results have at most `most` characters together.

    It may make `most_calls`, or any number of them in the rounds that there are. Once there were calls, in
    this answer or before it (`made` of the offer), one that a block of code shows counts as well, unless the
    user refuses some.
    """

    def __init__(
        self,
        kit: ToolKit,
        offered: OfferedTools,
        offer: ToolOffer,
        desk: ConsentDesk,
        most: int,
        most_calls: int | None = None,
    ) -> None:
        self._kit = kit
        self._offered = offered
        self._offer = offer
        self._desk = desk
        self._most = most
        self._rounds = 0
        self._left = inf if most_calls is None else most_calls
        self._made = set[tuple[str, str, str]]()  # calls with their results
        self._calls = list[ToolCall]()
        self._was_refused = False  # one of the calls
        self._latest: tuple[object, ...] = ()  # calls with their results
        self._same = 0  # rounds that were alike
        self._silent = 0  # messages
        self._is_reminded = False
        self._most_same = SAME_ROUNDS

    @property
    def are_over(self) -> bool:
        """Whether the next message is to answer without tools."""
        goes_in_circles = self._same >= self._most_same
        is_to_speak = self._is_reminded and (not self._rounds or self._silent == _MOST_SILENT)
        return is_to_speak or goes_in_circles or self._rounds >= self._kit.most_rounds or self._left <= 0

    @property
    def offer(self) -> ToolOffer:
        """The offer to the next message."""
        if self.are_over:
            note = LAST_WORD if self._is_reminded else ENOUGH
            return replace(self._offer, note=note, asks_again=self._is_reminded, made=None)
        reminder = SILENT if self._is_reminded else ""
        takes_shown = (self._offer.made is not None or self._calls) and not self._was_refused
        made = tuple(self._calls) if takes_shown else None
        return replace(self._offer, reminder=reminder, asks_again=self._is_reminded, made=made)

    def go_on_after(self, message: StoredMessage) -> bool:
        """Return whether the answer goes on after a message: it calls, or is silent and asked for again.

        After results that is with tools, and once more without; without any results it is without tools.
        """
        if message.calls:
            return message.state == "complete"
        most = _MOST_SILENT if self._rounds else 1
        if not message.is_silent or self._silent >= most:
            return False
        self._silent += 1
        self._is_reminded = True
        return True

    def run(self, calls: Sequence[ToolCall]) -> Iterator[CallEvent]:
        """Run the calls of a message, as `run_calls` does; none of them once they are over."""
        are_over = self.are_over
        self._is_reminded = False
        if are_over:
            yield from map(self._not_run, calls)
            return
        beyond = [call for number, call in enumerate(calls) if number >= self._left]
        calls = calls[: len(calls) - len(beyond)]
        self._left -= len(calls)
        results = list[str]()
        for step in run_calls(calls, self._offered, self._kit, self._desk, self._most // len(calls)):
            if isinstance(step, CallEnded):
                self._calls.append(step.run.call)
                self._was_refused = self._was_refused or step.run.outcome in ("refused", "stopped")
                results.append(unmarked(step.text))
                made = (step.run.call.name, step.run.call.arguments, results[-1])
                yield replace(step, text=f"{step.text}\n{AGAIN}") if made in self._made else step
                self._made.add(made)
            else:
                yield step
        yield from map(self._not_run, beyond)
        self._rounds += 1
        latest = (*((call.name, call.arguments) for call in calls), *results)
        self._same = self._same + 1 if latest == self._latest else 1
        self._latest = latest
        self._most_same = SAME_READS if all(map(self._only_reads, calls)) else SAME_ROUNDS

    def _only_reads(self, call: ToolCall) -> bool:
        owner = self._offered.owners.get(call.name)
        return owner is not None and owner[0].effect in ("none", "reads")

    def _not_run(self, call: ToolCall) -> CallEnded:
        owner = self._offered.owners.get(call.name)
        source = "" if owner is None else owner[0].source
        return CallEnded(ToolRun(call, "refused", source, NO_MORE), f"This was not run: {NO_MORE}.")
