"""A long conversation: its older part is summarised by the model, and the newest exchanges stay."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from localspec.chat.answer_settings import thinking_variables
from localspec.chat.answering import Generate, Summarising
from localspec.chat.messages import AnswerRecord, StoredMessage
from localspec.chat.prompting import Count, context_budget, summarised, summary_turns, to_prompt, tokens_of
from localspec.chat.thinking import without_thinking
from localspec.errors import Cancelled, UserError
from localspec.types.events import (
    Finished,
    FinishReason,
    PromptProgress,
    RoundDone,
    TextDelta,
    ThinkingOpened,
)
from localspec.types.request import Message, Request
from localspec.units import counted, short

KEPT = 0.25  # share of the context that the newest exchanges may take, or half of the conversation
LONGEST = 0.25  # share of the context that a summary may take
_TYPICAL = 0.15  # of what it replaces
INSTRUCTION = """\
Summarise our conversation so far, so that you can go on from the summary alone. Write short notes in the \
language of the conversation. Keep names, numbers, dates, file names and code that still matter, what was \
decided and why, what I asked for, and what is still open. Leave out greetings and what was replaced later. \
Write only the summary."""
_REFUSED: dict[FinishReason, str] = {
    "circles": "it repeats itself",
    "context": "it was cut because the context is full",
    "length": "it was cut at its limit",
}
_HINT = "nothing has changed; /compact tries again, /room leaves exchanges out"


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a summary is to replace: all up to the message `place`. Sizes are in tokens."""

    place: int
    messages: int
    replaced: int
    stays: int  # of the prompt of the next answer, besides the summary
    longest: int
    prompt: tuple[Message, ...]  # that asks for it

    def seconds(self, records: Iterable[AnswerRecord]) -> float | None:
        """Return about how long it takes to write the summary and to read what is new after it.

        By the rates of earlier answers; None without any.
        """
        summaries = [record.summary for record in records]
        read = max(summaries, key=lambda each: each.new_prompt_tokens, default=None)
        written = next((each for each in reversed(summaries) if each.tokens_per_s), None)
        if read is None or written is None or not read.prompt_tokens_per_s or not written.tokens_per_s:
            return None
        length = min(self.longest, round(_TYPICAL * self.replaced))
        return length / written.tokens_per_s + (length + self.stays) / read.prompt_tokens_per_s

    def described(self, records: Iterable[AnswerRecord]) -> str:
        """Return in words what is summarised, and for about how long."""
        seconds = self.seconds(records)
        about = "" if seconds is None else f", about {short(seconds)}"
        return f"{counted(self.messages, 'message')}{about}"


def compaction(
    system: str,
    path: Sequence[StoredMessage],
    size: int,
    count: Count,
    instruction: str = "",
    *,
    tools: int = 0,
) -> Compaction:
    """Return the part of a branch that is to be summarised in a context of `size` tokens.

    Each answer's prompt has `tools` tokens of tools, too.
    The newest exchanges stay, at least the last. Raises `UserError` where nothing is left to summarise.
    """
    budget = context_budget(system, path, size, count, tools=tools)
    sizes = [0 if one.dropped else one.tokens for one in budget.exchanges]
    most = min(KEPT * size, sum(sizes) / 2)
    newest = accumulate(reversed(sizes))
    stay = max(1, sum(total <= most for total in newest))
    for older in range(len(sizes) - stay, 0, -1):
        place = budget.exchanges[older - 1].ids[-1]
        upto = _upto(path, place)
        asking = (*to_prompt(system, upto), Message("user", instruction or INSTRUCTION))
        earlier = tokens_of(summary_turns(summarised(path)[0]), count)
        replaced = sum(sizes[:older]) + earlier
        longest = min(round(LONGEST * size), replaced)
        if sum(sizes[:older]) and count(asking) + longest < size:
            stays = budget.taken(range(older)) - earlier
            return Compaction(place, len(upto), replaced, stays, longest, asking)
    raise UserError("there is nothing to summarise yet", "the newest exchange always stays")


def _upto(path: Sequence[StoredMessage], place: int) -> tuple[StoredMessage, ...]:
    end = next(number for number, message in enumerate(path, 1) if message.id == place)
    return tuple(path[:end])


def write_summary(
    wanted: Compaction, request: Request, generate: Generate, count: Count, described: str
) -> Generator[Summarising | PromptProgress, None, str]:
    """Have a summary written: yield its progress, and return it.

    Raises `Cancelled`, and `UserError` for one that is empty, in circles, cut or no gain.
    """
    text = ""
    tokens = 0
    reason = None
    events = generate(_asking(wanted, request))
    yield Summarising(described)
    try:
        for event in events:
            match event:
                case ThinkingOpened():
                    text += event.opening
                case TextDelta():
                    text += event.text
                case PromptProgress():
                    yield event
                case RoundDone():
                    tokens += event.tokens
                    yield Summarising(described, tokens)
                case Finished():
                    reason = event.reason
                case _:
                    pass
            if tokens > wanted.longest and reason is None:
                raise _refused(f"it is longer than {counted(wanted.longest, 'token')}")
    finally:
        if isinstance(events, Generator):  # stop the models at once
            events.close()
    if reason in {None, "cancelled"}:
        raise Cancelled("stopped; nothing has changed")
    return _checked(text, reason, wanted, count)


def _asking(wanted: Compaction, request: Request) -> Request:
    """Return the request for a summary: as the chat's answers are written, but without thinking."""
    return replace(
        request,
        prompt=wanted.prompt,
        max_tokens=None,  # so that circles are noticed
        ignores_circles=False,
        stop=(),
        thinking_budget=0,
        template_variables=thinking_variables(request.template_variables, 0),
    )


def _checked(text: str, reason: FinishReason | None, wanted: Compaction, count: Count) -> str:
    """Return a summary; raises `UserError` for one that is of no use."""
    summary = without_thinking(text).strip()
    if reason in _REFUSED:
        raise _refused(_REFUSED[reason])
    if not summary:
        raise _refused("it is empty")
    tokens = tokens_of(summary_turns(summary), count)
    if tokens >= wanted.replaced:
        raise _refused(f"it takes {tokens:,} tokens, and what it would replace {wanted.replaced:,}")
    return summary


def _refused(why: str) -> UserError:
    return UserError(f"the summary is not used: {why}", _HINT)
