"""Switch the tools of the open chat on and off."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static

from localspec.chat.session import ChatSession
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
        Binding("ctrl+t", "look", "Start it and list its tools", id="tools.look"),
        Binding("escape", "dismiss(None)", "Close", id="tools.leave"),
    ]

    def __init__(self, session: ChatSession, kit: ToolKit) -> None:
        super().__init__()
        self._session, self._kit = session, kit
        self._known: dict[str, str] = {}  # what each box has, as far as it was asked
        self._list = FilteredList("Type to filter")
        self._note = Static(_HINT, classes="note", markup=False)

    def compose(self) -> ComposeResult:
        """Stack the toolboxes over what is said of them."""
        with Vertical(classes="frame") as frame:
            frame.border_title = "Tools of this chat"
            yield self._list
            yield self._note
        yield KeyFooter()

    def on_mount(self) -> None:
        """Show what is on."""
        self._show(next(iter(self._kit.boxes), ""))

    def _show(self, name: str) -> None:
        on_now = self._session.tools_on()
        self._list.show([self._row(each, is_on=each in on_now) for each in self._kit.boxes], name)

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
