"""The chat store beside a plain model of it: whatever is done in whatever order, both hold the same."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from localspec.chat.messages import Attachment, Role, State
from localspec.chat.open_chat import OpenChat
from localspec.chat.store import KEPT_S, Store
from localspec.errors import UserError
from tests.campaign.log import Log, require, thorough
from tests.chat.sample_record import RECORD

WORDS = ("walnut", "teapot", "Grünkohl", "zebra", "東京", "quartz", "ñandú")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028]")
_LATER_S = 60.0
_BATCH = 10
_word = st.sampled_from(WORDS)
_talk = st.lists(_word, min_size=1, max_size=6).map(" ".join)
_anything = st.text(st.characters(codec=None), max_size=60)  # halves of characters included
_texts = st.one_of(_talk, _talk, _anything)
_profiles = st.sampled_from(("general", "coding", ""))
_names = st.text(st.characters(codec="utf-8"), max_size=20)


@dataclass
class Said:
    """A message as it must be."""

    chat: int
    parent: int | None
    role: Role
    content: str
    state: State
    attachments: tuple[Attachment, ...] = ()
    dropped: bool = False
    writer: int = 0  # which of the programs writes it
    recorded: bool = False


@dataclass
class Talk:
    """A chat as it must be."""

    profile: str
    system: str | None
    draft: str = ""
    pinned: bool = False
    leaf: int | None = None
    deleted_at: float | None = None
    updated_at: float = 0.0
    messages: list[int] = field(default_factory=list)
    begun_by: int = 0

    @property
    def listed(self) -> bool:
        """Return whether the list shows it."""
        return self.deleted_at is None and bool(self.messages)


def whole(text: str) -> str:
    """Return a text as any file can hold it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Chats(RuleBasedStateMachine):
    """Two programs at one file, and what they must agree on."""

    which = st.integers(0, 1)
    any_ = st.integers(0, 40)  # which chat or message: that place in the list of all, from its end

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name) / "chats.db"
        self.time = 1_700_000_000.0
        self.known: dict[int, Talk] = {}
        self.said: dict[int, Said] = {}
        self.remembered: int | None = None
        self.stores = [self.opened(), self.opened()]

    def now(self) -> float:
        self.time += 0.001
        return self.time

    def opened(self) -> Store:
        return Store(self.file, self.now)

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        self.folder.cleanup()

    def refused(self, chat: int) -> bool:
        return chat not in self.known or self.known[chat].deleted_at is not None

    def expects(self, chat: int, act: Callable[[], object]) -> bool:
        """Do something to a chat; tell whether it is there."""
        if not self.refused(chat):
            act()
            return True
        try:
            act()
        except UserError:
            return False
        raise AssertionError(f"chat {chat} is gone, and nobody said so")

    @property
    def writing(self) -> list[int]:
        """Return the answers that someone is writing."""
        return [number for number, said in self.said.items() if said.state == "writing"]

    def has_chats(self) -> bool:
        return bool(self.known)

    def has_messages(self) -> bool:
        return bool(self.said)

    def is_writing(self) -> bool:
        return bool(self.writing)

    def a_chat(self, place: int) -> int:
        return [*self.known][-1 - place % len(self.known)]

    def a_message(self, place: int) -> int:
        return [*self.said][-1 - place % len(self.said)]

    @rule(at=which, profile=st.sampled_from(("general", "coding", "")), system=st.none() | _texts)
    def begins(self, at: int, profile: str, system: str | None) -> None:
        chat = self.stores[at].new_chat("", profile, system)
        own = None if system is None else whole(system)
        self.known[chat.id] = Talk(profile, own, begun_by=at, updated_at=self.time)

    @precondition(has_chats)
    @rule(
        at=which,
        place=any_,
        text=_texts,
        files=st.lists(st.tuples(_names, _texts), max_size=2),
        at_the_top=st.booleans(),
    )
    def asks(self, at: int, place: int, text: str, files: list[tuple[str, str]], at_the_top: bool) -> None:
        chat = self.a_chat(place)
        parent = None if at_the_top else self.known[chat].leaf
        attached = tuple(Attachment(name, content) for name, content in files)
        self.adds(at, Said(chat, parent, "user", text, "complete", attached))

    def adds(self, at: int, said: Said) -> None:
        made: list[int] = []

        def act() -> None:
            added = self.stores[at].add(
                said.chat,
                said.parent,
                said.role,
                said.content,
                state=said.state,
                attachments=said.attachments,
            )
            made.append(added.id)

        if self.expects(said.chat, act):
            kept = tuple(Attachment(whole(file.name), whole(file.text)) for file in said.attachments)
            said.content, said.attachments, said.writer = whole(said.content), kept, at
            self.holds(made[0], said)

    def holds(self, number: int, said: Said) -> None:
        """Note a message that was added, and is the end of the shown branch."""
        talk = self.known[said.chat]
        self.said[number] = said
        talk.leaf, talk.updated_at = number, self.time
        talk.messages.append(number)

    @precondition(has_messages)
    @rule(at=which, place=any_)
    def begins_to_answer(self, at: int, place: int) -> None:
        question = self.a_message(place)
        if self.said[question].role == "user":
            self.adds(at, Said(self.said[question].chat, question, "assistant", "", "writing"))

    @precondition(is_writing)
    @rule(place=any_, more=_texts)
    def goes_on(self, place: int, more: str) -> None:
        answer = self.writing[place % len(self.writing)]
        said = self.said[answer]
        text = said.content + whole(more)
        self.stores[said.writer].write(answer, text, "writing")
        said.content = text

    @precondition(is_writing)
    @rule(
        place=any_,
        state=st.sampled_from(("complete", "stopped", "length", "failed")),
        recorded=st.booleans(),
    )
    def ends(self, place: int, state: State, recorded: bool) -> None:
        answer = self.writing[place % len(self.writing)]
        said = self.said[answer]
        self.stores[said.writer].write(answer, said.content, state, RECORD if recorded else None)
        said.state, said.recorded = state, recorded
        self.known[said.chat].updated_at = self.time

    @precondition(has_chats)
    @rule(at=which, place=any_, title=st.one_of(_talk, _anything))
    def renames(self, at: int, place: int, title: str) -> None:
        chat = self.a_chat(place)
        self.stores[at].rename(chat, title)
        if not self.refused(chat):
            line = self.stores[1 - at].chat(chat).title
            require(len(line) <= 200 and not _CONTROLS.search(line), f"title {line!r}")

    @precondition(has_chats)
    @rule(at=which, place=any_, draft=_texts, pinned=st.booleans())
    def drafts_and_pins(self, at: int, place: int, draft: str, pinned: bool) -> None:
        chat = self.a_chat(place)
        self.stores[at].set_draft(chat, draft)
        self.stores[at].pin(chat, pinned)
        self.known[chat].draft, self.known[chat].pinned = whole(draft), pinned

    @precondition(has_messages)
    @rule(at=which, place=any_)
    def shows_a_branch(self, at: int, place: int) -> None:
        message = self.a_message(place)
        chat = self.said[message].chat
        self.stores[at].set_leaf(chat, message)
        self.known[chat].leaf = message

    @precondition(has_messages)
    @rule(at=which, places=st.lists(any_, min_size=1, max_size=3), dropped=st.booleans())
    def leaves_out(self, at: int, places: list[int], dropped: bool) -> None:
        some = [self.a_message(place) for place in places]
        self.stores[at].set_dropped(some, dropped)
        for number in some:
            self.said[number].dropped = dropped

    @precondition(has_chats)
    @rule(at=which, place=any_)
    def deletes(self, at: int, place: int) -> None:
        chat = self.a_chat(place)
        self.stores[at].delete(chat)
        if self.known[chat].deleted_at is None:
            self.known[chat].deleted_at = self.time

    @precondition(has_chats)
    @rule(at=which, place=any_)
    def restores(self, at: int, place: int) -> None:
        chat = self.a_chat(place)
        self.stores[at].restore(chat)
        self.known[chat].deleted_at = None

    @precondition(has_chats)
    @rule(at=which, place=any_)
    def remembers(self, at: int, place: int) -> None:
        chat = self.a_chat(place)
        if self.expects(chat, lambda: self.stores[at].remember_chat(chat)):
            self.remembered = chat

    @precondition(has_chats)
    @rule(at=which, place=any_, text=_talk)
    def edits(self, at: int, place: int, text: str) -> None:
        """Edit and walk branches through what the screen uses; the tree is the store's."""
        chat = self.a_chat(place)
        if self.refused(chat):
            return
        tree = OpenChat(self.stores[at], chat)
        if not tree.path or any(self.said[message.id].state == "writing" for message in tree.path):
            return
        old = self.said[tree.path[0].id]
        edited = tree.edit(tree.path[0].id, text)
        self.holds(edited.id, Said(chat, None, old.role, text, "complete", old.attachments, writer=at))
        tree.switch(edited.id, -1)
        self.known[chat].leaf = tree.tree.leaf
        kept = OpenChat(self.stores[1 - at], chat)
        require([m.id for m in kept.path] == [m.id for m in tree.path], "the branch is not kept")

    @precondition(has_chats)
    @rule(place=any_, text=_talk)
    def both_write_at_once(self, place: int, text: str) -> None:
        chat = self.a_chat(place)
        if self.refused(chat):
            return
        made: list[list[int]] = [[], []]
        failed: list[BaseException] = []

        def write(at: int) -> None:
            try:
                made[at] += [self.stores[at].add(chat, None, "user", f"{text} {n}").id for n in range(3)]
            except BaseException as error:  # noqa: BLE001 - told below
                failed.append(error)

        threads = [threading.Thread(target=write, args=(at,)) for at in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        require(not failed and not any(thread.is_alive() for thread in threads), f"{failed}")
        both = {number: place for numbers in made for place, number in enumerate(numbers)}
        for number in sorted(both):
            self.holds(number, Said(chat, None, "user", f"{text} {both[number]}", "complete"))

    @rule(at=which)
    def starts_anew(self, at: int) -> None:
        self.stores[at].close()
        for number, talk in list(self.known.items()):
            if talk.begun_by == at:
                talk.begun_by = -1
                if not talk.messages and not talk.draft:
                    self.forget(number)
        self.stores[at] = self.opened()
        self.forget_the_old()

    @rule(at=which)
    def is_killed(self, at: int) -> None:
        """Leave without closing: what is committed is there for the next start."""
        abandoned = self.stores[at]
        for talk in self.known.values():
            if talk.begun_by == at:
                talk.begun_by = -1
        self.stores[at] = self.opened()
        abandoned._database.close()
        self.forget_the_old()
        for said in self.said.values():
            if said.state == "writing" and said.writer == at:
                said.writer = -1  # no one continues with it; it is stopped when that is noticed
        self.late(_LATER_S)

    @rule(days=st.sampled_from((0.01, 1, 29, 31)))
    def time_passes(self, days: float) -> None:
        self.late(days * 24 * 3600)

    @rule(days=st.sampled_from((0.001, 1, 400)))
    def the_clock_is_set_back(self, days: float) -> None:
        self.late(-days * 24 * 3600)

    def late(self, seconds: float) -> None:
        self.time += seconds
        for said in self.said.values():  # an answer is saved twice a second; no one did for long
            if said.state == "writing":
                said.state = "stopped"

    def forget_the_old(self) -> None:
        """Drop from the model what the file no longer holds, after looking that it may be gone."""
        with self.stores[0]._database.reading() as connection:
            there = {number for (number,) in connection.execute("SELECT id FROM chats")}
        for number in self.known.keys() - there:
            talk = self.known[number]
            old = talk.deleted_at is not None and self.time - talk.deleted_at > KEPT_S
            empty = not talk.messages and not talk.draft and self.time - talk.updated_at > KEPT_S
            require(old or empty, f"chat {number} is gone: {talk}")
            self.forget(number)

    def forget(self, number: int) -> None:
        for message in self.known.pop(number).messages:
            self.said.pop(message, None)
        if self.remembered == number:
            self.remembered = None

    @rule(at=which, word=_word)
    def searches(self, at: int, word: str) -> None:
        hits = self.stores[at].search(f"{word} ", limit=10_000)
        asked = {hit.message for hit in hits if hit.message is not None}
        listed = {
            number
            for number, said in self.said.items()
            if self.known[said.chat].deleted_at is None and said.state != "writing"
        }
        plainly = {n for n in listed if word in re.split(r"[ \n]", self.said[n].content)}
        loosely = {n for n in listed if word.casefold() in self.said[n].content.casefold()}
        stopped = {n for n, said in self.said.items() if said.state == "stopped"}  # maybe not noticed yet
        require(plainly - stopped <= asked, f"`{word}` was not found in {plainly - stopped - asked}")
        require(asked <= loosely, f"`{word}` was found in {asked - loosely}")

    @invariant()
    def both_hold_what_was_said(self) -> None:
        for store in self.stores:
            for number, talk in self.known.items():
                if talk.deleted_at is not None:
                    continue
                held = {message.id: message for message in store.messages(number)}
                require([*held] == talk.messages, f"chat {number} holds {[*held]}, not {talk.messages}")
                for message in held.values():
                    said = self.said[message.id]
                    must = (said.parent, said.role, said.content, said.attachments, said.dropped)
                    is_ = (
                        message.parent,
                        message.role,
                        message.content,
                        message.attachments,
                        message.dropped,
                    )
                    require(is_ == must, f"message {message.id} is {is_}, not {must}")
                    mine = said.state == "stopped" and message.state == "writing"  # of this very program
                    require(message.state == said.state or mine, f"{message.state}, not {said.state}")
                    require((store.record(message.id) is not None) == said.recorded, "a record")
                info = store.chat(number)
                must_be = (talk.profile, talk.system, talk.draft, talk.pinned, talk.leaf, len(talk.messages))
                found = (info.profile, info.system, info.draft, info.pinned, info.leaf, info.messages)
                require(found == must_be, f"chat {number} is {found}, not {must_be}")

    @invariant()
    def both_list_the_same(self) -> None:
        listed = {number for number, talk in self.known.items() if talk.listed}
        binned = {
            number
            for number, talk in self.known.items()
            if talk.deleted_at is not None and (talk.messages or talk.draft)
        }
        for store in self.stores:
            require({chat.id for chat in store.chats()} == listed, "other chats are listed")
            require({chat.id for chat in store.deleted()} == binned, "other chats are in the bin")
            last = self.remembered
            gone = last is not None and self.known[last].deleted_at is not None
            require(store.last_chat() == (None if gone else last), "another chat was the last")


def chats(log: Log, folder: Path) -> None:
    """Run the machine N times; Hypothesis shortens what it finds to the fewest steps."""
    tempfile.tempdir = str(folder)
    try:
        for number, count in log.batches(_BATCH):
            log.cases += count - 1
            with log.case(number):
                run_state_machine_as_test(
                    seed(f"{log.seed} {number}")(Chats), settings=thorough(count, steps=40)
                )
    finally:
        tempfile.tempdir = None
