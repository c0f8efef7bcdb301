"""What a user settles: it takes effect, is kept where they say, and is found again at the next start."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Button, Static

from localspec.chat.messages import ChatSettings
from localspec.hardware.memory.needs import DEFAULT_CONTEXT
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir
from localspec.storage.profiles import shipped_files
from localspec.types.request import Message, Recommendation, Sampling, SamplingChoice
from localspec_tui.screens.settings import SettingRow, SettingsScreen
from tests.scripted import ScriptedModels
from tests.tui.desktop import Desktop, burst, desktop

pytestmark = pytest.mark.asyncio


def written(text: str) -> Path:
    """Return the user's config.toml, which says this."""
    path = config_dir() / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.slow
async def test_theme_is_kept_and_so_are_the_comments_of_the_file(tmp_path: Path) -> None:
    path = written("# mine\n\n[chat]\nsidebar = false  # too wide\n")
    async with desktop(tmp_path) as desk:
        await desk.enter("/theme nord")
        await desk.shows("theme nord, saved in config.toml")
    text = path.read_text(encoding="utf-8")
    assert read_config(path).theme == "nord"
    assert text.endswith("# mine\n\n[chat]\nsidebar = false  # too wide\n")


@pytest.mark.slow
async def test_theme_that_cannot_be_kept_is_reported_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    async with desktop(tmp_path) as desk:
        monkeypatch.setattr(tempfile, "mkstemp", refuse)
        await desk.enter("/theme nord")
        await desk.until(lambda: "config.toml`: Permission denied" in desk.status())
        assert desk.app.theme == "nord"
        monkeypatch.undo()


async def opened(desk: Desktop) -> SettingsScreen:
    """Open the settings."""
    await desk.press("ctrl+o")
    await desk.until(lambda: isinstance(desk.app.screen, SettingsScreen) and desk.app.screen.focused)
    assert isinstance(desk.app.screen, SettingsScreen)
    return desk.app.screen


def opens(context: int, trained: int) -> ScriptedModels:
    """Return models that are opened with a context shorter than what they were trained for."""
    scripted = ScriptedModels()
    scripted.target = replace(scripted.target, context=context, training_context=trained)
    return scripted


def row(screen: SettingsScreen, name: str) -> SettingRow:
    return next(row for row in screen.query(SettingRow) if row.setting.name == name)


