"""Commands that show or change a setting of the open chat."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.chat.answer_settings import DRAFT_MODES
from localspec.chat.commands.arguments import AutoMode
from localspec.chat.commands.command import CommandContext
from localspec.chat.commands.effects import Act, Effect, ShowSetting
from localspec.errors import UserError


def set_mode(context: CommandContext, mode: AutoMode | None) -> Iterator[Effect]:
    """Show the decoding mode, or set it; raises `UserError` for one that these models cannot do."""
    check_possible(context, mode)
    if mode is not None:
        context.session.update_settings(mode=mode)
    yield ShowSetting("mode", is_new=mode is not None)


def check_possible(context: CommandContext, mode: AutoMode | None) -> None:
    """Raise `UserError` for a mode that needs a draft model where none is open."""
    if mode in DRAFT_MODES and context.models is not None and context.models.draft is None:
        raise UserError(f"mode {mode} needs a draft model", "start again with -md FILE, or use /mode ngram")


def set_profile(context: CommandContext, name: str) -> Iterator[Effect]:
    """Switch the chat to a profile; without a name, show the list."""
    if not name:
        yield Act("profile")
        return
    context.session.choose_profile(name)
    yield ShowSetting("profile", is_new=True)


def set_system_prompt(context: CommandContext, text: str) -> Iterator[Effect]:
    """Show the system prompt, or set it; `-` removes it."""
    if text:
        context.session.update_settings(system_prompt="" if text == "-" else text)
    yield ShowSetting("system prompt", is_new=bool(text))


def set_thinking(context: CommandContext, budget: int | None) -> Iterator[Effect]:
    """Set how many tokens the model may think; without a number, show or fold the thinking."""
    if budget is None:
        yield Act("thinking")
        return
    session = context.session
    is_off = session.chat.info.settings.thinking is False
    session.update_settings(thinking_budget=budget, **({"thinking": True} if is_off and budget else {}))
    yield ShowSetting("thinking", is_new=True)


def set_temperature(context: CommandContext, temperature: float | None) -> Iterator[Effect]:
    """Show the temperature, or set it."""
    if temperature is not None:
        context.session.update_settings(temperature=temperature)
    yield ShowSetting("temperature", is_new=temperature is not None)
