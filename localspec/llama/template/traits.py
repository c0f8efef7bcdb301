"""What a model's chat template does with a conversation, found by rendering marked ones when it opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from localspec.errors import ModelFileError, UserError
from localspec.llama.tool_words import PROBE_TOOL
from localspec.types.request import Message, ToolCall

Render = Callable[["Conversation", "TemplateTraits"], str]
"""Returns the text of a conversation under a template with these traits; raises `UserError`."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, and the tools that may be called: the JSON text of each."""

    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a chat template accepts; the defaults are those of one that accepts everything.

    `adapted` adapts a conversation to a template that accepts less.
    """

    part_roles: tuple[str, ...] = ()  # roles whose content has to be a list of parts
    takes_system: bool = True  # a system message at the beginning
    takes_later_system: bool = True  # another one, anywhere
    takes_users_in_a_row: bool = True
    takes_assistants_in_a_row: bool = True
    takes_assistant_first: bool = True
    takes_no_user: bool = True  # a conversation without any question
    takes_nothing: bool = True  # one without any message, where an answer begins it
    takes_empty: bool = True  # questions and answers without text
    takes_tools: bool = True
    takes_calls_at_once: bool = True  # several calls in one message
    takes_text_with_call: bool = True
    takes_question_after_result: bool = True
    takes_any_id: bool = True  # of calls; else nine letters and digits
    keeps_thinking: bool = True  # of earlier answers
    opens_thinking: str = ""  # the tag that ends a prompt, so that the model thinks first
    closes_answers: bool = True  # also one that ends the conversation
    end_tokens: tuple[int, ...] = ()  # that it writes after an answer, or before a question
    variables: tuple[str, ...] = ()  # that it reads, in addition to the conversation
    empty_variables: tuple[str, ...] = ()  # that it fails without
    lost: tuple[str, ...] = ()  # what it leaves out whatever the form, in words
    mistake: str = ""  # why it renders nothing at all


def probe(render: Render, variables: Sequence[str]) -> TemplateTraits:
    """Return the traits of the template that `render` renders and that reads these variables."""
    traits = TemplateTraits(variables=tuple(variables))
    try:
        for conversation, changes, loss in _trials(traits.variables):
            traits = _settled(render, traits, conversation, changes, loss)
        traits = _settled_tools(render, traits)
        keeps = comes_out(render, _EARLIER_THINKING, traits, _THOUGHT)
        return replace(traits, keeps_thinking=keeps)
    except ModelFileError as error:  # it takes too much time or memory, whatever it is given
        return replace(traits, mistake=error.message)


Change = Callable[[TemplateTraits], TemplateTraits]
_ROLES = ("system", "user", "assistant", "tool")


def _trials(variables: tuple[str, ...]) -> Iterator[tuple[Conversation, Sequence[Change], str]]:
    """Yield the conversations to try, the changes if a part is lost, and the loss in words."""
    parts, all_parts = (partial(replace, part_roles=roles) for roles in (("user",), _ROLES))
    empty = partial(replace, empty_variables=variables)
    all_empty = partial(replace, part_roles=_ROLES, empty_variables=variables)
    yield _talk("user"), (empty, parts, all_parts, all_empty), "questions"
    yield _talk("user", "assistant", "user"), (all_parts,), "earlier answers"
    more_parts = partial(replace, part_roles=("system", "user"))
    folded = partial(replace, takes_system=False)
    yield _talk("system", "user"), (more_parts, folded), "system prompts"
    blank = partial(replace, takes_empty=False)
    question, answer, following = _talk("user", "assistant", "user").messages
    yield Conversation((question, replace(answer, content=""), following)), (blank,), ""
    yield Conversation((replace(question, content=""), answer, following)), (blank,), ""
    yield _talk("user", "user"), (partial(replace, takes_users_in_a_row=False),), ""
    joined = partial(replace, takes_assistants_in_a_row=False)
    yield _talk("user", "assistant", "assistant", "user"), (joined,), ""
    asked = partial(replace, takes_assistant_first=False)
    yield _talk("assistant", "user"), (asked,), ""
    yield _talk("system", "assistant", "user"), (asked,), ""
    yield _talk("system"), (partial(replace, takes_no_user=False),), ""
    yield _talk(), (partial(replace, takes_nothing=False),), ""
    later = partial(replace, takes_later_system=False)
    yield _talk("system", "user", "system", "user"), (later,), "later system messages"
    yield _talk("system", "user", "assistant", "system", "user"), (later,), ""
    yield _talk("system", "user", "system"), (later,), ""


def _settled(
    render: Render, traits: TemplateTraits, conversation: Conversation, changes: Sequence[Change], loss: str
) -> TemplateTraits:
    """Return the traits with the first of the changes under which a conversation comes out."""
    if comes_out(render, conversation, traits):
        return traits
    for change in changes:
        if comes_out(render, conversation, changed := change(traits)):
            return changed
    return replace(traits, lost=(*traits.lost, loss)) if loss else traits


def _settled_tools(render: Render, traits: TemplateTraits) -> TemplateTraits:
    """Return the traits with the template's support of tools; mangled ones are described in text."""
    in_words = partial(replace, takes_tools=False)
    settled = traits
    for conversation, change in _TOOL_TRIALS:
        settled = _settled(render, settled, conversation, (change, in_words), "")
        if not settled.takes_tools:
            return replace(traits, takes_tools=False)
    return _settled(render, settled, _LONG_CALL, (partial(replace, takes_text_with_call=False),), "")


