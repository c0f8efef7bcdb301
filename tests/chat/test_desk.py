"""What a person has chosen reaches the models; what is measured afterwards reaches the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.chat.desk import Desk, Wishes
from localspec.chat.open_chat import Saved
from localspec.chat.store import Store
from localspec.errors import UserError
from localspec.profiles import profiles
from localspec.testing.scripted import ScriptedModels, says
from localspec.types import Message


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "chats.db") as store:
        yield store


def desk(store: Store, wishes: Wishes | None = None) -> Desk:
    return Desk(store, profiles(Path("nowhere")).good, wishes or Wishes())


def ask(desk: Desk, models: ScriptedModels, text: str = "hello") -> list[Saved]:
    desk.chat.ask(text)
    return [event for event in desk.answer(models) if isinstance(event, Saved)]


def test_auto_measures_once_and_may_step_down(store: Store) -> None:
    models, at = ScriptedModels(), desk(store)
    ask(at, models)
    models.preferred = "sd"  # nobody asks again
    ask(at, models)
    assert [request.settings.mode for request in models.requests] == ["ssd", "ssd"]
    assert all(request.steps_down for request in models.requests)


def test_auto_measures_anew_when_the_models_were_opened_again(store: Store) -> None:
    at, first, second = desk(store), ScriptedModels(), ScriptedModels()
    second.preferred = "sd"
    ask(at, first)
    ask(at, second)
    assert second.requests[0].settings.mode == "sd"


def test_named_mode_is_kept_whatever_happens(store: Store) -> None:
    models, at = ScriptedModels(), desk(store, Wishes(mode="sd"))
    ask(at, models)
    assert (models.requests[0].settings.mode, models.requests[0].steps_down) == ("sd", False)


def test_flags_go_before_the_profile_and_the_temperature_before_both(store: Store) -> None:
    at = desk(store, Wishes(sampling=lambda sampling: replace(sampling, top_k=7), system="Be brief."))
    at.choose_profile("writing")
    assert (at.sampling.top_k, at.sampling.temperature) == (7, 0.9)
    at.temperature = 0.1
    assert at.sampling.temperature == 0.1
    models = ScriptedModels()
    ask(at, models)
    assert models.requests[0].prompt[0] == Message("system", "Be brief.")


def test_profile_belongs_to_the_chat_and_its_prompt_to_the_next_message(store: Store) -> None:
    at, models = desk(store), ScriptedModels()
    at.choose_profile("coding")
    ask(at, models)
    first = at.chat.info.id
    at.new()
    assert at.profile.name == "coding"
    at.choose_profile("writing")
    at.open(first)
    assert at.profile.name == "coding"
    assert at.system == at.profile.system_prompt


def test_unknown_profile_is_refused(store: Store) -> None:
    with pytest.raises(UserError, match="no profile `cooking`"):
        desk(store).choose_profile("cooking")


def test_given_seed_gives_another_answer_each_time_and_the_same_ones_again(store: Store) -> None:
    seeds = []
    for _ in range(2):
        models, at = ScriptedModels(), desk(store, Wishes(seed=2**32 - 1))
        ask(at, models)
        ask(at, models)
        seeds.append([request.seed for request in models.requests])
    assert seeds == [[2**32 - 1, 0]] * 2


def test_speculated_answer_is_compared_with_plain_decoding_measured_at_its_depth(store: Store) -> None:
    at, models = desk(store), ScriptedModels(says("word " * 40))
    models.plain = 20.0
    first, second = ask(at, models)
    assert first.record is not None
    assert first.record.plain is None
    assert second.record is not None
    assert second.record.plain is not None
    assert second.record.plain.tokens_per_s == 20.0
    kept = store.record(second.message.id)
    assert kept is not None
    assert kept.plain == second.record.plain


def test_plain_answer_is_itself_a_measurement(store: Store) -> None:
    at, models = desk(store, Wishes(mode="off")), ScriptedModels(says("word " * 100))
    models.plain = None  # measuring would give nothing
    assert len(ask(at, models)) == 1
    at.choose_mode("sd")
    _, rated = ask(at, models, "again")
    assert rated.record is not None
    assert rated.record.plain is not None


def test_left_out_exchanges_can_come_back(store: Store) -> None:
    at, models = desk(store), ScriptedModels()
    ask(at, models, "first")
    ask(at, models, "second")
    ids = [message.id for message in at.chat.path[:2]]
    at.leave_out(ids)
    assert [message.dropped for message in at.chat.path] == [True, True, False, False]
    at.leave_out([])
    assert not any(message.dropped for message in at.chat.path)


def test_last_chat_is_open_again(store: Store) -> None:
    at = desk(store)
    ask(at, ScriptedModels(), "remember me")
    assert desk(store).chat.path[0].content == "remember me"


def test_profile_of_the_command_line_begins_a_chat_of_its_own(store: Store) -> None:
    ask(desk(store), ScriptedModels(), "remember me")
    fresh = Desk(store, profiles(Path("nowhere")).good, Wishes(), "coding", resumes=False)
    assert fresh.chat.path == ()
    assert fresh.profile.name == "coding"


def test_search_without_words_shows_the_latest_chats(store: Store) -> None:
    at = desk(store)
    ask(at, ScriptedModels(), "about boats")
    at.new()
    ask(at, ScriptedModels(), "about trains")
    assert [hit.chat.title for hit in at.search(" ")] == ["about trains", "about boats"]
    assert at.search("boats")[0].chat.title == "about boats"
