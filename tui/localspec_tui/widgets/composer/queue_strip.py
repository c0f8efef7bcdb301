"""The prompts that wait while an answer runs, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localspec_tui.messages import QueuedPromptRemoved, QueuedPromptTaken
from localspec_tui.widgets.markdown.blocks import clean

REMOVE = " × "


class QueueStrip(OptionList):
    """The queue above the prompt; hidden while it is empty."""

    DEFAULT_CSS = """
    QueueStrip {
        display: none;
        height: auto;
        max-height: 5;
        margin: 0 1;
        padding: 0;
        border: none;
        background: transparent;
        scrollbar-size-vertical: 1;
        scrollbar-color: $foreground 30%;
        scrollbar-background: $foreground 5%;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        &.-waiting { display: block; }
        &:focus { border: none; background-tint: transparent; }
        & > .option-list--option-highlighted {
            color: $foreground;
            background: transparent;
            text-style: none;
        }
        &:focus > .option-list--option-highlighted {
            color: $block-cursor-foreground;
            background: $block-cursor-background;
            text-style: bold;
        }
        & > .option-list--option-hover { background: $block-hover-background; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e,enter", "select", "Edit the queued prompt", id="queue.edit"),
        Binding("x,delete,backspace", "remove", "Remove the queued prompt", id="queue.remove"),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id, markup=False)
        self._prompts: tuple[str, ...] = ()

    def show(self, prompts: Sequence[str]) -> None:
        """Show the waiting prompts, first the one that is next."""
        before = self.highlighted or 0
        self._prompts = tuple(prompts)
        self.set_class(bool(prompts), "-waiting")
        self.set_options(Option(self._line(number, text)) for number, text in enumerate(prompts, 1))
        if prompts:
            self.highlighted = min(before, len(prompts) - 1)

    def _line(self, number: int, text: str) -> Content:
        first, *more = clean(text).strip().splitlines() or [""]
        rest = f"  (+{len(more)} lines)" if more else ""
        return Content.assemble((REMOVE, "bold"), (f"{number}. ", "dim"), first, (rest, "dim"))

    def on_click(self, event: events.Click) -> None:
        """Remove a prompt whose cross is clicked; the rest of its line takes it back."""
        index = event.style.meta.get("option")
        if index is not None and event.get_content_offset_capture(self).x < len(REMOVE):
            event.stop()
            event.prevent_default()
            self.post_message(QueuedPromptRemoved(index))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take the prompt back."""
        event.stop()
        self.post_message(QueuedPromptTaken(event.option_index))

    def action_remove(self) -> None:
        """Remove the prompt under the cursor."""
        if self.highlighted is not None:
            self.post_message(QueuedPromptRemoved(self.highlighted))
