"""Conversations of every shape, made of marks, and what is missing of them in a rendered prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.llama.template.chat_template import ChatTemplate
from localspec.types.request import Message, ToolCall

TOOL = json.dumps(
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Tells.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
        },
    }
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Roles by their first letters: s, u, a, `c` a call, `ac` text and a call, `cc` two calls, r a result."""

    roles: str
    has_thinking: bool = False
    prefilled: bool = False

    @property
    def name(self) -> str:
        """Return what the shape is called in tables."""
        return self.roles + " thinking" * self.has_thinking + " prefilled" * self.prefilled

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the conversation: every content and argument is a word of its own."""
        made, calls = list[Message](), list[ToolCall]()
        for number, what in enumerate(self.roles.split()):
            word = f"mark{number}ed"
            if "c" in what:
                new = tuple(
                    ToolCall(f"abcdefg{number}{n}", "look_up", json.dumps({"word": f"argu{number}{n}ment"}))
                    for n in range(what.count("c"))
                )
                calls += new
                made.append(Message("assistant", word if "a" in what else "", new))
            elif what == "r":
                made.append(Message("tool", word, tool_call_id=calls.pop(0).id))
            else:
                role = {"s": "system", "u": "user", "a": "assistant"}[what]
                thinking = f"thou{number}ght" if self.has_thinking and what == "a" else ""
                made.append(Message(role, word, thinking=thinking))  # type: ignore[arg-type]
        return tuple(made)

    @property
    def tools(self) -> tuple[str, ...]:
        """Return the tools that may be called."""
        return (TOOL,) if "c" in self.roles else ()


SHAPES = (
    *map(
        Shape,
        (
            *(
                "u",
                "s u",
                "u u",
                "s u u",
                "u u u",
                "u a u",
                "s u a u a u",
                "a u",
                "s a u",
                "u a a u",
                "s s u",
            ),
            *("s u a s u", "u s", "u a s", "s u s a u", "u s a s u", "s", "s s", "s a", "u a s u s u"),
            *("u c r", "s u c r", "u ac r", "u cc r r", "u acc r r", "u c r a u", "u c r u", "u c r c r a u"),
            *("s u ac r a s u", "a u c r", "u u c r u u", "u c r s u"),
        ),
    ),
    *(Shape(roles, has_thinking=True) for roles in ("u a u", "s u a u a u")),
    *(
        Shape(roles, prefilled=True)
        for roles in ("u a", "s u a", "u a a", "a", "s a", "u u a", "u a u a", "u c r a")
    ),
    Shape("u a", has_thinking=True, prefilled=True),
)


def missing(template: ChatTemplate, shape: Shape, *, thinks: bool | None = None) -> list[str]:
    """Return the words that do not come out once, or out of order, and the thinking that a prompt lacks.

    Earlier thinking counts where the template's traits say that it is kept.
    """
    messages = shape.messages
    variables = {} if thinks is None else {"enable_thinking": thinks}
    text = template.render(messages, variables, shape.tools)
    words = [message.content for message in messages if message.content]
    lost = [word for word in words if text.count(word) != 1]
    turns = [message.content for message in messages if message.content and message.role != "system"]
    places = [text.find(word) for word in turns]
    lost += ["the order"] if places != sorted(places) else []
    arguments = (json.loads(call.arguments)["word"] for message in messages for call in message.tool_calls)
    lost += [argument for argument in arguments if argument not in text]
    lost += ["Tells."] if shape.tools and "Tells." not in text else []
    if shape.prefilled:
        lost += [] if text.endswith(messages[-1].content) else ["the end"]
        lost += [] if _closed(text, messages) else ["the end of thinking"]
    elif template.traits.keeps_thinking and thinks is not False:
        lost += [message.thinking for message in messages if message.thinking not in text]
    return lost


def _closed(text: str, messages: Sequence[Message]) -> bool:
    """Return whether thinking that a prompt opens last is closed before the answer that stands there."""
    opened, closed = (text.rfind(tag) for tag in ("<think>", "</think>"))
    return opened <= closed or opened < text.find(messages[0].content)
