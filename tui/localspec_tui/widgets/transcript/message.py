"""A message of the transcript: what it says, as widgets, who says it, and what can be done with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import ClassVar, Final, Literal

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import Reactive, reactive
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Static

from localspec import units
from localspec.chat.answering import pieces_of
from localspec.chat.commands.effects import MessageAction
from localspec.chat.markdown import code_blocks
from localspec.chat.messages import SAID_NOTHING, Attachment, BranchMessage, State, StoredMessage, ToolRun
from localspec.chat.thinking import Part, split, without_thinking
from localspec.chat.tool_use.described import describe_arguments, describe_run, why_failed
from localspec.thinking_tags import THINKING_TAGS
from localspec.types.events import TextPiece
from localspec.types.request import ToolCall
from localspec_tui.widgets.markdown.blocks import Block, clean, plain_lines
from localspec_tui.widgets.markdown.parse import build
from localspec_tui.widgets.markdown.prose import GrowingProse, Prose
from localspec_tui.widgets.origins import OriginText
from localspec_tui.widgets.sidebar import written_moment
from localspec_tui.widgets.status import FigureRow
from localspec_tui.workers import start_worker

# of a question, which is folded from there on
LONG_LINES = 20
LONG_CHARACTERS = 2_000


class FoldHead(Static):
    """The line that stays when a text is folded."""

    ALLOW_SELECT = False


class Folded(Vertical, can_focus=True):
    """A text that is folded until it is opened."""

    FOCUS_ON_CLICK = False  # as of the message that it is in

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "toggle('unfolded')", "Unfold the text", id="thinking.toggle", show=False)
    ]

    unfolded: reactive[bool] = reactive(False, init=False)

    def __init__(self) -> None:
        super().__init__()
        self._head = FoldHead()

    def watch_unfolded(self) -> None:
        """Show or hide the text."""
        self.set_class(self.unfolded, "-unfolded")
        self._refresh()

    def on_click(self, event: events.Click) -> None:
        """Fold or unfold on a click on the line."""
        if event.get_content_offset(self._head) is not None:
            self.unfolded = not self.unfolded

    def _refresh(self) -> None:
        """Show what is to be seen now."""

    def _tell(self, what: str, text: str) -> None:
        words = len(text.split())
        count = f"{words:,} {'word' if words == 1 else 'words'}"
        self._head.update(Content(f"{what}, {count}  {'▾' if self.unfolded else '▸'}"))


class LongQuestion(Folded):
    """A question of which only the beginning is shown."""

    def __init__(self, text: str, lines: Sequence[Block]) -> None:
        super().__init__()
        self._text = text
        self._lines = lines
        few = "\n".join(text.split("\n")[: LONG_LINES // 4])[: LONG_CHARACTERS // 4]
        self._beginning = plain_lines(few)
        self._prose = Prose(self._beginning)
        self._refresh()

    def compose(self) -> ComposeResult:
        """Lay out the text and the line."""
        yield self._prose
        yield self._head

    def _refresh(self) -> None:
        self._prose.set_blocks(self._lines if self.unfolded else self._beginning)
        self._tell("Question" if self.unfolded else "Folded question", self._text)


class ResultView(Folded):
    """The result of a call, of which only one line is shown."""

    def __init__(self, run: ToolRun, text: str, lines: Sequence[Block]) -> None:
        super().__init__()
        why = f": {why_failed(text)}" if run.outcome == "failed" else ""
        self._line = f"{describe_run(run)}{why}"
        self._prose = Prose(lines)
        self._refresh()

    def compose(self) -> ComposeResult:
        """Lay out the line and the text."""
        yield self._head
        yield self._prose

    def _refresh(self) -> None:
        self._prose.display = self.unfolded
        self._head.update(Content(f"{self._line}  {'▾' if self.unfolded else '▸'}"))


class ThinkingView(Folded):
    """A thinking block."""

    def __init__(self, text: str = "", *, closed: bool = True, unfolded: bool = False) -> None:
        super().__init__()
        self._prose = GrowingProse()
        self.text = ""  # the whole of the thinking
        self._complete = closed
        self.append(text)
        self.unfolded = unfolded

    def compose(self) -> ComposeResult:
        """Lay out the line and the text."""
        yield self._head
        yield self._prose

    def append(self, text: str) -> None:
        """Take more of it; of a folded text only the words are counted."""
        self.text += text
        self._refresh()

    def close(self) -> None:
        """Take note that it came to its end."""
        self._complete = True
        self._refresh()

    async def finish(self, text: str) -> None:
        """Take the whole of it: no more comes."""
        self.text = text
        self._complete = True
        if self._prose.text:
            await self._prose.finish(text)
        self._refresh()

    def _refresh(self) -> None:
        if self.unfolded and self._prose.text != self.text:
            self._prose.append(self.text[len(self._prose.text) :])
        self._tell("Thinking" if self._complete else "Thinking…", self.text)


_MARKS = frozenset(tags.opening[0] for tags in THINKING_TAGS)
"""Characters that may begin a tag between thinking and answer."""


@dataclass(frozen=True, slots=True)
class DisplayOptions:
    """How answers are to be shown."""

    origins: bool = False
    thinking: bool = False


Prepared = Sequence[tuple[Part, Sequence[Block]]]
"""A message parsed as Markdown; independent of widgets, for use in a thread."""


def prepare(item: BranchMessage) -> Prepared:
    """Read the text of a message."""
    message = item.message
    if message.role != "assistant":
        return [(Part("answer", message.content), plain_lines(message.content))]
    parts = split(message.content, streaming=message.state == "writing")
    return [(part, build(part.text) if part.kind == "answer" else ()) for part in parts]


class MessageBody(Vertical):
    """The text of one message, which may be growing."""

    ALLOW_MAXIMIZE: ClassVar[bool | None] = False

    # Textual makes a second layout whenever this changes; nothing here depends on it.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0))

    def __init__(self, item: BranchMessage, prepared: Prepared, looks: DisplayOptions) -> None:
        super().__init__()
        self._item = item
        self._looks = looks
        self.text = item.message.content  # with its tags
        self._pieces: list[TextPiece] = pieces_of(self.text, item.spans)
        self._bodies: list[GrowingProse | ThinkingView] = []
        self._origins: OriginText | None = None
        self._first = self._widgets(prepared)
        self._is_composed = False

    def compose(self) -> ComposeResult:
        """Lay out the text, with text that has come since it was made."""
        self._is_composed = True
        yield from self._bodies or self._first

    def append(self, text: str, pieces: Sequence[TextPiece]) -> None:
        """Add to the end."""
        before = self.text
        self.text = self.text + text
        self._pieces += pieces
        if self._origins is not None:
            self._origins.append(pieces)
        elif self._looks.origins and pieces:
            start_worker(self, self.look, self._looks, exclusive=True)
        elif self._is_plainly_more(before, text):
            last = self._bodies[-1]
            last.append(self.text[self._parts[-1].start + len(last.text) :])
        else:
            self._grow(split(self.text, streaming=True))

    async def finish(self, item: BranchMessage) -> None:
        """Show the whole message as it was saved: no more comes."""
        self._item = item
        text = item.message.content
        is_other = text != self.text
        self.text = text
        self._pieces = pieces_of(text, item.spans) if item.spans or is_other else self._pieces
        if self._origins is not None or item.message.role != "assistant":
            if is_other:
                await self._show_anew()
            return
        self._grow(split(text))
        for body, part in zip(self._bodies, self._parts, strict=True):
            await body.finish(part.text)

    async def look(self, looks: DisplayOptions) -> None:
        """Show the text in another way."""
        self._looks = looks
        if looks.origins or self._origins is not None:
            await self._show_anew()
            return
        for body in self._bodies:
            if isinstance(body, ThinkingView):
                body.unfolded = looks.thinking

    async def _show_anew(self) -> None:
        item = replace(self._item, message=replace(self._item.message, content=self.text))
        prepared = await asyncio.to_thread(prepare, item)
        before = list(self.children)
        self._bodies = []
        self._origins = None
        with self.app.batch_update():
            mounted = self.mount_all(self._widgets(prepared))
            if self._bodies and self.text != item.message.content:
                self._grow(split(self.text, streaming=True))  # more has come meanwhile
            for child in before:
                await child.remove()
            await mounted

    def _shows_origins(self) -> bool:
        known = bool(self._item.spans) or (self._item.message.state == "writing" and bool(self._pieces))
        return self._looks.origins and self._item.message.role == "assistant" and known

    def _widgets(self, prepared: Prepared) -> Sequence[Widget]:
        self._parts = tuple(part for part, _ in prepared)
        if self._shows_origins():
            self._origins = OriginText(self._pieces)
            return [self._origins]
        if self._item.message.run is not None and not self._item.message.is_step:
            return [ResultView(self._item.message.run, self.text, prepared[0][1])]
        if self._item.message.role == "user" or self._item.message.is_step:
            _, lines = prepared[0]
            is_long = len(lines) > LONG_LINES or len(self.text) > LONG_CHARACTERS
            return [LongQuestion(self.text, lines) if is_long else Prose(lines)]
        self._bodies = [self._body(*pair) for pair in prepared]
        return self._bodies

    def _body(self, part: Part, blocks: Sequence[Block] = ()) -> GrowingProse | ThinkingView:
        if part.kind == "thinking":
            return ThinkingView(part.text, closed=part.closed, unfolded=self._looks.thinking)
        return GrowingProse(part.text, blocks or None)

    def _is_plainly_more(self, before: str, text: str) -> bool:
        """Return whether new text can only belong to the last part: reading all of it again is spared."""
        if not self._parts or self._parts[-1].kind != "answer":
            return False
        line = before[before.rfind("\n") + 1 :] + text
        return not any(mark in line for mark in _MARKS)

    def _grow(self, parts: tuple[Part, ...]) -> None:
        """Update the widgets to the parts, keeping those that only grew."""
        kept = list(takewhile(_grew, zip(self._bodies, parts, strict=False)))
        for body, part in kept:
            body.append(part.text[len(body.text) :])
            if isinstance(body, ThinkingView) and part.closed:
                body.close()
        for stale in self._bodies[len(kept) :]:
            stale.remove()
        fresh = [self._body(part) for part in parts[len(kept) :]]
        self._bodies[len(kept) :] = fresh
        if fresh and self._is_composed:
            self.mount_all(fresh)
        self._parts = parts


def _grew(pair: tuple[GrowingProse | ThinkingView, Part]) -> bool:
    body, part = pair
    is_thinking = isinstance(body, ThinkingView)
    return is_thinking == (part.kind == "thinking") and part.text.startswith(body.text.rstrip())


Action = MessageAction | Literal["copy", "copy-code", "delete", "fork", "other-models", "timeline"]
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
    "take back": "take back",
}
_OF_SUMMARIES: Final[frozenset[Action]] = frozenset({"copy", "edit", "take back"})
_OF_ANSWERS: Final = (("timeline",), ("compare",), ("continue",))
_MAX_CHIPS: Final = 8  # of attached files
_OF_USER: Final[frozenset[Action]] = frozenset({"copy", "edit"})
_OF_TOOLS: Final[frozenset[Action]] = frozenset({"copy"})


@dataclass
class ActionAsked(Message):
    """Something is to be done with a message; `text` is the code block to copy."""

    action: Action
    message_id: int
    text: str = ""


@dataclass
class SummaryToggled(Message):
    """What a summary stands for is to be shown, or hidden again; `item_id` is that of the summary."""

    item_id: int


_UNFOLD: Final = Style.from_meta({"@click": "unfold"})


class ActionLine(Static):
    """A line with words that can be clicked."""

    ALLOW_SELECT = False

    def action_act(self, action: Action) -> None:
        """Do what was clicked."""
        self.query_ancestor(MessageView).ask(action)

    def action_unfold(self) -> None:
        """Show what was summarised."""
        self.query_ancestor(MessageView).action_unfold()


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
        Binding("R", "act('other-models')", "Answer again with other models", id="message.other-models"),
        Binding("f", "act('fork')", "Continue in a new chat", id="message.fork"),
        Binding("delete", "act('delete')", "Delete, with all below", id="message.delete"),
    ]

    FOCUS_ON_CLICK = False  # typing after a click goes to the prompt

    # Textual makes a second layout whenever this changes; nothing here depends on it.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0))

    def __init__(
        self, item: BranchMessage, prepared: Prepared, looks: DisplayOptions, *, is_last: bool = False
    ) -> None:
        super().__init__()
        self.item = item
        self._is_last = is_last
        self._heading = ActionLine(classes="name")
        self._state = ActionLine(classes="state")
        self._label = FigureRow(classes="label")
        self._actions = ActionLine(classes="actions")
        self._calls = Static(classes="calls", markup=False)
        self.body = MessageBody(item, prepared, looks)
        self._tell()

    def compose(self) -> ComposeResult:
        """Yield name, attachments, text, and the lines below it."""
        yield self._heading
        if self.item.message.attachments:
            yield Static(_chips(self.item.message.attachments), classes="chips")
        yield self.body
        yield self._calls
        yield self._state
        yield self._label
        yield self._actions

    def append_missing(self, item: BranchMessage) -> None:
        """Show what has been added to the answer since this message was read."""
        begin = len(self.body.text)
        text = item.message.content
        if len(text) > begin:
            self.body.append(text[begin:], pieces_of(text, item.spans, begin))

    async def finish(self, item: BranchMessage) -> None:
        """Show the message as it is now."""
        changed = item.message.content != self.body.text or item.message.state != self.item.message.state
        self.item = item
        self._tell()
        if changed or item.spans:
            await self.body.finish(item)

    def show_calls(self, calls: Sequence[ToolCall]) -> None:
        """Show the calls of the answer, as far as they have come."""
        lines = [f"→ {clean(call.name)}  {describe_arguments(call.arguments)}" for call in calls]
        self._calls.display = bool(lines)
        self._calls.update("\n".join(lines))

    def pass_on(self) -> None:
        """Make this message no longer the last, which `/continue` continues."""
        self._is_last = False
        self._tell()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the keys of answers alone where this is a question."""
        if self.item.message.role == "tool" and parameters[:1] == ("edit",):
            return False
        if self.item.summarises and action == "act":
            return parameters[0] in _OF_SUMMARIES
        return self.item.message.role == "assistant" or parameters[:1] not in _OF_ANSWERS

    def action_unfold(self) -> None:
        """Unfold what is folded of this message, or fold it again; of a summary, what it stands for."""
        if self.item.summarises:
            self.post_message(SummaryToggled(self.item.message.id))
        for folded in self.query(Folded):
            folded.unfolded = not folded.unfolded

    def action_act(self, action: Action) -> None:
        """Ask the screen to do something with this message; later typing goes to the prompt."""
        if action not in {"previous", "next"}:  # walking continues
            self.blur()
        self.ask(action)

    def ask(self, action: Action) -> None:
        """Ask the screen to do something with this message."""
        message = self.item.message
        text = ""
        if action == "copy-code":
            blocks = code_blocks(without_thinking(self.body.text))
            if not blocks:
                self.notify("There is no code in this message.", markup=False)
                return
            text = blocks[0].code
        self.post_message(ActionAsked(action, message.id, text))

    def on_growing_prose_code_picked(self, event: GrowingProse.CodePicked) -> None:
        """Ask the screen to copy the code that was clicked."""
        event.stop()
        self.post_message(ActionAsked("copy-code", self.item.message.id, event.code))

    def _tell(self) -> None:
        item = self.item
        message = self.item.message
        self.set_class(message.role == "user", "-user")
        self.set_class(message.role == "tool", "-tool")
        self.show_calls(message.calls)
        self.set_class(message.dropped or item.covered, "-dropped")
        self.set_class(bool(item.summarises), "-summary")
        self._heading.update(_name(item))
        self._tell_state(message)
        self._label.display = bool(item.label)
        self._label.text = item.label
        actions = [
            _word(action, word)
            for action, word in _ACTIONS.items()
            if _is_offered(item, action)
            and (action != "continue" or message.state not in {"complete", "writing"})
        ]
        self._actions.update(Content("  ").join(actions))

    def _tell_state(self, message: StoredMessage) -> None:
        """Say what ended an answer early, or that there is none."""
        state = _STATES.get(message.state, "")
        way = _word("continue", "/continue resumes it" if self._is_last else "continue")
        told = Content.assemble(f"{state} - ", way) if state else Content(SAID_NOTHING)
        self._state.display = bool(state) or message.is_silent
        self._state.update(told)


