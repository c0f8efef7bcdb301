"""The tree that the messages of a chat form, and the one branch of it that is shown; values, no storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from localspec.chat.messages import StoredMessage


@dataclass(frozen=True, slots=True)
class Tree:
    """Messages with the leaf of the shown branch; every change returns a new tree.

    `chosen` remembers, for each message (None: the top), which of its children was shown last.
    """

    messages: Mapping[int, StoredMessage]
    children: Mapping[int | None, tuple[int, ...]]
    leaf: int | None
    chosen: Mapping[int | None, int]

    @classmethod
    def of(cls, messages: Iterable[StoredMessage], leaf: int | None) -> Tree:
        """Return the tree of a chat, without answers of which nothing came; `leaf` None shows the newest."""
        known = {message.id: message for message in messages}
        leaf = max(known, default=None) if leaf is None else leaf
        parents = {message.parent for message in known.values()}
        empty = {id_ for id_, message in known.items() if came_to_nothing(message) and id_ not in parents}
        if leaf in empty:
            leaf = known[leaf].parent
        kept = [message for message in known.values() if message.id not in empty]
        return cls({}, {}, None, {}).with_messages(kept).with_leaf(leaf)

    def with_messages(self, messages: Iterable[StoredMessage]) -> Tree:
        """Return the tree with messages added, or put in the place of earlier versions of themselves."""
        known = dict(self.messages)
        children = dict(self.children)
        for message in messages:
            if message.id not in known:
                children[message.parent] = (*children.get(message.parent, ()), message.id)
            known[message.id] = message
        return replace(self, messages=known, children=children)

    def with_leaf(self, leaf: int | None) -> Tree:
        """Return the tree with another branch shown, the one that ends in `leaf`."""
        moved = replace(self, leaf=leaf)
        shown = {message.parent: message.id for message in moved.path}
        return replace(moved, chosen={**self.chosen, **shown})

    def without(self, id_: int) -> Tree:
        """Return the tree without a message that has no children; another answer takes its place, if any."""
        parent = self.messages[id_].parent
        kept = [message for message in self.messages.values() if message.id != id_]
        rest = Tree({}, {}, None, {}).with_messages(kept)
        chosen = {above: child for above, child in self.chosen.items() if child != id_}
        rest = replace(rest, leaf=self.leaf, chosen=chosen)
        return replace(rest, leaf=parent).answered() if self.leaf == id_ else rest

    def answered(self) -> Tree:
        """Return the tree with an answer shown where its branch ends in a question that has some."""
        last = None if self.leaf is None else self.messages.get(self.leaf)
        if last is None or last.role != "user":
            return self
        return self.with_leaf(self.leaf_below(last.id))

    @property
    def path(self) -> tuple[StoredMessage, ...]:
        """Return the shown branch, from its first message to its last."""
        return self.path_to(self.leaf)

    def path_to(self, id_: int | None) -> tuple[StoredMessage, ...]:
        """Return the messages that lead to one, itself included."""
        path = []
        while id_ is not None and id_ in self.messages:
            path.append(self.messages[id_])
            id_ = path[-1].parent
        return tuple(reversed(path))

    def siblings(self, id_: int) -> tuple[int, ...]:
        """Return the messages with the same parent, oldest first, itself included."""
        return self.children[self.messages[id_].parent]

    def leaf_below(self, id_: int) -> int:
        """Return the end of the branch through a message: where it was shown last, or else the newest."""
        while below := self.children.get(id_):
            id_ = self.chosen.get(id_, below[-1])
        return id_


def came_to_nothing(message: StoredMessage) -> bool:
    """Tell whether a message is an answer that ended early and empty; one that is complete may be empty."""
    ended_early = message.state not in {"complete", "writing"}
    return message.role == "assistant" and ended_early and not message.content
