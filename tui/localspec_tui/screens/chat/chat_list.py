"""The list of all chats: what it shows, what is changed there, and the bin."""

from __future__ import annotations

import asyncio
from collections import Counter

from localspec.chat.answers import Answers
from localspec.chat.messages import ChatInfo, DeletedMessages
from localspec.chat.store import Store
from localspec.errors import StoreError, UserError
from localspec.units import counted
from localspec_tui.keys import key_of
from localspec_tui.screens.chat.panes import Panes
from localspec_tui.screens.dialogs import AskScreen
from localspec_tui.widgets.sidebar import MARKS, ChangeAsked, FolderChangeAsked, Mark, Sidebar, title_shown
from localspec_tui.widgets.status import error_line


class ListedChats:
    """Keeps the sidebar as the store is, and changes and deletes chats; all panes show what is changed.

    The methods raise `LocalSpecError`.
    """

    def __init__(self, store: Store, sidebar: Sidebar, panes: Panes, answers: Answers) -> None:
        self._store = store
        self._sidebar = sidebar
        self._panes = panes
        self._answers = answers
        self._deleted: list[tuple[ChatInfo, bool] | DeletedMessages] = []  # chats: and whether it was open

    def _say(self, text: str) -> None:
        self._panes.active.notice.say(text)

    @property
    def _restores(self) -> str:
        """The key that restores what was deleted last."""
        return key_of(self._panes.active.screen, "chat.restore")

    # --- what is shown ---

    async def show(self) -> None:
        """Read the chats again and list them."""
        store = self._store
        try:
            chats = await asyncio.to_thread(lambda: (*store.unsent(), *store.chats(), *store.deleted()))
            folded = await asyncio.to_thread(store.folded)
        except StoreError as error:
            self._say(error_line(error))
        else:
            here = self._panes.active.chat.info.id
            shown = self._answers.open_chats()
            listed = [each for each in chats if each.messages or each.id not in shown]
            self._sidebar.show(listed, here, self._marks(), folded, beside=shown - {here})
            self.show_marks()

    def _marks(self) -> dict[int, Mark]:
        """Return the marks of chats that are being answered, or have an answer that was not yet seen."""
        return {**dict.fromkeys(self._answers.being_answered(), "writing"), **self._answers.unread}

    def show_marks(self) -> None:
        """Show at the top how many other chats have a mark, where the list is hidden."""
        seen = {pane.chat.info.id for pane in self._panes.all if pane.is_seen}
        others = Counter(mark for chat, mark in self._marks().items() if chat not in seen)
        is_hidden = self._sidebar.has_class("hidden")
        words = (f"{MARKS[mark]} {others[mark]} {mark}" for mark in MARKS if is_hidden and others[mark])
        elsewhere = ", ".join(words)
        for pane in self._panes.all:
            pane.title_bar.elsewhere = elsewhere

    # --- changes ---

    async def change(self, asked: ChangeAsked) -> None:
        """Change a chat, or ask whether to delete it."""
        chat = asked.chat
        match asked.change:
            case "rename":
                await asyncio.to_thread(self._store.rename, chat.id, asked.text)
            case "move":
                await asyncio.to_thread(self._store.set_folder, chat.id, asked.text)
            case "pin":
                await asyncio.to_thread(self._store.pin, chat.id, not chat.pinned)
            case "delete":
                self._ask_to_delete(chat)
                return
            case "restore":
                await self._restore(chat)
                return
        for pane in self._panes.all:
            await asyncio.to_thread(pane.chat.reload)
        if (other := self._answers.being_answered().get(chat.id)) is not None:
            await asyncio.to_thread(other.reload_info)
        for pane in self._panes.all:
            pane.show_figures()
        await self.show()

    async def change_folder(self, asked: FolderChangeAsked) -> None:
        """Fold or rename a folder, or ask whether to take it away."""
        folder = asked.folder

        async def decide(sure: bool | None) -> None:
            if sure:
                await self._rename_folder(folder.name, "")

        if asked.change == "fold":
            await asyncio.to_thread(self._store.set_folded, folder.name, not folder.is_folded)
            await self.show()
        elif asked.change == "rename":
            await self._rename_folder(folder.name, asked.text)
        else:
            question = f"Take the folder “{folder.name}” away? Its chats stay in the list."
            ask = AskScreen(question, yes="Take away", no="Keep", is_careful=True)
            self._panes.active.ask(ask, decide)

    async def _rename_folder(self, before: str, name: str) -> None:
        await asyncio.to_thread(self._store.rename_folder, before, name)
        for pane in self._panes.all:
            await asyncio.to_thread(pane.chat.reload_info)
        await self.show()

    # --- the bin ---

    @property
    def has_deleted(self) -> bool:
        """Whether something was deleted since the start, and not restored."""
        return bool(self._deleted)

    def _ask_to_delete(self, chat: ChatInfo) -> None:
        was_open = self._panes.showing(chat.id) is not None
        name = f"“{title_shown(chat)}”"

        async def decide(sure: bool | None) -> None:
            if not sure:
                return
            pane = self._panes.showing(chat.id) or self._panes.active
            await pane.controller.delete(chat.id)
            await self.show()
            self._deleted.append((chat, was_open))
            self._say(f"{name} is in the bin; {self._restores} restores it")

        holds = f" ({counted(chat.messages, 'message')})" if chat.messages else " (not sent)"
        is_answered = chat.id in self._answers.being_answered()
        answer = " Its answer stops, and the text so far goes into the bin with it." * is_answered
        question = f"Move {name}{holds} to the bin? You can restore it for 30 days.{answer}"
        self._panes.active.ask(AskScreen(question, yes="Delete", no="Keep", is_careful=True), decide)

    def note_deleted(self, deleted: DeletedMessages) -> None:
        """Note that messages were deleted, which can be restored."""
        self._deleted.append(deleted)
        them = "it" if deleted.count == 1 else "them"
        self._say(f"{counted(deleted.count, 'message')} deleted; {self._restores} restores {them}")

    async def restore_last(self) -> None:
        """Restore the chat or the messages that were deleted last, here or before this start."""
        last = self._deleted.pop() if self._deleted else await asyncio.to_thread(self._last_in_bin)
        if isinstance(last, DeletedMessages):
            pane = self._panes.showing(last.chat) or self._panes.active
            await pane.controller.restore_messages(last)
            self._say(f"{counted(last.count, 'message')} restored")
        else:
            await self._restore(*last)

    def _last_in_bin(self) -> tuple[ChatInfo, bool] | DeletedMessages:
        """Return the last deletion: messages, or a chat to be opened; raises `UserError` without one."""
        messages = self._store.deleted_messages()
        chat = next(iter(self._store.deleted()), None)
        if chat is not None and (messages is None or (chat.deleted or 0.0) > messages.time):
            return chat, True
        if messages is None:
            raise UserError("there is nothing in the bin")
        return messages

    async def _restore(self, chat: ChatInfo, opens: bool = True) -> None:
        await asyncio.to_thread(self._store.restore, chat.id)
        self._deleted = [
            each for each in self._deleted if isinstance(each, DeletedMessages) or each[0].id != chat.id
        ]
        await (self._panes.active.open_chat(chat.id) if opens else self.show())
        self._say(f"“{title_shown(chat)}” is restored")
