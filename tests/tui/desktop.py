"""The whole screen on scripted models and a store of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot

from localspec.app.recommendation import choices
from localspec.chat.answer_settings import SessionRequest, TunedLookup, nothing_known
from localspec.chat.loading import ModelLoader, Opener
from localspec.chat.messages import StoredMessage
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.models.pair_request import ModelChoice
from localspec.storage.config import Config
from localspec.storage.profiles import profiles
from localspec_tui.app import LocalSpecApp
from localspec_tui.screens.chat.screen import ChatScreen
from localspec_tui.widgets.composer.composer import Composer
from localspec_tui.widgets.log_panel import LogPanel
from localspec_tui.widgets.notice import Notice
from localspec_tui.widgets.status import StatusLine
from localspec_tui.widgets.transcript.transcript import Transcript
from tests.scripted import Script, ScriptedModels
from tests.tui.settled import TURNS, settled, until


class Desktop:
    """A running screen: what a user sees and does."""

    def __init__(
        self, pilot: Pilot[int], store: Store, loader: ModelLoader, models: list[ScriptedModels]
    ) -> None:
        self.pilot = pilot
        self.store = store
        self.loader = loader
        self.opened = models

    @property
    def app(self) -> LocalSpecApp:
        assert isinstance(self.pilot.app, LocalSpecApp)
        return self.pilot.app

    @property
    def chat(self) -> ChatScreen:
        return self.app.chat_screen

    @property
    def models(self) -> ScriptedModels:
        return self.opened[-1]

    @property
    def composer(self) -> Composer:
        return self.chat.query_one(Composer)

    @property
    def transcript(self) -> Transcript:
        return self.chat.query_one(Transcript)

    @property
    def log(self) -> LogPanel:
        return self.chat.query_one(LogPanel)

    @property
    def path(self) -> tuple[StoredMessage, ...]:
        return self.chat.session.chat.path

    @property
    def texts(self) -> list[str]:
        return [message.content for message in self.path]

    def screen_text(self) -> str:
        return "\n".join(strip.text.rstrip() for strip in self.app.screen._compositor.render_strips())

    def status(self) -> str:
        """Return what is said, and the figures."""
        return f"{self.chat.query_one(Notice).said}\n{self.chat.query_one(StatusLine).render().plain}"

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def enter(self, text: str) -> None:
        """Type a prompt or a command and send it."""
        self.composer.focus()
        self.composer.text = text
        await self.pilot.press("enter")

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is so."""
        if not await until(self.pilot, condition):
            raise AssertionError(f"it never came to be:\n{self.screen_text()}")

    async def while_busy(self, condition: Callable[[], object]) -> None:
        """Wait until something is so while the chat handles no messages: a pause would wait for them."""
        for _ in range(TURNS):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"it never came to be:\n{self.screen_text()}")

    async def shows(self, *words: str) -> None:
        """Wait until the screen shows some words."""
        await self.until(lambda: all(word in self.screen_text() for word in words))

    async def answered(self, text: str) -> None:
        """Ask something and wait for the whole answer."""
        before = len(self.path)
        await self.enter(text)
        await self.until(lambda: len(self.path) == before + 2 and not self.chat.pane.working)
        await settled(self.pilot)


async def burst(desk: Desktop, keys: Iterable[str]) -> None:
    """Press keys faster than the program takes them."""
    for key in keys:
        name = _character_to_key(key) if len(key) == 1 else key
        desk.app.post_message(events.Key(name, key if len(key) == 1 else None))
    await desk.pilot.pause()


@asynccontextmanager
async def desktop(
    folder: Path,
    *scripts: Script,
    size: tuple[int, int] = (120, 40),
    config: Config | None = None,
    wishes: SessionRequest | None = None,
    models: Callable[[], ScriptedModels] | None = None,
    tuned_for: TunedLookup = nothing_known,
    looks_for_better: bool = False,
    on_choice: Callable[[ModelChoice], object] = lambda _choice: None,
) -> AsyncIterator[Desktop]:
    """Run the screen until the models are open; a second one in the same folder finds the same chats.

    `on_choice` hears of other models that are to be opened, and may raise what keeps them from that.
    """
    opened: list[ScriptedModels] = []

    def open_models(_on_progress: Callable[[float], bool]) -> ScriptedModels:
        opened.append(models() if models is not None else ScriptedModels(*scripts))
        return opened[-1]

    def opener(choice: ModelChoice) -> Opener:
        def open_chosen(on_progress: Callable[[float], bool]) -> ScriptedModels:
            on_choice(choice)
            chosen = open_models(on_progress)
            chosen.target = replace(chosen.target, path=choice.target, name=choice.target.stem)
            if choice.draft is None:
                chosen.draft = None
            else:
                chosen.draft = replace(chosen.target, path=choice.draft, name=choice.draft.stem)
            return chosen

        return open_chosen

    config = config or Config(sidebar=False)
    loader = ModelLoader(open_models)
    with Store(folder / "chats.db") as store:
        known = profiles(folder / "profiles").good
        session = ChatSession(store, known, wishes or SessionRequest(), config.profile, tuned_for=tuned_for)
        app = LocalSpecApp(session, loader, config, folder, deque())
        app.chat_screen.models.looks_for_better = looks_for_better
        app.chat_screen.models.opener = opener
        app.chat_screen.models.choices = choices
        try:
            async with app.run_test(size=size) as pilot:
                desktop = Desktop(pilot, store, loader, opened)
                await desktop.until(lambda: loader.ready is not None)
                await pilot.pause()
                yield desktop
        finally:
            app.chat_screen.models.fetches.close()
            loader.close()
