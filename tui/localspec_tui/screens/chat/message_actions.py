"""What is done with a message of the open chat: by its keys, by a click, or by a slash command."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import assert_never

from textual.message import Message as ScreenMessage

from localspec.chat.commands.effects import ActOnMessage
from localspec.chat.commands.messages import COMPARED
from localspec.chat.messages import DeletedMessages, StoredMessage
from localspec.errors import UserError
from localspec.safe_text import safe_text
from localspec.types.request import Mode
from localspec.units import counted
from localspec_tui.screens.chat.elsewhere import ChatsChanged
from localspec_tui.screens.chat.pane import ChatPane
from localspec_tui.screens.compare import CompareScreen, comparable
from localspec_tui.screens.dialogs import AskScreen, EditScreen
from localspec_tui.widgets.transcript.message import Action, ActionAsked


@dataclass
class MessagesDeleted(ScreenMessage):
    """Messages of the open chat were deleted."""

    deleted: DeletedMessages


@dataclass
class OtherModelsWanted(ScreenMessage):
    """A question in a pane is to be answered again with models that are still to be chosen."""

    pane: ChatPane
    message: StoredMessage


async def act(pane: ChatPane, asked: ActionAsked) -> None:
    """Do what a key or a click asks for; raises `LocalSpecError`."""
    if asked.message_id < 0:
        await _act_on_summary(pane, asked.action, -asked.message_id)
        return
    match asked.action:
        case "copy":
            pane.copy(pane.controller.message(asked.message_id).content, "the message")
        case "copy-code":
            pane.copy(asked.text, "the code")
        case "timeline":
            message = pane.controller.message(asked.message_id)
            record = await pane.controller.record_of(message, "message", "choose an answer")
            pane.show_rounds(message, record)
            pane.timeline.remove_class("hidden")
        case "delete":
            _ask_to_delete(pane, pane.controller.message(asked.message_id))
        case "fork":
            await pane.fork(pane.controller.message(asked.message_id))
        case "other-models":
            pane.post_message(OtherModelsWanted(pane, pane.controller.message(asked.message_id)))
        case _:
            await act_by_command(pane, ActOnMessage(asked.action, asked.message_id))


async def act_by_command(pane: ChatPane, asked: ActOnMessage) -> None:
    """Do with a message what slash commands can do, too; raises `LocalSpecError`."""
    walks = asked.action in ("previous", "next")  # keys may outrun the screen: any branch will do
    message = (pane.chat.message if walks else pane.controller.message)(asked.message_id)
    match asked.action:
        case "previous" | "next":
            await pane.controller.switch(message, 1 if asked.action == "next" else -1)
            pane.post_message(ChatsChanged())
        case "edit":
            await _edit(pane, message)
        case "regenerate":
            await pane.controller.answer_again(message, next(iter(asked.modes), None))
        case "continue":
            await pane.controller.go_on(message)
        case "compare":
            await _compare(pane, message, asked.modes or COMPARED)
        case "take back":
            await pane.controller.set_summary(message.id, "")
            pane.notice.say("the summary is taken back: the model reads all messages again")
        case _:
            assert_never(asked.action)


async def _act_on_summary(pane: ChatPane, action: Action, message_id: int) -> None:
    """Do something with the summary that a message ends."""
    summary = pane.controller.message(message_id).summary

    async def take(text: str | None) -> None:
        if text is not None and text.strip() and text != summary:
            await pane.controller.set_summary(message_id, text.strip())

    match action:
        case "copy":
            pane.copy(summary, "the summary")
        case "edit":
            pane.ask(EditScreen("Edit the summary", safe_text(summary)), take)
        case "take back":
            await act_by_command(pane, ActOnMessage("take back", message_id))
        case _:
            raise UserError("this is a summary", "e edits it, Enter shows what it stands for")


def _ask_to_delete(pane: ChatPane, message: StoredMessage) -> None:
    """Ask before a message is deleted with all below it."""
    below = len(pane.chat.tree.below(message.id)) - 1

    async def decide(sure: bool | None) -> None:
        if sure:
            pane.post_message(MessagesDeleted(await pane.controller.delete_messages(message)))

    what = "question" if message.role == "user" else "answer"
    further = f" and {counted(below, 'message')} below it" if below else ""
    question = f"Delete this {what}{further}? They can be restored for 30 days."
    if not below:
        question = f"Delete this {what}? It can be restored for 30 days."
    pane.controller.require_idle()
    pane.ask(AskScreen(question, yes="Delete", no="Keep", is_careful=True), decide)


async def _edit(pane: ChatPane, message: StoredMessage) -> None:
    """Open the editor for a message."""
    before = safe_text(message.content)

    async def take(text: str | None) -> None:
        if text is not None and text.strip() and text != before:
            await pane.controller.edit(message, text)

    await pane.controller.stop_background_work()
    title = "Edit the question" if message.role == "user" else "Edit the answer"
    pane.ask(EditScreen(title, before), take)


async def _compare(pane: ChatPane, message: StoredMessage, modes: tuple[Mode, ...]) -> None:
    """Answer a question in several modes with one seed, side by side."""
    pane.controller.require_idle()
    models = pane.loader.models(wait=False)
    answers = await asyncio.to_thread(pane.controller.compared, message)
    modes = comparable(modes, has_draft=models.draft is not None)
    await pane.controller.free_models()
    pane.reading.stop()
    pane.ask(CompareScreen(modes, answers, models.cancel, models.close), pane.controller.keep_compared)
