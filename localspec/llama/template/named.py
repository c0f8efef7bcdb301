"""Chat templates that llama.cpp has by name, such as `chatml` and `llama3`; it writes them without Jinja."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

from localspec.errors import UserError
from localspec.llama.library import native
from localspec.types.request import Message

_ROOM = 4096  # bytes of a conversation beside its contents, at first
_NUL = "\0"  # which ends a text in C


@cache
def template_names() -> tuple[str, ...]:
    """Return the names, in alphabetical order."""
    api = native()
    count = api.llama_chat_builtin_templates(None, 0)
    found = (ctypes.c_char_p * count)()
    api.llama_chat_builtin_templates(found, count)
    return tuple(sorted(name.decode() for name in found if name))


def written_by_name(name: str, messages: Sequence[Message], *, begins_answer: bool = True) -> str:
    """Return the text of a conversation, up to the assistant's answer; raises UserError if it is refused."""
    api = native()
    chat = (api.llama_chat_message * len(messages))(
        *(api.llama_chat_message(_bytes(message.role), _bytes(message.content)) for message in messages)
    )
    size = _ROOM + 2 * sum(len(message.content) for message in messages)
    while True:
        room = ctypes.create_string_buffer(size)
        length: int = api.llama_chat_apply_template(
            name.encode(), chat, len(messages), begins_answer, room, size
        )
        if length < 0:
            raise UserError(f"the chat template {name} refuses the conversation", "choose another template")
        if length <= size:
            return room.raw[:length].decode("utf-8", "replace")
        size = length


def _bytes(text: str) -> bytes:
    return text.replace(_NUL, "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace")
