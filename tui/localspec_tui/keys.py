"""The keys that are really bound, whatever a user has made of them, and the row that shows some."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.dom import DOMNode
from textual.keys import format_key, key_to_character
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Input, TextArea

_KEY_NAMES = {"escape": "Esc", "pagedown": "Page Down", "pageup": "Page Up"}
_NAMED = {"backspace", "delete", "down", "enter", "left", "right", "space", "up"}  # as they are


def bindings_of(node: DOMNode) -> Iterator[Binding]:
    """Return the bindings of one node, with the keys of the user's keymap."""
    # Textual's public API only has the merged bindings from the focus upwards.
    bindings = node._bindings.copy()  # noqa: SLF001
    bindings.apply_keymap(node.app._keymap)  # noqa: SLF001
    return (binding for _, binding in bindings)


async def take_key(event: events.Key, *nodes: DOMNode) -> None:
    """Run the action that the first of these nodes binds to a key, at once.

    Textual runs bindings with priority before characters in a widget's queue, and others after them: text
    typed ahead of a busy screen would be sent without its end. Called from a widget's key handler, this
    keeps the order.
    """
    for node in nodes:
        for binding in bindings_of(node):
            if binding.key == event.key and await node.app.run_action(binding.action, node):
                event.stop()
                event.prevent_default()
                return


async def handled(widget: Widget, act: Callable[[], object] = lambda: None) -> None:
    """Wait until a widget has handled all that was sent to it so far, unless it is being taken down.

    It acts then, before it handles anything else. Its own handlers would wait for themselves.
    """
    is_reached = asyncio.Event()

    def reach() -> None:
        act()
        is_reached.set()

    if widget.call_later(reach):
        await is_reached.wait()


@dataclass(frozen=True, slots=True)
class HelpEntry:
    """One thing that keys do; `id` is what a keymap calls it, empty where it cannot be remapped."""

    id: str
    keys: tuple[str, ...]
    description: str

    @property
    def area(self) -> str:
        """The part of the id before the dot."""
        return self.id.partition(".")[0] or "app"


def collect(screen: Screen[Any]) -> tuple[HelpEntry, ...]:
    """Return the bindings of the app, a screen and its widgets, with the keys of the user's keymap.

    Bindings without an id only count on the app or the screen: a text area has dozens, like any text area.
    """
    one_of_each_kind: dict[type[DOMNode], DOMNode] = {}
    for node in (screen.app, screen, *screen.walk_children()):
        one_of_each_kind.setdefault(type(node), node)
    found: dict[str, HelpEntry] = {}
    for node in one_of_each_kind.values():
        for binding in bindings_of(node):
            if not binding.description or binding.system or not (binding.id or node in {screen, screen.app}):
                continue
            name = binding.id or binding.action
            known = found.get(name, HelpEntry(binding.id or "", (), binding.description))
            found[name] = replace(known, keys=tuple(dict.fromkeys((*known.keys, written(binding)))))
    return tuple(found.values())


def key_of(screen: Screen[Any], binding_id: str) -> str:
    """Return the first key of a binding of this screen, as it is shown."""
    keys = (written(b) for b in bindings_of(screen) if b.id == binding_id)
    return next(keys, "")


def written(binding: Binding) -> str:
    """Return the key of a binding in words."""
    if binding.key_display:
        return binding.key_display
    *modifiers, key = binding.key.split("+")
    name = _KEY_NAMES.get(key) or (key if key in _NAMED else format_key(key))
    if modifiers or len(name) > 1:
        name = name[:1].upper() + name[1:]
    return "+".join((*(modifier.capitalize() for modifier in modifiers), name))


GAP = 2
STOP = "chat.stop"


@cache
def _words() -> dict[str, str]:
    words: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return words


class KeyFooter(Widget):
    """The few keys that matter where the focus is, and what they do now; a click does what the key does.

    Textual's own footer has them in the order of their definition and cuts the last one anywhere.
    """

    ALLOW_SELECT = False

    def __init__(
        self,
        is_stopping: Callable[[], bool] = lambda: False,
        words_of: Callable[[str], str] = lambda _name: "",
    ) -> None:
        """Take a function that says whether Escape would stop something; that entry then comes first.

        `words_of` gives bindings, by name, other words than usual, or none.
        """
        super().__init__()
        self._is_stopping = is_stopping
        self._words_of = words_of

    def on_mount(self) -> None:
        """Look again whenever other keys are bound."""
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, _screen: Screen[object]) -> None:
        self.refresh()

    def _bound(self) -> dict[str, Binding]:
        """Return the active bindings by name, each with its simplest active key."""
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
                yield bound.pop(name), self._words_of(name) or words
        for name, binding in bound.items():
            if binding.show and self.screen.is_modal:
                yield binding, self._words_of(name) or binding.description

    def render(self) -> Content:
        """Return as many whole entries as fit."""
        row = Content("")
        for binding, words in self._shown():
            click = Style.from_meta({"@click": f"app.simulate_key({binding.key!r})"})
            entry = Content.assemble((written(binding), "bold $text-primary"), f" {words}").stylize(click)
            gap = GAP if row else 0
            if row.cell_length + gap + entry.cell_length <= self.content_size.width:
                row = row.pad_right(gap) + entry
        return row
