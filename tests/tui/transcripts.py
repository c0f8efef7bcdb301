"""Chats to show, a host to show them in, and what is on its screen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.pilot import Pilot

from localspec.chat.messages import Attachment, BranchMessage, Role, Span, State, StoredMessage
from localspec_tui.widgets.transcript.message import ActionAsked, MessageView
from localspec_tui.widgets.transcript.transcript import Transcript
from tests.tui import settled
from tests.tui.styled import STYLES


def shown(
    number: int,
    content: str = "",
    *,
    role: Role | None = None,
    state: State = "complete",
    attachments: tuple[Attachment, ...] = (),
    spans: tuple[Span, ...] = (),
) -> BranchMessage:
    """Return a message; odd numbers are the user's."""
    role = role or ("user" if number % 2 else "assistant")
    message = StoredMessage(
        number, 1, number - 1 or None, role, content or f"text {number}", 0.0, state, attachments
    )
    return BranchMessage(message, spans=spans)


def chat(count: int) -> list[BranchMessage]:
    return [
        shown(number, f"message number {number}\n\nits second paragraph") for number in range(1, count + 1)
    ]


def said(item: BranchMessage, content: str, state: State = "complete") -> BranchMessage:
    return replace(item, message=replace(item.message, content=content, state=state))


class Host(App[None]):
    """A transcript and nothing else; keeps the actions that it asks for."""

    CSS_PATH = STYLES
    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[ActionAsked] = []
        self.opened: list[str] = []

    def compose(self) -> ComposeResult:
        yield Transcript()

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    def on_action_asked(self, event: ActionAsked) -> None:
        self.asked.append(event)

    def open_url(self, url: str, *, new_tab: bool = True) -> None:
        self.opened.append(url)

    def rows(self) -> list[str]:
        """Return what the screen shows, row by row, without the scrollbar."""
        strips = self.screen._compositor.render_strips()
        return [strip.crop(0, self.size.width - 2).text.rstrip() for strip in strips]

    def text(self) -> str:
        return "\n".join(self.rows())

    def place(self, needle: str) -> tuple[int, int]:
        """Return the column and the row at which some text is on the screen."""
        for y, row in enumerate(self.rows()):
            if needle in row:
                return row.index(needle), y
        raise AssertionError(f"{needle!r} is not on the screen:\n{self.text()}")


def selected(transcript: Transcript) -> int | None:
    """Return the message that has the focus."""
    views = (view for view in transcript.query(MessageView) if view.has_focus_within)
    return next((view.item.message.id for view in views), None)


async def until(pilot: Pilot[None], words: str | Iterable[str]) -> None:
    """Wait until the screen shows some words."""
    host = pilot.app
    assert isinstance(host, Host)
    wanted = [words] if isinstance(words, str) else list(words)
    if not await settled.until(pilot, lambda: all(word in host.text() for word in wanted)):
        raise AssertionError(f"{wanted} never came:\n{host.text()}")