@pytest.mark.slow
async def test_settings_typed_in_a_burst_are_kept_with_the_chat_and_survive_a_restart(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("one")
        await opened(desk)
        await burst(desk, ["down", *"0.3", "tab", *"7", "down", "down", *"0.2", "enter"])
        await desk.shows("saved: Temperature, Top-k, Min-p with this chat")
    async with desktop(tmp_path) as desk:
        await desk.answered("two")
        sampling = desk.models.requests[-1].sampling
        assert (sampling.temperature, sampling.top_k, sampling.min_p) == (0.3, 7, 0.2)
        screen = await opened(desk)
        await desk.shows("Temperature          0.3              this chat")
        await desk.press("down", "ctrl+r", "ctrl+s")
        await desk.until(lambda: desk.app.screen is not screen)
        assert desk.chat.session.sampling(None).temperature == Sampling().temperature
        assert desk.chat.session.sampling(None).top_k == 7


@pytest.mark.slow
async def test_wrong_value_is_reported_in_its_row_and_nothing_is_lost(tmp_path: Path) -> None:
    async with desktop(tmp_path, size=(80, 24)) as desk:
        screen = await opened(desk)
        await burst(desk, ["down", *"0.3", "down", *"many"])
        await desk.shows("many             a whole number, 0 to 1,000,000")
        await burst(desk, ["up", "ctrl+s"])
        await desk.until(lambda: screen.focused is row(screen, "top_k").field)
        await desk.press("escape")
        await desk.shows("Esc again discards the changes")
        await burst(desk, [*["backspace"] * 4, *"5", "ctrl+s"])
        await desk.shows("saved: Temperature, Top-k with this chat")
        assert desk.chat.session.sampling(None).top_k == 5
        await opened(desk)
        await desk.press("down", "ctrl+r", "escape", "escape")
        await desk.until(lambda: desk.app.screen is desk.chat)
        assert desk.chat.session.sampling(None).temperature == 0.3


@pytest.mark.slow
async def test_a_warning_names_keys_that_do_so_in_every_row(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        screen = await opened(desk)
        await desk.press("enter", "escape")  # a row of choices, where Enter takes the next one
        await desk.shows("Esc again discards the changes; Ctrl+S saves them with this chat.")
        await desk.press("down", "escape")  # the warning had gone
        assert desk.app.screen is screen
        await desk.shows("Esc again discards the changes; Ctrl+S saves them with this chat.")
        await desk.press("ctrl+s")
        await desk.shows("saved: Decoding with this chat")
        await opened(desk)
        await desk.press("ctrl+s")
        await desk.shows("no setting was changed")


@pytest.mark.slow
async def test_a_wrong_value_is_explained_below_the_rows_too(tmp_path: Path) -> None:
    async with desktop(tmp_path, size=(80, 24)) as desk:
        screen = await opened(desk)
        await burst(desk, ["down", "down", *"many", "ctrl+s"])
        hint = screen.query_one("#settings-hint", Static)
        await desk.until(lambda: str(hint.content) == "Top-k: a whole number, 0 to 1,000,000.")


@pytest.mark.slow
async def test_f3_saves_in_the_configuration_or_says_why_it_cannot(tmp_path: Path) -> None:
    path = config_dir() / "config.toml"
    async with desktop(tmp_path) as desk:
        screen = await opened(desk)
        await burst(desk, ["down", *"0.3"])
        row(screen, "ignores_circles").field.focus()
        await burst(desk, ["enter", "f3"])
        await desk.shows("config.toml cannot hold Temperature; save with this chat or in the profile")
        assert desk.app.screen is screen
        assert not path.exists()
        row(screen, "temperature").field.focus()
        await burst(desk, [*["backspace"] * 3, "f3"])
        await desk.shows("saved: Allow repetition in config.toml")
        assert read_config(path).ignore_circles
        assert desk.chat.session.chat.info.settings == ChatSettings()
        await opened(desk)
        await burst(desk, ["down", *"0.3", "f2"])
        await desk.shows("saved: Temperature in profile General")
        row(await opened(desk), "max_tokens").field.focus()
        await desk.shows("maximum number of tokens")
        await burst(desk, ["5", "f2"])
        await desk.shows("a profile cannot hold Answer length; save with this chat")


@pytest.mark.slow
async def test_values_go_into_the_file_of_the_profile_which_keeps_its_comments(tmp_path: Path) -> None:
    own = config_dir() / "profiles" / "general.toml"
    async with desktop(tmp_path) as desk:
        await desk.enter("/temp 0.9")
        await desk.shows("temperature 0.9, saved with this chat")
        screen = await opened(desk)
        await desk.press("down", *["backspace"] * 3, *"0.2")
        await desk.until(lambda: row(screen, "temperature").wanted == 0.2)
        await desk.pilot.click(next(b for b in screen.query(Button) if "in profile General" in str(b.label)))
        await desk.shows("saved: Temperature in profile General")
        assert desk.chat.session.sampling(None).temperature == 0.2
        assert desk.chat.session.chat.info.settings == ChatSettings()  # what this chat said is gone
        await desk.enter("/new")
        await desk.answered("hello")
        assert desk.models.requests[-1].sampling.temperature == 0.2
    text = own.read_text(encoding="utf-8")
    shipped = shipped_files()["general"].read_text(encoding="utf-8")
    assert text == shipped.replace("[sampling]\n", "[sampling]\ntemperature = 0.2\n")


@pytest.mark.slow
async def test_a_click_resets_and_choices_are_chosen_with_the_mouse(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.enter("/mode sd")
        await desk.shows("mode speculative from the next answer on, saved with this chat")
        screen = await opened(desk)
        await desk.pilot.click(row(screen, "mode").query_one(".reset"))
        await desk.pilot.click(row(screen, "thinking").field)
        await desk.until(lambda: row(screen, "thinking").wanted is False)
        await desk.press("ctrl+s")
        await desk.shows("saved: Decoding, Thinking with this chat")
        assert desk.chat.session.chat.info.settings == ChatSettings(thinking=False)


@pytest.mark.slow
async def test_context_of_nobodys_choice_says_what_the_model_was_trained_for(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:  # 4096 are open
        screen = await opened(desk)
        row(screen, "context").field.focus()
        await desk.shows("4096", "open now; trained for 8,192", "at most", f"{DEFAULT_CONTEXT:,}")


@pytest.mark.slow
async def test_context_below_the_trained_length_says_what_opens_and_why(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=lambda: opens(DEFAULT_CONTEXT, 32_768)) as desk:
        screen = await opened(desk)
        row(screen, "context").field.focus()
        await desk.shows(str(DEFAULT_CONTEXT), "default limit, for memory; trained for 32,768")
        await desk.shows("at most 8,192, because")
    async with desktop(tmp_path, models=lambda: opens(2048, 2048)) as desk:
        await opened(desk)
        await desk.shows("2048             default: as trained")


@pytest.mark.slow
async def test_context_is_kept_in_the_configuration_and_the_models_can_be_opened_again(
    tmp_path: Path,
) -> None:
    path = written("[models]\ncontext = 4096  # enough\n")
    async with desktop(tmp_path) as desk:
        screen = await opened(desk)
        row(screen, "context").field.focus()
        await desk.press(*["backspace"] * 4, *"5", "ctrl+s")
        await desk.shows("a whole number, 64 to 16,777,216")
        await desk.press("backspace", *"8192", "ctrl+s")
        await desk.shows("Reload the models now")
        assert path.read_text(encoding="utf-8") == "[models]\ncontext = 8192  # enough\n"
        await desk.press("y")
        await desk.until(lambda: len(desk.opened) == 2 and desk.loader.ready is desk.models)


@pytest.mark.slow
async def test_text_that_cannot_be_saved_is_reported_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    async with desktop(tmp_path) as desk:
        screen = await opened(desk)
        await desk.press("down", *"0.3")
        monkeypatch.setattr(tempfile, "mkstemp", refuse)
        await desk.press("f2")
        hint = screen.query_one("#settings-hint", Static)
        await desk.until(lambda: "general.toml`: Permission denied" in str(hint.content))
        monkeypatch.undo()
        await desk.press("ctrl+s")
        await desk.until(lambda: desk.app.screen is not screen)
        assert desk.chat.session.sampling(None).temperature == 0.3


@pytest.mark.slow
async def test_system_prompt_of_several_lines_is_written_in_its_own_screen(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        screen = await opened(desk)
        await desk.pilot.click(row(screen, "system_prompt").field)
        await desk.shows("You are a helpful assistant.")
        await desk.press("enter", *"Be brief.", "ctrl+s")
        await desk.until(lambda: desk.app.screen is screen)
        await desk.press("f2")
        await desk.shows("saved: System prompt in profile General")
        await desk.answered("hello")
        assert desk.models.requests[-1].prompt[0] == Message(
            "system", "You are a helpful assistant.\nBe brief."
        )


@pytest.mark.slow
async def test_what_the_file_of_the_model_recommends_is_reported_and_the_profile_goes_before_it(
    tmp_path: Path,
) -> None:
    def models() -> ScriptedModels:
        scripted = ScriptedModels()
        recommended = Recommendation(SamplingChoice(temperature=0.6, top_k=20))
        scripted.target = replace(scripted.target, recommended=recommended)
        return scripted

    async with desktop(tmp_path, models=models) as desk:
        await desk.answered("one")
        assert desk.models.requests[-1].sampling == Sampling(temperature=0.6, top_k=20)
        await opened(desk)
        await desk.shows("from the model's file")
        shown = [line for line in desk.screen_text().splitlines() if "from the model's file" in line]
        assert [line.split()[1] for line in shown] == ["Temperature", "Top-k"]
        await desk.press("down", *"0.9", "f2")
        await desk.shows("saved: Temperature in profile General")
        await desk.answered("two")
        assert desk.models.requests[-1].sampling == Sampling(temperature=0.9, top_k=20)
        await opened(desk)
        await desk.shows("0.9              profile General")


CARD = Recommendation(SamplingChoice(0.15, 0), source="from the card", firm=("temperature", "top_k"))


def with_a_card() -> ScriptedModels:
    scripted = ScriptedModels()
    scripted.target = replace(scripted.target, recommended=CARD)
    return scripted


@pytest.mark.slow
async def test_own_profile_made_from_a_built_in_one_keeps_what_the_model_recommends(tmp_path: Path) -> None:
    own = config_dir() / "profiles" / "writing.toml"
    async with desktop(tmp_path, models=with_a_card) as desk:
        await desk.enter("/profile writing")
        await desk.shows("profile Writing")
        await opened(desk)
        await burst(desk, ["down", "down", "down", *"0.7", "f2"])
        await desk.shows("saved: Top-p in profile Writing")
        await desk.answered("a poem")
        sampling = desk.models.requests[-1].sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.15, 0, 0.7, 0.08)
        text = own.read_text(encoding="utf-8")
        assert 'like = "writing"' in text
        assert "top_p = 0.7" in text
        assert "\ntemperature" not in text
        await opened(desk)
        await burst(desk, ["down", *"0.9", "f2"])  # just what the built-in one says: now it is one's own
        await desk.shows("saved: Temperature in profile Writing")
        await desk.answered("another")
        assert desk.models.requests[-1].sampling.temperature == 0.9


@pytest.mark.slow
async def test_copy_of_a_profile_samples_as_its_source(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=with_a_card) as desk:
        await desk.enter("/profile")
        await desk.shows("Profiles")
        await burst(desk, [*"stories", "ctrl+n"])
        await desk.shows("Title of the copy of Writing")
        await burst(desk, [*"Poems", "enter"])
        await desk.shows("Poems is a copy that you can edit")
        await burst(desk, ["enter"])
        await desk.answered("a poem")
        sampling = desk.models.requests[-1].sampling
        assert (sampling.temperature, sampling.top_p, sampling.min_p) == (0.15, 1.0, 0.08)
