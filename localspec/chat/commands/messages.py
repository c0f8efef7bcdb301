"""Commands that do something with the last messages of the open chat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from localspec.chat.commands.arguments import AutoMode
from localspec.chat.commands.command import CommandContext
from localspec.chat.commands.effects import Act, ActOnMessage, Copy, Effect
from localspec.chat.commands.settings import check_possible
from localspec.chat.markdown import code_blocks
from localspec.chat.thinking import without_thinking
from localspec.errors import UserError
from localspec.types.request import Mode

COMPARED: tuple[Mode, ...] = ("off", "sd", "ssd")


def answer_again(context: CommandContext, mode: AutoMode | None) -> Iterator[Effect]:
    """Answer the last question again."""
    check_possible(context, mode)
    if not context.session.chat.path:
        raise UserError("there is no answer to regenerate", "ask something first")
    modes = () if mode is None or mode == "auto" else (mode,)
    yield ActOnMessage("regenerate", context.session.chat.last().id, modes)


def edit_question(context: CommandContext, _argument: None) -> Iterator[Effect]:
    """Edit the last question."""
    yield ActOnMessage("edit", context.session.chat.last("user").id)


def continue_answer(context: CommandContext, _argument: None) -> Iterator[Effect]:
    """Continue with the last answer."""
    yield ActOnMessage("continue", context.session.chat.last("assistant").id)


def summarise(context: CommandContext, takes_back: bool) -> Iterator[Effect]:
    """Summarise the older part of the chat, or take the latest summary back."""
    if not takes_back:
        yield Act("compact")
        return
    chat = context.session.chat
    place = next((message for message in reversed(chat.path) if message.summary), None)
    if place is None:
        raise UserError("there is no summary here", "/compact writes one")
    yield ActOnMessage("take back", place.id)


def compare_modes(context: CommandContext, modes: tuple[Mode, ...]) -> Iterator[Effect]:
    """Answer the last question in several modes."""
    yield ActOnMessage("compare", context.session.chat.last().id, modes or COMPARED)


def show_branch(context: CommandContext, direction: Literal["next", "previous"]) -> Iterator[Effect]:
    """Show another answer where the shown branch last had one."""
    for item in reversed(context.session.chat.shown()):
        if item.branches > 1:
            yield ActOnMessage(direction, item.message.id)
            return
    raise UserError("there are no branches here", "edit a question or answer it again to make one")


def copy_answer(context: CommandContext, only_code: bool) -> Iterator[Effect]:
    """Copy the last answer, or its last block of code."""
    answer = context.session.chat.last("assistant").content
    if not only_code:
        yield Copy(answer, "the last answer")
    elif (code := last_code_block(answer)) is not None:
        yield Copy(code, "the last code block")
    else:
        raise UserError("the last answer has no code block")


def last_code_block(answer: str) -> str | None:
    """Return the last code block of an answer, None without one; fences may be inside quotations."""
    blocks = code_blocks(without_thinking(answer))
    return blocks[-1].code if blocks else None


def attach_file(_context: CommandContext, name: str) -> Iterator[Effect]:
    """Name a file in the next prompt."""
    yield Act("attach", f'@"{name}"' if " " in name else f"@{name}")
