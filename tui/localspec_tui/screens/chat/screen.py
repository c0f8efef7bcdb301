"""The chat screen: the conversation among title, chats and status, and its keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, ClassVar, assert_never, get_args

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.errors import NoWidget
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, TextArea

from localspec.chat.answer_settings import DRAFT_MODES
from localspec.chat.answers import Answers
from localspec.chat.commands.command import CommandCall, CommandContext
from localspec.chat.commands.effects import (
    Act,
    ActionName,
    ActOnMessage,
    Ask,
    ChangeChat,
    Copy,
    Effect,
    NewChat,
    Put,
    Say,
    Setting,
    ShowSetting,
    SwitchChat,
    Wait,
)
from localspec.chat.commands.parsing import as_typed
from localspec.chat.commands.registry import ON_SCREEN, SCREEN_NAMES
from localspec.chat.loading import Failed, Loading, LoadState, ModelLoader, Ready
from localspec.chat.session import ChatSession
from localspec.errors import LocalSpecError, UserError
from localspec.storage.config import Config
from localspec.types.request import Mode
from localspec.units import MODE_NAMES
from localspec_tui.keys import KeyFooter, key_of
from localspec_tui.screens.chat.actions import ACTIONS
from localspec_tui.screens.chat.chat_list import ListedChats
from localspec_tui.screens.chat.elsewhere import ChatsChanged, Elsewhere
from localspec_tui.screens.chat.message_actions import (
    MessagesDeleted,
    OtherModelsWanted,
    act,
    act_by_command,
)
from localspec_tui.screens.chat.other_models import OtherModels
from localspec_tui.screens.chat.pane import ChatPane, Log, PaneShared
from localspec_tui.screens.chat.panes import ROOM_FOR_TWO, Panes
from localspec_tui.screens.chat.status import NOTICE_S
from localspec_tui.screens.dialogs import EditScreen
from localspec_tui.widgets.sidebar import (
    ChangeAsked,
    ChatList,
    ChatPicked,
    FolderChangeAsked,
    Sidebar,
)
from localspec_tui.widgets.status import error_line
from localspec_tui.workers import start_worker

if TYPE_CHECKING:
    from localspec_tui.screens.tune import Tuner

QUIT_WITHIN_S = 2.0
ROOM_FOR_SIDEBAR = 100  # columns


def _command_bindings() -> Iterator[Binding]:
    """Yield the keys of commands."""
    for command in ON_SCREEN:
        if (key := command.key) is not None:
            action = f"command('{command.name}')"
            yield Binding(key.keys, action, key.label, id=key.id, priority=key.has_priority)


class ChatScreen(Screen[int]):
    """The main screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop, or go back to the prompt", id="chat.stop"),
        Binding(
            "ctrl+c", "interrupt", "Copy or stop; twice in a row quits", id="chat.interrupt", priority=True
        ),
        Binding("ctrl+b", "toggle_sidebar", "Show or hide the chats", id="chat.sidebar", priority=True),
        *_command_bindings(),
        Binding("f5", "next_profile", "Next profile", id="chat.profile", priority=True),
        Binding("f6", "next_mode", "Next decoding mode", id="chat.mode", priority=True),
        Binding("ctrl+z", "restore_last", "Restore the deleted chat", id="chat.restore", priority=True),
        Binding("ctrl+up", "to_messages", "Go to the messages", id="chat.messages", priority=True),
        Binding(
            "ctrl+right_square_bracket", "other_chat", "Go to the other chat", id="chat.other", priority=True
        ),
        Binding("pageup", "page(-1)", "Scroll up", id="chat.page_up", show=False),
        Binding("pagedown", "page(1)", "Scroll down", id="chat.page_down", show=False),
        Binding("end,ctrl+end", "follow", "Go to the end, and follow it", id="chat.follow", priority=True),
    ]

    def __init__(
        self, session: ChatSession, loader: ModelLoader, config: Config, folder: Path, log: Log
    ) -> None:
        super().__init__()
        self.folder = folder
        self.elsewhere = Elsewhere(self, loader, self._stop_reading, self._read_again)
        self.answers = Answers(
            session.store, loader, self.elsewhere, lambda work: start_worker(self, work, group="answer")
        )
        shared = PaneShared(
            self.answers, self.elsewhere, folder, config.attachment_bytes, log, self.run_command, act
        )
        self._sidebar = Sidebar()
        self.panes = Panes(session, shared, self._sidebar)
        self._listed = ListedChats(session.store, self._sidebar, self.panes, self.answers)
        self._chat_beside = session.chat_beside  # to be opened again, once there is room
        self.tuner: Tuner | None = None  # where the models can be tuned
        self.run_was_stopped: Callable[[], bool] = lambda: False
        self.check_tuning: Callable[[], None] = lambda: None  # raises UserError for models elsewhere
        self._loader = loader
        self.models = OtherModels(self.panes, self.answers, self.elsewhere)
        self._wants_sidebar = config.sidebar
        self.pane.composer.prompt.vim_mode = "INSERT" if config.vim else ""
        self._quitting: Timer | None = None  # as long as another Ctrl+C quits
        self._waiting = Event()  # stops what is waited for; set where that is nothing
        self._waiting.set()

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        yield self.panes.titles
        yield self.panes.row
        yield self.panes.statuses
        yield KeyFooter(lambda: self._is_stopping)

    @property
    def pane(self) -> ChatPane:
        """The pane that keys act on."""
        return self.panes.active

    @property
    def session(self) -> ChatSession:
        """The session of that pane."""
        return self.pane.session

    async def on_mount(self) -> None:
        """Show the last chat, and load the models meanwhile."""
        self.pane.composer.focus()
        self._loader.on_change = self._loading_changed
        self.models.fetches.on_change = lambda: self.call_later(self.models.show)
        self._loader.start()
        await self.pane.show_opened(None, None)

    def _stop_reading(self) -> None:
        for pane in self.panes.all:
            pane.reading.stop()

    def _read_again(self) -> None:
        self.pane.composer.look_again()

    def on_unmount(self) -> None:
        """Stop the answers in progress; their texts are saved."""
        self.answers.close()

    def on_resize(self, event: events.Resize) -> None:
        """Show the sidebar only if the screen is wide enough."""
        shown = self._wants_sidebar and event.size.width >= ROOM_FOR_SIDEBAR
        self._sidebar.set_class(not shown, "hidden")
        self._lay_out(event.size.width)
        if self._chat_beside is not None and event.size.width >= ROOM_FOR_TWO:
            start_worker(self, self._open_again, self._chat_beside, group="panes")
            self._chat_beside = None

    # --- two chats side by side ---

    def _lay_out(self, columns: int) -> None:
        """Show one pane or two, and note that their chats are seen."""
        has_sidebar = not self._sidebar.has_class("hidden")
        for pane in self.panes.lay_out(columns, has_sidebar=has_sidebar):
            number = pane.chat.info.id
            self.elsewhere.take_away_notice(number)
            if number in self.answers.unread:
                start_worker(self, self.answers.saw, number, group="seen")
        self._listed.show_marks()

    def set_focus(
        self, widget: Widget | None, scroll_visible: bool = True, from_app_focus: bool = False
    ) -> None:
        """Have keys act on the pane that has the focus, from the next key on."""
        if (pane := self.panes.of(widget)) is not None and pane is not self.pane:
            self.panes.activate(pane)
            self._lay_out(self.size.width)
            self.post_message(ChatsChanged())
        super().set_focus(widget, scroll_visible, from_app_focus)

    def focus_next(self, selector: str | type[Widget] = "*") -> Widget | None:
        """Go from the prompt to that of the other chat, where there are two."""
        other = self.panes.beside(self.pane)
        if other is None or self.focused is not self.pane.composer.prompt:
            return super().focus_next(selector)
        other.composer.focus()
        return self.focused

    def _forward_event(self, event: events.Event) -> None:
        """Have keys act on the pane that is clicked, at any of its places, from the next key on."""
        if isinstance(event, events.MouseDown) and not event.is_forwarded:
            with suppress(NoWidget):
                pane = self.panes.of(self.get_widget_at(event.x, event.y)[0])
                if pane is not None and pane is not self.pane:
                    pane.composer.focus()
        super()._forward_event(event)

    def action_other_chat(self) -> None:
        """Go to the prompt of the other chat."""
        if (other := self.panes.beside(self.pane)) is not None:
            other.composer.focus()

    async def _beside(self, pane: ChatPane, argument: str) -> None:
        """Open a chat beside that of a pane, a new one or a copy, or close the pane where there are two."""
        if argument == "fork":
            forked = await asyncio.to_thread(pane.chat.fork, pane.chat.last().id)
            await self._open_beside(pane, forked.id)
        elif self.panes.beside(pane) is None:
            await self._open_beside(pane)
        else:
            self._close(pane)

    async def _open_beside(self, origin: ChatPane, chat_id: int | None = None) -> None:
        """Open a chat beside a pane, by default a new one; what is typed meanwhile is meant for it."""
        before = await origin.settle()
        if (other := self.panes.beside(origin)) is not None:
            other.composer.focus()
            await (other.switch_chat(other.controller.new) if chat_id is None else other.open_chat(chat_id))
            return
        pane = await self.panes.add(chat_id, self.size.width)
        pane.composer.focus()
        typed = origin.composer.text
        if typed != before and typed.startswith(before):
            origin.composer.text = before
            pane.composer.text = typed.removeprefix(before)
        await self._show_new(pane)

    async def _show_new(self, pane: ChatPane) -> None:
        """Show what a new pane has to show."""
        self._lay_out(self.size.width)
        async with self.answers.changing:
            await pane.controller.show_opened()
        if (models := self._loader.ready) is not None:
            pane.introduce(models.target, models.draft)
        self.models.show()
        await pane.status.show_state(self._loader.state, tells=False)

    async def _open_again(self, chat_id: int) -> None:
        """Open the chat that was open beside at the last end, and leave the focus where it is."""
        with suppress(LocalSpecError):  # it may be gone
            await self._show_new(await self.panes.add(chat_id, self.size.width))

    def _close(self, pane: ChatPane) -> None:
        """Close one of two panes; its chat stays in the list."""
        rest = self.panes.beside(pane)
        assert rest is not None
        rest.composer.focus()
        self.panes.begin_to_close(pane)
        start_worker(self, rest.status.attempt, self._close_beside, pane, rest, group="panes")

    async def _close_beside(self, pane: ChatPane, rest: ChatPane) -> None:
        left = pane.chat.info
        has_waiting = bool(pane.session.queue)
        await self.panes.close(pane)
        self._lay_out(self.size.width)
        self.post_message(ChatsChanged())
        if left.id in self.answers.being_answered():
            self.elsewhere.goes_on(left, rest.notice, has_waiting=has_waiting)

    def _reset_focus(self, widget: Widget, avoiding: list[Widget] | None = None) -> None:
        """Give the focus that a widget loses to the prompt: the letters of its neighbours are commands."""
        if self.focused is widget and not isinstance(widget, TextArea):
            (self.panes.of(widget) or self.pane).composer.focus()
        else:
            super()._reset_focus(widget, avoiding)

    def say(self, text: str) -> None:
        """Say one line where the user looks."""
        self.pane.notice.say(text)

    def _loading_changed(self, _state: LoadState) -> None:
        self.call_later(self._show_loading)  # in whichever thread it changed

    async def _show_loading(self) -> None:
        state = self._loader.state
        if isinstance(state, Ready):
            target = state.models.target
            draft = state.models.draft
            for pane in self.panes.all:
                pane.introduce(target, draft)
                pane.notice.over("downloads")
            self.models.look()
            self.pane.composer.look_again()
        for pane in self.panes.all:
            await pane.status.show_state(state, tells=pane is self.pane)
        if isinstance(state, Failed):
            self.elsewhere.offer_local_models(f"{error_line(state.error)}.")
        self.refresh_bindings()

    # --- other models, and the list of chats ---

    @on(OtherModelsWanted)
    async def _answer_with_others(self, event: OtherModelsWanted) -> None:
        await event.pane.status.attempt(partial(self.models.choose, again=event))

    @on(ChatsChanged)
    async def _list_chats(self) -> None:
        await self._listed.show()

    @on(ChangeAsked)
    async def _change_chat(self, event: ChangeAsked) -> None:
        await self.pane.status.attempt(self._listed.change, event)

    @on(FolderChangeAsked)
    async def _change_folder(self, event: FolderChangeAsked) -> None:
        await self.pane.status.attempt(self._listed.change_folder, event)

    @on(MessagesDeleted)
    def _note_deleted(self, event: MessagesDeleted) -> None:
        self._listed.note_deleted(event.deleted)

    @on(ChatPicked)
    async def _pick_chat(self, event: ChatPicked) -> None:
        await self.pane.status.attempt(self._open, event)

    async def _open(self, picked: ChatPicked) -> None:
        """Open a chat in the pane that keys act on, or go to the pane that has it already."""
        pane = self.panes.showing(picked.chat_id)
        if picked.beside and pane is self.pane and self.panes.beside(pane) is None:
            raise UserError("this chat is open already", "/beside fork opens a copy beside it")
        if picked.beside and pane is None:
            await self._open_beside(self.pane, picked.chat_id)
            return
        if pane is not None and pane is not self.pane:
            pane.composer.focus()
        await self.pane.open_chat(picked.chat_id, picked.message_id, picked.words)

    # --- slash commands ---

    async def run_command(self, pane: ChatPane, call: CommandCall) -> None:
        """Run a slash command in a pane; errors go to its notice."""
        await pane.status.attempt(self._run, pane, call)

    async def run_named(self, name: str, argument: str = "") -> None:
        """Run the command of this name where the user is; errors go to the notice there."""
        await self.run_command(self.pane, SCREEN_NAMES[name].called_with(argument))

    async def _run(self, pane: ChatPane, call: CommandCall) -> None:
        context = CommandContext(pane.session, self._loader.ready, self.folder)
        for effect in await asyncio.to_thread(call.effects, context):
            await self._carry_out(pane, effect, call.typed)
        pane.status.count_tools()

    async def _carry_out(self, pane: ChatPane, effect: Effect, typed: str) -> None:
        match effect:
            case Say(text, is_long):
                self.notify(text, timeout=NOTICE_S, markup=False) if is_long else pane.notice.say(text)
            case ShowSetting(setting, is_new):
                self._show_setting(pane, setting, is_new=is_new)
            case Copy(text, what):
                pane.copy(text, what)
            case ActOnMessage():
                await act_by_command(pane, effect)
            case NewChat():
                await pane.switch_chat(pane.controller.new)
            case SwitchChat(chat_id):
                await self._open(ChatPicked(chat_id))
            case ChangeChat(change, text):
                await self._listed.change(ChangeAsked(change, pane.chat.info, text))
            case Ask(prompt):
                await pane.send(as_typed(prompt), typed)
            case Put() | Wait():
                start_worker(self, self._prepare, pane, effect, typed, group="waiting")
            case Act(name, argument):
                doing = self.actions(pane)[name](argument)
                if isawaitable(doing):
                    await doing
            case _:
                assert_never(effect)

    async def _prepare(self, pane: ChatPane, effect: Put | Wait, typed: str) -> None:
        """Put a text into the prompt, or wait for one, until Escape stops that."""
        if isinstance(effect, Put):
            await pane.composer.put_above(effect.text)
            pane.notice.say(f"{effect.what} is in the prompt; Enter sends it")
            return
        self._waiting.set()  # for another one
        self._waiting = stop = Event()
        pane.notice.say(f"{effect.what}; {key_of(self, 'chat.stop')} stops it")
        self.refresh_bindings()
        try:
            result = await asyncio.to_thread(effect.work, stop)
        except LocalSpecError as error:
            pane.composer.refuse(typed, error)
        else:
            pane.notice.say("")
            await self._carry_out(pane, result, typed)
        finally:
            stop.set()
            self.refresh_bindings()

    def actions(self, pane: ChatPane) -> dict[ActionName, Callable[[str], object]]:
        """Return the actions of the screen for commands in a pane."""
        return {
            **{name: partial(act, pane) for name, act in ACTIONS.items()},
            "beside": partial(self._beside, pane),
            "fetch": lambda _: self.models.fetch_best(),
            "model": self.models.choose,
            "setup": lambda _: self.models.choose(to_fetch=True),
            "tune": self.tune,
        }

    def _show_setting(self, pane: ChatPane, setting: Setting, *, is_new: bool) -> None:
        """Show a setting of an open chat; a system prompt that is not new can be edited."""
        session = pane.session
        say = pane.notice.say
        kept = ", saved with this chat" * is_new
        pane.show_figures()
        match setting:
            case "mode":
                mode = MODE_NAMES.get(session.mode or "", "auto")
                say(f"mode {mode} from the next answer on{kept}")
            case "profile":
                say(f"profile {session.profile.title}: {session.profile.description}")
            case "temperature":
                say(f"temperature {session.sampling(self._loader.ready).temperature:g}{kept}")
            case "thinking":
                say(f"{session.thinking}{kept}")
            case "system prompt" if is_new:
                say("this chat has its own system prompt" if pane.chat.system else "no system prompt")
            case "system prompt":
                editor = EditScreen("System prompt of this chat", pane.chat.system)
                pane.ask(editor, partial(self._set_system, pane))
            case _:
                assert_never(setting)

    async def _set_system(self, pane: ChatPane, text: str | None) -> None:
        if text is not None:
            await asyncio.to_thread(pane.session.update_settings, system_prompt=text)
            self._show_setting(pane, "system prompt", is_new=True)

    async def tune(self, argument: str) -> None:
        """Open the page that tunes these models, for the tasks that are named."""
        from localspec.app.tuning import read_tasks  # 0.1 s that the start does without
        from localspec_tui.screens.tune import TuneScreen

        tasks = read_tasks(argument.replace(",", " ").split())
        if self.tuner is None:
            raise UserError("these models cannot be tuned from here", "run `localspec tune` in a shell")
        self.check_tuning()
        await self.pane.controller.free_models()
        known = self.session.shared.tuned_for
        models = self.pane.title_bar.models
        self.app.push_screen(TuneScreen(self.tuner, self._loader, models, tasks, known, self.run_was_stopped))

    # --- keys ---

    async def action_command(self, name: str) -> None:
        """Run a slash command by its key."""
        await self.run_named(name)

    @property
    def _is_stopping(self) -> bool:
        """Return whether Escape stops something."""
        is_reading = self.pane.composer.is_reading
        is_reading = is_reading or not self._waiting.is_set()
        return self.pane.answering or is_reading or isinstance(self._loader.state, Loading)

    def action_stop(self) -> None:
        """Stop the answer; if there is none, go back to the prompt."""
        if self.pane.answering:
            self.pane.controller.stop()
        elif not self._waiting.is_set():
            self._waiting.set()
        elif self.pane.composer.is_reading:
            self.pane.composer.stop_reading()
        elif isinstance(self._loader.state, Loading):
            if self._loader.cancel():
                self.say("loading stopped; the previous models stay open")
        else:
            self.clear_selection()
            self.pane.transcript.highlight("")
            self.pane.notice.end()
            self.pane.composer.focus()

    def action_interrupt(self) -> None:
        """Copy what is selected, or stop the answer, or leave at the second press in a row."""
        widget = self.focused
        typed = widget.selected_text if isinstance(widget, TextArea | Input) else ""
        if selected := typed or self.get_selected_text():
            self.pane.copy(selected, "the selection")
        elif self.pane.answering:
            self.pane.controller.stop()
        elif self._quitting is not None:
            self.app.exit(0)
        else:
            ends = "; answers being written end, and their text is saved" * self.answers.is_busy
            self.pane.notice.say(f"Ctrl+C again quits{ends}", about="quitting")
            self._quitting = self.set_timer(QUIT_WITHIN_S, partial(self._stay, self.pane))

    def _stay(self, pane: ChatPane) -> None:
        """Take back that Ctrl+C quits."""
        self._quitting = None
        pane.notice.over("quitting")

    def action_toggle_sidebar(self) -> None:
        """Show or hide the chats."""
        self._wants_sidebar = self._sidebar.has_class("hidden")
        self._sidebar.toggle_class("hidden")
        self._lay_out(self.size.width)
        (self._sidebar if self._wants_sidebar else self.pane.composer).focus()

    async def action_next_profile(self) -> None:
        """Take the next profile."""
        names = [profile.name for profile in self.session.profiles]
        following = names[(names.index(self.session.profile.name) + 1) % len(names)]
        await self.run_named("profile", following)

    async def action_next_mode(self) -> None:
        """Take the next way of decoding that these models know."""
        models = self._loader.ready
        now = self.session.mode or "auto"
        needless = DRAFT_MODES if models is not None and models.draft is None else ()
        modes = [mode for mode in ("auto", *get_args(Mode)) if mode not in needless]
        following = modes[(modes.index(now) + 1) % len(modes)] if now in modes else "auto"
        await self.run_named("mode", following)

    async def action_restore_last(self) -> None:
        """Restore the chat or the messages that were deleted last, here or before this start."""
        await self.pane.status.attempt(self._listed.restore_last)

    def action_to_messages(self) -> None:
        """Give the focus to the last message."""
        self.pane.transcript.focus_last()

    def action_page(self, pages: int) -> None:
        """Scroll the messages while the cursor stays in the prompt."""
        transcript = self.pane.transcript
        transcript.scroll_relative(
            y=pages * max(1, transcript.size.height - 2), animate=False, immediate=True
        )

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the End key, and undoing, to a text that is being written."""
        text = self.focused
        if parameters == ("regen",) and self.pane.composer.prompt.vim_mode == "NORMAL":
            return False  # there Ctrl+R is vim's
        if action == "other_chat":
            return self.panes.beside(self.pane) is not None
        if action == "restore_last" and not self._listed.has_deleted and not isinstance(text, ChatList):
            return False  # at the prompt, a chat of an earlier start would come as a surprise
        if action in {"follow", "restore_last"} and isinstance(text, TextArea | Input):
            return not (text.text if isinstance(text, TextArea) else text.value)
        return super().check_action(action, parameters)

    def action_follow(self) -> None:
        """Go to the end and follow it."""
        self.pane.transcript.follow()
