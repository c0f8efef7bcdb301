"""The terminal application: themes, keys and the palette around the chat; `launch` opens it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rich.console import RenderableType
from rich.segment import Segment
from textual import events, on
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.driver import Driver
from textual.filter import LineFilter
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import Input, TextArea

from localspec.app.opener import ChatModels, OpeningWatch
from localspec.app.screen import ScreenRequest
from localspec.chat.commands.registry import ON_SCREEN
from localspec.chat.loading import ModelLoader, Opener
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.chat.tool_use.kit import ToolKit
from localspec.inference.worker.wire import LogLine
from localspec.models.pair_request import ModelChoice
from localspec.safe_text import safe_line
from localspec.storage import paths
from localspec.storage.config import READING_WIDTH, Config, keep
from localspec_tui.browser import open_in_window
from localspec_tui.cell_widths import MarksMeasured, count_spacing_marks
from localspec_tui.clipboard import CopyAsked, put
from localspec_tui.contrast import readable_on
from localspec_tui.screens.chat.elsewhere import AnswerReady
from localspec_tui.screens.chat.pane import Log
from localspec_tui.screens.chat.screen import ChatScreen
from localspec_tui.widgets.log_panel import KEPT
from localspec_tui.workers import start_worker

DEFAULT_THEME = "localspec-dark"
SIGNALLED = 128  # and the number of a signal: what it makes of the exit code
THREADS = 32  # for what waits: every answer has one, and Python's own number would be 6 on two cores
ROOM_FOR_KEYS = 20  # rows from which the footer with keys is shown
ROOM_FOR_TIMELINE = 32  # rows from which all of it is shown, and the answer beside it


def collect_rarely() -> None:
    """Exclude the objects of the started program from garbage collection, and make it rarer.

    A full collection looks at every widget, style and syntax tree, and blocks the screen for 60 to 100 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 100)


