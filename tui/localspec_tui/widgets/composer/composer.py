"""Where prompts are written: text, earlier prompts, completions and the queue; sends nothing by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option

from localspec.chat.attachments import Completion
from localspec_tui.keys import handled
from localspec_tui.widgets.composer.prompt_area import PromptArea
from localspec_tui.widgets.lookup import Lookup
from localspec_tui.widgets.markdown.blocks import clean
from localspec_tui.widgets.option_rows import OptionRows

REMOVE = " × "
MAX_ROWS = 8  # of completions


@dataclass
class PromptEntered(Message):
    """A prompt or a slash command was sent, as typed."""

    text: str


@dataclass
class QueuedPromptAsked(Message):
    """A queued prompt is to go back into the text, or is not wanted any more."""

    index: int
    change: Literal["edit", "remove"]


@dataclass
class QueueResumed(Message):
    """The first queued prompt is to be sent, which waited for a decision."""


class PromptHistory:
    """Earlier prompts and the current position among them.

    The text before the walk is the draft: the walk ends at it and only visits prompts that begin with it.
    Editing a recalled prompt makes it the draft of a new walk.
    """

    def __init__(self, prompts: Sequence[str]) -> None:
        """Take prompts, newest first."""
        self.prompts = tuple(dict.fromkeys(prompts))
        self._draft = ""
        self._place: int | None = None  # None: at the draft

    def walk(self, step: int, current: str) -> str | None:
        """Return the prompt before (-1) or after (1) the `current` one, in the end the draft; None beyond."""
        if self._place is None or self.prompts[self._place] != current:
            self._place = None
            self._draft = current
        here = -1 if self._place is None else self._place
        places = range(here + 1, len(self.prompts)) if step < 0 else range(here - 1, -1, -1)
        for place in places:
            prompt = self.prompts[place]
            if prompt.startswith(self._draft) and prompt != current:
                self._place = place
                return prompt
        if step < 0 or self._place is None:
            return None
        self._place = None
        return self._draft


class QueueStrip(OptionRows):
    """The queue above the prompt; hidden while it is empty."""

    FOCUS_ON_CLICK = False  # typing after a click goes to the prompt

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e,enter", "select", "Edit the queued prompt", id="queue.edit"),
        Binding("x,delete,backspace", "remove", "Remove the queued prompt", id="queue.remove"),
    ]

    def show(self, prompts: Sequence[str]) -> None:
        """Show the waiting prompts, first the one that is next."""
        before = self.highlighted or 0
        self.set_class(bool(prompts), "-waiting")
        self.set_options(Option(self._line(number, text)) for number, text in enumerate(prompts, 1))
        if prompts:
            self.highlighted = min(before, len(prompts) - 1)

    def _line(self, number: int, text: str) -> Content:
        first, *more = clean(text).strip().splitlines() or [""]
        rest = f"  (+{len(more)} lines)" if more else ""
        return Content.assemble((REMOVE, "bold"), (f"{number}. ", "dim"), first, (rest, "dim"))

    def on_click(self, event: events.Click) -> None:
        """Remove a prompt when its cross is clicked; a click on the rest of its line edits it."""
        index = event.style.meta.get("option")
        if index is not None and event.get_content_offset_capture(self).x < len(REMOVE):
            event.stop()
            event.prevent_default()
            self.post_message(QueuedPromptAsked(index, "remove"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take the prompt back."""
        event.stop()
        self.post_message(QueuedPromptAsked(event.option_index, "edit"))

    def action_remove(self) -> None:
        """Remove the prompt under the cursor."""
        if self.highlighted is not None:
            self.post_message(QueuedPromptAsked(self.highlighted, "remove"))


