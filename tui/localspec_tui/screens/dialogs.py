"""Small screens over the chat: a question, a note, a line, a text to change, exchanges to leave out."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import chain
from time import monotonic
from typing import ClassVar, Literal, TypeVar

from rich.segment import Segment
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.strip import Strip
from textual.timer import Timer
from textual.widgets import Button, Input, SelectionList, Static, TextArea
from textual.widgets.selection_list import Selection

from localspec.chat.prompting import ContextBudget
from localspec.units import counted
from localspec_tui.keys import KeyFooter, bindings_of, key_of, take_key
from localspec_tui.screens.dialog import Dialog
from localspec_tui.widgets.explained import ExplainedText
from localspec_tui.widgets.markdown.blocks import clean

WRITING_S = 0.5  # between two letters of a user who is typing
READING_S = 0.5  # too short to have read a question: a key was meant for the screen before


class AskScreen(Dialog[bool]):
    """Ask, and return whether the answer was yes; Escape means no.

    With `is_careful`, typing on is not an answer: Enter means no until the user moves to yes, and only a
    single letter counts, typed late enough to have read the question.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "agree", "Yes", id="ask.yes"),
        Binding("n,escape", "dismiss(False)", "No", id="ask.no"),
        Binding("left,up", "app.focus_previous", "Button before", id="ask.previous", show=False),
        Binding("right,down", "app.focus_next", "Button after", id="ask.next", show=False),
    ]

    def __init__(self, question: str, yes: str = "Yes", no: str = "No", *, is_careful: bool = False) -> None:
        super().__init__()
        self._question = question
        self._yes = yes
        self._no = no
        self._is_careful = is_careful
        self._is_written_on = False  # so further letters are not answers
        self._agreeing: Timer | None = None
        self._since = monotonic()

    def compose(self) -> ComposeResult:
        """Show the question over its answers."""
        with Vertical(classes="frame"):
            yield Static(self._question, id="question", markup=False)
            with Horizontal(classes="buttons"):
                yield Button(
                    f"{self._yes}  y", variant="primary", id="yes", compact=True, action="screen.press_yes"
                )
                yield Button(f"{self._no}  n", id="no", compact=True, action="screen.dismiss(False)")
        yield KeyFooter()

    def on_mount(self) -> None:
        """Give the harmless answer the focus for Enter."""
        self._since = monotonic()
        if self._is_careful:
            self.query_one("#no").focus()

    def on_key(self, event: events.Key) -> None:
        """Ignore letters that follow others, and those that come before the question can have been read."""
        if not (self._is_careful and event.is_printable):
            return
        is_new = self._is_new
        if self._is_written_on or is_new:
            event.stop()
            event.prevent_default()
            if self._agreeing is not None:
                self._agreeing.stop()
        is_answer = any(binding.key == event.key for binding in bindings_of(self))
        if not (is_new and is_answer):  # the same letter answers a moment later
            self._is_written_on = True

    @property
    def _is_new(self) -> bool:
        return self._is_careful and monotonic() - self._since < READING_S

    def action_press_yes(self) -> None:
        """Answer yes by the button, unless the question is too new to have been read."""
        if not self._is_new:
            self.dismiss(True)

    def action_agree(self) -> None:
        """Answer yes, unless other letters follow."""

        def agree() -> None:
            self.dismiss(True)

        if self._is_careful:
            self._agreeing = self.set_timer(WRITING_S, agree)
        else:
            agree()


class NoteScreen(Dialog[None]):
    """Show a title and some lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss(None)", "Close", id="note.close"),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._heading = title
        self._text = text

    def compose(self) -> ComposeResult:
        """Frame the text."""
        with VerticalScroll(classes="frame") as frame:
            frame.border_title = self._heading
            yield ExplainedText(clean(self._text), markup=False)
        yield KeyFooter()


class LineInput(Input):
    """A line whose keys take effect in the order in which they were typed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Save", id="line.save")]

    async def on_key(self, event: events.Key) -> None:
        """Take the keys that this or the screen binds."""
        await take_key(event, self.screen, self)


