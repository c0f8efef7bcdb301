"""Tools in plain words, for chat templates that know none: described, called and answered as Hermes has it.

The words are those of NousResearch's Hermes models, which Qwen's and many others were trained on, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from localspec.types.request import Message, ToolCall

_FORM = '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
_TOOL = {"name": "look_up", "description": "Looks up.", "parameters": {"type": "object", "properties": {}}}
_CALL = ToolCall("abcdefgh1", "look_up", '{"word": "probed"}')
PROBE_TOOL = json.dumps({"type": "function", "function": _TOOL})
PROBE = (
    Message("user", "Look it up."),
    Message("assistant", "", tool_calls=(_CALL,)),
    Message("tool", "it says so", tool_call_id=_CALL.id),
)
"""A conversation that shows how a chat template writes a call of `PROBE_TOOL`, and what it returned."""


def without_tool_roles(messages: Sequence[Message], tools: Sequence[str]) -> list[Message]:
    """Return a conversation without tools, with texts that describe the tools, calls and results.

    Results of tools become part of the user's messages, because templates may require alternating roles.
    """
    result: list[Message] = []
    after_result = False
    for message in messages:
        content = message.content
        is_result = message.role == "tool"
        if is_result:
            content = f"<tool_response>\n{content}\n</tool_response>"
        elif message.tool_calls:
            calls = (_called(call.name, call.arguments) for call in message.tool_calls)
            content = "\n".join([*([content] if content else ()), *calls])
        if result and result[-1].role == "user" and (is_result or (after_result and message.role == "user")):
            result[-1] = Message("user", f"{result[-1].content}\n{content}")
        else:
            result.append(Message("user" if is_result else message.role, content, thinking=message.thinking))
        after_result = is_result
    if tools and result and result[0].role == "system":
        return [Message("system", f"{result[0].content}\n\n{_described(tools)}"), *result[1:]]
    return [Message("system", _described(tools)), *result] if tools else result


def _called(name: str, arguments: str) -> str:
    called = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}'
    return f"<tool_call>\n{called}\n</tool_call>"


def _described(tools: Sequence[str]) -> str:
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        + "\n".join(tools)
        + "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
        f"within <tool_call></tool_call> XML tags:\n{_FORM}"
    )
