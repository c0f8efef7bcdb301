"""A conversation as a value: every change returns a new one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from localspec.errors import UserError
from localspec.types import Message


@dataclass(frozen=True, slots=True)
class Conversation:
    """A system prompt and the turns that follow it; questions and answers alternate, a question first."""

    system: str = ""
    turns: tuple[Message, ...] = ()

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return what the model reads."""
        return (Message("system", self.system), *self.turns) if self.system else self.turns

    @property
    def awaits_answer(self) -> bool:
        """Tell whether the last turn is a question."""
        return bool(self.turns) and self.turns[-1].role == "user"

    def with_system(self, text: str) -> Conversation:
        """Return the conversation under another system prompt; an empty one removes it."""
        return replace(self, system=text)

    def ask(self, text: str) -> Conversation:
        """Return the conversation with a question added; a question without an answer gives way to it."""
        turns = self.turns[:-1] if self.awaits_answer else self.turns
        return replace(self, turns=(*turns, Message("user", text)))

    def answer(self, text: str) -> Conversation:
        """Return the conversation with the answer to its last question; raises UserError without one."""
        if not self.awaits_answer:
            raise UserError("there is no question to answer")
        return replace(self, turns=(*self.turns, Message("assistant", text)))

    def edit(self, turn: int, text: str) -> Conversation:
        """Return the conversation with turn number `turn` (from 0) rewritten and what followed it dropped."""
        if not 0 <= turn < len(self.turns):
            raise UserError(f"there is no turn {turn}", f"turns are numbered 0 to {len(self.turns) - 1}")
        return replace(self, turns=(*self.turns[:turn], replace(self.turns[turn], content=text)))

    def undo(self) -> Conversation:
        """Return the conversation without its last question and answer; raises UserError when empty."""
        if not self.turns:
            raise UserError("there is nothing to undo", "the conversation is empty")
        return replace(self, turns=self.turns[: -1 if self.awaits_answer else -2])

    def regenerate(self) -> Conversation:
        """Return the conversation waiting for its last answer again; raises UserError when empty."""
        if not self.turns:
            raise UserError("there is no answer to write anew", "ask something first")
        return self if self.awaits_answer else replace(self, turns=self.turns[:-1])

    def clear(self) -> Conversation:
        """Return an empty conversation under the same system prompt."""
        return replace(self, turns=())
