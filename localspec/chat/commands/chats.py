"""Commands that change the whole chat, or add others."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from localspec.chat import foreign
from localspec.chat.chat_filter import tags_of
from localspec.chat.commands.arguments import ExportFormat
from localspec.chat.commands.command import CommandContext
from localspec.chat.commands.effects import ChangeChat, Effect, Say, SwitchChat
from localspec.chat.export import chat_text, read_chats
from localspec.chat.foreign.parts import LeftOut
from localspec.chat.references import path_named
from localspec.errors import UserError
from localspec.storage.paths import write_atomically
from localspec.units import counted


def export_chat(context: CommandContext, wanted: tuple[ExportFormat, str]) -> Iterator[Effect]:
    """Write the open chat to a new file."""
    (form, file), chat = wanted, context.session.chat
    target = path_named(file or f"chat-{chat.info.id}.{form}", context.folder)
    if os.path.exists(target):  # noqa: PTH110 - a name that no disk takes is refused in writing
        raise UserError(f"{target.name} exists already", f"choose another file: /export {form} FILE")
    write_atomically(target, chat_text(context.session.store, chat.info, form))
    yield Say(f"written to {target}")


def import_chats(context: CommandContext, name: str) -> Iterator[Effect]:
    """Add the chats of a file to the store, and open the last of them."""
    path = path_named(name, context.folder)
    store = context.session.store
    left_out: Counter[LeftOut] = Counter()
    found = read_chats(path, "", left_out)
    if not found:
        raise UserError(f"`{path.name}` contains no chats", "choose another file")
    added = [store.add_missing(*chat) for chat in found]
    store.fill_file()
    new = sum(each.is_new for each in added)
    grown = [each for each in added if not each.is_new and each.messages]
    there = len(added) - new - len(grown)
    lacking = foreign.in_words(left_out)
    summary = "; ".join([f"imported {counted(new, 'chat')}", *(each.growth() for each in grown)])
    summary += f"; {there} already there" * bool(there)
    yield Say(summary + f"; left out: {lacking}" * bool(lacking), is_long=True)
    yield SwitchChat(added[-1].chat.id)


def pin_chat(context: CommandContext, _argument: None) -> Iterator[Effect]:
    """Pin the open chat at the top of the list, or unpin it."""
    is_pinned = context.session.chat.info.pinned
    yield ChangeChat("pin")
    yield Say("no longer pinned" if is_pinned else "pinned at the top of the list; /pin again unpins it")


def rename_chat(context: CommandContext, title: str) -> Iterator[Effect]:
    """Give the open chat another title; tags stay, unless the new title has some."""
    tags = () if tags_of(title) else tags_of(context.session.chat.info.title)
    yield ChangeChat("rename", " ".join((*(f"#{tag}" for tag in tags), title)))


def move_chat(context: CommandContext, name: str) -> Iterator[Effect]:
    """Show the folder of the open chat, or move it to one; `-` takes it out."""
    chat = context.session.chat
    chat.last()  # a chat without a message is not in the list
    if not name:
        folders = ", ".join(context.session.store.folders())
        yield Say(f"this chat is in {chat.info.folder or 'no folder'}; folders: {folders or 'none yet'}")
        return
    yield ChangeChat("move", "" if name == "-" else name)
    yield Say("moved out of its folder" if name == "-" else f"moved to the folder {name}")


def tag_chat(context: CommandContext, names: str) -> Iterator[Effect]:
    """Put words with # before the title, where the list finds them, or take them away if all are there."""
    context.session.chat.last()  # a chat without a message is not in the list
    words = context.session.chat.info.title.split()
    tags = [f"#{word.lstrip('#')}" for word in dict.fromkeys(names.split()) if word.strip("#")]
    if not tags:
        raise UserError(f"`{names}` names no tag", "/tag work adds #work to the title")
    named = " and ".join(tags)
    if set(tags) <= set(words):
        words = [word for word in words if word not in tags]
        said = f"removed {named}; the same command again adds it"
    else:
        words = [*(tag for tag in reversed(tags) if tag not in words), *words]
        said = f"added {named}; the same command again removes it"
    yield ChangeChat("rename", " ".join(words))
    yield Say(said)
