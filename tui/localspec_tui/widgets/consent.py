"""The question whether a call of a tool may run, between the conversation and the prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Button, Input, Static

from localspec.chat.tool_use.consent import CallAsked, Decision
from localspec.chat.tool_use.described import describe_wish, shown_call
from localspec.units import counted
from localspec_tui.widgets.markdown.prose import GrowingProse

READING_S = 0.5  # too short to have read what is asked: a key or a click was meant for something else
WRITING_S = 0.5  # between two letters of a user who is typing
_LETTERS = {"yes": "y", "always": "a", "no": "n", "word": "w"}


@dataclass
class CallDecided(Message):
    """The user has decided about the call that waits."""

    call_id: str
    decision: Decision


class ConsentBar(Vertical, can_focus=True):
    """Shows the call that waits, and takes the answer.

    Its letters count only while it has the focus, once it could be read, and where no other letter follows:
    all others are text, which `write` puts into the prompt. It takes the focus from an empty prompt alone, so
    it interrupts no typing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "decide('yes')", "Yes", id="consent.yes"),
        Binding("a", "decide('always')", "Always here", id="consent.always"),
        Binding("n", "decide('no')", "No", id="consent.no"),
        Binding("w", "decide('word')", "No, with a word", id="consent.word"),
        Binding("up", "scroll(-1)", "Scroll up", id="consent.up", show=False),
        Binding("down", "scroll(1)", "Scroll down", id="consent.down", show=False),
        Binding("pageup", "scroll(-10)", "Scroll up a page", id="consent.page-up", show=False),
        Binding("pagedown", "scroll(10)", "Scroll down a page", id="consent.page-down", show=False),
    ]

    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__(classes="hidden")
        self._write = write
        self._asked: CallAsked | None = None
        self._since = monotonic()
        self._letter = ""  # that is an answer unless another one follows
        self._deciding: Timer | None = None

    def compose(self) -> ComposeResult:
        """Lay out what is asked, what it would do, and the answers."""
        yield Static("", classes="asked", markup=False)
        yield VerticalScroll(classes="preview", can_focus=False)
        with Horizontal():
            yield Button("Yes  y", id="consent-yes", compact=True, variant="primary")
            yield Button("Always here  a", id="consent-always", compact=True)
            yield Button("No  n", id="consent-no", compact=True)
            yield Button("No, with a word  w", id="consent-word", compact=True)
        yield Input(placeholder="what the model should do instead; Enter sends it", classes="hidden")

    def on_mount(self) -> None:
        """Take a question as new when the user comes back to the terminal: that may be by a click on it."""
        self.watch(self.app, "app_focus", self._read_again, init=False)

    def _read_again(self, _is_back: bool) -> None:
        self._since = monotonic()

    async def show(self, asked: CallAsked | None) -> None:
        """Show the call that waits, if any; one that is shown already stays as it is."""
        if asked is self._asked:
            return
        had_focus = self.has_focus_within
        self._asked = asked
        self.take_letter()
        self.set_class(asked is None, "hidden")
        self.query_one(Input).add_class("hidden")
        self.query_one(Input).value = ""
        preview = self.query_one(".preview", VerticalScroll)
        await preview.remove_children()
        if asked is None:
            if had_focus:
                self.screen.set_focus(None)
            return
        self._since = monotonic()
        self.query_one(".asked", Static).update(f"{describe_wish(asked.tool)}. Allow it?")
        await preview.mount(GrowingProse(shown_call(asked)))
        preview.scroll_home(animate=False)
        self.call_after_refresh(self._tell_more)
        self.query_one("#consent-always").display = bool(asked.always)
        self.refresh_bindings()

    def _tell_more(self) -> None:
        """Say that not all of the call is in view."""
        preview = self.query_one(".preview", VerticalScroll)
        more = preview.max_scroll_y
        self.border_subtitle = f"{counted(round(more), 'more line')}: ↑ ↓ scroll" if more else ""

    def action_scroll(self, rows: int) -> None:
        """Scroll what the call would do."""
        self.query_one(".preview", VerticalScroll).scroll_relative(y=rows, animate=False)

    @property
    def waits(self) -> bool:
        """Return whether a call is asked."""
        return self._asked is not None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer "always" only where a rule can be made of it."""
        if parameters == ("always",):
            return self._asked is not None and bool(self._asked.always)
        return True

    @property
    def _is_new(self) -> bool:
        return monotonic() - self._since < READING_S

    def action_decide(self, answer: str) -> None:
        """Answer by a letter, unless others follow or the question is too new to have been read."""
        if self._asked is None:
            return
        letter = self.take_letter() + _LETTERS[answer]
        if self._is_new or len(letter) > 1:
            self._write(letter)
        else:
            self._letter = letter
            self._deciding = self.set_timer(WRITING_S, lambda: self._take(answer))

    def take_letter(self) -> str:
        """Return the letter that would soon have been an answer, and is text now; empty if there is none."""
        letter = self._letter
        self._letter = ""
        if self._deciding is not None:
            self._deciding.stop()
            self._deciding = None
        return letter

    def _take(self, answer: str) -> None:
        self.take_letter()
        if answer == "word":
            self.query_one(Input).remove_class("hidden")
            self.query_one(Input).focus()
            return
        self._decide(Decision(answer != "no", is_always=answer == "always"))

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if self._asked is not None and not self._is_new:
            self._take(str(event.button.id).removeprefix("consent-"))

    @on(Input.Submitted)
    def _worded(self, event: Input.Submitted) -> None:
        event.stop()
        self._decide(Decision(False, word=event.value.strip()))

    def _decide(self, decision: Decision) -> None:
        if self._asked is not None:
            self.post_message(CallDecided(self._asked.call.id, decision))
