"""What tests about open chats share."""

from __future__ import annotations

from collections.abc import Iterable

from localspec.chat.answer_settings import AnswerOptions
from localspec.chat.answering import AnswerEvent, AnswerSaved
from localspec.chat.messages import AnswerRecord, State, StoredMessage
from localspec.chat.open_chat import OpenChat
from localspec.chat.plain_rates import PlainRates
from localspec.chat.store import Store
from localspec.types.events import Summary, TextDelta
from localspec.types.models import PlainRate
from localspec.types.request import EngineSettings, Mode, Request, Sampling
from tests.scripted import ScriptedModels, Step, says


def options(mode: Mode = "ssd", *, seed: int | None = 7) -> AnswerOptions:
    return AnswerOptions(
        Request("", Sampling(), EngineSettings(mode=mode), seed=seed), "asked for", "general"
    )


def record(mode: Mode = "ssd", summary: Summary | None = None) -> AnswerRecord:
    return AnswerRecord(
        mode,
        "asked for",
        EngineSettings(mode=mode),
        Sampling(),
        7,
        "general",
        "large",
        "small",
        summary or Summary(),
    )


def ask(chat: OpenChat, question: str, *answer: Step) -> StoredMessage:
    """Ask, have it answered, and return the answer."""
    chat.ask(question)
    return answer_again(chat, *answer)


def answer_again(chat: OpenChat, *answer: Step) -> StoredMessage:
    *_, saved = chat.answer(ScriptedModels(says(*answer)), options())
    assert isinstance(saved, AnswerSaved)
    return saved.message


def texts(messages: Iterable[StoredMessage]) -> list[str]:
    return [message.content for message in messages]


def streamed(events: Iterable[AnswerEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def kept(chat: OpenChat, store: Store) -> tuple[str, State]:
    """Return what the store holds of the last message."""
    last = OpenChat(store, chat.info.id).path[-1]
    return last.content, last.state


def rates(*points: tuple[int, float]) -> PlainRates:
    """Return plain decoding as measured at some depths."""
    known = PlainRates()
    for depth, rate in points:
        known.add(PlainRate(depth, rate))
    return known
