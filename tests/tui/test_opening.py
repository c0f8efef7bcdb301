"""The models while they are opened, and when they cannot be; what speculation does is reported."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.__main__ import open_screen
from localspec.chat.answer_settings import SessionRequest
from localspec.chat.loading import ModelLoader
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.errors import Cancelled, ModelFileError, UserError
from localspec.storage.config import Config
from localspec.storage.profiles import profiles
from localspec.storage.toml_file import read_table
from localspec.types.events import ModeChanged
from localspec_tui.app import LocalSpecApp
from tests.scripted import ScriptedModels, says
from tests.tui.desktop import Desktop, desktop
from tests.tui.settled import settled
from tests.tui.test_help import KEYS

pytestmark = pytest.mark.asyncio


class SlowOpener:
    """Opens models when it is reported to; the first load can be stopped."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = 0

    def __call__(self, on_progress: Callable[[float], bool]) -> ScriptedModels:
        self.begun += 1
        while not self.go.wait(0.005):
            if not on_progress(0.5):
                raise Cancelled("loading was cancelled")
        return ScriptedModels(says("here I am"))


@pytest.mark.slow
async def test_loading_shows_progress_can_be_stopped_and_begins_again_with_a_prompt(tmp_path: Path) -> None:
    opener = SlowOpener()
    loader = ModelLoader(opener)
    with Store(tmp_path / "chats.db") as store:
        session = ChatSession(store, profiles(tmp_path).good, SessionRequest())
        app = LocalSpecApp(session, loader, Config(sidebar=False), tmp_path, deque())
        try:
            async with app.run_test(size=(100, 30)) as pilot:
                screen = Desktop(pilot, store, loader, [])
                await screen.shows("Loading the models", "50%", "Esc cancels")
                await screen.press("escape")
                await screen.shows("no models are open; the next prompt opens them")
                loader.start()  # others open them by themselves
                await screen.until(lambda: "no models are open" not in screen.screen_text())
                await screen.press("escape")
                await screen.shows("no models are open; the next prompt opens them")
                await screen.enter("are you there?")
                await screen.until(lambda: opener.begun == 3)
                opener.go.set()
                await screen.until(lambda: screen.texts == ["are you there?", "here I am"])
        finally:
            opener.go.set()
            loader.close()


async def test_question_asked_while_the_models_load_is_answered_when_they_are_there(tmp_path: Path) -> None:
    opener = SlowOpener()
    loader = ModelLoader(opener)
    with Store(tmp_path / "chats.db") as store:
        session = ChatSession(store, profiles(tmp_path).good, SessionRequest())
        app = LocalSpecApp(session, loader, Config(sidebar=False), tmp_path, deque())
        try:
            async with app.run_test(size=(100, 30)) as pilot:
                screen = Desktop(pilot, store, loader, [])
                await screen.enter("first")
                await screen.until(lambda: screen.texts == ["first"])
                opener.go.set()
                await screen.until(lambda: screen.texts == ["first", "here I am"])
        finally:
            opener.go.set()
            loader.close()


@pytest.mark.slow
async def test_models_that_cannot_be_opened_are_reported_in_one_line_and_the_question_stays(
    tmp_path: Path,
) -> None:
    def fail(_on_progress: Callable[[float], bool]) -> ScriptedModels:
        raise ModelFileError("big.gguf is cut off at 12 of 40 MB", "download it again")

    loader = ModelLoader(fail)
    with Store(tmp_path / "chats.db") as store:
        session = ChatSession(store, profiles(tmp_path).good, SessionRequest())
        app = LocalSpecApp(session, loader, Config(sidebar=False), tmp_path, deque())
        async with app.run_test(size=(120, 30)) as pilot:
            screen = Desktop(pilot, store, loader, [])
            await screen.shows("big.gguf is cut off at 12 of 40 MB; download it again")
            await screen.enter("hello?")
            await screen.until(lambda: screen.texts == ["hello?"] and not screen.chat.pane.working)
            await screen.shows("big.gguf is cut off")


@pytest.mark.slow
async def test_step_down_is_reported_with_its_reason_and_stays_in_the_figures(tmp_path: Path) -> None:
    change = ModeChanged("sd", "SSD was slower than plain, 31 against 38 tokens/s; now speculative")
    script = says("first words " * 20, change, "more words " * 20)
    async with desktop(tmp_path, script) as screen:
        await screen.answered("go")
        await screen.shows("SSD was slower than plain", "SSD → speculative")
        record = screen.store.record(screen.path[-1].id)
        assert record is not None
        assert record.changes == (change,)


@pytest.mark.slow
async def test_only_the_first_change_of_mode_in_an_answer_is_said_and_the_next_answer_repeats_nothing(
    tmp_path: Path,
) -> None:
    down = ModeChanged("sd", "SSD was slower than plain, 31 against 38 tokens/s; now speculative")
    lower = ModeChanged("ngram", "speculative was slower than plain, 30 against 38 tokens/s; now n-gram")
    script = says("first words " * 20, down, "more words " * 20, lower, "the rest " * 20)
    async with desktop(tmp_path, script, says(down, "again " * 20)) as screen:
        said: list[str] = []

        def hear(words: str) -> None:
            said.append(words)

        screen.app.watch(screen.chat.pane.notice, "said", hear, init=False)
        await screen.answered("go")
        assert [line for line in said if "slower" in line] == [down.reason]
        await screen.shows("SSD → n-gram")
        await screen.answered("and now?")
        assert [line for line in said if "slower" in line] == [down.reason]
        await screen.shows("SSD → speculative")


async def test_profile_of_the_configuration_that_does_not_exist_is_reported_to_stand_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CONFIG_DIR", str(tmp_path))
    (tmp_path / "config.toml").write_text('[chat]\nprofile = "cooking"\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"config\.toml, line 2: there is no profile `cooking`"):
        open_screen([])


@pytest.mark.slow
async def test_theme_of_the_configuration_is_shown(tmp_path: Path) -> None:
    async with desktop(tmp_path, config=Config(theme="nord", sidebar=False)) as desk:
        assert desk.app.theme == "nord"


async def test_themes_that_the_configuration_may_name_are_those_there_are(tmp_path: Path) -> None:
    names = read_table(KEYS).texts("themes")
    async with desktop(tmp_path) as desk:
        assert sorted(names) == sorted(desk.app.available_themes)


@pytest.mark.slow
async def test_modes_go_round_also_without_a_draft_model(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=lambda: ScriptedModels(has_draft=False)) as desk:
        seen = []
        for _ in range(3):
            await desk.press("f6")
            await settled(desk.pilot)
            seen.append(desk.chat.session.mode)
        assert seen == ["off", "ngram", None]
