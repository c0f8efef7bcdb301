"""What is bound to a key, and how keys take effect in the order in which they were typed."""

from __future__ import annotations

from collections.abc import Iterator

from textual import events
from textual.binding import Binding
from textual.dom import DOMNode


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
