"""A tiny app around a composer, which keeps what it is reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Button, Static, TextArea

from localspec.chat.attachments import Completion
from localspec.chat.commands.completion import complete_command
from localspec_tui.widgets.composer.composer import (
    Composer,
    PromptEntered,
    QueuedPromptAsked,
)
from localspec_tui.widgets.composer.prompt_area import PromptArea
from tests.tui.styled import STYLES


def commands(text: str) -> Sequence[Completion]:
    return complete_command(text, lambda kind: ("general", "coding", "writing"))


class ComposerHost(App[None]):
    CSS_PATH = STYLES
    CSS = "Static { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+k", "search", "Search", priority=True),
        Binding("escape", "stop", "Stop"),
        Binding("pageup,pagedown", "page", "Scroll the conversation"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Message] = []
        self.drafts: list[str] = []
        self.did: list[str] = []

    def compose(self) -> ComposeResult:
        yield Static("conversation")
        yield Button("elsewhere", id="elsewhere")
        yield Composer(commands)

    def on_mount(self) -> None:
        self.composer.focus()

    @property
    def composer(self) -> Composer:
        return self.query_one(Composer)

    @property
    def area(self) -> PromptArea:
        return self.query_one(PromptArea)

    @property
    def sent(self) -> list[str]:
        return [message.text for message in self.heard if isinstance(message, PromptEntered)]

    @on(PromptEntered)
    @on(QueuedPromptAsked)
    def hear(self, message: Message) -> None:
        self.heard.append(message)

    @on(TextArea.Changed)
    def hear_draft(self) -> None:
        self.drafts.append(self.composer.text)

    def action_search(self) -> None:
        self.did.append("search")

    def action_page(self) -> None:
        self.did.append("page")

    def action_stop(self) -> None:
        self.did.append("stop")