def _word(action: Action, word: str) -> Content:
    return Content.styled(word, Style.from_meta({"@click": f"act({action!r})"})).stylize("underline")


def _is_offered(item: BranchMessage, action: Action) -> bool:
    """Return whether something can be done with a message."""
    if item.summarises or action == "take back":
        return bool(item.summarises) and action in _OF_SUMMARIES
    if item.message.role == "tool":
        return action in _OF_TOOLS
    return item.message.role == "assistant" or action in _OF_USER


def _name(item: BranchMessage) -> Content:
    if item.summarises:
        count = f"{units.counted(item.summarises, 'message')} summarised"
        return Content.assemble(
            f"{count}; ", Content.styled("Enter shows them", _UNFOLD).stylize("underline")
        )
    written = "  ".join(filter(None, (clean(item.model), written_moment(item.message.created))))
    who = {"user": "You", "assistant": "Assistant", "tool": "Tool"}[item.message.role]
    if item.message.run is not None and item.message.is_step:
        who = f"LocalSpec {describe_run(item.message.run)}"
    parts = [Content.assemble(f"{who}  ", (written, "not bold dim"))]
    if item.branches > 1:
        turn = Content(f" {item.branch}/{item.branches} ")
        before = Content.styled("‹", Style.from_meta({"@click": "act('previous')"}))
        after = Content.styled("›", Style.from_meta({"@click": "act('next')"}))
        parts.append(Content.assemble(before, turn, after))
    if item.message.dropped or item.covered:
        parts.append(Content("summarised" if item.covered else "not sent to the model"))
    return Content("   ").join(parts)


def _chips(attachments: Sequence[Attachment]) -> Content:
    shown = attachments if len(attachments) <= _MAX_CHIPS else attachments[: _MAX_CHIPS - 1]
    chips = [f"[{clean(item.name)} {units.size(len(item.text.encode()))}]" for item in shown]
    more = len(attachments) - len(shown)
    return Content("  ".join([*chips, *[f"[{more} more files]"] * (more > 0)]))
