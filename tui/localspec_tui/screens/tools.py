"""Switch the tools of the open chat, and of its profile, on and off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static

from localspec.chat.session import ChatSession
from localspec.chat.settings import keep_tools
from localspec.chat.tool_use.kit import ToolKit
from localspec.errors import LocalSpecError
from localspec_tui.keys import KeyFooter
from localspec_tui.screens.dialog import Dialog
from localspec_tui.widgets.filtered_list import FilteredList, ListRow
from localspec_tui.widgets.markdown.blocks import clean
from localspec_tui.widgets.status import error_line

_HINT = "The model may call tools that are on. What changes files or runs something is asked each time."


class ToolsScreen(Dialog[None]):
    """Lists the toolboxes: our own groups of tools, and MCP servers."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "switch", "On or off", id="tools.switch"),
        Binding("f2", "keep", "Save in the profile", id="tools.profile"),
        Binding("ctrl+r", "reset", "As the profile", id="tools.reset"),
        Binding("ctrl+t", "look", "Start it and list its tools", id="tools.look"),
        Binding("escape", "dismiss(None)", "Close", id="tools.leave"),
    ]

    def __init__(self, session: ChatSession, kit: ToolKit) -> None:
        super().__init__()
        self._session = session
        self._kit = kit
        self._known: dict[str, str] = {}  # what each box has, as far as it was asked
        self._list = FilteredList("Type to filter")
        self._in_force = Static(id="tools-in-force", markup=False)
        self._note = Static(_HINT, classes="note", markup=False)

    def compose(self) -> ComposeResult:
        """Stack the toolboxes over what is said of them."""
        with Vertical(classes="frame") as frame:
            frame.border_title = "Tools of this chat"
            yield self._in_force
            yield self._list
            yield self._note
        yield KeyFooter()

    def on_mount(self) -> None:
        """Show what is on."""
        self._show(next(iter(self._kit.boxes), ""))

    def _show(self, name: str) -> None:
        on_now = self._session.tools_on()
        self._in_force.update(self._source(on_now))
        self._list.show([self._row(each, is_on=each in on_now) for each in self._kit.boxes], name)

    def _source(self, on_now: Sequence[str]) -> str:
        """Say what is on, and where that comes from."""
        profile = self._session.tools_profile
        names = clean(", ".join(on_now) or "none")
        if self._session.chat.info.settings.tools is None:
            return f"On: {names}, from profile {profile.title}"
        usual = clean(", ".join(profile.tools.names_on) or "none")
        return f"On: {names}, set in this chat; profile {profile.title} has {usual}"

    def _row(self, name: str, *, is_on: bool) -> ListRow:
        words = self._known.get(name, self._kit.words.get(name, ""))
        head = f"{'on' if is_on else 'off':<4}{clean(name):<14} "
        return ListRow(name, Content.assemble((head, "bold"), words), f"{name} {words}")

    @on(OptionList.OptionSelected)
    def action_switch(self) -> None:
        """Switch what is under the cursor on or off."""
        name = self._list.highlighted
        if name is None:
            return
        on_now = dict.fromkeys(self._session.tools_on())
        if name in on_now:
            del on_now[name]
        else:
            on_now[name] = None
        self._session.update_settings(tools=tuple(on_now))
        self._show(name)

    @work(exclusive=True)
    async def action_keep(self) -> None:
        """Save what is on in the profile, for all its chats that set nothing else."""
        try:
            self._note.update(await asyncio.to_thread(keep_tools, self._session))
        except LocalSpecError as error:
            self._note.update(error_line(error))
        self._show(self._list.highlighted or "")

    def action_reset(self) -> None:
        """Have what the profile says on in this chat."""
        self._session.update_settings(tools=None)
        self._show(self._list.highlighted or "")

    @work(exclusive=True)
    async def action_look(self) -> None:
        """List the tools of what is under the cursor, which may start a server."""
        name = self._list.highlighted
        if name is None:
            return
        self._note.update(f"{name}: looking")
        try:
            tools = await asyncio.to_thread(self._kit.boxes[name].tools)
        except LocalSpecError as error:
            self._note.update(error_line(error))
            return
        self._known[name] = ", ".join(tool.name for tool in tools) or "no tools"
        lines = [f"{clean(tool.name)}: {clean(tool.description)}".split("\n")[0] for tool in tools]
        self._note.update("\n".join(lines) or f"{name} has no tools")
        self._show(name)