class LineScreen(Dialog[str | None]):
    """Ask for one line that is not empty, and return it; None if it is left."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Leave", id="line.leave")]

    def __init__(self, title: str, text: str = "", problem: str = "") -> None:
        """Begin with a text; `problem` says why it was not taken before."""
        super().__init__()
        self._title = title
        self._text = text
        self._problem = problem

    def compose(self) -> ComposeResult:
        """Frame the line."""
        with Vertical(classes="frame") as frame:
            frame.border_title = Content(self._title)
            yield LineInput(self._text, compact=True, select_on_focus=False)
            yield Static(self._problem, id="hint", classes="note -warning", markup=False)
        yield KeyFooter()

    @on(Input.Submitted)
    def _save(self, event: Input.Submitted) -> None:
        if text := " ".join(event.value.split()):
            self.dismiss(text)


class EditArea(TextArea):
    """A text area whose keys take effect in the order in which they were typed."""

    async def on_key(self, event: events.Key) -> None:
        """Leave to the screen what it binds."""
        await take_key(event, self.screen, self)


class EditScreen(Dialog[str | None]):
    """Edit a text, and return it; None to leave it unchanged.

    A changed text is only dropped at the second Escape.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s,ctrl+enter", "save", "Save", id="edit.save"),
        Binding("escape", "leave", "Discard the changes", id="edit.leave"),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._area = EditArea(text, id="text", highlight_cursor_line=False)
        self._area.match_cursor_bracket = False
        self._hint = Static(id="hint", classes="note", markup=False)
        self._warned = False

    def compose(self) -> ComposeResult:
        """Frame the text, with the keys below it."""
        with Vertical(classes="frame") as frame:
            frame.border_title = self._title.replace("[", "\\[")
            yield self._area
            yield self._hint
        yield KeyFooter()

    def on_mount(self) -> None:
        """Start at the end of the text."""
        self._area.move_cursor(self._area.document.end)
        self._area.focus()
        self._show_hint()

    def _show_hint(self) -> None:
        save = key_of(self, "edit.save")
        leave = key_of(self, "edit.leave")
        self._hint.set_class(self._warned, "-warning")
        if self._warned:
            self._hint.update(f"The text has changed. {save} saves it, {leave} again discards the changes.")
        else:
            self._hint.update(f"{save} saves   {leave} discards the changes")

    @on(TextArea.Changed)
    def _text_changed(self) -> None:
        if self._warned:
            self._warned = False
            self._show_hint()

    def action_save(self) -> None:
        """Return the text."""
        self.dismiss(self._area.text)

    def action_leave(self) -> None:
        """Return nothing; ask for a second Escape where something would be lost."""
        if self._area.text != self._text and not self._warned:
            self._warned = True
            self._show_hint()
        else:
            self.dismiss(None)


Ticked = TypeVar("Ticked")


class TickList(SelectionList[Ticked]):
    """Rows to tick; a box that is off is empty, and `line` says in words what it says by colour."""

    def __init__(
        self, line: Callable[[Ticked, bool], Content], values: Sequence[Ticked], ticked: Container[Ticked]
    ) -> None:
        rows = ((value, value in ticked) for value in values)
        super().__init__(*(Selection(line(value, on), value, on) for value, on in rows))
        self._describe = line

    @on(SelectionList.SelectedChanged)
    def _tell(self) -> None:
        for index in range(self.option_count):
            value = self.get_option_at_index(index).value
            self.replace_option_prompt_at_index(index, self._describe(value, value in self.selected))

    def render_line(self, y: int) -> Strip:
        """Render a row."""
        strip = super().render_line(y)
        index = self.scroll_offset.y + y
        if index >= self.option_count or self.get_option_at_index(index).value in self.selected:
            return strip
        left, box, *rest = strip
        return Strip([left, Segment(" " * len(box.text), box.style), *rest])


