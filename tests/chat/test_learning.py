"""Flags go before the profile, the profile before the tuner, the tuner before measured costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.chat.answer_settings import SettingsSelector, TunedChoice
from localspec.storage.profiles import Profile, Speculation, profiles
from localspec.types.request import EngineSettings, Mode, TaskType
from tests.scripted import ScriptedModels

CODING = profiles(Path("nowhere")).named("coding")
TUNED = EngineSettings(mode="sd", draft_length=5, draft_temperature=0.6, acceptance="match")
REASON = "tuned 2 days ago: 1.8x plain (1.7-1.9)"


class Notebook:
    """What a test says was tuned."""

    def __init__(self, *known: TunedChoice) -> None:
        self.known = list(known)
        self.asked: list[TaskType] = []
        self.said: list[str] = []

    def recall(self, task: TaskType) -> TunedChoice | None:
        self.asked.append(task)
        return self.known[0] if self.known else None

    def chooser(self, models: ScriptedModels | None = None) -> SettingsSelector:
        return SettingsSelector(models or ScriptedModels(), self.recall, self.said.append)


def under(speculation: Speculation) -> Profile:
    return replace(CODING, speculation=speculation)


def test_tuned_settings_are_used_and_say_why() -> None:
    choice = Notebook(TunedChoice(TUNED, REASON)).chooser().choose(CODING)
    assert (choice.settings, choice.reason) == (TUNED, REASON)


def test_profile_goes_before_the_tuner_and_flags_before_both() -> None:
    chooser = Notebook(TunedChoice(TUNED, REASON)).chooser()
    profile = under(Speculation(draft_length=3, draft_temperature=0.9))
    choice = chooser.choose(profile, Speculation(draft_length=2))
    assert choice.settings == replace(TUNED, draft_length=2, draft_temperature=0.9)
    assert choice.reason == REASON


def test_without_tuning_measured_costs_choose_the_mode() -> None:
    models = ScriptedModels()
    models.preferred = "off"
    chooser = Notebook().chooser(models)
    choice = chooser.choose(under(Speculation(draft_length=3)))
    assert choice.settings == EngineSettings(mode="off", draft_length=3, fallback="ngram")
    models.preferred = "sd"
    assert chooser.choose(CODING).settings.mode == "off"  # measured once


def test_repetitions_serve_as_drafts_unless_tuning_or_someone_says_otherwise() -> None:
    assert Notebook().chooser().choose(CODING).settings.fallback == "ngram"
    assert Notebook().chooser().choose(CODING, Speculation(mode="sd")).settings.fallback == "ngram"
    alone = Speculation(fallback="just-in-time")
    assert Notebook().chooser().choose(CODING, alone).settings.fallback == "just-in-time"
    assert Notebook(TunedChoice(TUNED, REASON)).chooser().choose(CODING).settings.fallback == TUNED.fallback


@pytest.mark.parametrize(("mode", "length"), [("sd", 5), ("ssd", 12), ("off", 12)])
def test_mode_asked_for_is_kept_and_takes_what_was_tuned_for_it(mode: Mode, length: int) -> None:
    choice = Notebook(TunedChoice(TUNED, REASON)).chooser().choose(CODING, Speculation(mode=mode))
    assert (choice.settings.mode, choice.settings.draft_length) == (mode, length)
    assert choice.reason == "asked for"


def test_mode_of_a_profile_is_its_own() -> None:
    choice = Notebook(TunedChoice(TUNED, REASON)).chooser().choose(under(Speculation(mode="ngram")))
    assert (choice.settings.mode, choice.reason) == ("ngram", "profile Coding")


def test_nothing_asks_for_a_draft_model_that_is_not_there() -> None:
    models = ScriptedModels()
    models.draft = None
    models.preferred = "ngram"
    chooser = Notebook(TunedChoice(TUNED, REASON)).chooser(models)
    choice = chooser.choose(under(Speculation(mode="sd")))
    assert (choice.settings.mode, choice.reason) == ("ngram", "the script prefers it")


def test_task_that_speculation_does_not_pay_for_stays_off() -> None:
    settings = EngineSettings(mode="off")
    choice = (
        Notebook(TunedChoice(settings, "tuned today: nothing beats plain decoding")).chooser().choose(CODING)
    )
    assert choice.settings.mode == "off"
    assert "nothing beats" in choice.reason


def test_stale_settings_are_reported_once_and_used_only_if_they_may_hold() -> None:
    notes = Notebook(
        TunedChoice(None, "", "tuned settings for coding are from other files; run `localspec tune`")
    )
    chooser = notes.chooser()
    for _ in range(2):
        assert chooser.choose(CODING).reason == "the script prefers it"
    assert len(notes.said) == 1
    notes = Notebook(TunedChoice(TUNED, REASON, "tuned settings for coding are from another driver"))
    assert notes.chooser().choose(CODING).settings == TUNED
    assert notes.said == ["tuned settings for coding are from another driver"]


def test_each_task_is_looked_up_once() -> None:
    notes = Notebook()
    chooser = notes.chooser()
    for profile in (CODING, CODING, replace(CODING, task="writing"), CODING):
        chooser.choose(profile)
    assert notes.asked == ["coding", "writing"]
