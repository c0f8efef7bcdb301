"""All commands, in the order of the help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from localspec.chat.commands import arguments, chats, messages, settings
from localspec.chat.commands.arguments import NOTHING, TEXT
from localspec.chat.commands.command import Command, CommandContext, CommandKey
from localspec.chat.commands.effects import Act, ActionName, ChangeChat, Effect, NewChat
from localspec.chat.commands.tools import set_tools


def _always(effect: Effect) -> Callable[[CommandContext, None], Iterable[Effect]]:
    return lambda _context, _argument: (effect,)


def _act(name: ActionName) -> Callable[[CommandContext, str | None], Iterable[Effect]]:
    return lambda _context, argument: (Act(name, argument or ""),)


COMMANDS: tuple[Command[Any], ...] = (
    Command(
        "help", _act("help"), NOTHING, "list keys and commands", "list the commands",
        key=CommandKey("f1", "chat.help", "Help"),
    ),
    Command(
        "new", _always(NewChat()), NOTHING, "start a new chat; an answer in this one continues",
        key=CommandKey("ctrl+n", "chat.new", "New chat"),
    ),
    Command(
        "mode", settings.set_mode, arguments.MODE,
        "show or change the decoding mode",
        f"show or change the decoding mode: {', '.join(arguments.CHOICES['mode'])}",
    ),
    Command(
        "profile", settings.set_profile, arguments.PROFILE,
        "choose, copy, edit or delete profiles; NAME switches to one at once",
    ),
    Command(
        "settings", _act("settings"), NOTHING,
        "all settings of this chat, their sources, and where to save them",
        key=CommandKey("ctrl+o", "chat.settings", "Settings"),
    ),
    Command(
        "system", settings.set_system_prompt, TEXT,
        "show or set the system prompt of this chat; - removes it",
        "show or set the system prompt; /system - removes it",
    ),
    Command(
        "temp", settings.set_temperature, arguments.TEMPERATURE,
        "show or set the temperature", "show or set the temperature",
    ),
    Command(
        "regen", messages.answer_again, arguments.MODE,
        "answer the last question again, in MODE if it is given",
        "answer the last question again, in MODE if it is given",
        key=CommandKey("ctrl+r", "chat.regenerate", "Answer again"),
    ),
    Command("undo", _act("undo"), NOTHING, in_lines="take back the last question and its answer"),
    Command("edit", messages.edit_question, NOTHING, "edit the last question and continue from there"),
    Command("continue", messages.continue_answer, NOTHING, "continue the last answer"),
    Command("fork", _act("fork"), NOTHING, "continue in a new chat that has the messages so far"),
    Command(
        "beside", _act("beside"), arguments.BESIDE,
        "open a second chat beside this one, or close the one you are in; fork copies this one",
        aliases=("split",),
        key=CommandKey("ctrl+backslash", "chat.beside", "Open a chat beside, or close it"),
    ),
    Command("branch", messages.show_branch, arguments.BRANCH, "show another answer to the same question"),
    Command(
        "attach", messages.attach_file, arguments.REFERENCE, "send a file or folder with the next prompt",
        aliases=("read",),
    ),
    Command(
        "editor", _act("editor"), NOTHING, "write the prompt in $VISUAL or $EDITOR",
        key=CommandKey("ctrl+g", "chat.editor", "Write in your editor", has_priority=False),
    ),
    Command(
        "room", _act("room"), NOTHING, "free up context: choose exchanges to leave out",
        aliases=("make-room", "drop"),
    ),
    Command(
        "compact", messages.summarise, arguments.COMPACT,
        "have older messages summarised to free up context; undo takes that back",
        "have older messages summarised to free up context; /compact undo takes that back",
        aliases=("summarise", "summarize"),
    ),
    Command("copy", messages.copy_answer, arguments.CODE, "copy the last answer, or its last code block"),
    Command("export", chats.export_chat, arguments.EXPORT, "write this chat to a file"),
    Command("import", chats.import_chats, arguments.FILE, "read a chat that was exported as JSON"),
    Command("rename", chats.rename_chat, arguments.TITLE, "give this chat another title"),
    Command(
        "tag", chats.tag_chat, arguments.TAGS,
        "add #NAME to this chat's title, by which the list finds it; again removes it",
    ),
    Command(
        "folder", chats.move_chat, arguments.FOLDER,
        "move this chat to the folder NAME in the list; - takes it out",
    ),
    Command("pin", chats.pin_chat, NOTHING, "pin this chat at the top, or unpin it"),
    Command(
        "delete", _always(ChangeChat("delete")), NOTHING, "move this chat to the bin; can be undone"
    ),
    Command(
        "search", _act("search"), arguments.WORDS, "search all chats",
        key=CommandKey("ctrl+k", "chat.search", "Search all chats"),
    ),
    Command("clear", _act("clear"), NOTHING, in_lines="start over"),
    Command(
        "stats", _act("figures"), NOTHING, "statistics of the last answer",
        "statistics of the last answer; also turns a line after each answer on or off",
    ),
    Command(
        "timeline", _act("timeline"), NOTHING, "show or hide the timeline of the last answer",
        key=CommandKey("f3", "chat.timeline", "Show or hide the timeline"),
    ),
    Command(
        "origins", _act("origins"), NOTHING, "colour tokens by source, or stop it",
        key=CommandKey("f2", "chat.origins", "Colour tokens by source"),
    ),
    Command("color", _act("color"), NOTHING, in_lines="colour tokens by source, or stop it"),
    Command(
        "compare", messages.compare_modes, arguments.MODES, "answer in several modes, side by side",
        key=CommandKey("f4", "chat.compare", "Compare plain, speculative and SSD"),
    ),
    Command(
        "thinking", settings.set_thinking, arguments.THINKING,
        "show or fold the model's thinking, or set how many tokens it may take",
        "set how many tokens the model may think: a number, on or off",
        key=CommandKey("ctrl+t", "chat.thinking", "Show or fold thinking"),
    ),
    Command(
        "log", _act("log"), NOTHING, "show or hide the log",
        key=CommandKey("ctrl+l", "chat.log", "Show or hide the log"),
    ),
    Command("theme", _act("theme"), arguments.THEME, "show or change the colours"),
    Command(
        "tools", set_tools, TEXT, "the tools that the model may use; NAME on or off switches some",
        "show the tools that the model may use; NAME on or off switches some",
    ),
    Command("vim", _act("vim"), NOTHING, "use vim keys in the prompt, or stop it"),
    Command(
        "tune", _act("tune"), arguments.TASKS, "find the fastest settings for this machine",
        key=CommandKey("f7", "chat.tune", "Find the fastest settings"),
    ),
    Command(
        "model", _act("model"), arguments.MODEL,
        "choose or download models; NAME opens one at once", aliases=("models",),
        key=CommandKey("f8", "chat.setup", "Choose the models"),
    ),
    Command(
        "fetch", _act("fetch"), NOTHING,
        "download the best models for this machine; again pauses, or opens downloaded ones",
        key=CommandKey("f9", "chat.fetch", "Download better models"),
    ),
    Command("setup", _act("setup"), NOTHING, "choose models for this machine, and download them"),
    Command(
        "reload", _act("reload"), NOTHING,
        "restart the model process, even if it hangs, and reload the models",
    ),
    Command("keys", _act("help"), NOTHING, "list the keys and how to change them"),
    Command("exit", _act("exit"), NOTHING, "quit", "quit, as Ctrl+D does", aliases=("quit",)),
)  # fmt: skip


def by_name(commands: Iterable[Command[Any]]) -> Mapping[str, Command[Any]]:
    """Return commands by all names that they can be called."""
    return {name: command for command in commands for name in command.names}


ON_SCREEN = tuple(command for command in COMMANDS if command.on_screen)
IN_LINES = tuple(command for command in COMMANDS if command.in_lines)
SCREEN_NAMES = by_name(ON_SCREEN)
LINE_NAMES = by_name(IN_LINES)
