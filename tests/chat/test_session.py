"""What a user has chosen reaches the models; what is measured afterwards reaches the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.chat.answer_settings import (
    SessionRequest,
    TunedChoice,
    TunedLookup,
    nothing_known,
    with_auto,
)
from localspec.chat.answering import AnswerSaved
from localspec.chat.session import AnswerVariant, ChatSession
from localspec.chat.store import Store
from localspec.errors import UserError
from localspec.models.recommended import recommended_for
from localspec.smollm2 import SAMPLING
from localspec.storage.kept_caches import chat_name
from localspec.storage.profiles import Speculation, profiles
from localspec.types.request import EngineSettings, Message, Request, Sampling, TaskType
from tests.scripted import ScriptedModels, says


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "chats.db") as store:
        yield store


def session(
    store: Store, request: SessionRequest | None = None, tuned_for: TunedLookup = nothing_known
) -> ChatSession:
    return ChatSession(
        store, profiles(Path("nowhere")).good, request or SessionRequest(), tuned_for=tuned_for
    )


def ask(session: ChatSession, models: ScriptedModels, text: str = "hello") -> list[AnswerSaved]:
    session.chat.ask(text)
    return [event for event in session.answer(models) if isinstance(event, AnswerSaved)]


def test_auto_measures_once_and_may_step_down(store: Store) -> None:
    models, at = ScriptedModels(), session(store)
    ask(at, models)
    models.preferred = "sd"  # no one asks again
    ask(at, models)
    assert [request.settings.mode for request in models.requests] == ["ssd", "ssd"]
    assert all(request.steps_down for request in models.requests)


def test_only_chats_that_are_saved_may_be_on_disk(store: Store) -> None:
    models = ScriptedModels()
    with Store(None) as temporary:
        for each, expected in ((store, chat_name), (temporary, lambda _chat: None)):
            chosen = session(each)
            name = expected(chosen.chat.info.id)
            assert chosen.options(models).request.kept_as == name
            assert chosen.next_request(models, "and").kept_as == name


def test_a_budget_for_thinking_comes_from_the_chat_the_flags_or_the_profile(store: Store) -> None:
    def asked(flag: int | None = None, own: int | None = None, **settings: object) -> Request:
        request = SessionRequest(answer=Request("", thinking_budget=flag))
        at, models = session(store, request), ScriptedModels()
        at.new()
        at.shared.take_profiles(
            replace(known, thinking_budget=own) for known in profiles(Path("nowhere")).good
        )
        at.update_settings(thinking_budget=None, thinking=None)
        at.update_settings(**settings)
        ask(at, models)
        answered = models.requests[0]
        assert at.next_request(models, "next").template_variables == answered.template_variables
        return answered

    assert asked().thinking_budget is None
    assert asked(own=500).thinking_budget == 500
    assert asked(flag=-1, own=500).thinking_budget == -1
    assert asked(flag=300, own=500, thinking_budget=100).thinking_budget == 100
    for settings in ({"thinking_budget": 0}, {"thinking": False}):
        off = asked(own=500, **settings)
        assert (off.thinking_budget, off.template_variables) == (0, (("enable_thinking", False),))


def test_ratios_compare_with_plain_decoding_of_the_same_model(store: Store) -> None:
    at, first, others = session(store), ScriptedModels(), ScriptedModels()
    others.target = replace(others.target, path=Path("others.gguf"))
    others.plain = None
    (_, rated) = ask(at, first)
    assert rated.record is not None
    assert rated.record.plain is not None
    assert len(ask(at, ScriptedModels())) == 2  # the same file, opened again
    assert len(ask(at, others)) == 1


def test_a_mode_that_was_asked_for_waits_for_a_draft_model(store: Store) -> None:
    at = session(store, SessionRequest(speculation=Speculation(mode="sd")))
    alone = ScriptedModels(has_draft=False)
    ask(at, alone)
    ask(at, ScriptedModels())
    assert (alone.requests[0].settings.mode, at.mode) == ("ngram", "sd")


def test_auto_measures_again_when_the_models_were_opened_again(store: Store) -> None:
    at, first, second = session(store), ScriptedModels(), ScriptedModels()
    second.preferred = "sd"
    ask(at, first)
    ask(at, second)
    assert second.requests[0].settings.mode == "sd"


def test_named_mode_rests_where_it_loses_unless_modes_are_compared(store: Store) -> None:
    models, at = ScriptedModels(), session(store, SessionRequest(Speculation(mode="sd")))
    ask(at, models)
    assert (models.requests[0].settings.mode, models.requests[0].steps_down) == ("sd", True)
    list(at.answer(models, variant=AnswerVariant("ssd")))
    assert (models.requests[1].settings.mode, models.requests[1].steps_down) == ("ssd", False)
    assert [request.measures_first for request in models.requests] == [False, True]


def test_flags_go_before_the_profile_and_the_temperature_before_both(store: Store) -> None:
    at = session(store, SessionRequest(sampling={"top_k": 7}, system="Be brief."))
    at.choose_profile("writing")
    assert (at.sampling(None).top_k, at.sampling(None).temperature) == (7, 0.9)
    at.update_settings(temperature=0.1)
    assert at.sampling(None).temperature == 0.1
    models = ScriptedModels()
    ask(at, models)
    assert models.requests[0].prompt[0] == Message("system", "Be brief.")


def test_what_a_chat_settles_belongs_to_it_and_outlasts_the_program(store: Store) -> None:
    request = SessionRequest(Speculation(mode="sd"), answer=Request("", max_tokens=9))
    at, models = session(store, request), ScriptedModels()
    at.update_settings(mode="off", top_k=3, max_tokens=5, thinking=False)
    at.update_settings(seed=7, ignores_circles=True)
    ask(at, models)
    at.new()
    ask(at, models)
    chats = session(store, request)
    chats.open(min(chat.id for chat in store.chats()))
    ask(chats, models, "again")
    own, new, again = models.requests
    for found in (own, again):
        assert (found.settings.mode, found.sampling.top_k, found.max_tokens) == ("off", 3, 5)
        assert (found.ignores_circles, found.template_variables) == (True, (("enable_thinking", False),))
    assert (new.settings.mode, new.sampling.top_k, new.max_tokens) == ("sd", 40, 9)
    assert (new.ignores_circles, new.template_variables) == (False, ())
    chats.update_settings(mode=None, max_tokens=None)
    assert (chats.mode, chats.options(models).request.max_tokens) == ("sd", 9)


def test_auto_goes_before_a_flag_and_before_the_mode_of_a_profile(store: Store, tmp_path: Path) -> None:
    text = 'title = "Plain"\ntask = "writing"\nspeculation.mode = "off"'
    (tmp_path / "plain.toml").write_text(text, encoding="utf-8")
    request = SessionRequest(Speculation(mode="sd"))
    at, models = ChatSession(store, profiles(tmp_path).good, request, "plain"), ScriptedModels()
    assert at.options(models).request.settings.mode == "sd"
    at.update_settings(mode="auto")
    assert at.options(models).request.settings.mode == "ssd"  # which the models measured


def test_a_chat_in_a_mode_that_other_models_cannot_do_is_answered_all_the_same(store: Store) -> None:
    at = session(store)
    at.update_settings(mode="ssd")
    models = ScriptedModels(has_draft=False)
    ask(at, models)
    assert models.requests[0].settings.mode in ("off", "ngram")


def test_smollm2_is_sampled_as_its_gpu_says_unless_someone_settled_it(
    store: Store, tmp_path: Path, seeming_smollm2: Path
) -> None:
    text = 'title = "Poems"\ntask = "writing"\nsampling.temperature = 1.5'
    (tmp_path / "poems.toml").write_text(text, encoding="utf-8")
    request = SessionRequest(sampling={"top_k": 7})
    at, models = ChatSession(store, profiles(tmp_path).good, request), ScriptedModels()
    ask(at, models)
    assert models.requests[-1].sampling == Sampling(top_k=7)
    models.target = replace(models.target, recommended=recommended_for(seeming_smollm2))  # others were opened
    ask(at, models, "Once more")
    assert models.requests[-1].sampling == at.sampling(models) == replace(SAMPLING, top_k=7)
    at.choose_profile("poems")
    assert at.sampling(models) == replace(SAMPLING, temperature=1.5, top_k=7)


def test_profile_belongs_to_the_chat_and_its_prompt_to_the_next_message(store: Store) -> None:
    at, models = session(store), ScriptedModels()
    at.choose_profile("coding")
    ask(at, models)
    first = at.chat.info.id
    at.new()
    assert at.profile.name == "general"  # new chats take the default one
    at.choose_profile("writing")
    at.open(first)
    assert at.profile.name == "coding"
    assert at.chat.system == at.profile.system_prompt


def test_unknown_profile_is_rejected(store: Store) -> None:
    with pytest.raises(UserError, match="no profile `cooking`"):
        session(store).choose_profile("cooking")


def test_given_seed_gives_another_answer_each_time_and_the_same_ones_again(store: Store) -> None:
    seeds = []
    for _ in range(2):
        models, at = ScriptedModels(), session(store, SessionRequest(answer=Request("", seed=2**63 - 1)))
        ask(at, models)
        ask(at, models)
        seeds.append([request.seed for request in models.requests])
    assert seeds == [[2**63 - 1, -(2**63)]] * 2


def test_speculated_answer_is_compared_with_plain_decoding_measured_at_its_depth(store: Store) -> None:
    at, models = session(store), ScriptedModels(says("word " * 40))
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
    at, models = session(store, SessionRequest(Speculation(mode="off"))), ScriptedModels(says("word " * 100))
    models.plain = None  # measuring would give nothing
    assert len(ask(at, models)) == 1
    at.update_settings(mode="sd")
    _, rated = ask(at, models, "again")
    assert rated.record is not None
    assert rated.record.plain is not None


def test_left_out_exchanges_can_come_back(store: Store) -> None:
    at, models = session(store), ScriptedModels()
    ask(at, models, "first")
    ask(at, models, "second")
    ids = [message.id for message in at.chat.path[:2]]
    at.chat.leave_out(ids)
    assert [message.dropped for message in at.chat.path] == [True, True, False, False]
    at.chat.leave_out([])
    assert not any(message.dropped for message in at.chat.path)


def test_last_chat_is_open_again(store: Store) -> None:
    at = session(store)
    ask(at, ScriptedModels(), "remember me")
    assert session(store).chat.path[0].content == "remember me"


def test_profile_of_the_command_line_begins_a_chat_of_its_own(store: Store) -> None:
    ask(session(store), ScriptedModels(), "remember me")
    fresh = ChatSession(store, profiles(Path("nowhere")).good, SessionRequest(), "coding", start="new")
    assert fresh.chat.path == ()
    assert fresh.profile.name == "coding"


def test_search_without_words_shows_the_latest_chats(store: Store) -> None:
    at = session(store)
    ask(at, ScriptedModels(), "about boats")
    at.new()
    ask(at, ScriptedModels(), "about trains")
    assert [hit.chat.title for hit in at.search(" ")] == ["about trains", "about boats"]
    assert at.search("boats")[0].chat.title == "about boats"


CODE, TALK = "Write a Python function that adds two numbers.", "What should I cook tonight?"
FOUND: dict[TaskType, TunedChoice] = {
    "coding": TunedChoice(EngineSettings(mode="sd", draft_length=7), "tuned today: 2.0x plain (1.9-2.1)"),
    "dialogue": TunedChoice(EngineSettings(mode="off"), "tuned today: nothing beats plain decoding"),
}


def test_next_message_under_another_profile_has_its_tuned_settings(store: Store) -> None:
    models, at = ScriptedModels(), session(store, tuned_for=FOUND.get)
    ask(at, models)
    at.choose_profile("coding")
    ask(at, models)
    assert [request.settings.mode for request in models.requests] == ["off", "sd"]
    assert models.requests[1].settings.draft_length == 7
    assert models.requests[1].steps_down
    assert at.in_use is not None
    assert at.in_use.reason == "tuned today: 2.0x plain (1.9-2.1)"


def test_flags_go_before_what_was_tuned(store: Store) -> None:
    request = SessionRequest(speculation=Speculation(draft_length=2))
    models, at = ScriptedModels(), session(store, request, FOUND.get)
    at.choose_profile("coding")
    ask(at, models)
    assert (models.requests[0].settings.mode, models.requests[0].settings.draft_length) == ("sd", 2)


def test_auto_follows_each_message_under_one_system_prompt(store: Store) -> None:
    models, at = ScriptedModels(), session(store, tuned_for=FOUND.get)
    at.choose_profile("auto")
    followed, shown = [], []
    for text in (TALK, CODE, "Make it shorter.", TALK):
        ask(at, models, text)
        assert at.in_use is not None
        followed.append(at.in_use.profile)
        shown.append(at.route_shown(at.in_use.profile))
    assert followed == ["general", "coding", "coding", "general"]
    assert shown[0] == "profile auto: general"
    known = {profile.name: profile for profile in at.profiles}
    assert [request.settings.mode for request in models.requests] == ["off", "sd", "sd", "off"]
    assert [request.sampling for request in models.requests] == [known[name].sampling for name in followed]
    assert {request.prompt[0] for request in models.requests} == {
        Message("system", known["general"].system_prompt)
    }


def test_auto_is_kept_with_the_chat_and_pinned_by_a_profile(store: Store) -> None:
    at = session(store)
    at.choose_profile("auto")
    ask(at, ScriptedModels(), CODE)
    at = session(store)
    assert (at.profile.title, at.followed.name) == ("Auto", "coding")
    at.choose_profile("writing")
    assert at.followed.name == "writing"
    assert at.route_shown("writing") == ""
    at.choose_profile("auto")
    assert at.followed.name == "coding"


def test_file_of_ones_own_named_auto_is_a_profile_like_others() -> None:
    own = replace(profiles(Path("nowhere")).named("writing"), name="auto", title="Mine")
    assert [profile.title for profile in with_auto([*profiles(Path("nowhere")), own])].count("Mine") == 1
    assert "Auto" not in [profile.title for profile in with_auto([*profiles(Path("nowhere")), own])]


def test_what_is_stale_is_reported_once_also_after_the_models_were_opened_again(store: Store) -> None:
    stale = TunedChoice(None, "", "tuned settings are from other files")
    at = session(store, tuned_for=lambda _task: stale)
    assert at.shared.take_notices() == ()
    ask(at, ScriptedModels())
    assert at.shared.take_notices() == ("tuned settings are from other files",)
    ask(at, ScriptedModels())
    assert at.shared.take_notices() == ()
