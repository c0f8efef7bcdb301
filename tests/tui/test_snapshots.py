"""How the main screens look; `pytest --snapshot-update` takes new pictures, which are then looked at."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Protocol

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.loading import ModelLoader
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.storage.config import Config
from localspec.storage.profiles import profiles
from localspec.types.request import Request
from localspec_tui.app import LocalSpecApp
from tests.scripted import MARKDOWN, ScriptedModels, says
from tests.tui.desktop import Desktop
from tests.tui.settled import settled

Scene = Callable[[Desktop], Awaitable[None]]
DARK, LIGHT = "localspec-dark", "localspec-light"


class Compare(Protocol):
    def __call__(
        self,
        app: LocalSpecApp,
        *,
        terminal_size: tuple[int, int],
        run_before: Callable[[Pilot[int]], Awaitable[None]],
    ) -> bool: ...


class Look(Protocol):
    def __call__(self, scene: Scene, size: tuple[int, int], theme: str) -> bool: ...


@pytest.fixture
def look(tmp_path: Path, snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> Iterator[Look]:
    """Play a scene and compare the screen with its picture."""
    monkeypatch.setattr("localspec.chat.answering.monotonic", lambda: 0.0)  # answers begin at once
    monkeypatch.setattr("localspec.chat.controller.monotonic", lambda: 0.0)
    with ExitStack() as stack:

        def compare(scene: Scene, size: tuple[int, int], theme: str) -> bool:
            models = ScriptedModels(says(MARKDOWN), says("A second answer, in plain words. " * 12))
            noon = datetime.now().astimezone().replace(hour=12, minute=0).timestamp()
            store = stack.enter_context(Store(tmp_path / "chats.db", lambda: noon))
            loader = ModelLoader(lambda _on_progress: models)
            stack.callback(loader.close)
            config = Config(theme=theme)
            session = ChatSession(store, profiles(tmp_path).good, SessionRequest(answer=Request("", seed=1)))
            app = LocalSpecApp(session, loader, config, tmp_path, deque())

            async def play(pilot: Pilot[int]) -> None:
                desktop = Desktop(pilot, store, loader, [models])
                await desktop.until(lambda: loader.ready is not None)
                desktop.composer.query_one(TextArea).cursor_blink = False
                await scene(desktop)
                await settled(pilot)

            return snap_compare(app, terminal_size=size, run_before=play)

        yield compare


async def nothing(desk: Desktop) -> None:
    await desk.shows("large + small")


async def two_turns(desk: Desktop) -> None:
    await desk.answered("How do I sort a list?")
    await desk.answered("And in words?")
    await desk.shows("And in words?")


async def origins(desk: Desktop) -> None:
    await two_turns(desk)
    await desk.press("f2")
    await desk.shows("bonus")


async def help_page(desk: Desktop) -> None:
    await desk.press("f1")
    await desk.shows("Everywhere")


async def search(desk: Desktop) -> None:
    await two_turns(desk)
    await desk.press("ctrl+k", *"sort")
    await settled(desk.pilot)  # the search for the last letter, too
    await desk.shows("Sorting a list")
    desk.app.screen.query_one(Input).cursor_blink = False


async def completions(desk: Desktop) -> None:
    await desk.press("slash", "m", "o")
    await desk.shows("/mode")


@pytest.mark.slow
@pytest.mark.parametrize("theme", [DARK, LIGHT])
@pytest.mark.parametrize("size", [(80, 24), (160, 45)], ids=["narrow", "wide"])
@pytest.mark.parametrize("scene", [nothing, two_turns, origins])
def test_chat_looks_as_before(look: Look, scene: Scene, size: tuple[int, int], theme: str) -> None:
    assert look(scene, size, theme)


@pytest.mark.parametrize("scene", [help_page, search, completions])
def test_screens_over_the_chat_look_as_before(look: Look, scene: Scene) -> None:
    assert look(scene, (100, 30), DARK)


def test_chat_without_colour_looks_as_before(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert look(origins, (100, 30), DARK)
