"""What a request needs so that its answer may call tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from localspec.chat.calls.form import ToolFormat, tool_format
from localspec.chat.calls.grammar import TokenOf
from localspec.chat.calls.reader import AnswerReader
from localspec.chat.calls.triggers import call_triggers
from localspec.chat.schema_check import enforced
from localspec.inference.interface import ShowsPrompts
from localspec.types.drafts import Token
from localspec.types.request import Message, Request, TemplateVariables, ToolCall, Trigger

NEXT = "[If all that was asked is done, answer now, in plain words. If not, make the next call: another one.]"


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """Tools that an answer may call, in the form that the model's template gives to calls.

    After each result the model reads what to do with it: small ones make the same call again otherwise.
    After the last one it also reads the `reminder`, if there is one. With a `note` the offer is over: the
    model reads the note in place of the tools. A call that it writes all the same is still read as one, so
    that it does not stand in the answer as text.
    """

    form: ToolFormat
    tools: tuple[str, ...]  # OpenAI's JSON of each
    triggers: tuple[Trigger, ...]
    note: str = ""
    reminder: str = ""
    asks_again: bool = False  # for a message that was silent
    made: tuple[ToolCall, ...] | None = (
        None  # by this answer, if there were any in its chat; see AnswerReader
    )

    def put_into(self, request: Request) -> Request:
        """Return a request whose answer may call the tools; its arguments follow their schemas."""
        assert not isinstance(request.prompt, str)
        if self.note:
            *before, last = request.prompt
            return replace(request, prompt=(*before, _noted(last, self.note)), shows_control=True)
        prompt = self.noted(request.prompt)
        if self.reminder:
            prompt = (*prompt[:-1], _noted(prompt[-1], self.reminder))
        return replace(
            request,
            prompt=prompt,
            tools=self.tools,
            triggers=self.triggers,
            shows_control=True,
        )

    def noted(self, prompt: Sequence[Message]) -> tuple[Message, ...]:
        """Return a conversation in which each result is followed by what to do with it."""
        return tuple(_noted(each, NEXT) if each.role == "tool" else each for each in prompt)

    def reader(self) -> AnswerReader:
        """Return the reader of one answer, which also takes what is a call of a tool that there is not."""
        return AnswerReader(self.form, self.tools, takes_unknown=True, made=self.made)


def _noted(message: Message, note: str) -> Message:
    return replace(message, content=f"{message.content}\n\n{note}".lstrip())


def offer_of(
    models: ShowsPrompts,
    tools: Sequence[str],
    variables: TemplateVariables = (),
    form: ToolFormat | None = None,
) -> ToolOffer:
    """Return the offer of tools; raises `UserError` where the model's template cannot be used for that.

    The form of calls is found in the template, unless it is given.
    """
    if form is None:
        form = tool_format(models.render, variables)
    halves = [enforced(tool)[0] for tool in tools]
    return ToolOffer(form, tuple(tools), call_triggers(form, halves, single_token(models.tokenize)))


def single_token(tokenize: Callable[[str], Sequence[Token]]) -> TokenOf:
    """Return a function that gives the token of a tag, None for one of several tokens."""

    def token(tag: str) -> int | None:
        tokens = tokenize(tag)
        return tokens[0][0] if len(tokens) == 1 else None

    return token
