"""The tools of one answer: offered to each of its messages, and their calls run until its rounds end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from localspec.chat.answering import AnswerEvent, ResultSaved
from localspec.chat.messages import StoredMessage
from localspec.chat.open_chat import OpenChat
from localspec.chat.tool_use.calls_run import CallEnded, run_calls
from localspec.chat.tool_use.consent import ConsentDesk
from localspec.chat.tool_use.kit import OfferedTools, ToolKit
from localspec.chat.tool_use.offer import ToolOffer
from localspec.tools.results import unmarked

SAME_ROUNDS = 3  # of the same calls with the same results, after which the answer comes without tools


class AnswerTools:
    """What one answer may call, and what it has called; results have at most `most` characters together."""

    def __init__(
        self, kit: ToolKit, offered: OfferedTools, offer: ToolOffer, desk: ConsentDesk, most: int
    ) -> None:
        self._kit, self._offered, self._offer, self._desk, self._most = kit, offered, offer, desk, most
        self._rounds = 0
        self._latest = deque[tuple[object, ...]](maxlen=SAME_ROUNDS)  # calls with their results

    @property
    def offer(self) -> ToolOffer | None:
        """The offer to the next message; None where that is to answer without tools."""
        goes_in_circles = len(self._latest) == SAME_ROUNDS and len({*self._latest}) == 1
        return None if goes_in_circles or self._rounds == self._kit.most_rounds else self._offer

    def results(self, chat: OpenChat, answer: StoredMessage) -> Iterator[AnswerEvent]:
        """Run the calls of a message, and save their results below it."""
        below, texts = answer.id, list[str]()
        most = self._most // len(answer.calls)
        for step in run_calls(answer.calls, self._offered, self._kit, self._desk, most):
            if not isinstance(step, CallEnded):
                yield step
                continue
            saved = chat.add_result(below, step.text, step.run)
            below = saved.id
            texts.append(unmarked(step.text))
            yield ResultSaved(saved)
        self._rounds += 1
        self._latest.append((*((call.name, call.arguments) for call in answer.calls), *texts))
