"""The row of keys at the bottom: the few that matter where the focus is, and what they do now.

Textual's own footer has them in the order of their definition and cuts the last one anywhere.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from textual.binding import Binding
from textual.content import Content
from textual.keys import key_to_character
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Input, TextArea

from localspec_tui.keys import bindings_of, written

GAP = 2
STOP = "chat.stop"


@cache
def _words() -> dict[str, str]:
    words: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return words


class KeyFooter(Widget):
    """Follows the focus of its screen; a click does what the key does."""

    ALLOW_SELECT = False

    def __init__(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Take what tells whether Escape would stop something, which then comes first."""
        super().__init__()
        self._is_stopping = is_stopping

    def on_mount(self) -> None:
        """Look anew whenever other keys are bound."""
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, _screen: Screen[object]) -> None:
        self.refresh()

    def _bound(self) -> dict[str, Binding]:
        """Return what does something now, by its name, each under the plainest of its keys that does."""
        is_typing = isinstance(self.screen.focused, Input | TextArea)
        active = {
            key: found
            for key, found in self.screen.active_bindings.items()
            if found.enabled and not (is_typing and (key_to_character(key) or "\n").isprintable())
        }
        bound: dict[str, Binding] = {}
        for found in active.values():
            if (name := found.binding.id) and name not in bound:
                same = (each for each in bindings_of(found.node) if each.id == name)
                works = (each for each in same if each.key in active and active[each.key].binding.id == name)
                bound[name] = min(works, key=lambda each: each.key.count("+"), default=found.binding)
        return bound

    def _shown(self) -> Iterator[tuple[Binding, str]]:
        """Yield what is bound now and what it does in a word, the most useful first, each once."""
        bound = self._bound()
        if self._is_stopping() and STOP in bound:
            yield bound.pop(STOP), "Stop"
        elif "composer.send" in bound:  # one is there already
            bound.pop(STOP, None)
        for name, words in _words().items():
            if name in bound:
                yield bound.pop(name), words
        for binding in bound.values():
            if binding.show and self.screen.is_modal:
                yield binding, binding.description

    def render(self) -> Content:
        """Return as many whole entries as there is room for."""
        row = Content("")
        for binding, words in self._shown():
            click = Style.from_meta({"@click": f"app.simulate_key({binding.key!r})"})
            entry = Content.assemble((written(binding), "bold $text-primary"), f" {words}").stylize(click)
            gap = GAP if row else 0
            if row.cell_length + gap + entry.cell_length <= self.content_size.width:
                row = row.pad_right(gap) + entry
        return row
