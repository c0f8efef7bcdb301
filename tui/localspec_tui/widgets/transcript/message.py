"""One message of the transcript: who says what, how it came about, and what can be done with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import Reactive
from textual.style import Style
from textual.widgets import Static

from localspec import units
from localspec.chat.answering import pieces_of
from localspec.chat.messages import Attachment, Shown, State
from localspec_tui.widgets.markdown.blocks import clean
from localspec_tui.widgets.markdown.parse import code_blocks
from localspec_tui.widgets.markdown.prose import AnswerText
from localspec_tui.widgets.sidebar import written_moment
from localspec_tui.widgets.status import FigureRow
from localspec_tui.widgets.transcript.message_body import Folded, Looks, MessageBody, Prepared

Action = Literal[
    "copy", "copy-code", "edit", "regenerate", "continue", "previous", "next", "timeline", "compare"
]
_STATES: Final[dict[State, str]] = {
    "stopped": "stopped",
    "length": "stopped at the length limit",
    "context": "stopped because the context is full",
    "circles": "stopped because it repeats itself",
    "failed": "stopped because the model failed",
}
_ACTIONS: Final[dict[Action, str]] = {
    "copy": "copy",
    "copy-code": "copy code",
    "edit": "edit",
    "regenerate": "regenerate",
    "continue": "continue",
    "timeline": "timeline",
    "compare": "compare modes",
}
_OF_ANSWERS: Final = (("timeline",), ("compare",), ("continue",))
_OF_USER: Final[frozenset[Action]] = frozenset({"copy", "edit"})


@dataclass
class ActionAsked(Message):
    """Something is to be done with a message; `text` is the code block to copy."""

    action: Action
    message_id: int
    text: str = ""


class ActionLine(Static):
    """A line with words that can be clicked."""

    ALLOW_SELECT = False

    def __init__(self, act: Callable[[Action], None], classes: str) -> None:
        super().__init__(classes=classes)
        self._act = act

    def action_act(self, action: Action) -> None:
        """Do what was clicked."""
        self._act(action)


class MessageView(Vertical, can_focus=True):
    """A message as the reader sees it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "act('copy')", "Copy", id="message.copy"),
        Binding("Y,b", "act('copy-code')", "Copy code", id="message.copy-code"),
        Binding("e", "act('edit')", "Edit", id="message.edit"),
        Binding("r", "act('regenerate')", "Regenerate", id="message.regenerate"),
        Binding("c", "act('continue')", "Continue", id="message.continue"),
        Binding("left_square_bracket", "act('previous')", "Branch before", id="message.branch-before"),
        Binding("right_square_bracket", "act('next')", "Branch after", id="message.branch-after"),
        Binding("t", "act('timeline')", "Timeline", id="message.timeline"),
        Binding("enter", "unfold", "Unfold or fold", id="message.unfold", show=False),
        Binding("m", "act('compare')", "Compare modes", id="message.compare"),
    ]

    # Textual makes a second layout whenever this changes; nothing here depends on it.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0))

    def __init__(self, item: Shown, prepared: Prepared, looks: Looks, *, is_last: bool = False) -> None:
        super().__init__()
        self.item = item
        self._is_last = is_last
        self._heading = ActionLine(self.action_act, "name")
        self._state = ActionLine(self.action_act, "state")
        self._label = FigureRow(classes="label")
        self._actions = ActionLine(self.action_act, "actions")
        self.body = MessageBody(item, prepared, looks)
        self._tell()

    def compose(self) -> ComposeResult:
        """Lay out name, attachments, text, and what stands under it."""
        yield self._heading
        if self.item.message.attachments:
            yield Static(_chips(self.item.message.attachments), classes="chips")
        yield self.body
        yield self._state
        yield self._label
        yield self._actions

    def catch_up(self, item: Shown) -> None:
        """Show what has been added to the answer since this message was read."""
        begin, text = len(self.body.text), item.message.content
        if len(text) > begin:
            self.body.append(text[begin:], pieces_of(text, item.spans, begin))

    async def finish(self, item: Shown) -> None:
        """Show the message as it is now."""
        changed = item.message.content != self.body.text or item.message.state != self.item.message.state
        self.item = item
        self._tell()
        if changed or item.spans:
            await self.body.finish(item)

    def pass_on(self) -> None:
        """Let another message be the last, with which `/continue` goes on."""
        self._is_last = False
        self._tell()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the keys of answers alone where this is a question."""
        return self.item.message.role == "assistant" or parameters[:1] not in _OF_ANSWERS

    def action_unfold(self) -> None:
        """Unfold what is folded of this message, or fold it again."""
        for folded in self.query(Folded):
            folded.unfolded = not folded.unfolded

    def action_act(self, action: Action) -> None:
        """Ask the screen to do something with this message; what is typed next is seldom meant for it."""
        message, text = self.item.message, ""
        self.screen.set_focus(self, scroll_visible=False)  # a click need not have
        if action not in {"previous", "next"}:  # walking goes on
            self.blur()
        if action == "copy-code":
            codes = code_blocks(self.body.text)
            if not codes:
                self.notify("There is no code in this message.", markup=False)
                return
            text = codes[0]
        self.post_message(ActionAsked(action, message.id, text))

    def on_answer_text_code_picked(self, event: AnswerText.CodePicked) -> None:
        """Ask the screen to copy the code that was clicked."""
        event.stop()
        self.post_message(ActionAsked("copy-code", self.item.message.id, event.code))

    def _tell(self) -> None:
        item, message = self.item, self.item.message
        self.set_class(message.role == "user", "-user")
        self.set_class(message.dropped, "-dropped")
        self._heading.update(_name(item))
        state = _STATES.get(message.state, "")
        self._state.display = bool(state)
        way = _word("continue", "/continue goes on" if self._is_last else "continue")
        self._state.update(Content.assemble(f"{state} - ", way) if state else "")
        self._label.display = bool(item.label)
        self._label.text = item.label
        actions = [
            _word(action, word)
            for action, word in _ACTIONS.items()
            if (message.role == "assistant" or action in _OF_USER)
            and (action != "continue" or message.state not in {"complete", "writing"})
        ]
        self._actions.update(Content("  ").join(actions))


def _word(action: Action, word: str) -> Content:
    return Content.styled(word, Style.from_meta({"@click": f"act({action!r})"})).stylize("underline")


def _name(item: Shown) -> Content:
    written = "  ".join(filter(None, (clean(item.model), written_moment(item.message.created))))
    who = "You" if item.message.role == "user" else "Assistant"
    parts = [Content.assemble(f"{who}  ", (written, "not bold dim"))]
    if item.branches > 1:
        turn = Content(f" {item.branch}/{item.branches} ")
        before = Content.styled("‹", Style.from_meta({"@click": "act('previous')"}))
        after = Content.styled("›", Style.from_meta({"@click": "act('next')"}))
        parts.append(Content.assemble(before, turn, after))
    if item.message.dropped:
        parts.append(Content("not sent to the model"))
    return Content("   ").join(parts)


def _chips(attachments: Sequence[Attachment]) -> Content:
    chips = [f"[{clean(item.name)} {units.size(len(item.text.encode()))}]" for item in attachments]
    return Content("  ".join(chips))
