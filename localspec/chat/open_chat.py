"""One open chat: its questions, its branches, and the answers that are written into it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.chat.answer_settings import AnswerOptions
from localspec.chat.answering import AnswerEvent, AnswerRecorder, AnswerSaved, Generate, ResultSaved
from localspec.chat.figures import label
from localspec.chat.messages import (
    AnswerRecord,
    Attachment,
    BranchMessage,
    ChatInfo,
    Role,
    StoredMessage,
    ToolRun,
)
from localspec.chat.prompting import exchanges_of, summarised, to_prompt
from localspec.chat.tool_use.calls_run import CallEnded, CallEvent
from localspec.chat.tool_use.offer import ToolOffer
from localspec.chat.tree import Branches, Tree
from localspec.errors import UserError
from localspec.inference.interface import OpenModels
from localspec.models.default_pair import name_of
from localspec.types.events import Summary
from localspec.types.models import PlainRate
from localspec.types.request import Message

if TYPE_CHECKING:
    from localspec.chat.store import Store


class OpenChat(Branches):
    """A chat of the store; one thread may write an answer while others read it and walk its branches."""

    def __init__(
        self, store: Store, chat_id: int, usual_system: Callable[[str], str] = lambda _profile: ""
    ) -> None:
        """Open a chat; `usual_system` returns the system prompt of a profile, for chats without their own."""
        super().__init__(store, chat_id)
        self._usual_system = usual_system

    @property
    def path(self) -> tuple[StoredMessage, ...]:
        """Return the shown branch."""
        return self.tree.path

    def shown(self) -> tuple[BranchMessage, ...]:
        """Return the shown branch as a screen shows it."""
        tree = self.tree
        path = self.tree.path
        summary, rest = summarised(path)
        items = [self._shown(tree, message) for message in path]
        if not summary:
            return tuple(items)
        count = len(path) - len(rest)
        place = path[count - 1]
        stands = StoredMessage(-place.id, place.chat, None, "assistant", summary, place.created)
        covered = (replace(item, covered=True) for item in items[:count])
        return (*covered, BranchMessage(stands, summarises=count), *items[count:])

    def shown_one(self, message_id: int) -> BranchMessage:
        """Return one message as a screen shows it, also of a branch that is not shown."""
        return self._shown(self.tree, self.message(message_id))

    def _shown(self, tree: Tree, message: StoredMessage) -> BranchMessage:
        siblings = tree.siblings(message.id)
        shown = BranchMessage(message, siblings.index(message.id) + 1, len(siblings))
        record = self.outline(message.id)
        if record is None:
            return shown
        return replace(shown, spans=record.spans, model=record.target, label=label(record))

    def prompt(self) -> tuple[Message, ...]:
        """Return the prompt of the shown branch, as `to_prompt` describes it."""
        return to_prompt(self.system, self.path)

    @property
    def system(self) -> str:
        """Return the system prompt in force."""
        own = self._info.system
        return self._usual_system(self._info.profile) if own is None else own

    def last(self, role: Role | None = None) -> StoredMessage:
        """Return the last message of the shown branch, by one side if given; raises UserError without any."""
        for message in reversed(self.path):
            if role in {None, message.role}:
                return message
        raise UserError(
            f"there is no {'answer' if role == 'assistant' else 'question'} yet", "ask something first"
        )

    def ask(self, text: str, attachments: Sequence[Attachment] = ()) -> StoredMessage:
        """Add a question at the end of the shown branch; raises `UserError` if it says nothing."""
        _check_question(text, attachments)
        return self.add(self.tree.leaf, "user", text, attachments=attachments)

    def edit(self, message_id: int, text: str) -> StoredMessage:
        """Add another version of a message as its sibling, and show the branch that ends there."""
        message = self.message(message_id)
        if message.role == "user":
            _check_question(text, message.attachments)
        return self.add(message.parent, message.role, text, attachments=message.attachments)

    def fork(self, message_id: int) -> ChatInfo:
        """Add a new chat with a message and all above it."""
        path = self.tree.path_to(self.message(message_id).id)
        if path[-1].state == "writing":
            raise UserError("this answer is still being written", "wait for it, or stop it: Esc")
        records = {each.id: record for each in path if (record := self.record(each.id)) is not None}
        return self._store.fork(self.info, path, records)

    def switch(self, message_id: int, step: int) -> int:
        """Show the sibling that is `step` places further (backwards if negative), or the last one.

        Counts from the shown sibling; returns the one that is shown then.
        """
        tree = self.tree
        siblings = tree.siblings(self.message(message_id).id)
        shown = next((message.id for message in tree.path if message.id in siblings), message_id)
        place = min(max(siblings.index(shown) + step, 0), len(siblings) - 1)
        if siblings[place] != shown:
            self.move(tree.leaf_below(siblings[place]))
        return siblings[place]

    def back_to(self, message_id: int) -> None:
        """End the shown branch at a message; what follows it stays as a branch."""
        self.move(self.message(message_id).id)

    def go_to(self, message_id: int) -> None:
        """Show the branch that a message is in, unless it is shown or the message is gone."""
        tree = self.tree
        shown = {message.id for message in tree.path}
        if message_id in tree.messages.keys() - shown:
            self.move(tree.leaf_below(message_id))

    def show_answer(self) -> None:
        """Show an answer again where the shown branch ends in a question that has some."""
        tree = self.tree
        if (leaf := tree.answered().leaf) != tree.leaf:
            self.move(leaf)

    def leave_out(self, ids: Iterable[int]) -> None:
        """Send the exchanges of the shown branch to the model, but for those with one of these messages."""
        unwanted = frozenset(ids)
        exchanges = exchanges_of(summarised(self.path)[1])
        groups = [[message.id for message in exchange] for exchange in exchanges]
        for dropped in (False, True):
            of_this_kind = (group for group in groups if unwanted.isdisjoint(group) is not dropped)
            self.set_dropped([id_ for group in of_this_kind for id_ in group], dropped=dropped)

    def set_plain(self, message_id: int, plain: PlainRate) -> AnswerSaved:
        """Save with an answer the plain speed that its ratio refers to."""
        message = self.message(message_id)
        record = self.record(message_id)
        if record is None:
            raise UserError("this message has no speed to compare", "pick an answer that a model wrote")
        record = replace(record, plain=plain)
        written = self.write(message_id, message.content, message.state, record, message.calls)
        return AnswerSaved(written, record)

    def answer(
        self,
        models: OpenModels,
        options: AnswerOptions,
        *,
        continues: int | None = None,
        asked_s: float | None = None,
        generate: Generate | None = None,
        offer: ToolOffer | None = None,
    ) -> Generator[AnswerEvent]:
        """Answer the question that the shown branch ends in, or continue with the answer `continues`.

        If the branch ends in an answer, another one is written as its sibling; if it ends in the result of a
        tool, the answer goes on from that. `generate` writes it if it is given, and else the models alone.
        It may call the tools of an `offer`, which may ask again for the answer `continues`, that is silent.

        Yields `Started`, the models' events and `AnswerSaved`; an error is raised after that. The text so far
        is saved, also if the iterator is closed early. An answer that ends early without text leaves no
        message and yields no `AnswerSaved`. If the store fails, the text stays in this chat while it is
        open, and the `StoreError` is raised at the end.
        """
        place = self._answer_again(continues) if continues is not None else self._question()
        path = self.tree.path_to(place.id)
        if offer is not None and offer.asks_again:  # the model does not read what it thought in silence
            prompt = to_prompt(self.system, path[:-1])
        else:
            prompt = to_prompt(self.system, path, continues=continues is not None)
        seed = options.request.seed
        if seed is None:  # drawn and saved, so that the answer can be reproduced
            seed = int.from_bytes(os.urandom(4))
        request = replace(options.request, prompt=prompt, seed=seed)
        request = request if offer is None else offer.put_into(request)
        record = AnswerRecord(
            mode=request.settings.mode,
            reason=options.reason,
            settings=request.settings,
            sampling=request.sampling,
            seed=seed,
            profile=options.profile,
            target=name_of(models.target),
            draft=name_of(models.draft) if models.draft else None,
            summary=Summary(),  # nothing has come yet
            thinking_budget=request.thinking_budget,
        )
        recorder = AnswerRecorder(self, place, record, asked_s, None if offer is None else offer.reader())
        yield from recorder.events(generate or models.generate, request)

    def save_results(self, answer: StoredMessage, steps: Iterable[CallEvent]) -> Iterator[AnswerEvent]:
        """Save the results of an answer's calls below it, as they come."""
        below = answer.id
        for step in steps:
            if not isinstance(step, CallEnded):
                yield step
                continue
            saved = self.add_result(below, step.text, step.run)
            below = saved.id
            yield ResultSaved(saved)

    def begin_step(self, text: str, run: ToolRun) -> ResultSaved:
        """Ask for a step of the last question at the end of the shown branch."""
        return ResultSaved(self.add_result(self.path[-1].id, text, run))

    def _answer_again(self, message_id: int) -> StoredMessage:
        message = self.message(message_id)
        if message.role != "assistant":
            raise UserError("only an answer can be continued", "pick an answer, or ask for a new one")
        return message

    def _question(self) -> StoredMessage:
        """Return the question, or the result of a tool, that the next answer follows."""
        for message in reversed(self.path):
            if message.role != "assistant":
                return message
        raise UserError("there is no question to answer", "ask something first")


def _check_question(text: str, attachments: Sequence[Attachment]) -> None:
    if not text.strip() and not attachments:
        raise UserError("the question is empty", "write something for the model to answer")