class Completions(OptionRows, can_focus=False):
    """A short list to choose from while typing; hidden while it is empty."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id, markup=False)
        self._items: tuple[Completion, ...] = ()
        self.moved = False  # by the user, since the list was shown

    @property
    def is_open(self) -> bool:
        """Whether there is something to choose from."""
        return bool(self._items)

    @property
    def chosen(self) -> Completion | None:
        """The completion under the cursor."""
        return self._items[self.highlighted] if self._items and self.highlighted is not None else None

    def show(self, items: Sequence[Completion]) -> None:
        """Offer these; none closes the list."""
        self._items = tuple(items)
        self.moved = False
        self.set_class(bool(items), "-open")
        width = max((len(item.label) for item in items), default=0)
        self.set_options(Option(_line(item, width)) for item in items)
        if items:
            rows = min(len(items), MAX_ROWS, max(1, self.screen.size.height // 3))
            self.styles.max_height = rows + 2
            self.styles.offset = (0, -(rows + 2))
            self.highlighted = 0

    def move(self, step: int) -> None:
        """Move the cursor, around the ends."""
        if self.highlighted is not None:
            self.moved = True
            self.highlighted = (self.highlighted + step) % len(self._items)


def _line(item: Completion, width: int) -> Content:
    label = Content(item.label.ljust(width) if item.description else item.label)
    return label.append(Content.styled(f"  {item.description}", "dim")) if item.description else label


class Composer(Widget):
    """The prompt with what belongs to it.

    `complete` gets the text up to the cursor and is called in a thread; `named` recognises pasted paths.
    The bindings come before those of the text area, and step aside through `check_action` where its own are
    meant.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", id="composer.send"),
        Binding("ctrl+j,alt+enter,shift+enter", "newline", "New line", id="composer.newline"),
        Binding("tab", "complete", "Complete a command or file", id="composer.complete"),
        Binding("up", "walk(-1)", "Earlier prompt (in the first line)", id="composer.older"),
        Binding("down", "walk(1)", "Later prompt (in the last line)", id="composer.newer"),
        Binding("escape", "close", "Close the completions", id="composer.close"),
        Binding("ctrl+u", "clear", "Clear the prompt; Ctrl+Z brings it back", id="composer.clear"),
        Binding("alt+up", "edit_queued", "Edit the last queued prompt", id="composer.edit_queued"),
    ]

    def __init__(
        self,
        complete: Callable[[str], Sequence[Completion]],
        named: Callable[[str, str], str | None] = lambda _before, _pasted: None,
    ) -> None:
        super().__init__()
        self.prompt = PromptArea(self, named, id="prompt")
        self._completions = Completions(id="completions")
        self._queue = QueueStrip(id="queue", markup=False)
        self._lookup = Lookup(self, complete, self._offer, lambda text, _: self._offer(text, ()))
        self._history = PromptHistory(())
        self._placed: str | None = None  # a text that was put there, not typed
        self._offered: tuple[str, tuple[Completion, ...]] = ("", ())
        self._tab_waits = False
        self._is_answering = False
        self._tell()

    def compose(self) -> ComposeResult:
        """Stack the queue, the completions and the prompt."""
        with Vertical():
            yield self._queue
            yield self._completions
            with Vertical(id="frame"):
                yield self.prompt

    @property
    def text(self) -> str:
        """The unsent text; setting it forgets what could be undone."""
        return self.prompt.whole_text

    @text.setter
    def text(self, text: str) -> None:
        self.prompt.start_with(text)
        self._remember_placed()

    def put(self, text: str, *, cursor_at_top: bool = False) -> None:
        """Replace the unsent text; undo restores it."""
        self.prompt.replace_all(text, cursor_at_top=cursor_at_top)
        self._remember_placed()

    def set_history(self, prompts: Sequence[str]) -> None:
        """Take the earlier prompts, newest first."""
        self._history = PromptHistory(prompts)

    def set_queue(self, prompts: Sequence[str]) -> None:
        """Show the prompts that wait."""
        if self._queue.has_focus and not prompts:
            self.focus()
        self._queue.show(prompts)
        self._tell()

    def set_answering(self, answering: bool) -> None:
        """Show what Enter and Escape do while an answer is written."""
        self._is_answering = answering
        self._tell()
        if self.is_attached:  # an answer may end while the screen is taken down
            self.refresh_bindings()  # of which Escape says what it does

    def _tell(self) -> None:
        """Say what Enter does now."""
        words = "Ask anything. / for commands, @ for files"
        if self._is_answering:
            words = "Esc stops; Enter queues"
        elif self._queue.option_count:
            words = "Enter sends the queued prompt, Alt+Up edits it"
        self.prompt.placeholder = words

    def focus(self, scroll_visible: bool = True) -> Self:
        """Put the cursor into the text, before the next key is looked at."""
        self.screen.set_focus(self.prompt, scroll_visible)
        return self

    async def settle(self) -> str:
        """Wait until all that was typed so far is in the text, or sent: keys of the screen come before it.

        Return the text up to there. What is typed meanwhile may follow it in the prompt.
        """
        typed = [self.text]
        await handled(self.prompt, lambda: typed.append(self.text))
        await handled(self)
        return typed[-1] if self.text.startswith(typed[-1]) else self.text

    # -- typing and completing

    @on(TextArea.Changed)
    def _text_changed(self) -> None:
        self._tab_waits = False
        if self.prompt.text == self._placed:
            self._lookup.forget()
            self._completions.show(())
        else:
            self._placed = None
            self._lookup.ask(self.prompt.before_cursor)

    @on(TextArea.SelectionChanged)
    def _cursor_moved(self) -> None:
        if self._completions.is_open and not self._offer_fits():
            self._completions.show(())

    def _offer(self, text: str, items: Sequence[Completion]) -> None:
        if text != self.prompt.before_cursor or not self.prompt.has_focus:
            return
        self._offered = (text, tuple(items))
        tab = self._tab_waits
        self._tab_waits = False
        self._completions.show(() if _says_nothing_new(text, items) and not tab else items)
        if tab:
            self._take_or_move_on()

    def complete_again(self) -> None:
        """Look for completions again, because there may be others now."""
        is_chosen_from = self._completions.is_open and self._completions.moved
        if self.prompt.has_focus and self.prompt.text != self._placed and not is_chosen_from:
            self._lookup.ask(self.prompt.before_cursor)

    def on_descendant_blur(self) -> None:
        """Close the completions when the cursor leaves the text."""
        self._lookup.forget()
        self._completions.show(())

    def _offer_fits(self) -> bool:
        return self._offered[0] == self.prompt.before_cursor

    def action_complete(self) -> None:
        """Take the completion under the cursor, look for some, or continue to the next widget."""
        if self._offer_fits():
            self._take_or_move_on()
        else:
            self._tab_waits = True
            self._lookup.ask(self.prompt.before_cursor)

    def _take_or_move_on(self) -> None:
        items = self._offered[1]
        if self._completions.is_open or len(items) == 1:
            self._take(self._completions.chosen or items[0])
        elif items:
            self._completions.show(items)
        elif not self.text.strip():  # what is being written continues here
            self.screen.focus_next()

    def _take(self, item: Completion) -> None:
        if item.is_notice:
            return
        self._completions.show(())
        self.prompt.replace_before_cursor(item.start, item.insert)
        self.prompt.focus()

    @on(Completions.OptionSelected)
    def _completion_clicked(self) -> None:
        if self._offer_fits() and (chosen := self._completions.chosen):
            self._take(chosen)

    def action_close(self) -> None:
        """Close the completions."""
        self._completions.show(())

    # -- sending

    def action_send(self) -> None:
        """Take the completion under the cursor, or send the text."""
        chosen = self._completions.chosen
        if chosen and self._offer_fits() and self._is_meant(chosen):
            self._take(chosen)
            return
        text = self.prompt.whole_text
        if not text.strip():
            if self._queue.option_count and not self._is_answering:
                self.post_message(QueueResumed())
            return
        self._completions.show(())
        self._history = PromptHistory((text, *self._history.prompts))
        self.put("")
        if self.prompt.vim_mode:
            self.prompt.vim_mode = "INSERT"
        self.post_message(PromptEntered(text))

    def _is_meant(self, item: Completion) -> bool:
        """Return whether Enter takes this: the user moved to it, or it completes a word that was begun.

        The name of a folder is whole at its slash.
        """
        word = self.prompt.before_cursor[item.start :]
        is_begun = bool(word) and not word.endswith("/") and word.strip() != item.insert.strip()
        return not item.is_notice and (self._completions.moved or is_begun)

    def action_newline(self) -> None:
        """Break the line."""
        self.prompt.break_line()

    def action_clear(self) -> None:
        """Clear the prompt, or a selected part of it; undo restores it."""
        if self.prompt.selection.is_empty:
            self.put("")
        else:
            self.prompt.action_delete_left()

    # -- earlier prompts and the queue

    def action_walk(self, step: int) -> None:
        """Show the prompt before this one, or after it, or move in the completions."""
        if self._completions.is_open:
            self._completions.move(step)
            return
        if (text := self._history.walk(step, self.text)) is not None:
            self.put(text, cursor_at_top=step < 0)

    def _remember_placed(self) -> None:
        self._placed = self.prompt.text
        self._offered = ("", ())

    def action_edit_queued(self) -> None:
        """Take the last queued prompt back."""
        self.post_message(QueuedPromptAsked(self._queue.option_count - 1, "edit"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave keys to the text area, the queue and the screen where they mean something else there."""
        completing = self._completions.is_open
        match action:
            case "edit_queued":
                return self._queue.option_count > 0
            case "send" | "newline" | "complete":
                meant = True
            case "clear":
                meant = bool(self.prompt.text)
            case "close":
                meant = completing
            case "walk":
                at_edge = self.prompt.on_first_row if parameters == (-1,) else self.prompt.on_last_row
                meant = completing or at_edge
            case _:
                return True
        return meant and self.prompt.has_focus


def _says_nothing_new(text: str, items: Sequence[Completion]) -> bool:
    return (
        len(items) == 1
        and not items[0].is_notice
        and text[items[0].start :].strip() == items[0].insert.strip()
    )
