"""The terminal application: themes, keys and the palette around the chat."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.theme import Theme

from localspec.chat.commands import COMMANDS, Command
from localspec.chat.loading import ModelLoader
from localspec.chat.session import ChatSession
from localspec.storage.config import Config
from localspec_tui.screens.chat.pane import Log
from localspec_tui.screens.chat.screen import ChatScreen

_YOUNG: Final = 10_000
_MIDDLE: Final = 5
_OLD: Final = 100


def collect_rarely() -> None:
    """Leave what a started program consists of out of collections, and make those rarer.

    A full collection looks at every widget, style and syntax tree, and holds the screen up for 60 to 100 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


DARK = Theme(
    name="localspec-dark",
    primary="#7aa2f7",
    secondary="#9ece6a",
    accent="#e0af68",
    warning="#e0af68",
    error="#f7768e",
    success="#9ece6a",
    foreground="#c8d0e8",
    background="#13151c",
    surface="#191c26",
    panel="#232735",
    dark=True,
)
LIGHT = Theme(
    name="localspec-light",
    primary="#2c55c4",
    secondary="#3f7d1f",
    accent="#9a5b00",
    warning="#9a5b00",
    error="#b3163a",
    success="#3f7d1f",
    foreground="#1d2333",
    background="#fbfbfd",
    surface="#f2f3f8",
    panel="#e3e6f0",
    dark=False,
)


class LocalSpecApp(App[int]):
    """LocalSpec on a terminal; its result is the exit code."""

    TITLE = "LocalSpec"
    CSS_PATH = "app.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Quit", id="app.quit", priority=True),
    ]

    def __init__(
        self,
        session: ChatSession,
        loader: ModelLoader,
        config: Config,
        folder: Path,
        log: Log,
        *,
        first_start: bool = False,
    ) -> None:
        """Take what to show; at a first start, with the models that came along, larger ones are offered."""
        super().__init__()
        self.chat_screen = ChatScreen(session, loader, config, folder, log)
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self._first_start = first_start
        self._wanted_theme = config.theme or DARK.name
        self.set_keymap(dict(config.keys))

    def on_mount(self) -> None:
        """Open the chat."""
        self.theme = self._wanted_theme if self._wanted_theme in self.available_themes else DARK.name
        self.push_screen(self.chat_screen)

    def on_ready(self) -> None:
        """Settle down: what has been loaded stays, and need not be looked through for garbage."""
        if self._first_start:
            self.chat_screen.pane.welcome.offer_setup()
        if self.theme != self._wanted_theme:
            self.chat_screen.say(f"there is no theme `{self._wanted_theme}`; /theme lists them")
        if not self.is_headless:  # tests start many of these in one process
            collect_rarely()

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Yield what the palette offers: every slash command, every profile, every mode."""
        yield from super().get_system_commands(screen)
        if screen is not self.chat_screen:
            return
        for spec in COMMANDS:
            if not spec.needs_argument:
                yield self._offer(f"/{spec.name}", spec.description, Command(spec.name))
        for profile in self.chat_screen.session.profiles:
            name = Command("profile", profile.name)
            yield self._offer(f"Profile: {profile.title}", profile.description, name)
        for mode in ("auto", "off", "ngram", "sd", "ssd"):
            yield self._offer(f"Mode: {mode}", "decode the next answers so", Command("mode", mode))

    def _offer(self, title: str, description: str, command: Command) -> SystemCommand:
        run = partial(self.call_later, self.chat_screen.run_command, command)
        return SystemCommand(title, description, run)