class _NothingObeyed(LineFilter):
    """Removes control sequences from every row, whichever widget shows it."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isprintable() else segment._replace(text=safe_line(segment.text))
            for segment in segments
        ]


_NOTHING_OBEYED = _NothingObeyed()


class LocalSpecApp(App[int]):
    """LocalSpec on a terminal; its result is the exit code."""

    TITLE = "LocalSpec"
    CSS_PATH = "app.tcss"
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012 - an instance attribute in Textual
        (0, "-short"),
        (ROOM_FOR_KEYS, "-tall"),
        (ROOM_FOR_TIMELINE, "-roomy"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Quit", id="app.quit", priority=True),
    ]

    def __init__(
        self, session: ChatSession, loader: ModelLoader, config: Config, folder: Path, log: Log
    ) -> None:
        super().__init__()
        count_spacing_marks(True)  # as most terminals do, until this one has told
        self._loader = loader
        self.chat_screen = ChatScreen(session, loader, config, folder, log)
        themes = tomllib.loads(Path(__file__).with_name("themes.toml").read_text(encoding="utf-8"))
        for theme in themes["themes"]:
            self.register_theme(Theme(**theme))
        self._kept_theme = config.theme or DEFAULT_THEME
        self.set_class(not config.footer, "-no-footer")
        if config.width != READING_WIDTH:
            width = f"{{ max-width: {config.width or '100%'} !important; }}"
            self.stylesheet.add_source(f"MessageView {width} Composer > Vertical {width}", ("", "width"))
        self._notify = config.notify
        self.set_keymap(dict(config.keys))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters of every row on its way to the terminal."""
        return [*super().get_line_filters(), _NOTHING_OBEYED]

    def get_css_variables(self) -> dict[str, str]:
        """Return the colours of the theme, with a text of selected rows that can be read in all of them."""
        colours = super().get_css_variables()
        if self.current_theme.ansi:  # whose colours are the terminal's
            return colours
        text = readable_on(Color.parse(colours["block-cursor-background"]))
        return {**colours, "block-cursor-foreground": text.hex}

    def get_driver_class(self) -> type[Driver]:
        """Return the driver that reads the terminal and draws on it."""
        usual = super().get_driver_class()
        if sys.platform == "win32" or usual.__name__ != "LinuxDriver":  # another driver was chosen
            return usual
        from localspec_tui.terminal import TerminalDriver  # not to be imported on Windows

        return TerminalDriver

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Lend the terminal to another program; an exception is raised once the screen is back.

        Textual itself only comes back without an exception. Raises `SuspendNotSupported`.
        """
        raised: BaseException | None = None
        with super().suspend():
            try:
                yield
            except BaseException as error:  # noqa: BLE001 - raised below
                raised = error
        if raised is not None:
            raise raised

    def copy_to_clipboard(self, text: str) -> None:
        """Put text on every clipboard that can be reached."""
        super().copy_to_clipboard(text)
        start_worker(self, asyncio.to_thread, put, text, group="copy", exit_on_error=False)

    @on(CopyAsked)
    def _copy(self, asked: CopyAsked) -> None:
        super().copy_to_clipboard(asked.text)
        start_worker(self, self._tell_copied, asked, group="copy", exit_on_error=False)

    async def _tell_copied(self, asked: CopyAsked) -> None:
        is_taken = await asyncio.to_thread(put, asked.text)
        copied = f"copied {asked.what}"
        sent = f"sent {asked.what} to the terminal, which may copy it"
        self.notify(copied if is_taken else sent, timeout=2, markup=False)

    def open_url(self, url: str, *, new_tab: bool = True) -> None:
        """Open an address in a browser with its own window; without one, copy the address."""
        start_worker(self, self._open, url, group="link", exit_on_error=False)

    async def _open(self, address: str) -> None:
        if not await asyncio.to_thread(open_in_window, address):
            self.post_message(CopyAsked(address, "the address, as no browser opens here,"))

    def exit(
        self, result: int | None = None, return_code: int = 0, message: RenderableType | None = None
    ) -> None:
        """Leave without waiting for models that do not answer."""
        threading.Thread(target=self._end_models, name="localspec-close", daemon=True).start()
        super().exit(result, return_code, message)

    def _end_models(self) -> None:
        """Stop the answers in progress before the models end, which would count as failures."""
        self.chat_screen.answers.close()
        self._loader.close()

    def on_mount(self) -> None:
        """Open the chat."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "localspec"))
        self.theme = self._kept_theme
        self.theme_changed_signal.subscribe(self, self._keep_theme)
        self.push_screen(self.chat_screen)

    @on(MarksMeasured)
    async def _measure_anew(self, event: MarksMeasured) -> None:
        """Lay everything out again where the terminal gives spacing marks another width."""
        if count_spacing_marks(event.take_cells):
            for area in self.chat_screen.query(TextArea):
                area.wrapped_document.wrap(area.wrap_width, area.indent_width)
            for pane in self.chat_screen.panes.all:
                await pane.show_messages()
            self.chat_screen.refresh(layout=True)

    def _keep_theme(self, theme: Theme) -> None:
        """Save a theme for the next start, wherever it was chosen."""
        if theme.name != self._kept_theme:
            self._kept_theme = theme.name
            start_worker(self, self.chat_screen.pane.status.attempt, self._write_theme, theme.name)

    async def _write_theme(self, name: str) -> None:
        await asyncio.to_thread(keep, {"theme": name})
        self.chat_screen.say(f"theme {name}, saved in config.toml")

    def on_ready(self) -> None:
        """Freeze loaded objects, so the garbage collector skips them."""
        if not self.is_headless:  # tests start many of these in one process
            collect_rarely()

    async def on_event(self, event: events.Event) -> None:
        """Handle what is typed at the chat in order.

        Textual gives keys to the focused widget first: by the time a key has moved the focus, the next ones
        would already be on their way to the old widget.
        """
        chat = self.chat_screen
        if isinstance(event, events.Key) and self.screen is chat and chat.pane.composer.is_reading:
            bound = chat.active_bindings.get(event.key)
            if bound is not None and bound.binding.id == "chat.stop":
                chat.action_stop()  # the pane waits for the files, and would hear of the key after that
                return
        is_typed = isinstance(event, events.Key | events.Paste) and not event.is_forwarded
        if is_typed and self.screen is chat and not isinstance(self.focused, Input | TextArea):
            if isinstance(event, events.Key):
                for priority in (True, False):
                    if await self._check_bindings(event.key, priority):
                        return
            if not isinstance(event, events.Key) or event.is_printable:
                chat.pane.write()
        await super().on_event(event)

    @on(AnswerReady)
    def _call_back(self, event: AnswerReady) -> None:
        """Ring, or show a notice on the desktop, where the terminal is not in front."""
        is_vte = "VTE_VERSION" in os.environ or os.environ.get("TERM", "").startswith(("rxvt", "foot"))
        notice = f"\x1b]{'777;notify;LocalSpec' if is_vte else '9'};{safe_line(event.title)}\a"
        if not self.app_focus and self._driver is not None:
            self._driver.write({"bell": "\a", "desktop": notice}.get(self._notify, ""))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Yield the entries of the palette: every slash command, every profile, every mode.

        Of Textual's own entries, those stay that no slash command offers on this screen.
        """
        of_textual = {"Screenshot"} if screen is self.chat_screen else {"Screenshot", "Theme", "Quit"}
        yield from (each for each in super().get_system_commands(screen) if each.title in of_textual)
        if screen is not self.chat_screen:
            return
        for command in ON_SCREEN:
            if not command.argument.is_needed:
                yield self._offer(f"/{command.name}", command.on_screen, command.name)
        pane = self.chat_screen.pane
        start_worker(pane, pane.read_own_commands)  # new ones are in the palette the next time
        for own in pane.own_commands.commands:
            yield SystemCommand(f"/{own.name}", own.on_screen, partial(pane.composer.begin_command, own.name))
        for profile in self.chat_screen.session.profiles:
            yield self._offer(f"Profile: {profile.title}", profile.description, "profile", profile.name)
        for theme in sorted(self.available_themes):
            yield self._offer(f"Theme: {theme}", "the colours of the screen", "theme", theme)
        for mode in ("auto", "off", "ngram", "sd", "ssd"):
            yield self._offer(f"Mode: {mode}", "decode the next answers in this mode", "mode", mode)

    def _offer(self, title: str, description: str, name: str, argument: str = "") -> SystemCommand:
        run = partial(self.call_later, self.chat_screen.run_named, name, argument)
        return SystemCommand(title, description, run)


def _tools(config: Config) -> ToolKit:
    """Return the tools that work in the folder in which the program was started."""
    from localspec.app.tools import tool_kit  # no start waits for it

    return tool_kit(config, Path.cwd())


def launch(request: ScreenRequest) -> int:
    """Open the screen and return the exit code; raises `UserError` and `StoreError` before it opens."""
    log: deque[LogLine] = deque(maxlen=KEPT)
    with Store(paths.chats_file()) as store:
        models = ChatModels(request.opener, request.profiles)
        session = ChatSession(
            store,
            request.profiles.good,
            request.session,
            request.profile,
            start="last" if request.resumes else "new",
            tuned_for=models.tuned_for,
        )
        session.shared.make_kit = partial(_tools, request.config)
        session.shared.titles = request.config.titles
        session.shared.reads_ahead = request.config.read_ahead
        session.shared.compaction_mode = request.config.compact

        def opener(choice: ModelChoice | None) -> Opener:
            return lambda on_progress: models.open(choice, OpeningWatch(on_progress, log.append)).models

        loader = ModelLoader(opener(None))
        app = LocalSpecApp(session, loader, request.config, Path.cwd(), log)
        try:
            app.chat_screen.models.looks_for_better = request.opens_default_pair
            app.chat_screen.models.opener = opener
            if models.opener.offers_choices:
                app.chat_screen.models.choices = models.choices
            app.chat_screen.models.host = models.opener.place
            if models.opener.at_home() is not None:
                app.chat_screen.elsewhere.use_local_models = models.use_local_models
            app.chat_screen.tuner = lambda choice, stop: models.tune(choice, stop, log.append)
            app.chat_screen.run_was_stopped = models.run_was_stopped
            app.chat_screen.check_tuning = models.check_tuning
            for problem in request.profiles.problems:
                log.append(LogLine(logging.WARNING, "profiles", str(problem)))
            code = app.run() or 0
        finally:
            app.chat_screen.models.fetches.close()
            loader.close()
            session.shared.close()
    if code > SIGNALLED:
        from localspec_tui.terminal import end_by  # likewise

        end_by(code - SIGNALLED)
    return code
