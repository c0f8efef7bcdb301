"""One open chat, or two side by side: their panes, which of them keys act on, and which can be seen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from textual.containers import Horizontal
from textual.widget import Widget

from localspec.chat.controller import open_in
from localspec.chat.session import ChatSession
from localspec.errors import UserError
from localspec_tui.screens.chat.pane import ChatPane, PaneShared

ROOM_FOR_TWO = 160  # columns


class Panes:
    """The panes of the chat screen, at most two; keys act on the active one, which has the focus or had it.

    Each has a title above and a status line below all that is between them, as a single pane has. Where the
    screen is too narrow for two, only the active one is shown.
    """

    def __init__(self, session: ChatSession, shared: PaneShared, sidebar: Widget) -> None:
        self._shared = shared
        self.active = ChatPane(session, shared)
        self.active.set_active(True)
        self._mounted = [self.active]  # from left to right
        self._closing: set[ChatPane] = set()
        self.titles = Horizontal(self.active.title_bar, id="titles")
        self.row = Horizontal(sidebar, self.active, id="panes")
        self.statuses = Horizontal(self.active.status, id="statuses")

    @property
    def all(self) -> Sequence[ChatPane]:
        """The panes from left to right, without any that is being closed."""
        return [each for each in self._mounted if each not in self._closing]

    def beside(self, pane: ChatPane) -> ChatPane | None:
        """Return the other pane, if there are two."""
        return next((each for each in self.all if each is not pane), None)

    def of(self, widget: Widget | None) -> ChatPane | None:
        """Return the pane that a widget is a part of, if any."""
        around = () if widget is None else widget.ancestors_with_self
        return next((each for each in self.all if not each.parts.isdisjoint(around)), None)

    def showing(self, chat_id: int) -> ChatPane | None:
        """Return the pane in which a chat is open, if there is one."""
        return next((each for each in self.all if each.chat.info.id == chat_id), None)

    def activate(self, pane: ChatPane) -> None:
        """Have keys act on a pane."""
        self.active.set_active(False)
        self.active = pane
        pane.set_active(True)

    def lay_out(self, columns: int, *, has_sidebar: bool) -> Sequence[ChatPane]:
        """Show both panes if there is room, and else the active one; return those that can be seen."""
        panes = self.all
        is_split = len(panes) > 1 and columns >= ROOM_FOR_TWO
        seen = panes if is_split else [self.active]
        for pane in self._mounted:
            pane.show_parts(is_seen=pane in seen)
            is_last = pane is seen[-1]
            pane.title_bar.is_last = is_last
            pane.status.is_last = is_last
            pane.title_bar.can_close = len(panes) > 1
        for row in (self.titles, self.row, self.statuses):
            row.set_class(is_split, "-split")
            row.set_class(is_split and has_sidebar, "-listed")
        return seen

    async def add(self, chat_id: int | None, columns: int) -> ChatPane:
        """Open a chat beside the one that is open, by default a new one, and return its pane.

        Raises `UserError` where there is no room for two, or the chat is gone.
        """
        if columns < ROOM_FOR_TWO:
            raise UserError(
                f"two chats side by side need {ROOM_FOR_TWO} columns", f"this terminal has {columns}"
            )
        answers = self._shared.answers
        session = self.active.session.beside()
        async with answers.changing:
            if len(self.all) > 1:
                raise UserError("two chats are open already", "close one first")
            await asyncio.to_thread(open_in, session, answers, chat_id)
            pane = ChatPane(session, self._shared)
            self._mounted.append(pane)
            await asyncio.gather(
                self.titles.mount(pane.title_bar), self.row.mount(pane), self.statuses.mount(pane.status)
            )
        return pane

    def begin_to_close(self, pane: ChatPane) -> None:
        """Count a pane as closed from the next key on; `close` must follow."""
        self._closing.add(pane)

    async def close(self, pane: ChatPane) -> None:
        """Close one of two panes; its chat stays in the list, and an answer in it goes on."""
        try:
            await pane.settle()
            await pane.controller.close()
            self._mounted.remove(pane)
            await asyncio.gather(*(part.remove() for part in pane.parts))
        finally:
            self._closing.discard(pane)
        for place, rest in enumerate(self.all):
            await asyncio.to_thread(rest.session.stay, beside=place > 0)
