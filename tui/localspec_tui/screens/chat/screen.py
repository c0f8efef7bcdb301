"""The chat: transcript, prompt, sidebar and panels; acts on what the widgets tell."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar, get_args

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Input, TextArea

from localspec.app.options import DRAFT_MODES
from localspec.chat.commands import Command
from localspec.chat.loading import Loading, LoadState, ModelLoader
from localspec.chat.session import ChatSession
from localspec.errors import LocalSpecError, StoreError
from localspec.inference.interface import OpenModels
from localspec.storage.config import Config
from localspec.types import Mode
from localspec_tui import messages as said
from localspec_tui.screens.chat.actions import MessageActions
from localspec_tui.screens.chat.pane import ChatPane
from localspec_tui.screens.chat.reporting import Reporter, in_words
from localspec_tui.screens.chat.slash import SlashCommands
from localspec_tui.widgets.composer.composer import Composer
from localspec_tui.widgets.log_panel import LogPanel
from localspec_tui.widgets.sidebar import Sidebar
from localspec_tui.widgets.status import StatusLine
from localspec_tui.widgets.title_bar import TitleBar
from localspec_tui.widgets.transcript.transcript import Transcript
from localspec_tui.widgets.welcome import SetupOffer, Welcome

if TYPE_CHECKING:
    from localspec.inference.worker import LogLine
    from localspec_tui.screens.tune import Tuner

Log = deque["LogLine"]
Answer = TypeVar("Answer")

LOG_S = 0.3
QUIT_WITHIN_S = 2.0
ROOM_FOR_SIDEBAR = 100  # columns


class ChatScreen(Screen[int]):
    """The main screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop, or back to the prompt", id="chat.stop"),
        Binding("ctrl+c", "interrupt", "Copy, stop; twice quits", id="chat.interrupt", priority=True),
        Binding("ctrl+n", "command('new')", "New chat", id="chat.new", priority=True),
        Binding("ctrl+k", "command('search')", "Search all chats", id="chat.search", priority=True),
        Binding("ctrl+b", "toggle_sidebar", "Show or hide the chats", id="chat.sidebar", priority=True),
        Binding("ctrl+r", "command('regen')", "Answer again", id="chat.regenerate", priority=True),
        Binding("ctrl+t", "command('thinking')", "Show or fold thinking", id="chat.thinking", priority=True),
        Binding("ctrl+l", "command('log')", "Show or hide the log", id="chat.log", priority=True),
        Binding("f1", "command('help')", "Help", id="chat.help", priority=True),
        Binding("f2", "command('origins')", "Colour words by origin", id="chat.origins", priority=True),
        Binding("f3", "command('timeline')", "Show or hide the timeline", id="chat.timeline", priority=True),
        Binding("f4", "command('compare')", "Answer in every mode at once", id="chat.compare", priority=True),
        Binding("f5", "next_profile", "Next profile", id="chat.profile", priority=True),
        Binding("f6", "next_mode", "Next decoding mode", id="chat.mode", priority=True),
        Binding("f8", "command('setup')", "Find models for this machine", id="chat.setup", priority=True),
        Binding("f7", "command('tune')", "Find the fastest settings", id="chat.tune", priority=True),
        Binding("ctrl+up", "to_messages", "To the messages", id="chat.messages", priority=True),
        Binding("pageup", "page(-1)", "Scroll up", id="chat.page_up", show=False),
        Binding("pagedown", "page(1)", "Scroll down", id="chat.page_down", show=False),
        Binding("end,ctrl+end", "follow", "Follow the end", id="chat.follow", priority=True),
    ]  # fmt: skip
    DEFAULT_CSS = """
    ChatScreen {
        & Sidebar { width: 30; }
        & .hidden { display: none; }
    }
    """

    def __init__(
        self, desk: ChatSession, loader: ModelLoader, config: Config, folder: Path, log: Log
    ) -> None:
        super().__init__()
        self.desk = desk
        self.loader = loader
        self.folder = folder
        self.pane = ChatPane(self, config.attachment_bytes)
        self.deeds = MessageActions(self)
        self.reporter = Reporter(self)
        self.tuner: Tuner | None = None  # where the models can be tuned
        self._slash = SlashCommands(self)
        self._log = log
        self._wants_sidebar = config.sidebar
        self._interrupted = -QUIT_WITHIN_S

    def compose(self) -> ComposeResult:
        """Return the parts of the screen."""
        yield TitleBar()
        with Horizontal():
            yield Sidebar()
            yield self.pane
        yield StatusLine()

    async def on_mount(self) -> None:
        """Show the last chat, and load the models meanwhile."""
        self.set_interval(LOG_S, self._show_log)
        self.query_one(Composer).focus()
        self.loader.on_change = self._loading_changed
        self.loader.start()
        await self.show_chat()
        self.pane.take_up_draft()

    def offer_setup(self) -> None:
        """Offer to find larger models than those that came along."""
        self.query_one(Welcome).offer_setup()

    def on_resize(self, event: events.Resize) -> None:
        """Give the chats room only where there is some."""
        self._fit_sidebar(event.size.width)

    def _loading_changed(self, _state: LoadState) -> None:
        self.call_later(self._show_loading)  # in whichever thread it changed

    async def _show_loading(self) -> None:
        await self.reporter.loaded(self.loader.state)

    def _show_log(self) -> None:
        panel = self.query_one(LogPanel)
        while self._log:
            panel.add(self._log.popleft())

    def ready_models(self) -> OpenModels:
        """Return the open models; raises an error that says why there are none."""
        return self.loader.models(wait=False)

    async def show_chat(self, at: int | None = None) -> None:
        """Show the open chat anew, at its end or at one of its messages."""
        await self.pane.show(at)
        self.reporter.show_chat()
        await self.show_chats()

    async def show_chats(self) -> None:
        """List the chats anew."""
        try:
            chats = await asyncio.to_thread(self.desk.store.chats)
        except StoreError as error:
            self.say(in_words(error))
        else:
            self.query_one(Sidebar).show(chats, self.desk.chat.info.id)

    async def open_chat(self, chat_id: int, at: int | None = None) -> None:
        """Leave the open chat for another; an answer under way there is ended and kept."""
        await self.pane.put_away(lambda: self.desk.open(chat_id, at))
        await self.show_chat(at)
        self.pane.take_up_draft()
        self.query_one(Composer).focus()

    async def answer_ended(self, error: BaseException | None) -> None:
        """Bring everything around an answer up to date."""
        self.reporter.show_chat()
        await self.show_chats()
        if error is not None:
            await self.reporter.explain(error)
        await self.reporter.show_memory()

    @on(said.DraftChanged)
    def _follow_draft(self, event: said.DraftChanged) -> None:
        self.reporter.draft_changed(event.text)

    # --- what the person does ---

    @on(SetupOffer.Taken)
    async def _set_up(self) -> None:
        await self.run_command(Command("setup"))

    async def run_command(self, command: Command) -> None:
        """Run a slash command; what goes wrong is said in the status line."""
        await self._attempt(self._slash.run(command))

    async def _attempt(self, deed: Awaitable[None]) -> None:
        try:
            await deed
        except LocalSpecError as error:
            self.say(in_words(error))

    def ask(self, screen: Screen[Answer], take: Callable[[Answer | None], Awaitable[None]]) -> None:
        """Open another screen, and do with what it brings back what is to be done."""
        self.app.push_screen(screen, lambda answer: self._attempt(take(answer)))

    @on(said.MessageAction)
    async def _do_deed(self, event: said.MessageAction) -> None:
        await self._attempt(self.deeds.do(event.deed, event.message_id, event.text))

    @on(said.ChatPicked)
    async def _pick_chat(self, event: said.ChatPicked) -> None:
        await self._attempt(self.open_chat(event.chat_id, event.message_id))

    @on(said.ChatRenamed)
    async def _rename_chat(self, event: said.ChatRenamed) -> None:
        await self._attempt(self.deeds.rename(event.chat_id, event.title))

    @on(said.ChatPinned)
    async def _pin_chat(self, event: said.ChatPinned) -> None:
        await self._attempt(self.deeds.pin(event.chat_id, pinned=event.pinned))

    @on(said.ChatDeleted)
    async def _delete_chat(self, event: said.ChatDeleted) -> None:
        await self._attempt(self.deeds.delete(event.chat_id))

    def say(self, text: str) -> None:
        """Say one line where the person looks."""
        self.query_one(StatusLine).say(text)

    async def make_room(self) -> None:
        """Offer to leave earlier exchanges out."""
        await self.run_command(Command("drop"))

    # --- keys ---

    async def action_command(self, name: str) -> None:
        """Run a slash command by its key."""
        await self.run_command(Command(name))

    def action_stop(self) -> None:
        """Stop the answer; if there is none, go back to the prompt."""
        if self.pane.answering:
            self.pane.stop()
        elif isinstance(self.loader.state, Loading):
            self.loader.cancel()
            self.say("loading was stopped; the next prompt starts it again")
        else:
            self.query_one(Composer).focus()

    async def action_interrupt(self) -> None:
        """Copy what is selected, or stop the answer, or leave at the second press in a row."""
        widget = self.focused
        selected = widget.selected_text if isinstance(widget, TextArea | Input) else self.get_selected_text()
        if selected:
            await self.deeds.copy(selected, "the selection")
        elif self.pane.answering:
            self.pane.stop()
        elif time.monotonic() - self._interrupted < QUIT_WITHIN_S:
            self.app.exit(0)
        else:
            self._interrupted = time.monotonic()
            self.say("Ctrl+C again quits")

    def action_toggle_sidebar(self) -> None:
        """Show or hide the chats."""
        sidebar = self.query_one(Sidebar)
        self._wants_sidebar = sidebar.has_class("hidden")
        sidebar.toggle_class("hidden")
        if self._wants_sidebar:
            sidebar.focus()
        else:
            self.query_one(Composer).focus()

    def _fit_sidebar(self, width: int) -> None:
        self.query_one(Sidebar).set_class(not (self._wants_sidebar and width >= ROOM_FOR_SIDEBAR), "hidden")

    async def action_next_profile(self) -> None:
        """Take the next profile."""
        names = [profile.name for profile in self.desk.profiles]
        following = names[(names.index(self.desk.profile.name) + 1) % len(names)]
        await self.run_command(Command("profile", following))

    async def action_next_mode(self) -> None:
        """Take the next way of decoding that these models know."""
        models, now = self.loader.ready, self.desk.mode or "auto"
        needless = DRAFT_MODES if models is not None and models.draft is None else ()
        modes = [mode for mode in ("auto", *get_args(Mode)) if mode not in needless]
        following = modes[(modes.index(now) + 1) % len(modes)] if now in modes else "auto"
        await self.run_command(Command("mode", following))

    def action_to_messages(self) -> None:
        """Give the focus to the last message."""
        self.query_one(Transcript).focus_last()

    def action_page(self, pages: int) -> None:
        """Scroll the messages while the cursor stays in the prompt."""
        transcript = self.query_one(Transcript)
        transcript.scroll_relative(y=pages * max(1, transcript.size.height - 2), animate=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the End key to a text that is being written."""
        text = self.focused
        if action == "follow" and isinstance(text, TextArea | Input):
            return not (text.text if isinstance(text, TextArea) else text.value)
        return super().check_action(action, parameters)

    def action_follow(self) -> None:
        """Go to the end and follow it."""
        self.query_one(Transcript).follow()
