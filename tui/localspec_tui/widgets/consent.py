"""The question whether a call of a tool may run, between the conversation and the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Button, Input, Static

from localspec.chat.tool_use.consent import CallAsked, Decision
from localspec.chat.tool_use.described import describe_arguments, describe_wish
from localspec_tui.widgets.markdown.prose import GrowingProse

READING_S = 0.5  # too short to have read what is asked: a key was meant for the prompt


@dataclass
class CallDecided(Message):
    """The user has decided about the call that waits."""

    call_id: str
    decision: Decision


class ConsentBar(Vertical, can_focus=True):
    """Shows the call that waits, and takes the answer.

    Its letters count only while it has the focus, and once it could be read. It takes the focus from an
    empty prompt alone, so it interrupts no typing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "decide('yes')", "Yes", id="consent.yes"),
        Binding("a", "decide('always')", "Always here", id="consent.always"),
        Binding("n", "decide('no')", "No", id="consent.no"),
        Binding("w", "decide('word')", "No, with a word", id="consent.word"),
    ]

    def __init__(self) -> None:
        super().__init__(classes="hidden")
        self._asked: CallAsked | None = None
        self._since = monotonic()

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

    async def show(self, asked: CallAsked | None) -> None:
        """Show the call that waits, if any; one that is shown already stays as it is."""
        if asked is self._asked:
            return
        had_focus, self._asked = self.has_focus_within, asked
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
        text = asked.preview or describe_arguments(asked.call.arguments)
        await preview.mount(GrowingProse(text))
        self.query_one("#consent-always").display = bool(asked.always)
        self.refresh_bindings()

    @property
    def waits(self) -> bool:
        """Return whether a call is asked."""
        return self._asked is not None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer "always" only where a rule can be made of it."""
        if parameters == ("always",):
            return self._asked is not None and bool(self._asked.always)
        return True

    def on_key(self, event: events.Key) -> None:
        """Ignore keys that come before the question can have been read."""
        is_answer = event.is_printable or event.key == "enter"
        if is_answer and not isinstance(self.screen.focused, Input) and self._is_new:
            event.stop()
            event.prevent_default()

    @property
    def _is_new(self) -> bool:
        return monotonic() - self._since < READING_S

    def action_decide(self, answer: str) -> None:
        """Answer, unless the question is too new to have been read."""
        if self._asked is None or self._is_new:
            return
        if answer == "word":
            self.query_one(Input).remove_class("hidden")
            self.query_one(Input).focus()
            return
        self._decide(Decision(answer != "no", is_always=answer == "always"))

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.action_decide(str(event.button.id).removeprefix("consent-"))

    @on(Input.Submitted)
    def _worded(self, event: Input.Submitted) -> None:
        event.stop()
        self._decide(Decision(False, word=event.value.strip()))

    def _decide(self, decision: Decision) -> None:
        if self._asked is not None:
            self.post_message(CallDecided(self._asked.call.id, decision))
