"""The keys that are really bound, whatever a user has made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from textual import events
from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import format_key
from textual.screen import Screen

_KEY_NAMES = {"escape": "Esc", "pagedown": "Page Down", "pageup": "Page Up"}
_NAMED = {"backspace", "delete", "down", "enter", "left", "right", "space", "up"}  # as they are


def bindings_of(node: DOMNode) -> Iterator[Binding]:
    """Return the bindings of one node, with the keys of the user's keymap."""
    # In public Textual tells only what is bound on the way from the focus up, merged.
    bindings = node._bindings.copy()  # noqa: SLF001
    bindings.apply_keymap(node.app._keymap)  # noqa: SLF001
    return (binding for _, binding in bindings)


async def take_key(event: events.Key, *nodes: DOMNode) -> None:
    """Do what the first of these nodes binds to a key, at once.

    Textual runs bindings with priority before the characters that wait in the queue of a widget, and others
    after: what is typed ahead of a busy screen would be sent without its end. Called from the handler of keys
    of a widget, this keeps the order.
    """
    for node in nodes:
        for binding in bindings_of(node):
            if binding.key == event.key and await node.app.run_action(binding.action, node):
                event.stop()
                event.prevent_default()
                return


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
    """Return what is bound on the app, on a screen and on its widgets, with the keys of the user's keymap.

    Bindings without an id count only where the app or the screen makes them: a text area has dozens, the
    same as any text area.
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
    """Return the first key of a binding of this screen, as it is shown to people."""
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