class MakeRoomScreen(Dialog[tuple[int, ...] | Literal["summarise"] | None]):
    """A list of exchanges; the ticked ones are left out. Returns the ids of all their messages.

    If a question waits for space, only a choice that frees enough is accepted. Where `summary` says what
    could be summarised instead, that can be chosen, too.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", "Apply", priority=True, id="make-room.apply"),
        Binding("s", "summarise", "Summarise instead", id="make-room.summarise"),
        Binding("escape", "dismiss(None)", "Change nothing", id="make-room.leave"),
    ]

    def __init__(self, room: ContextBudget, summary: str = "") -> None:
        super().__init__()
        self._room = room
        self._summary = summary
        self._since = monotonic()

    def compose(self) -> ComposeResult:
        """Return the list, what it comes to, and the two ways out."""
        room = self._room
        taken = room.taken(room.dropped)
        excess = room.excess(room.dropped)
        now = f"Too long by {excess:,} tokens: it takes {taken:,} of {room.size:,}. " if excess else ""
        with Vertical(classes="frame") as box:
            box.border_title = "Free up context"
            tools = ""
            if room.tools:
                tools = f" The tools take {counted(room.tools, 'token')}; /tools switches them off."
            yield Static(f"{now}Ticked exchanges are no longer sent to the model.{tools}")
            yield TickList[int](self._described, range(len(room.exchanges)), room.proposed())
            yield Static(id="make-room-sum")
            yield Static(
                "Exchanges left out stay visible; you can include them again at any time.",
                classes="note",
            )
            with Horizontal(classes="buttons"):
                yield Button(
                    "Leave out and answer  Enter" if room.waits else "Apply  Enter",
                    id="make-room-apply",
                    variant="primary",
                    compact=True,
                    action="screen.apply",
                )
                if self._summary:
                    yield Button(
                        f"Summarise {self._summary}  s",
                        id="make-room-summarise",
                        compact=True,
                        action="screen.summarise",
                    )
                yield Button(
                    "Change nothing  Esc", id="make-room-leave", compact=True, action="screen.dismiss(None)"
                )
        yield KeyFooter()

    def on_mount(self) -> None:
        """Show what the proposal comes to."""
        self._since = monotonic()
        self._add_up()
        self.query_one(SelectionList).focus()

    @property
    def _out(self) -> set[int]:
        return set(self.query_one(SelectionList).selected)

    @on(SelectionList.SelectedChanged)
    def _add_up(self) -> None:
        room = self._room
        stay = self._room.taken(self._out)
        freed = room.taken(room.dropped) - stay
        verb = "Frees" if freed >= 0 else "Includes"
        text = f"{verb} {abs(freed):,} tokens: {stay:,} of {room.size:,} used, {room.size - stay:,} free."
        if excess := room.excess(self._out):
            text = f"{verb} {abs(freed):,} tokens: still too long by {excess:,}."
        self.query_one("#make-room-sum", Static).update(text)
        self.query_one("#make-room-apply", Button).disabled = not self._suffices

    @property
    def _suffices(self) -> bool:
        return not (self._room.waits and self._room.excess(self._out))

    def on_key(self, event: events.Key) -> None:
        """Ignore text that is being typed when this comes up, until the user rests."""
        is_new = monotonic() - self._since < READING_S
        if event.is_printable and (is_new or event.key != "space"):
            self._since = monotonic()
        if event.is_printable and is_new:
            event.stop()
            event.prevent_default()

    def action_apply(self) -> None:
        """Leave the checked exchanges out, unless the key came before they can have been read."""
        if monotonic() - self._since < READING_S:
            return
        chosen = self.focused.id if isinstance(self.focused, Button) else None
        if chosen == "make-room-leave":
            self.dismiss(None)
        elif chosen == "make-room-summarise":
            self.dismiss("summarise")
        elif self._suffices:
            ids = (self._room.exchanges[index].ids for index in sorted(self._out))
            self.dismiss(tuple(chain.from_iterable(ids)))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave out the summary where nothing can be summarised."""
        return action != "summarise" or bool(self._summary)

    def action_summarise(self) -> None:
        """Have the older exchanges summarised instead."""
        if monotonic() - self._since >= READING_S:
            self.dismiss("summarise")

    def _described(self, index: int, out: bool) -> Content:
        exchange = self._room.exchanges[index]
        question = " ".join(clean(exchange.question).strip().partition("\n")[0].split()) or "(no text)"
        word = "left out" if out and exchange.dropped else "leave out" if out else "keep"
        return Content.assemble(
            (f"{'include' if exchange.dropped and not out else word:<10} ", "bold" if out else ""),
            f"{exchange.tokens:>7,} tokens  ",
            Content(question).truncate(60, ellipsis=True),
        )
