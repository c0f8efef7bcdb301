from __future__ import annotations

from collections import deque
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from localspec import smollm2
from localspec.chat.answer_settings import SessionRequest
from localspec.chat.commands import Command
from localspec.chat.loading import ModelLoader
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.demo import bundled_pair
from localspec.storage.config import Config
from localspec.storage.profiles import profiles
from localspec_tui.app import LocalSpecApp
from localspec_tui.widgets.composer.prompt_area import PromptArea
from tests.scripted import ScriptedModels, says
from tests.tui.desktop import Desktop, desktop

pytestmark = pytest.mark.asyncio

OFFER = "Find models for this machine"


@pytest.mark.parametrize("first", [True, False])
async def test_only_a_first_start_offers_to_find_better_models(tmp_path: Path, first: bool) -> None:
    loader = ModelLoader(lambda _progress: ScriptedModels())
    with Store(tmp_path / "chats.db") as store:
        session = ChatSession(store, profiles(tmp_path / "profiles").good, SessionRequest())
        app = LocalSpecApp(session, loader, Config(sidebar=False), tmp_path, deque(), first_start=first)
        async with app.run_test(size=(80, 24)) as pilot:
            screen = Desktop(pilot, store, loader, [])
            await screen.until(lambda: loader.ready is not None)
            await pilot.pause()
            assert (OFFER in screen.screen_text()) == first
            assert app.focused is screen.chat.query_one(PromptArea)  # one may type at once
    loader.close()


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


async def test_the_offer_leads_to_setup_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Command] = []

    async def run(command: Command) -> None:
        ran.append(command)

    async with desktop(tmp_path) as screen:
        monkeypatch.setattr(screen.chat, "run_command", run)
        screen.chat.pane.welcome.offer_setup()
        await screen.shows(OFFER)
        await screen.pilot.click("#set-up")
        await screen.until(lambda: ran)
        assert ran == [Command("setup")]
        assert OFFER not in screen.screen_text()


async def test_whoever_keeps_the_tiny_models_is_not_asked_again(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("Hello.")) as screen:
        screen.chat.pane.welcome.offer_setup()
        await screen.shows(OFFER)
        await screen.pilot.click("#keep")
        await screen.until(lambda: OFFER not in screen.screen_text())
        await screen.answered("Hi")
        assert screen.texts == ["Hi", "Hello."]


async def test_prompt_is_seen_however_small_the_screen(tmp_path: Path) -> None:
    async with desktop(tmp_path, size=(80, 24)) as desk:
        await desk.answered("question")
        await desk.press("f3", "ctrl+l")
        await desk.shows("Ask anything", "Log")
        await desk.press("ctrl+l")
        await desk.pilot.resize_terminal(40, 12)
        await desk.shows("Ask anything", "draft")
