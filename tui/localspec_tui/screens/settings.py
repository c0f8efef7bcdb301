"""The settings of answers, each with its value and source."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Input, Static

from localspec.chat.session import ChatSession
from localspec.chat.settings import SETTINGS, Place, Setting, Source, Value, keep
from localspec.errors import LocalSpecError, UserError
from localspec_tui.keys import KeyFooter, key_of
from localspec_tui.screens.dialog import Dialog
from localspec_tui.screens.dialogs import EditScreen
from localspec_tui.screens.search import SearchInput
from localspec_tui.widgets.status import error_line


class SettingRow(Horizontal):
    """A setting with its value in a place, empty if unset, and the value that applies then."""

    def __init__(self, setting: Setting, found: Sequence[Source]) -> None:
        super().__init__()
        sources = [source for source in found if source.values.get(setting.name) is not None]
        own = [source for source in sources if source.place == setting.place("chat")]
        below = [Source("default", None, {}), *(source for source in sources if source not in own)][-1]
        self.setting = setting
        self._source = below.name
        self._below = below.values.get(setting.name)
        self.wanted = self._own = own[0].values[setting.name] if own else None
        self._place = own[0].name if own else ""
        self.problem = ""
        self.is_reset = False
        text = setting.shown(self._own)
        hint = setting.shown(self._below) or "none"
        is_typed = setting.kind in {"number", "whole"}
        self.field = SearchInput(text, placeholder=hint, compact=True) if is_typed else Button(compact=True)
        self._origin = Static(classes="origin", markup=False)

    def compose(self) -> ComposeResult:
        """Yield title, value and source side by side."""
        yield Static(self.setting.title, classes="title", markup=False)
        yield self.field
        yield self._origin
        reset = Button("×", classes="reset", compact=True, tooltip="Remove this value")
        reset.can_focus = False
        yield reset

    @property
    def is_changed(self) -> bool:
        """Return whether there is something to save."""
        return bool(self.problem) or self.is_reset or self.wanted != self._own

    @on(events.Mount)
    @on(Input.Changed)
    def look(self) -> None:
        """Read the field now, because its messages may be late."""
        self.problem = ""
        if isinstance(self.field, Button):
            now = self._below if self.wanted is None else self.wanted
            self.field.label = self.setting.shown(now) or "none"
        else:
            try:
                self.wanted = self.setting.read(self.field.value)
            except UserError as error:
                self.problem = error.message
        self.is_reset = self.is_reset and self.wanted is None
        source = self._place if self.wanted == self._own else "changed"
        self._origin.update(self.problem or (self._source if self.wanted is None else source))
        self._origin.set_class(bool(self.problem), "-wrong")
        self.set_class(self.wanted is not None or bool(self.problem), "-set")

    @on(Button.Pressed)
    def _press(self, event: Button.Pressed) -> None:
        """Take the next choice, or open the text."""
        now = self._below if self.wanted is None else self.wanted
        if event.button is not self.field:
            self.reset()
        elif choices := self.setting.choices:
            self._take(choices[(choices.index(now) + 1) % len(choices)])
        else:
            self.app.push_screen(EditScreen(self.setting.title, str(now or "")), self._take)

    def _take(self, value: Value | None) -> None:
        self.wanted = self.wanted if value is None else value
        self.look()

    def reset(self) -> None:
        """Remove the value from its place, in a profile if it is saved there."""
        self.wanted = None
        self.is_reset = True
        if isinstance(self.field, Input):
            self.field.value = ""
        self.look()


class SettingsScreen(Dialog[tuple[str, bool]]):
    """Change settings; returns a line about what was saved, and whether the models have to be reopened.

    Changes are only dropped at the second Escape.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "keep('chat')", "Save with this chat", id="settings.chat"),
        Binding("f2", "keep('profile')", "Save in the profile", id="settings.profile"),
        Binding("f3", "keep('config')", "Save in config.toml", id="settings.config"),
        Binding("ctrl+r", "reset", "Reset", id="settings.reset"),
        Binding(
            "up,shift+tab", "app.focus_previous", "Row above", id="settings.up", show=False, priority=True
        ),
        Binding("down,tab", "app.focus_next", "Row below", id="settings.down", show=False, priority=True),
        Binding("escape", "leave", "Leave", id="settings.leave"),
    ]

    def __init__(self, session: ChatSession, found: Sequence[Source]) -> None:
        super().__init__()
        self._session = session
        self._hint = Static(id="settings-hint", markup=False)
        self._rows = [SettingRow(setting, found) for setting in SETTINGS]
        self._warned_of: list[Value | None] = []

    def compose(self) -> ComposeResult:
        """Yield the rows above their explanation and the ways to save."""
        profile = self._session.followed.title
        ways = {
            "chat": "Save with this chat",
            "profile": f"Save in profile {profile}",
            "config": "Save in config.toml",
        }
        with Vertical(classes="frame") as box:
            box.border_title = "Settings"
            with VerticalScroll(can_focus=False):
                yield from self._rows
            yield self._hint
            with Horizontal(classes="buttons"):
                for place, words in ways.items():
                    yield Button(words, compact=True, action=f"screen.keep({place!r})")
        yield KeyFooter()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Say what the row means."""
        if isinstance(row := event.widget.parent, SettingRow):
            self._warned_of = []  # this line replaces the warning
            self._hint.update(f"{row.setting.title}: {row.problem or row.setting.words}.")

    def action_reset(self) -> None:
        """Update a row when a lower layer changes."""
        if self.focused is not None and isinstance(row := self.focused.parent, SettingRow):
            row.reset()

    @on(Input.Submitted)
    async def _keep_with_chat(self) -> None:
        await self.action_keep("chat")

    async def action_keep(self, place: Place) -> None:
        """Save the changes, unless one is invalid or cannot be written."""
        for row in self._rows:
            row.look()
        changed = {row.setting.name: row.wanted for row in self._rows if row.is_changed}
        if wrong := next((row for row in self._rows if row.problem), None):
            wrong.field.focus()
            self._hint.update(f"{wrong.setting.title}: {wrong.problem}.")
            return
        try:
            words = await asyncio.to_thread(keep, self._session, place, changed) if changed else ""
        except LocalSpecError as error:
            self._hint.update(error_line(error))
        else:
            self.dismiss((words or "no setting was changed", "context" in changed))

    def action_leave(self) -> None:
        """Return nothing; ask for a second Escape where something would be lost."""
        changed = [row.wanted for row in self._rows if row.is_changed]
        if changed == self._warned_of:
            self.dismiss(None)
        self._warned_of = changed
        leave, save = (key_of(self, f"settings.{name}") for name in ("leave", "chat"))
        self._hint.update(f"{leave} again discards the changes; {save} saves them with this chat.")