def comes_out(render: Render, conversation: Conversation, traits: TemplateTraits, *also: str) -> bool:
    """Return whether each content is rendered once and in order, and each call and tool at all."""
    try:
        text = render(conversation, traits)
    except ModelFileError:
        raise
    except UserError:
        return False
    contents = [message.content for message in conversation.messages if message.content]
    calls = [call for message in conversation.messages for call in message.tool_calls]
    texts = [*(call.arguments.split('"')[3] for call in calls), *also]
    texts += [tool.split('"description": "')[1].partition('"')[0] for tool in conversation.tools]
    turns = [message for message in conversation.messages if message.role != "system" and message.content]
    places = [text.find(message.content) for message in turns]
    return (
        all(text.count(content) == 1 for content in contents)
        and places == sorted(places)
        and all(each in text for each in texts)
    )


_THOUGHT = "markedthought"


def _talk(*roles: str) -> Conversation:
    """Return a conversation whose contents are unique marks."""
    marked = (Message(role, f"marked{n}{role}") for n, role in enumerate(roles))  # type: ignore[arg-type]
    return Conversation(tuple(marked))


def _called(*numbers: int, content: str = "", id_: str = "abcdefgh") -> Message:
    calls = (ToolCall(f"{id_}{n}", "look_up", f'{{"word": "probed{n}"}}') for n in numbers)
    return Message("assistant", content, tuple(calls))


def _result(number: int, id_: str = "abcdefgh") -> Message:
    return Message("tool", f"marked{number}result", tool_call_id=f"{id_}{number}")


_QUESTION = Message("user", "markedquestion")
_NEXT = Message("user", "markednext")
_ANSWER = Message("assistant", "markedanswer")
_SYSTEM = Message("system", "markedsystem")


def _with_tool(*messages: Message, first: Message | None = None) -> Conversation:
    return Conversation((*([first] if first else ()), _QUESTION, *messages), (PROBE_TOOL,))


_LONG_ID = "call_0123456789_"
_EARLIER_THINKING = Conversation((_QUESTION, replace(_ANSWER, thinking=_THOUGHT), _NEXT))
_TOOL_TRIALS: tuple[tuple[Conversation, Change], ...] = (
    (_with_tool(_called(1), _result(1), _ANSWER, _NEXT), partial(replace, takes_tools=False)),
    (_with_tool(_called(1), _result(1), first=_SYSTEM), partial(replace, takes_system=False)),
    (_with_tool(_called(1, content="markedtext"), _result(1)), partial(replace, takes_text_with_call=False)),
    (_with_tool(_called(1, 2), _result(1), _result(2)), partial(replace, takes_calls_at_once=False)),
    (_with_tool(_called(1), _result(1), _NEXT), partial(replace, takes_question_after_result=False)),
    (_with_tool(_called(1, id_=_LONG_ID), _result(1, _LONG_ID)), partial(replace, takes_any_id=False)),
)
_LONG_CALL = _with_tool(_called(1, content="markedtext"), _result(1), _ANSWER, _NEXT)
