from __future__ import annotations

import threading
from pathlib import Path

from localspec.chat.answering import AnswerSaved, LiveAnswer, LiveUpdate, Started
from localspec.chat.messages import StoredMessage
from localspec.chat.open_chat import OpenChat
from localspec.chat.store import Store
from localspec.errors import EngineDied
from localspec.types.drafts import DraftOrigin, Provenance
from localspec.types.events import (
    Finished,
    ModeChanged,
    PromptProgress,
    RoundDone,
    RoundStats,
    Summary,
    TextDelta,
    TextPiece,
)
from tests.chat.talk import options, record
from tests.scripted import MARKDOWN, ScriptedModels, says

STATS = RoundStats(2, 1, DraftOrigin.FRESH, 0.03, 0.01, 0.0, 0.001)
MESSAGE = StoredMessage(2, 1, 1, "assistant", "so ", 0.0, "writing")
STARTED = Started(MESSAGE, record())
TARGET, BONUS = Provenance.TARGET, Provenance.BONUS


def delta(*pieces: tuple[str, Provenance]) -> TextDelta:
    return TextDelta(tuple(TextPiece(text, provenance) for text, provenance in pieces))


def test_nothing_came_of_nothing() -> None:
    assert LiveAnswer().drain() == LiveUpdate()


def test_an_update_holds_all_that_came_and_only_once() -> None:
    live, saved = LiveAnswer(), AnswerSaved(MESSAGE, None)
    change, finished = ModeChanged("off", "it loses"), Finished("stop", Summary())
    for event in (
        STARTED,
        PromptProgress(1, 3),
        PromptProgress(2, 3),
        delta(("a", TARGET)),
        RoundDone(STATS, 2),
        change,
        delta(("b", TARGET), ("c", BONUS)),
        RoundDone(STATS, 1),
        finished,
        saved,
    ):
        live.take(event)
    update = live.drain()
    assert update.text == "abc"
    assert update == LiveUpdate(
        started=STARTED,
        pieces=(TextPiece("ab", TARGET), TextPiece("c", BONUS)),
        rounds=(RoundDone(STATS, 2), RoundDone(STATS, 1)),
        progress=PromptProgress(2, 3),
        changes=(change,),
        finished=finished,
        saved=saved,
    )
    assert live.drain() == LiveUpdate()


def test_a_failure_reaches_the_screen_next_to_what_came() -> None:
    live, error = LiveAnswer(), EngineDied("gone")
    live.take(delta(("a", TARGET)))
    live.take(error)
    update = live.drain()
    assert (update.text, update.error) == ("a", error)


def test_two_threads_lose_nothing_between_them(tmp_path: Path) -> None:
    live, ended = LiveAnswer(), threading.Event()

    def write() -> None:
        with Store(tmp_path / "chats.db") as store:
            chat = OpenChat(store, store.new_chat().id)
            chat.ask("one?")
            for event in chat.answer(ScriptedModels(says(*[MARKDOWN] * 20)), options()):
                live.take(event)
        ended.set()

    threading.Thread(target=write, daemon=True).start()
    updates = []
    while not ended.is_set():
        updates.append(live.drain())
    updates.append(live.drain())
    assert "".join(update.text for update in updates) == MARKDOWN * 20
    assert sum(update.saved is not None for update in updates) == 1
