"""What a command asks of the screen or of `localspec chat`, which each carry it out in their own way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Literal

from localspec.types.request import Mode

Setting = Literal["mode", "profile", "system prompt", "temperature", "thinking"]
MessageAction = Literal["edit", "regenerate", "continue", "previous", "next", "compare", "take back"]
ChatChange = Literal["rename", "move", "pin", "delete", "restore"]
ActionName = Literal[
    "attach",
    "beside",
    "clear",
    "color",
    "compact",
    "editor",
    "exit",
    "fetch",
    "figures",
    "fork",
    "help",
    "log",
    "model",
    "origins",
    "profile",
    "reload",
    "room",
    "search",
    "settings",
    "setup",
    "theme",
    "thinking",
    "timeline",
    "tools",
    "tune",
    "undo",
    "vim",
]


@dataclass(frozen=True, slots=True)
class Say:
    """Show one line; an `is_long` one stays for a while."""

    text: str
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class ShowSetting:
    """Show a setting of the open chat, which the command has changed if `is_new`."""

    setting: Setting
    is_new: bool


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy a text to the clipboard; `what` names it."""

    text: str
    what: str


@dataclass(frozen=True, slots=True)
class ActOnMessage:
    """Do something with a message of the open chat; without `modes` the usual one answers."""

    action: MessageAction
    message_id: int
    modes: tuple[Mode, ...] = ()


@dataclass(frozen=True, slots=True)
class SwitchChat:
    """Leave the open chat for another."""

    chat_id: int


@dataclass(frozen=True, slots=True)
class NewChat:
    """Leave the open chat for a new one."""


@dataclass(frozen=True, slots=True)
class ChangeChat:
    """Change the open chat in the list of chats; `text` is its new title, or its folder."""

    change: ChatChange
    text: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a prompt, of which nothing is a command."""

    prompt: str


@dataclass(frozen=True, slots=True)
class Act:
    """Do what only the screen or only `localspec chat` knows how to do."""

    name: ActionName
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Put:
    """Put a text into the prompt, of which nothing is a command or names a file; `what` names it."""

    text: str
    what: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Do work that may take long, then what it returns; `what` says what is done.

    `work` ends soon once its argument is set, and raises `LocalSpecError`.
    """

    what: str
    work: Callable[[Event], Say | Put]


Effect = Say | ShowSetting | Copy | ActOnMessage | SwitchChat | NewChat | ChangeChat | Ask | Act | Put | Wait
