"""The command that shows the tools of a chat, and switches them on or off."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.chat.commands.command import CommandContext
from localspec.chat.commands.effects import Act, Effect, Say
from localspec.errors import UserError

_USAGE = "/tools NAME on, /tools NAME off, or /tools off"


def set_tools(context: CommandContext, words: str) -> Iterator[Effect]:
    """Show the tools, or switch some on or off in this chat; raises `UserError` for a name that is none."""
    session = context.session
    if not words:
        yield Act("tools")
        return
    if session.kit is None:
        raise UserError("this chat cannot use tools", "open models on this computer")
    *names, way = words.split()
    if way not in ("on", "off"):
        raise UserError(f"`{way}` is not on or off", _USAGE)
    if unknown := [name for name in names if name not in session.kit.boxes]:
        raise UserError(f"there are no tools `{unknown[0]}`", f"tools: {', '.join(session.kit.boxes)}")
    on = dict.fromkeys(session.tools_on())
    for name in names or (session.kit.boxes if way == "on" else list(on)):
        on |= {name: None}
        if way == "off":
            del on[name]
    session.update_settings(tools=tuple(on))
    yield Say(f"tools on in this chat: {', '.join(on) or 'none'}")
