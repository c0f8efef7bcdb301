"""The first start: whom one talks to, and the best models for this machine, downloaded while one chats."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from localspec import smollm2
from localspec.demo import bundled_pair
from localspec.errors import UserError
from localspec.models.pair_request import ModelChoice
from localspec.storage.config import Config, read_config
from localspec.storage.paths import config_dir
from localspec_tui.widgets.composer.prompt_area import PromptArea
from localspec_tui.widgets.status import TitleBar
from tests.cli.choosing import entry, pair
from tests.llama import tiny
from tests.models.hub_server import Hub, Repository
from tests.scripted import ScriptedModels, says
from tests.tui.desktop import Desktop, desktop
from tests.tui.pairs import BIG, SMALL, put_in_catalogue

pytestmark = pytest.mark.asyncio

INCLUDED = entry("bundled", 0.001, source="bundled", file="demo-target.gguf")
OFFER = "The best models for this machine"


@pytest.mark.slow
async def test_welcome_says_whom_one_talks_to(tmp_path: Path, seeming_smollm2: Path) -> None:
    for path, words in (
        (seeming_smollm2, "SmolLM2 135M Instruct + smollm2-draft: a small assistant"),
        (bundled_pair()[0], "large + small: the bundled pair"),
        (Path("large.gguf"), "large + small"),
    ):
        models = ScriptedModels()
        models.target = replace(models.target, path=path)
        if path == seeming_smollm2:
            models.draft = replace(models.target, path=smollm2.draft())
        async with desktop(tmp_path, models=partial(copy, models)) as screen:
            await screen.shows(words)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seen"), [("large", "large"), ("x" * 90, "x…")])
async def test_title_gives_way_to_profile_mode_and_model(tmp_path: Path, name: str, seen: str) -> None:
    async with desktop(tmp_path, size=(80, 24), config=Config(sidebar=False, profile="coding")) as desk:
        await desk.enter("/mode off")
        await desk.answered("a question that is longer than the whole screen is wide, and then some")
        desk.chat.query_one(TitleBar).target = name
        await desk.pilot.pause()
        bar = desk.screen_text().split("\n")[0]
        assert "Coding · plain · " in bar
        assert bar.endswith(seen)
        assert bar.startswith(" a question")
        assert "…" in bar


@pytest.mark.slow
async def test_title_bar_has_the_short_name_of_the_model_and_both_under_the_pointer(tmp_path: Path) -> None:
    async with desktop(tmp_path, size=(80, 24)) as desk:
        bar = desk.chat.query_one(TitleBar)
        bar.target, bar.draft = "Qwen3-14B-Instruct-Q4_K_M", "Qwen3-0.6B-Q8_0"
        await desk.pilot.pause()
        row = desk.screen_text().split("\n")[0]
        assert row.split() == ["New", "chat", "Qwen3-14B"]  # all else is chosen by itself
        await desk.pilot.hover(offset=(row.index("14B"), 0))
        assert str(bar.tooltip).splitlines()[:2] == [
            "Target model: Qwen3-14B-Instruct-Q4_K_M",
            "Draft model: Qwen3-0.6B-Q8_0",
        ]


@pytest.mark.slow
async def test_what_a_key_does_stays_in_its_column_where_it_is_wrapped(tmp_path: Path) -> None:
    async with desktop(tmp_path, size=(50, 30)) as desk:
        await desk.shows("F2, F3 ", "models at work")
        rows = desk.screen_text().splitlines()
        column = next(row.index("see which") for row in rows if "see which" in row)
        assert any("models at work" in row and row.startswith(" " * column) for row in rows)
        assert all(row[:column].isspace() for row in rows if "models at work" in row)


@pytest.mark.slow
async def test_prompt_is_seen_however_small_the_screen(tmp_path: Path) -> None:
    async with desktop(tmp_path, size=(80, 24)) as desk:
        await desk.answered("question")
        await desk.press("f3", "ctrl+l")
        await desk.shows("Ask anything", "Log")
        await desk.press("ctrl+l")
        await desk.pilot.resize_terminal(40, 12)
        await desk.shows("Ask anything", "draft")


def opening(
    folder: Path, on_choice: Callable[[ModelChoice], object] = lambda _choice: None
) -> AbstractAsyncContextManager[Desktop]:
    """Run the screen at its smallest."""
    return desktop(folder, says("Hello."), looks_for_better=True, on_choice=on_choice, size=(80, 24))


async def fetched(screen: Desktop) -> None:
    await screen.shows(OFFER)
    await screen.press("f9")
    await screen.shows("They are downloaded", "Open them  F9")


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
async def test_both_buttons_of_the_offer_are_seen_on_a_narrow_screen(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("Hello."), looks_for_better=True, size=(44, 36)) as screen:
        await screen.shows("Download them  F9", "Keep these for now")


@pytest.mark.slow
async def test_the_best_pair_is_named_and_nothing_is_downloaded_unasked(hub: Hub, tmp_path: Path) -> None:
    async with opening(tmp_path) as screen:
        for size in ((80, 24), (110, 30)):
            await screen.pilot.resize_terminal(*size)
            await screen.shows(OFFER, "Big Q4_K_M + Small Q4_K_M", "58.6 KiB to download", "tokens/s here")
            await screen.shows("licence MIT", "Download them  F9", "Ask anything")
            assert screen.chat.pane.welcome.max_scroll_y == 0
        await screen.pilot.resize_terminal(66, 40)  # less than the longest line
        await screen.shows("Nothing is downloaded unless you ask", "meanwhile.")
        assert isinstance(screen.app.focused, PromptArea)  # one may type at once
        await screen.pilot.click("#keep")
        await screen.until(lambda: OFFER not in screen.screen_text())
        await screen.answered("Hi")
        assert screen.texts == ["Hi", "Hello."]
    assert hub.asked == []


@pytest.mark.slow
async def test_downloaded_while_one_chats_paused_gone_on_with_and_opened(hub: Hub, tmp_path: Path) -> None:
    hub.stalls, hub.first_stall = 1, 2  # after the header was read
    async with opening(tmp_path) as screen:
        await screen.shows(OFFER)
        await screen.press("f9")
        await screen.shows("Downloading: ", "Pause  F9", " of ")
        await screen.answered("Hi")
        await screen.shows("downloading ")
        await screen.press("f9")
        await screen.shows("paused ")
        hub.released.set()
        await screen.until(lambda: "localspec-fetch" not in [each.name for each in threading.enumerate()])
        await screen.shows("paused ")  # nothing more came
        await screen.press("f9")
        await screen.shows("better models are downloaded: F9 opens them")
        assert len(screen.opened) == 1
        await screen.press("f9")
        await screen.shows("these models now open at every start")
        await screen.until(lambda: screen.chat.query_one(TitleBar).target == "big-Q4_K_M")
        assert screen.texts == ["Hi", "Hello."]
        assert screen.opened[0].closed
        await screen.answered("And now?")
        config = read_config(config_dir() / "config.toml")
        assert [path and path.name for path in (config.target, config.draft)] == [
            "big-Q4_K_M.gguf",
            "small-Q4_K_M.gguf",
        ]
        await screen.press("f9")
        await screen.shows("there are no better models to download")
    begun = [int(asked.range.removeprefix("bytes=").split("-")[0]) for asked in hub.downloads if asked.range]
    assert begun[:2] == begun[-2:] == [0, 0]  # of each file its header before it
    assert begun[2] > 0  # the first file in two goes


@pytest.mark.slow
async def test_what_is_on_this_computer_already_is_opened_at_once(hub: Hub, tmp_path: Path) -> None:
    async with opening(tmp_path) as screen:
        await fetched(screen)
    hub.asked.clear()
    async with opening(tmp_path) as screen:
        await screen.shows(OFFER, "They are downloaded")
        await screen.pilot.click("#fetch")
        await screen.until(lambda: screen.chat.pane.title_bar.target == "big-Q4_K_M")
        await screen.until(lambda: OFFER not in screen.screen_text())
    assert hub.asked == []


@pytest.mark.slow
async def test_whoever_quits_meanwhile_finds_the_part_at_the_next_start(hub: Hub, tmp_path: Path) -> None:
    hub.stalls, hub.first_stall = 1, 2
    async with opening(tmp_path) as screen:
        await screen.shows(OFFER)
        await screen.press("f9")
        await screen.shows("Downloading: ")
        await screen.answered("Hi")
        await screen.press("ctrl+q")
    hub.released.set()
    async with opening(tmp_path) as screen:
        await screen.shows("better models are partly downloaded: F9 resumes", "paused ")
        await screen.press("ctrl+n")
        await screen.shows("Paused: ", "Resume  F9")
        await fetched(screen)


@pytest.mark.slow
async def test_what_fails_is_a_line_and_the_key_tries_again(hub: Hub, tmp_path: Path) -> None:
    async with opening(tmp_path) as screen:
        await screen.shows(OFFER)
        for fault, is_so, words in (
            ("html", True, "is not a Hugging Face hub"),
            ("damaged", True, "damaged in transit"),
            ("failing", {"/api": [503]}, "has a server error (HTTP 503)"),
        ):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(hub, fault, is_so)
                await screen.press("f9")
                await screen.shows(words, "Try again  F9")
        await fetched(screen)
        assert words not in screen.screen_text()


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
async def test_a_pair_that_the_hub_does_not_have_makes_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_catalogue(monkeypatch, pair(entry("gone", 2), SMALL, score=90), pair(BIG, SMALL))
    async with opening(tmp_path) as screen:
        await screen.shows("Gone Q4_K_M + Small")
        await screen.press("f9")
        await screen.shows("Gone Q4_K_M cannot be downloaded", "Big Q4_K_M + Small Q4_K_M")
        await fetched(screen)


@pytest.mark.slow
async def test_a_pair_that_cannot_be_opened_here_makes_room_for_the_next(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = tiny.Recipe(tmp_path / "newer.gguf", "qwen9").write().read_bytes()
    hub.repositories["user/newer-GGUF"] = Repository({"newer-Q4_K_M.gguf": newer})
    put_in_catalogue(monkeypatch, pair(entry("newer", 4, bytes=40_000), score=90), pair(BIG, SMALL))
    async with opening(tmp_path) as screen:
        await screen.shows(OFFER, "Newer Q4_K_M")
        await screen.press("f9")
        await screen.shows("needs the architecture `qwen9`", "Big Q4_K_M + Small Q4_K_M")
        await fetched(screen)


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
async def test_models_that_do_not_open_leave_the_old_ones_in_place(
    tmp_path: Path,
) -> None:
    def fails(_choice: ModelChoice) -> None:
        raise UserError("not enough memory for them")

    (config_dir() / "config.toml").parent.mkdir(parents=True, exist_ok=True)
    (config_dir() / "config.toml").write_text('theme = "nord"\n', encoding="utf-8")
    async with opening(tmp_path, fails) as screen:
        await fetched(screen)
        await screen.press("f9")
        await screen.shows(
            "the other models could not be opened: not enough memory for them", "Open them  F9"
        )
        await screen.until(lambda: screen.loader.ready is not None)
        assert (config_dir() / "config.toml").read_text(encoding="utf-8") == 'theme = "nord"\n'
        await screen.answered("Hi")
        await screen.press("f9")
        await screen.shows("the other models could not be opened: not enough memory for them")


@pytest.mark.slow
async def test_where_what_came_along_is_best_nothing_is_reported(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_catalogue(monkeypatch, pair(INCLUDED), pair(entry("giant", 900)))
    async with opening(tmp_path) as screen:
        await screen.press("f9")
        await screen.shows("there are no better models to download")
        assert OFFER not in screen.screen_text()
    assert hub.asked == []
