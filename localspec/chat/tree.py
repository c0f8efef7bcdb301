"""The tree of one chat in step with the store.

Reading needs no lock and never waits: every change puts a new tree in the place of the old one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from localspec.chat.messages import (
    AnswerRecord,
    Attachment,
    ChatInfo,
    DeletedMessages,
    Role,
    State,
    StoredMessage,
    ToolRun,
)
from localspec.errors import UserError
from localspec.types.request import ToolCall

if TYPE_CHECKING:
    from localspec.chat.store import Store


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
        empty = {
            id_
            for id_, message in known.items()
            if message.role == "assistant"
            and not (message.content or message.calls)
            and id_ not in parents
            and message.state not in {"complete", "writing"}  # one that is complete may be empty
        }
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

    def below(self, id_: int) -> tuple[int, ...]:
        """Return a message and all below it, in every branch."""
        found = [id_]
        for each in found:  # it grows meanwhile
            found += self.children.get(each, ())
        return tuple(found)

    def without_branch(self, id_: int) -> Tree:
        """Return the tree without a message and all below it; a sibling is shown instead, if there is one."""
        gone = set(self.below(id_))
        parent = self.messages[id_].parent
        kept = [message for message in self.messages.values() if message.id not in gone]
        rest = Tree({}, {}, None, {}).with_messages(kept)
        chosen = {
            above: child for above, child in self.chosen.items() if child not in gone and above not in gone
        }
        rest = replace(rest, leaf=self.leaf, chosen=chosen)
        if self.leaf not in gone:
            return rest
        siblings = self.children[parent]
        place = siblings.index(id_)
        others = [*reversed(siblings[:place]), *siblings[place + 1 :]]  # the one before is next to it
        return rest.with_leaf(rest.leaf_below(others[0]) if others else parent)

    def answered(self) -> Tree:
        """Return the tree with an answer shown where its branch ends in a question that has some."""
        last = None if self.leaf is None else self.messages.get(self.leaf)
        if last is None or last.role == "assistant":
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


class Branches:
    """The messages of a chat, which threads may read, move about in and add to at the same time."""

    def __init__(self, store: Store, chat_id: int) -> None:
        self._store = store
        self._chat_id = chat_id
        self._changing = threading.Lock()
        self._info: ChatInfo
        self._outlines: dict[int, AnswerRecord]
        self._written: dict[int, AnswerRecord] = {}  # perhaps not in the store
        self._shown_before: dict[int, int | None] = {}  # ends of branches, by the message added instead
        self.tree = Tree({}, {}, None, {})  # as it is at this moment
        self.reload()
        self.tree = self.tree.answered()

    @property
    def info(self) -> ChatInfo:
        """Return the chat as it was when it was last read or added to."""
        return replace(self._info, leaf=self.tree.leaf)

    def reload(self) -> None:
        """Read the chat again after another program changed it in the store; the shown branch stays."""
        with self._changing:
            info = self._store.chat(self._chat_id)
            messages = self._store.messages(self._chat_id)
            self.tree = Tree.of(messages, info.leaf if self.tree.leaf is None else self.tree.leaf)
            self._info = info
            self._outlines = self._store.outlines(self._chat_id)

    def reload_info(self) -> None:
        """Read title and settings again; the messages stay as they are, also those not yet in the store."""
        with self._changing:
            self._info = self._store.chat(self._chat_id)

    def message(self, id_: int) -> StoredMessage:
        """Return a message as it is at this moment; raises `UserError` if there is none."""
        message = self.tree.messages.get(id_)
        if message is None:
            raise UserError(f"this chat has no message {id_}")
        return message

    def record(self, id_: int) -> AnswerRecord | None:
        """Return the record of an answer, None if there is none."""
        return self._written.get(id_) or self._store.record(id_)

    def outline(self, id_: int) -> AnswerRecord | None:
        """Return the same, maybe without the rounds, and never wait for the store."""
        return self._written.get(id_) or self._outlines.get(id_)

    def add(
        self,
        parent: int | None,
        role: Role,
        content: str,
        *,
        state: State = "complete",
        attachments: Sequence[Attachment] = (),
    ) -> StoredMessage:
        """Add a message, and show the branch that it ends."""
        with self._changing:
            message = self._store.add(
                self._chat_id, parent, role, content, state=state, attachments=attachments
            )
            return self._added(message)

    def add_result(self, parent: int, content: str, run: ToolRun) -> StoredMessage:
        """Add the result of a call, and show the branch that it ends."""
        with self._changing:
            return self._added(self._store.add_result(self._chat_id, parent, content, run))

    def _added(self, message: StoredMessage) -> StoredMessage:
        parent = message.parent
        self._shown_before[message.id] = None if parent is None else self.tree.leaf_below(parent)
        self.tree = self.tree.with_messages([message]).with_leaf(message.id)
        self._info = self._store.chat(self._chat_id)  # its first question names a chat
        return message

    def write(
        self,
        id_: int,
        content: str,
        state: State,
        record: AnswerRecord | None = None,
        calls: Sequence[ToolCall] = (),
    ) -> StoredMessage:
        """Give a message other text; it is in the tree even where the store raises `StoreError`."""
        with self._changing:
            message = replace(self.message(id_), content=content, state=state, calls=tuple(calls))
            self.tree = self.tree.with_messages([message])
            if record is not None:
                self._written[id_] = record
            self._store.write(id_, content, state, record, calls)
            return message

    def move(self, leaf: int | None) -> None:
        """Show the branch that ends in a message."""
        with self._changing:
            self._store.set_leaf(self._chat_id, leaf)
            self.tree = self.tree.with_leaf(leaf)

    def give_up(self, id_: int) -> None:
        """Take an answer of which nothing came out of the tree; what was shown before it is shown again."""
        with self._changing:
            is_shown = self.tree.leaf == id_
            before = self._shown_before.get(id_)
            self.tree = self.tree.without(id_)
            if is_shown:
                self.tree = self.tree.with_leaf(before) if before in self.tree.messages else self.tree
                self._store.set_leaf(self._chat_id, self.tree.leaf)
            self._store.write(id_, "", "stopped")  # `Tree.of` leaves it out from then on

    def set_summary(self, id_: int, text: str) -> None:
        """Let a text stand for a message and all those before it; an empty one removes that."""
        with self._changing:
            message = replace(self.message(id_), summary=text)
            self._store.set_summary(id_, text)
            self.tree = self.tree.with_messages([message])

    def delete(self, id_: int) -> DeletedMessages:
        """Delete a message and all below it, in every branch."""
        with self._changing:
            gone = self.tree.below(self.message(id_).id)
            tree = self.tree.without_branch(id_)
            deleted = self._store.delete_messages(self._chat_id, gone, tree.leaf)
            self.tree = tree
            self._info = self._store.chat(self._chat_id)
            return deleted

    def restore(self, deleted: DeletedMessages) -> None:
        """Restore messages that were deleted together, and show the branch that they are in."""
        self._store.restore_messages(deleted)
        self.reload()
        with self._changing:
            self.tree = self.tree.with_leaf(self.tree.leaf_below(deleted.first))
            self._store.set_leaf(self._chat_id, self.tree.leaf)

    def set_dropped(self, ids: Iterable[int], *, dropped: bool) -> None:
        """Leave messages out of what the model reads, or take them in again."""
        with self._changing:
            messages = [replace(self.message(id_), dropped=dropped) for id_ in ids]
            self._store.set_dropped([message.id for message in messages], dropped)
            self.tree = self.tree.with_messages(messages)
